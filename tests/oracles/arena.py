"""The MultiAgentArena in plain Python: slow, for any grid, to test the fast one.

Written from the rules alone: `agent1` explores, `agent2` hunts it. Nothing here is random, because
who moves first is an argument of `step`.
"""

AGENTS = ("agent1", "agent2")
MOVES = (
    (-1, 0),
    (0, 1),
    (1, 0),
    (0, -1),
)  # (rows, columns) of the actions 0 up, 1 right, 2 down, 3 left


class PlainArena:
    """One arena, to be reset before its first step (the constructor does it).

    Attributes:
        positions: the (row, column) of each agent, by agent id.
        visited: the set of (row, column) cells that agent1 was recorded on; empty after a reset.
        time: steps since the reset.
        new_fields_discovered: steps since the reset in which agent1 was paid +1.0.
        num_collisions: steps since the reset in which agent2 was paid +1.0.
    """

    def __init__(self, height=10, width=10, max_steps=100):
        self.height, self.width, self.max_steps = height, width, max_steps
        self.reset()

    def reset(self):
        """Returns the first observations, {agent id: (its cell, the other's cell)}."""
        self.positions = {"agent1": (0, 0), "agent2": (self.height - 1, self.width - 1)}
        self.visited = set()
        self.time = self.new_fields_discovered = self.num_collisions = 0
        return self._observations()

    def step(self, action1, action2, first):
        """Move both agents, agent `first` (1 or 2) before the other.

        Returns:
            (observations, rewards, events, truncated): two dicts by agent id; `events` with two
            bools, each whether it happened in this step, to either agent (`new_field` is also True
            when a collision took its reward away); and whether the time is up.
        """
        actions = {"agent1": action1, "agent2": action2}
        order = {1: AGENTS, 2: AGENTS[::-1]}[first]
        happened = [self._move(agent, actions[agent]) for agent in order]
        events = {"new_field": "new field" in happened, "collision": "collision" in happened}
        rewards = _rewards(**events)
        self.time += 1
        self.new_fields_discovered += rewards["agent1"] == 1.0
        self.num_collisions += rewards["agent2"] == 1.0
        return self._observations(), rewards, events, self.time >= self.max_steps

    def _move(self, agent, action):
        """Move one agent by the rules; return "collision", "new field" or None."""
        (row, column), (rows, columns) = self.positions[agent], MOVES[action]
        target = (row + rows, column + columns)
        if target == self.positions[_other(agent)]:
            return "collision"
        cell = (min(max(target[0], 0), self.height - 1), min(max(target[1], 0), self.width - 1))
        self.positions[agent] = cell
        if agent == "agent1" and cell not in self.visited:
            self.visited.add(cell)
            return "new field"
        return None

    def _observations(self):
        cells = {
            agent: row * self.width + column for agent, (row, column) in self.positions.items()
        }
        return {agent: (cells[agent], cells[_other(agent)]) for agent in AGENTS}


def _other(agent):
    return "agent2" if agent == "agent1" else "agent1"


def _rewards(new_field, collision):
    if collision:
        return {"agent1": -1.0, "agent2": 1.0}
    return {"agent1": 1.0 if new_field else -0.5, "agent2": -0.1}
