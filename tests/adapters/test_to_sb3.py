"""Environments as Stable-Baselines3's: episodes, infos and masks as it wants them.

Where it is not installed, a stand-in has the few methods of its base class that are inherited.
"""

import copy
import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest

from jaxrl import to_gymnasium, to_gymnasium_vector, to_sb3_vec
from tests.messages import refused
from tests.probes import Forbidden, Watch

IS_INSTALLED = importlib.util.find_spec("stable_baselines3") is not None


class StandIn:
    def __init__(self, num_envs, observation_space, action_space):
        self.num_envs = num_envs
        self.observation_space, self.action_space = observation_space, action_space
        (self.render_mode,) = set(self.get_attr("render_mode"))
        self._reset_seeds()

    def _reset_seeds(self):
        self._seeds = [None] * self.num_envs

    def _reset_options(self):
        pass

    def _get_indices(self, indices):
        return range(self.num_envs) if indices is None else indices

    def seed(self, seed):
        self._seeds = [seed + i for i in range(self.num_envs)]

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()


@pytest.fixture(autouse=True)
def stable_baselines3(monkeypatch):
    if not IS_INSTALLED:
        for name in ("", ".common", ".common.vec_env"):
            monkeypatch.setitem(sys.modules, f"stable_baselines3{name}", ModuleType("stand_in"))
        sys.modules["stable_baselines3.common.vec_env"].VecEnv = StandIn


def test_an_episode_that_ended_is_reset_and_its_info_has_the_last_observation():
    envs = to_sb3_vec(Watch(), 2)
    assert envs.reset().tolist() == [[0], [0]]
    steps = [envs.step(np.array(actions)) for actions in ([0, 1], [0, 0], [0, 0])]
    assert [step[0][:, 0].tolist() for step in steps] == [[1, 0], [2, 1], [0, 2]]
    assert [step[1].tolist() for step in steps] == [[10, 10], [20, 10], [30, 20]]
    assert [step[2].tolist() for step in steps] == [[False, True], [False, False], [True, False]]
    first, second, third = (step[3] for step in steps)
    assert first[0] == {"metrics": {"late": 1}}
    end = {"metrics": {"late": 1}, "terminal_observation": [1], "TimeLimit.truncated": False}
    assert first[1] == end
    assert second == [{"metrics": {"late": 2}}, {"metrics": {"late": 1}}]
    assert third[0]["TimeLimit.truncated"] is True
    assert third[0]["terminal_observation"].tolist() == [3]


@pytest.mark.long
def test_episodes_are_those_of_gymnasiums_environments_with_the_same_seed():
    envs, expected = to_sb3_vec("cartpole", 3), to_gymnasium_vector("cartpole", 3)
    envs.seed(11)
    np.testing.assert_array_equal(envs.reset(), expected.reset(seed=11)[0])
    for i in range(5):
        actions = np.full(3, i % 2)
        obs, expected_obs = envs.step(actions)[0], expected.step(actions)[0]
        np.testing.assert_allclose(obs, expected_obs, rtol=1e-5)
    envs.seed(2**32 - 1)
    assert len({tuple(row) for row in envs.reset()}) == 3


@pytest.mark.long
def test_masks_are_found_by_the_name_that_maskable_ppo_asks_for():
    envs = to_sb3_vec(Forbidden(), 3)
    first = np.stack(envs.env_method("action_masks"))  # before the first reset
    assert first.dtype == bool and first.all() and first.shape == envs.reset().shape
    for observe in (envs.reset, lambda: envs.step(np.zeros(3, int))[0]):
        obs = observe()
        masks = np.stack(envs.env_method("action_masks"))
        assert masks.dtype == bool
        np.testing.assert_array_equal(masks, obs == 1)
    with pytest.raises(AttributeError):
        to_sb3_vec(Watch(), 2).get_attr("action_masks")


def test_one_environment_has_its_masks_by_that_name_too():
    env = to_gymnasium(Forbidden())
    assert env.action_masks().all()
    assert env.action_masks().dtype == bool
    obs, info = env.reset(seed=0)
    np.testing.assert_array_equal(env.action_masks(), obs == 1)
    np.testing.assert_array_equal(env.action_masks(), info["action_mask"])
    obs = env.step(int(np.argmax(obs)))[0]
    np.testing.assert_array_equal(copy.deepcopy(env).action_masks(), obs == 1)
    assert not hasattr(to_gymnasium(Watch()), "action_masks")


def test_results_may_be_written_and_pictures_are_one_for_each():
    envs = to_sb3_vec("cartpole", 2, render_mode="rgb_array")
    assert envs.reset().flags.writeable
    assert [picture.shape for picture in envs.get_images()] == [(200, 300, 3)] * 2
    assert envs.env_is_wrapped(object) == [False, False]


test_bad_input_is_refused_in_one_line = refused(
    [
        (lambda: to_sb3_vec("arena", 2), "to_sb3_vec takes an environment of one agent"),
        (lambda: to_sb3_vec("cartpole", 0), "num_envs=0 must be an integer of at least 1"),
        (lambda: to_sb3_vec("cartpole", 1).set_attr("gravity", 5), "gravity cannot be set"),
    ]
)


@pytest.mark.skipif(not IS_INSTALLED, reason="needs Stable-Baselines3, which needs torch")
def test_stable_baselines3_trains_on_them():
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    envs = VecMonitor(to_sb3_vec("cartpole", 8))
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, device="cpu", seed=0)
    model.learn(512)
    assert model.num_timesteps == 512
    assert 5 < np.mean([episode["l"] for episode in model.ep_info_buffer]) < 100
