"""Python environments for the tests of workers; importable in a worker process too."""

import os
import random
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

RAISE, NAN, SHAPE, HANG, EXIT, REWARD = "raise", "nan", "shape", "hang", "exit", "reward"


class Counter(gymnasium.Env):
    """Observes (a number drawn by the seed, steps, last action); ends after `length` steps.

    Args:
        fault: what happens in step `at` of the episodes whose drawn number is below `share`; step
            0 is the reset.
    """

    def __init__(self, length=5, fault=None, at=3, share=1.0):
        self.length, self.fault, self.at, self.share = length, fault, at, share
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn, self.steps = self.np_random.random(), 0
        if self._is_due():
            self._fail()
        return self._obs(0), {}

    def step(self, action):
        self.steps += 1
        obs, reward = self._obs(action), float(action)
        if self._is_due():
            self._fail()
            obs = {NAN: np.full(3, np.nan, np.float32), SHAPE: obs[:2]}.get(self.fault, obs)
            reward = float("nan") if self.fault == REWARD else reward
        info = {"metrics": {"actions": float(action)}}
        return obs, reward, self.steps == self.length, False, info

    def _is_due(self):
        return self.fault and self.steps == self.at and self.drawn < self.share

    def _fail(self):
        if self.fault == RAISE:
            raise RuntimeError("the simulator is gone")
        if self.fault == EXIT:
            os._exit(3)
        if self.fault == HANG:
            time.sleep(1000)

    def _obs(self, action):
        return np.array([self.drawn, self.steps, action], np.float32)


class Informed(Counter):
    """Gives steps among its infos, by an array that it changes, and what cannot be sent."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.place = np.zeros(1, int)

    def reset(self, **kwargs):
        self.place[:] = 0
        return super().reset(**kwargs)

    def step(self, action):
        *results, info = super().step(action)
        self.place += 1
        return *results, info | {"steps": self.steps, "places": [self.place], "module": sys}


class Gambler(gymnasium.Env):
    """Draws from generators that the process shares, and ends by chance.

    It observes what was drawn when it was made, in the reset, and in the step: by Python, by NumPy
    (a normal number), by its action space, and by whatever `draw` is.
    """

    def __init__(self, draw=None):
        self.draw, self.place = draw or random.random, random.uniform(1, 2)
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float64)
        self.action_space = spaces.Discrete(1000)

    def reset(self, *, seed=None, options=None):
        self.begun = random.random()
        return self._obs(), {}

    def step(self, action):
        return self._obs(), 1.0, random.random() < 0.1, False, {}

    def _obs(self):
        drawn = self.draw(), np.random.randn(), self.action_space.sample()
        return np.array([self.place, self.begun, *drawn])


class Painted(Counter):
    """Renders its number of steps as a shade of grey."""

    def __init__(self, render_mode=None, **arguments):
        super().__init__(**arguments)
        self.render_mode = render_mode

    def render(self):
        return np.full((40, 60, 3), 10 * self.steps % 256, np.uint8)


class Ended(gymnasium.Env):
    """Reaches its time limit and its goal in the same step; observes a structure."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Discrete(3, start=10),
            "left": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([3, 2]))),
            "far": spaces.Box(-1, 1, (2,), np.float64),
        }
    )
    action_space = spaces.Box(-2, 2, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        return self._obs([0, 0]), {"action": None}

    def step(self, action):
        assert action.dtype == np.float64
        return self._obs(action), 1.0, True, True, {}

    def _obs(self, action):
        left = np.array([1, 0], np.int8), np.array([2, 1])
        return {"place": 11, "left": left, "far": np.array(action, np.float64) / 2}


class Leavers(ParallelEnv):
    """Agent i leaves after i + 1 steps; the episode of the last one is cut."""

    metadata = {"name": "leavers"}  # noqa: RUF012

    def __init__(self, num_agents=3):
        self.possible_agents = [f"a{i}" for i in range(num_agents)]

    def observation_space(self, agent):
        return spaces.Box(0, 100, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        self.random = np.random.default_rng(seed)
        return self._obs(), {agent: self._info(agent) for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents
        self.steps += 1
        present, last = self.agents, self.possible_agents[-1]
        obs = self._obs()
        ended = {agent: self.steps > int(agent[1:]) for agent in present}
        terminated = {agent: ended[agent] and agent != last for agent in present}
        truncated = {agent: ended[agent] and agent == last for agent in present}
        self.agents = [agent for agent in present if not ended[agent]]
        rewards = {agent: float(actions[agent]) for agent in present}
        return obs, rewards, terminated, truncated, {agent: self._info(agent) for agent in present}

    def _obs(self):
        return {agent: np.array([self.steps, self.random.random()], "f") for agent in self.agents}

    def _info(self, agent):
        return {"action_mask": np.array([1, self.steps % 2, 1], np.int8)}


class Nim(AECEnv):
    """Two players take 1 or 2 of five sticks in turn; who takes the last one wins."""

    metadata = {"name": "nim", "is_parallelizable": False}  # noqa: RUF012
    possible_agents = ["first", "second"]  # noqa: RUF012

    def observation_space(self, agent):
        sticks = spaces.Discrete(6)
        return spaces.Dict({"observation": sticks, "action_mask": spaces.MultiBinary(2)})

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        mask = np.array([1, self.sticks >= 2], np.int8)
        return {"observation": self.sticks, "action_mask": mask}

    def reset(self, seed=None, options=None):
        self.agents, self.sticks = list(self.possible_agents), 5
        self.agent_selection = "first"
        zeros = dict.fromkeys(self.agents, 0.0)
        self.rewards, self._cumulative_rewards = dict(zeros), dict(zeros)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._inform()

    def _inform(self):
        self.infos = {agent: {"sticks": self.sticks} for agent in self.agents}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        other = self.possible_agents[agent == "first"]
        self.sticks = max(self.sticks - action - 1, 0)
        self._inform()
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if not self.sticks:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other


class Sloppy(Leavers):
    """Forgets to take ended agents off the list."""

    def step(self, actions):
        self.agents = list(actions)
        results = super().step(actions)
        self.agents = list(self.possible_agents)
        return results


def function():
    return Counter(length=2)


def not_an_environment():
    return 3


class Modules(Counter):
    """Observes whether JAX is there; reports the process, and how many descriptors it has."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        obs[2] = "jax" in sys.modules
        return obs, reward, terminated, truncated, {"metrics": {"pid": float(os.getpid())}}


class Brief(Counter):
    """Can be made `times` times in all, counted in a file."""

    def __init__(self, file, times):
        super().__init__()
        with open(file, "a") as counted:
            counted.write("x")
        if os.path.getsize(file) > times:
            raise RuntimeError("no licence left")


class Licensed(Counter):
    """Can be made in one process alone."""

    def __init__(self, pid):
        super().__init__()
        if os.getpid() != pid:
            raise RuntimeError("no licence here")


def arena():
    """The compiled arena as a PettingZoo environment: it needs all of jaxrl in the worker."""
    import jaxrl

    return jaxrl.to_pettingzoo("arena")


class Slow(Counter):
    """A step takes a millisecond."""

    def step(self, action):
        time.sleep(1e-3)
        return super().step(action)
