"""Pursuit in plain NumPy: slow, one body after the other, to test the fast one.

Written from the rules alone. Nothing here is random but `sample_start`: the evaders' actions are an
argument of `step`.
"""

import numpy as np

MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1), (0, 0))
NEIGHBOURS = MOVES[:4]


class PlainPursuit:
    """One pursuit.

    Attributes:
        pursuers: list of (x, y).
        evaders: list of (x, y), None for those that are gone.
        frames: steps since the start.
    """

    def __init__(self, x_size=16, y_size=16, n_evaders=30, n_pursuers=8, obs_range=7,
                 shared_reward=True, surround=True, max_cycles=500, n_catch=2, tag_reward=0.01,
                 catch_reward=5.0, urgency_reward=-0.1, freeze_evaders=False):  # fmt: skip
        self.size = (x_size, y_size)
        self.n_pursuers, self.n_evaders, self.obs_range = n_pursuers, n_evaders, obs_range
        self.shared_reward = shared_reward
        self.surround = surround
        self.max_cycles = max_cycles
        self.n_catch = n_catch
        self.tag_reward = tag_reward
        self.catch_reward = catch_reward
        self.urgency_reward = urgency_reward
        self.freeze_evaders = freeze_evaders
        self.solid = {
            (i, j)
            for i in range(x_size)
            for j in range(y_size)
            if 0.3 < i / x_size < 1 - 0.3 and 0.2 < j / y_size < 1 - 0.2
        }

    def put(self, pursuers, evaders, frames=0):
        """Sets the state; returns the observations."""
        self.pursuers = [tuple(map(int, cell)) for cell in pursuers]
        self.evaders = [None if cell is None else tuple(map(int, cell)) for cell in evaders]
        self.frames = frames
        return self.observations()

    def step(self, actions, evader_actions):
        """(observations, rewards, terminated, truncated, number of evaders caught)."""
        n = self.n_pursuers
        rewards = np.zeros(n)
        for k in range(n):
            self.pursuers[k] = self.moved(self.pursuers[k], actions[k])
            for i in range(n):
                rewards[i] += self.tag_reward * self.tagged(self.pursuers[i]) / n
        caught, credited = [], set()
        for j, cell in enumerate(self.evaders):
            credit = None if cell is None else self.catchers(cell)
            if credit is not None:
                caught.append(j)
                credited |= credit
        for j in caught:
            self.evaders[j] = None
        for j, cell in enumerate(self.evaders):
            if cell is not None:
                self.evaders[j] = self.moved(cell, 4 if self.freeze_evaders else evader_actions[j])
        for i in range(n):
            rewards[i] += self.catch_reward * (i in credited) + self.urgency_reward
        if self.shared_reward:
            rewards[:] = rewards.mean()
        self.frames += 1
        truncated = self.frames >= self.max_cycles
        terminated = not truncated and all(cell is None for cell in self.evaders)
        return self.observations(), rewards, terminated, truncated, len(caught)

    def is_free(self, cell):
        return all(0 <= cell[k] < self.size[k] for k in (0, 1)) and cell not in self.solid

    def moved(self, cell, action):
        target = (cell[0] + MOVES[action][0], cell[1] + MOVES[action][1])
        return target if self.is_free(target) else cell

    def tagged(self, cell):
        """The number of evaders in the four neighbours, each clipped to the grid."""
        total = 0
        for dx, dy in NEIGHBOURS:
            x = min(max(cell[0] + dx, 0), self.size[0] - 1)
            y = min(max(cell[1] + dy, 0), self.size[1] - 1)
            clipped = (x, y)
            total += sum(evader == clipped for evader in self.evaders)
        return total

    def catchers(self, cell):
        """The pursuers that catch an evader in this cell, None where it is not caught."""
        if not self.surround:
            here = {i for i, pursuer in enumerate(self.pursuers) if pursuer == cell}
            return here if len(here) >= self.n_catch else None
        around = [(cell[0] + dx, cell[1] + dy) for dx, dy in NEIGHBOURS]
        need = sum(map(self.is_free, around))
        have = len({pursuer for pursuer in self.pursuers if pursuer in around})
        catchers = {i for i, pursuer in enumerate(self.pursuers) if pursuer in around}
        return catchers if have == need else None

    def observations(self):
        """[n, y, x, channel]."""
        off = (self.obs_range - 1) // 2
        result = np.zeros((self.n_pursuers, self.obs_range, self.obs_range, 3))
        result[..., 0] = 1
        for i, (x, y) in enumerate(self.pursuers):
            for dx in range(-off, off + 1):
                for dy in range(-off, off + 1):
                    cell = (x + dx, y + dy)
                    result[i, dy + off, dx + off] = (
                        not self.is_free(cell),
                        sum(pursuer == cell for pursuer in self.pursuers),
                        sum(evader == cell for evader in self.evaders),
                    )
        return result

    def sample_start(self, random, number, window=((0, 0), None)):
        """Cells of `number` bodies, by rejection of draws that are solid or blocked."""
        (x_low, y_low), (x_high, y_high) = window[0], window[1] or self.size
        blocked, cells = set(), []
        while len(cells) < number:
            x, y = int(random.integers(x_low, x_high)), int(random.integers(y_low, y_high))
            if self.is_free((x, y)) and (x, y) not in blocked:
                cells.append((x, y))
                blocked |= {(x, y), (x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)}
        return cells
