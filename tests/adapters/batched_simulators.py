"""Simulators that step many copies at once, in the dialects of real ones, on PyTorch or NumPy.

Their arithmetic needs no more than the two libraries share, so all tests of the dialects run with
NumPy as well.
"""

import importlib
import math

import numpy as np
from gymnasium import spaces


class Copies:
    """The part that all have: time, its limit, and new episodes within a step.

    Observations are written into one tensor, step after step, as simulators do.

    Args:
        limit: steps of an episode, one number or one for each copy.
        says_final: whether info["final_obs"] has what a step reached.
    """

    device = "cpu"
    width = 4  # of an observation

    def __init__(self, num_envs=8, library="numpy", limit=500, says_final=False):
        self.xp, self.num_envs, self.says_final = (
            importlib.import_module(library),
            num_envs,
            says_final,
        )
        self.limit = self.tensor(np.broadcast_to(limit, num_envs).copy())
        self.max_episode_length = int(np.max(limit))
        self.time = self.tensor(np.zeros(num_envs, np.int64))
        self.state = self.tensor(np.zeros((num_envs, self.width), np.float32))
        self.buffer = self.tensor(aligned((num_envs, self.width)))
        self.rng = np.random.default_rng(0)
        self.is_closed = False

    def tensor(self, values):
        return values if self.xp is np else self.xp.from_numpy(values)

    def flags(self, values):
        return values.astype(bool) if self.xp is np else values.bool()

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.begin(self.flags(self.time == self.time))
        return self.observed(), {}

    def step(self, actions):
        reward, terminated = self.move(actions)
        self.time += 1
        truncated = self.time >= self.limit
        ended, info = terminated | truncated, {}
        if self.says_final:
            info["final_obs"] = self.seen(self.state) + 0
        self.begin(ended)
        return self.observed(), reward, terminated, truncated, info

    def begin(self, which):
        fresh = self.rng.uniform(-0.05, 0.05, (self.num_envs, self.width)).astype(np.float32)
        self.state = self.xp.where(which[:, None], self.tensor(fresh), self.state)
        self.time[which] = 0

    def observed(self):
        self.buffer[:] = self.seen(self.state)
        return self.buffer

    def seen(self, state):
        return state

    def close(self):
        self.is_closed = True


def aligned(shape):
    """An array that begins where JAX wants arrays to begin, as PyTorch's do."""
    size = math.prod(shape)
    room = np.zeros(size * 4 + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size * 4].view(np.float32).reshape(shape)


