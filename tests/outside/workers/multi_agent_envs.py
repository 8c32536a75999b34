"""Environments of several agents as people write them for RLlib; importable in workers too."""

import numpy as np
from gymnasium import spaces


class MultiAgentEnv:
    """In place of RLlib's base class."""

    observation_spaces = action_spaces = observation_space = action_space = None
    agents, possible_agents = [], []


class MultiAgentArena:
    """A tutorial's first cell: two explorers of a grid; no base class, and the former form."""

    def __init__(self, config=None):
        config = config or {}
        self.width, self.height = config.get("width", 10), config.get("height", 10)
        self.timestep_limit = config.get("ts", 100)
        cells = self.width * self.height
        self.observation_space = spaces.MultiDiscrete([cells, cells])
        self.action_space = spaces.Discrete(4)
        self.reset()

    def reset(self):
        self.places = {"agent1": [0, 0], "agent2": [self.height - 1, self.width - 1]}
        self.visited, self.timesteps = {(0, 0)}, 0
        return self._obs()

    def step(self, action):
        self.timesteps += 1
        reward = {}
        for agent, move in action.items():
            place = self.places[agent]
            place[move % 2] += (-1, 1, 1, -1)[move]
            place[0] = min(max(place[0], 0), self.height - 1)
            place[1] = min(max(place[1], 0), self.width - 1)
            is_new = agent == "agent1" and tuple(place) not in self.visited
            self.visited.add(tuple(place))
            reward[agent] = 1.0 if is_new else -0.5
        done = self.timesteps >= self.timestep_limit
        dones = {"agent1": done, "agent2": done, "__all__": done}
        return self._obs(), reward, dones, {"agent1": {}, "agent2": {}}

    def _obs(self):
        cells = {agent: row * self.width + column for agent, (row, column) in self.places.items()}
        return {
            "agent1": np.array([cells["agent1"], cells["agent2"]]),
            "agent2": np.array([cells["agent2"], cells["agent1"]]),
        }


class Relay(MultiAgentEnv):
    """Two runners in turn: only who is asked sees; both are paid in each step; six steps."""

    def __init__(self, config):
        self.length, self.ends = config.get("length", 6), config.get("ends", "terminated")
        self.worker = config.worker_index
        self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys("ab", spaces.Box(-1, 50, (1,), np.float32))
        self.action_spaces = {"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (2,))}

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return {"a": np.zeros(1, np.float32)}, {"a": {}}

    def step(self, actions):
        (agent,) = actions
        assert agent == "ab"[self.steps % 2]
        self.steps += 1
        end = self.steps == self.length
        shown = "ab" if end else "ab"[self.steps % 2]
        obs = {agent: np.full(1, self.steps, np.float32) for agent in shown}
        flags = {"__all__": end}, {"__all__": False}
        return (
            obs,
            {"a": 1.0, "b": -1.0},
            *(flags if self.ends == "terminated" else flags[::-1]),
            {},
        )


class Guests(MultiAgentEnv):
    """A host stays; guest i is there from step i on for two steps, and ends alone."""

    def __init__(self, config=None):
        self.possible_agents = ["host", "guest1", "guest2"]
        self.observation_space = spaces.Discrete(9)
        self.action_space = spaces.Discrete(2)

    def get_observation_space(self, agent):
        return self.observation_space

    def get_action_space(self, agent):
        return self.action_space

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return {"host": 0}, {}

    def step(self, actions):
        self.steps += 1
        there = [f"guest{i}" for i in (1, 2) if i <= self.steps <= i + 2]
        leaves = {f"guest{i}": True for i in (1, 2) if self.steps == i + 2}
        obs = dict.fromkeys(["host", *there], self.steps)
        rewards = dict.fromkeys(actions, 1.0)
        return obs, rewards, {**leaves, "__all__": self.steps == 6}, {"__all__": False}, {}
