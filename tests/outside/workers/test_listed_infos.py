"""Vector environments of Stable-Baselines3 and SuperSuit, as classes with their interfaces."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.outside.workers.python_env import make_vector_env

LENGTHS = np.array([2, 3])  # of each copy's episodes; the second one's are cut


class VecEnv:
    """As Stable-Baselines3's: observations are (steps of the episode, episodes before)."""

    num_envs = 2
    observation_space = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, reached="terminal_observation"):
        self.reached, self.reset_infos, self.seeds = reached, [], []

    def seed(self, seed=None):
        self.seeds.append(seed)

    def reset(self):
        self.steps, self.episodes = np.zeros(2), np.zeros(2)
        self.reset_infos = [{}, {}]
        return self._obs()

    def step(self, actions):
        self.actions, self.steps = np.array(actions), self.steps + 1
        reached, done = self._obs(), self.steps == LENGTHS
        infos = [{"metrics": {"speed": number}} for number in range(2)]
        for row in np.flatnonzero(done):
            infos[row][self.reached] = reached[row]
            infos[row]["TimeLimit.truncated"] = bool(row == 1)
        self.episodes, self.steps = self.episodes + done, np.where(done, 0, self.steps)
        return self._obs(), np.array([1.0, 10.0]), done, infos

    def close(self):
        pass

    def _obs(self):
        return np.stack([self.steps, self.episodes], axis=1).astype(np.float32)


class Masked(VecEnv):
    """The mask of the next action is what `action_masks` gives."""

    def has_attr(self, name):
        return name == "action_masks"

    def env_method(self, name):
        return [np.array([True, False, steps == 0]) for steps in self.steps]


class InInfos(VecEnv):
    """The mask is in the infos, that of a new episode in `reset_infos`."""

    def reset(self):
        obs = super().reset()
        self.reset_infos = [{"action_mask": [1, 0, 1]} for _ in range(2)]
        return obs

    def step(self, actions):
        *results, infos = super().step(actions)
        return *results, [info | {"action_mask": [1, 0, 0]} for info in infos]


class ConcatVecEnv(VecEnv, gymnasium.vector.VectorEnv):
    """As SuperSuit's: Gymnasium's class with five results, flags of bytes and a list of infos."""

    seed = reset_infos = property()  # it has neither

    def __init__(self):
        self.reached, self.seeds = "terminal_observation", []

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.steps, self.episodes = np.zeros(2), np.zeros(2)
        return self._obs(), [[]]  # of its processes

    def step(self, actions):
        obs, rewards, done, infos = super().step(actions)
        cut = np.array([False, True])
        ends = ((done & flags).astype(np.uint8) for flags in (~cut, cut))
        return obs, rewards.astype(np.float32), *ends, infos


def played(env, num_steps):
    envs = make_vector_env(env, 2, num_workers=0)
    envs.reset(np.array([7, 8], np.uint32))
    steps = []
    for _ in range(num_steps):
        envs.send(0, {DEFAULT_AGENT: np.array([-1, 1])})
        step = envs.receive(0)
        copied = {name: np.array(getattr(step, name)) for name in ("terminated", "truncated")}
        obs, final = (np.array(each[DEFAULT_AGENT]) for each in (step.obs, step.final_obs))
        masks = step.action_mask and np.array(step.action_mask[DEFAULT_AGENT])
        copied |= {"obs": obs, "final": final, "masks": masks, "reward": np.array(step.reward)}
        steps.append(copied | {"speed": np.array(step.metrics["speed"])})
    return steps


@pytest.mark.parametrize("make", [VecEnv, ConcatVecEnv])
def test_an_ended_copy_shows_what_it_reached_and_goes_on_from_its_next_episode(make):
    env = make()
    first, second, third = played(env, 3)
    np.testing.assert_array_equal(env.actions, [-1, 1])
    assert not first["terminated"].any() and not first["truncated"].any()
    np.testing.assert_array_equal(second["terminated"][:, 0], [True, False])
    np.testing.assert_array_equal(second["final"], [[2, 0], [2, 0]])
    np.testing.assert_array_equal(second["obs"], [[0, 1], [2, 0]])
    np.testing.assert_array_equal(third["truncated"][:, 0], [False, True])
    np.testing.assert_array_equal(third["final"], [[1, 1], [3, 0]])
    np.testing.assert_array_equal(third["obs"], [[1, 1], [0, 1]])
    np.testing.assert_array_equal(third["reward"][:, 0], [1, 10])
    np.testing.assert_array_equal(third["speed"], [0, 1])
    assert env.seeds[-1] == 7


@pytest.mark.parametrize("make", [Masked, InInfos])
def test_masks_are_those_of_the_next_action_in_a_new_episode_too(make):
    first, second = played(make(), 2)
    np.testing.assert_array_equal(first["masks"], [[1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(second["masks"], [[1, 0, 1], [1, 0, 0]])


def test_a_copy_that_ends_without_its_last_observation_drops_the_episodes(caplog):
    assert played(VecEnv(reached="last"), 2)[1]["obs"].tolist() == [[0, 0], [0, 0]]
    assert "copy 0 has ended, and its info has no 'terminal_observation'" in caplog.text


def test_infos_of_another_form_are_refused_at_the_start():
    class Odd(VecEnv):
        def step(self, actions):
            return *super().step(actions)[:3], {}

    with pytest.raises(jaxrl.UsageError, match=r"infos are \{\}, not a list of a dict"):
        jaxrl.PPOConfig(env=Odd, num_envs=2).setup()