class CartPole(Copies):
    """Gymnasium's dialect; the rules of jaxrl's cartpole."""

    single_action_space = spaces.Discrete(2)
    single_observation_space = spaces.Box(-np.inf, np.inf, (4,))

    def move(self, actions):
        xp, state = self.xp, self.state
        x_dot, theta, theta_dot = (state[:, i] for i in (1, 2, 3))
        force = xp.where(actions == 1, 10.0, -10.0)
        if xp is np:
            force = force.astype(np.float32)
        sin, cos = xp.sin(theta), xp.cos(theta)
        push = (force + 0.05 * theta_dot * theta_dot * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        slide = push - 0.05 * turn * cos / 1.1
        rates = xp.stack([x_dot, slide, theta_dot, turn], -1)
        self.state = state + 0.02 * rates
        fallen = (abs(self.state[:, 0]) > 2.4) | (abs(self.state[:, 2]) > math.radians(12))
        return self.tensor(np.ones(self.num_envs, np.float32)), fallen


class Pendulum(Copies):
    """Gymnasium's dialect with groups: the critic also sees how much time has passed."""

    single_action_space = spaces.Box(-2, 2, (1,))
    width = 2

    def __init__(self, num_envs=8, library="numpy", limit=200, says_final=False):
        super().__init__(num_envs, library, limit, says_final)
        self.buffer = self.tensor(aligned((num_envs, 3)))

    def begin(self, which):
        angle = self.rng.uniform(-math.pi, math.pi, (self.num_envs, 1))
        fresh = np.concatenate([angle, self.rng.uniform(-1, 1, angle.shape)], 1)
        self.state = self.xp.where(
            which[:, None], self.tensor(fresh.astype(np.float32)), self.state
        )
        self.time[which] = 0

    def move(self, actions):
        angle, speed = self.state[:, 0], self.state[:, 1]
        torque = actions[:, 0].clip(-2, 2)
        upright = (angle + math.pi) % (2 * math.pi) - math.pi
        reward = -(upright**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = (speed + 0.05 * (15 * self.xp.sin(angle) + 3 * torque)).clip(-8, 8)
        self.state = self.xp.stack([angle + 0.05 * speed, speed], -1)
        return reward, angle > 1e9

    def seen(self, state):
        angle, speed = state[:, 0], state[:, 1]
        return self.xp.stack([self.xp.cos(angle), self.xp.sin(angle), speed / 8], -1)

    def observed(self):
        policy, passed = super().observed(), self.time[:, None] / self.max_episode_length
        critic = [policy, passed.astype(np.float32) if self.xp is np else passed.float()]
        return {"policy": policy, "critic": self.xp.concatenate(critic, 1)}

    def step(self, actions):
        obs, *rest, info = super().step(actions)
        if self.says_final:
            ones = self.tensor(np.ones((self.num_envs, 1), np.float32))
            final = info["final_obs"]
            info["final_obs"] = {"policy": final, "critic": self.xp.concatenate([final, ones], 1)}
        return obs, *rest, info


class RslRlPendulum:
    """rsl_rl's dialect: no spaces, no reset, dones as integers, the critic's part in extras."""

    device = "cpu"
    num_actions = 1

    def __init__(self, num_envs=8, library="numpy", limit=200):
        self.inner = Pendulum(num_envs, library, limit)
        self.num_envs, self.max_episode_length = num_envs, limit
        self.inner.reset(seed=0)

    def get_observations(self):
        obs = self.inner.observed()
        return obs["policy"], {"observations": obs}

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self.inner.step(actions)
        dones = (terminated | truncated) * 1
        extras = {"observations": obs, "time_outs": truncated * 1.0, "log": {}}
        return obs["policy"], reward, dones, extras


class LeggedPendulum(RslRlPendulum):
    """legged_gym's dialect: five results, the second one the critic's."""

    def reset(self):
        self.inner.reset(seed=0)
        obs = self.inner.observed()
        return obs["policy"], obs["critic"]

    def get_privileged_observations(self):
        return self.inner.observed()["critic"]

    def step(self, actions):
        obs, reward, dones, extras = super().step(actions)
        critic = extras.pop("observations")["critic"]
        return obs, critic, reward, dones, extras


class RlGamesPendulum:
    """rl_games' dialect: "obs" and "states", spaces of a copy, booleans."""

    device = "cpu"

    def __init__(self, num_envs=8, library="numpy", limit=200):
        self.inner, self.num_envs = Pendulum(num_envs, library, limit), num_envs
        self.action_space = spaces.Box(-2, 2, (1,))
        self.observation_space = spaces.Box(-10, 10, (3,))

    def reset(self):
        return self._seen(self.inner.reset(seed=0)[0])

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self.inner.step(actions)
        return self._seen(obs), reward, terminated | truncated, {"time_outs": truncated}

    def _seen(self, obs):
        return {"obs": obs["policy"], "states": obs["critic"]}


class Clock(Copies):
    """It shows how many steps its episode has; actions do nothing.

    Args:
        falls_at: the step in which episodes terminate; 0: in none.
        has_critic: whether a critic's group shows the time, and the policy's 0.
    """

    single_action_space = spaces.Box(-1, 1, (1,))
    width = 1

    def __init__(
        self, num_envs=8, library="numpy", limit=100, says_final=False, falls_at=0, has_critic=False
    ):
        super().__init__(num_envs, library, limit, says_final)
        self.falls_at, self.has_critic = falls_at, has_critic

    def begin(self, which):
        self.time[which] = 0

    def move(self, actions):
        ones = self.tensor(np.ones(self.num_envs, np.float32))
        return ones, self.time + 1 == (self.falls_at or -1)

    def seen(self, state):
        return self.time[:, None] + self.state

    def observed(self):
        obs = super().observed()
        return {"policy": obs * 0, "critic": obs} if self.has_critic else obs

    def step(self, actions):
        obs, *rest, info = super().step(actions)
        if self.has_critic and self.says_final:
            final = info["final_obs"]
            info["final_obs"] = {"policy": final * 0, "critic": final}
        return obs, *rest, info
