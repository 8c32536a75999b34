"""Environments as Gymnasium's: its checker, the same numbers as ours, every autoreset mode."""

import copy
from dataclasses import dataclass

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

import jaxrl
from jaxrl import UsageError, to_gymnasium, to_gymnasium_vector
from jaxrl.core.spaces import Box, Discrete, Tuple
from tests.messages import refused
from tests.probes import Forbidden, Probe, Watch

SHORT_POLE = jaxrl.make("cartpole", max_steps_in_episode=15)
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


@dataclass(frozen=True)
class Pair(Watch):
    """Acts by a tuple: the time ends by its first part, and the reward is its second."""

    def action_space(self, params=None):
        return Tuple((Discrete(2), Box(-1.0, 1.0, (2,))))

    def step_env(self, key, state, action, params):
        obs, state, _, terminated, _ = super().step_env(key, state, action[0], params)
        return obs, state, action[1].sum(), terminated, {}


@pytest.mark.parametrize(
    "env",
    ["cartpole", "gymnax:Catch-bsuite", Forbidden(), Forbidden("part"), Probe(3)],
    ids=["cartpole", "gymnax", "masks", "dict", "discrete"],
)
def test_gymnasiums_own_checker_finds_nothing(env):
    with jax.numpy_rank_promotion("allow"):  # which gymnax's own code needs
        check_env(to_gymnasium(env))


@pytest.mark.long
def test_the_same_keys_and_actions_give_what_our_own_environment_gives():
    env, params = SHORT_POLE
    step_env, reset_env = jax.jit(env.step_env), jax.jit(env.reset_env)
    key, count, rng = jax.random.key(7), 0, np.random.default_rng(0)

    def next_key():
        nonlocal count
        count += 1
        return jax.random.fold_in(key, count - 1)

    adapted = to_gymnasium(env, params)
    ends = []
    obs, info = adapted.reset(seed=7)
    expected, state = reset_env(jax.random.fold_in(next_key(), 0), params)
    for _ in range(2000):
        np.testing.assert_array_equal(obs, expected)
        assert info == {}
        action = rng.integers(2)
        obs, reward, terminated, truncated, info = adapted.step(action)
        expected, state, expected_reward, fallen, _ = step_env(next_key(), state, action, params)
        late = bool(env.is_truncated(state, params)) and not fallen
        assert (reward, terminated, truncated) == (expected_reward, fallen, late)
        if terminated or truncated:
            ends.append(terminated)
            np.testing.assert_array_equal(obs, expected)
            obs, info = adapted.reset()
            expected, state = reset_env(jax.random.fold_in(next_key(), 0), params)
    assert {True, False} == set(ends)


@pytest.mark.long
@pytest.mark.parametrize("env", [SHORT_POLE, (Forbidden(), None)], ids=["cartpole", "masks"])
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_many_environments_are_as_many_single_ones(env, mode):
    """As Gymnasium's own SyncVectorEnv steps and resets them, infos included."""
    envs = to_gymnasium_vector(env[0], 3, env[1], autoreset_mode=mode)
    single = [lambda: to_gymnasium(*env)] * 3
    expected = SyncVectorEnv(single, autoreset_mode=mode)
    assert envs.observation_space == expected.observation_space
    assert envs.action_space == expected.action_space
    envs.action_space.seed(0)
    same(envs.reset(seed=5), expected.reset(seed=5))
    for _ in range(700):
        actions = envs.action_space.sample()
        results, expected_results = envs.step(actions), expected.step(actions)
        for name in ("action_mask", "_action_mask"):  # of a state in which nobody acts
            expected_results[-1].get("final_info", {}).pop(name, None)
        same(results, expected_results)
        ended = results[2] | results[3]
        if mode == DISABLED and ended.any():
            both = (each.reset(options={"reset_mask": ended}) for each in (envs, expected))
            same(*both)
    same(envs.reset(seed=[9, None, 5]), expected.reset(seed=[9, None, 5]))


def same(results, expected):
    """Equal up to the rounding of two programs."""
    *arrays, info = results
    *expected_arrays, expected_info = expected
    for array, expected_array in zip(arrays, expected_arrays, strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-4, atol=1e-6)
    assert data_equivalence(plain(info), plain(expected_info)), (info, expected_info)


def plain(info):
    return {
        name: plain(value) if isinstance(value, dict) else list(value)
        for name, value in info.items()
    }


def steps_of(envs, actions):
    for action in actions:
        obs, rewards, terminated, truncated, info = envs.step(np.array(action))
        yield obs[:, 0].tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist(), info


def test_next_step_resets_in_the_step_after_the_end_which_has_no_action_and_no_reward():
    envs = to_gymnasium_vector(Watch(), 2, autoreset_mode=NEXT_STEP)
    envs.reset(seed=0)
    first, second, third, fourth = steps_of(envs, [[0, 1], [0, 1], [0, 0], [1, 0]])
    assert first[:4] == ([1, 1], [10, 10], [False, True], [False, False])
    assert second[:4] == ([2, 0], [20, 0], [False, False], [False, False])
    assert third[:4] == ([3, 1], [30, 10], [False, False], [True, False])
    assert fourth[:4] == ([0, 2], [0, 20], [False, False], [False, False])
    assert second[4]["metrics"]["late"].tolist() == [2, 0]
    assert second[4]["_metrics"].tolist() == [True, False]


def test_same_step_resets_at_once_and_the_info_has_what_the_step_reached():
    envs = to_gymnasium_vector(Watch(), 2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    first, second, third = steps_of(envs, [[0, 1], [0, 0], [0, 0]])
    assert first[:4] == ([1, 0], [10, 10], [False, True], [False, False])
    assert second[:4] == ([2, 1], [20, 10], [False, False], [False, False])
    assert third[:4] == ([0, 2], [30, 20], [False, False], [True, False])
    assert (first[4]["final_obs"][0], first[4]["final_obs"][1].tolist()) == (None, [1])
    assert first[4]["_final_obs"].tolist() == [False, True]
    assert first[4]["final_info"]["metrics"]["late"].tolist() == [0, 1]
    assert first[4]["metrics"]["late"].tolist() == [1, 0]
    assert "final_obs" not in second[4]


def test_disabled_leaves_the_reset_to_its_mask_and_refuses_to_step_on():
    envs = to_gymnasium_vector(Watch(), 2, autoreset_mode=DISABLED)
    envs.reset(seed=0)
    ((*first, _),) = steps_of(envs, [[0, 1]])
    assert first == [[1, 1], [10, 10], [False, True], [False, False]]
    with pytest.raises(UsageError, match=r"environments \[1\] have ended: call reset"):
        envs.step(np.array([0, 0]))
    obs, _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert obs.tolist() == [[1], [0]]
    ((*second, _),) = steps_of(envs, [[0, 0]])
    assert second == [[2, 1], [20, 10], [False, False], [False, False]]


def test_gymnasiums_vector_wrappers_work_on_top():
    env, params = SHORT_POLE
    both = []
    for envs in (
        to_gymnasium_vector(env, 4, params),
        SyncVectorEnv([lambda: to_gymnasium(*SHORT_POLE)] * 4),
    ):
        statistics = wrappers.RecordEpisodeStatistics(envs)
        envs = wrappers.NormalizeReward(wrappers.NormalizeObservation(statistics))
        envs = wrappers.ClipReward(envs, -1.0, 0.5)
        envs.reset(seed=3)
        steps = [envs.step(np.full(4, i // 2 % 2))[:2] for i in range(60)]
        both.append((steps, list(statistics.return_queue)))
    (steps, returns), (expected_steps, expected_returns) = both
    assert len(returns) >= 8
    assert returns == expected_returns
    for step, expected in zip(steps, expected_steps, strict=True):
        for array, expected_array in zip(step, expected, strict=True):
            np.testing.assert_allclose(array, expected_array, rtol=1e-4, atol=1e-6)


def test_the_wrapper_that_lists_infos_has_each_environments_alone():
    envs = wrappers.RecordEpisodeStatistics(to_gymnasium_vector(Watch(), 2))
    envs = wrappers.DictInfoToList(envs)
    envs.reset(seed=0)
    *_, infos = envs.step(np.array([0, 1]))
    assert [info["metrics"]["late"] for info in infos] == [1, 1]
    assert [info.get("episode", {}).get("r") for info in infos] == [None, 10]


def test_actions_may_be_tuples_lists_and_numbers_of_any_integer_type():
    env = to_gymnasium(Pair())
    env.reset(seed=0)
    _, reward, terminated, *_ = env.step((1, [0.25, 0.5]))
    assert (reward, terminated) == (0.75, True)
    envs = to_gymnasium_vector(Pair(), 2)
    envs.reset(seed=0)
    _, rewards, terminated, *_ = envs.step((np.array([0, 1], np.int8), np.full((2, 2), 0.5)))
    assert (rewards.tolist(), terminated.tolist()) == ([1, 1], [False, True])


def test_an_action_mask_is_one_that_gymnasium_samples_by():
    env = to_gymnasium(Forbidden())
    _, info = env.reset(seed=1)
    drawn = {int(env.action_space.sample(info["action_mask"])) for _ in range(40)}
    assert drawn == set(np.flatnonzero(info["action_mask"]).tolist())


@pytest.mark.long
def test_pictures_are_those_of_the_environment():
    env, params = jaxrl.make("cartpole")
    single = to_gymnasium("cartpole", render_mode="rgb_array")
    single.reset(seed=4)
    many = to_gymnasium_vector("cartpole", 2, render_mode="rgb_array")
    many.reset(seed=4)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(4), 0), 0)
    picture = env.render(env.reset_env(key, params)[1], params)
    assert len(many.render()) == 2
    for rendered in (single.render(), many.render()[0]):
        np.testing.assert_allclose(rendered, picture, atol=1)
    assert to_gymnasium("cartpole").render() is None


def test_results_may_be_written_unless_they_are_views_of_jaxs_memory():
    for copy_results in (True, False):
        envs = to_gymnasium_vector(Watch(), 2, copy=copy_results)
        obs, _ = envs.reset(seed=0)
        assert obs.flags.writeable is copy_results
        assert envs.step(np.zeros(2, int))[0].flags.writeable is copy_results
    obs, _ = to_gymnasium(Watch()).reset(seed=0)
    assert obs.flags.writeable


def test_without_a_seed_two_environments_differ_and_a_reset_continues():
    first, second = (to_gymnasium("cartpole") for _ in range(2))
    observations = [env.reset()[0].tolist() for env in (first, second, first)]
    assert observations[0] not in observations[1:]
    assert observations[1] != observations[2]
    envs = to_gymnasium_vector("cartpole", 2)
    rows = [*envs.reset()[0].tolist(), *envs.reset()[0].tolist()]
    assert len({tuple(row) for row in rows}) == 4


def test_a_copied_environment_goes_on_alone():
    env = to_gymnasium("cartpole")
    env.reset(seed=2)
    other = copy.deepcopy(env)
    same((*env.step(1),), (*other.step(1),))
    env.step(1)
    same((*env.reset(seed=3),), (*other.reset(seed=3),))


def started(env="cartpole", **settings):
    envs = to_gymnasium_vector(env, 2, **settings)
    envs.reset(seed=0)
    return envs


def ended():
    env = to_gymnasium(Watch())
    env.reset(seed=0)
    env.step(1)
    return env


test_bad_input_is_refused_in_one_line = refused(
    [
        (lambda: to_gymnasium("arena"), "one agent; MultiAgentArena has 2: use to_pettingzoo"),
        (lambda: to_gymnasium("cartpol"), "did you mean 'cartpole'"),
        (lambda: to_gymnasium(3), "env must be a name, or an object"),
        (lambda: to_gymnasium("cartpole", render_mode="human"), "None or 'rgb_array', not 'human'"),
        (lambda: to_gymnasium(Watch(), render_mode="rgb_array"), "must be None, not 'rgb_array'"),
        (lambda: to_gymnasium_vector("cartpole", 0), "num_envs=0 must be an integer of at least 1"),
        (
            lambda: started(autoreset_mode="NEXT_STEP"),
            "unknown autoreset_mode 'NEXT_STEP'; did you mean 'NextStep'",
        ),
        (lambda: to_gymnasium("cartpole").step(0), r"call reset\(\) before step\(\)"),
        (lambda: to_gymnasium_vector("cartpole", 2).step([0, 1]), r"call reset\(\) before step"),
        (lambda: ended().step(0), "the episode has ended"),
        (lambda: started().step(np.zeros(3, int)), r"shape \(2,\), not \(3,\)"),
        (lambda: started().step(np.array([0, 2])), r"whole numbers in Discrete\(n=2\)"),
        (lambda: started().step(np.array([0.0, 1.0])), r"whole numbers in Discrete\(n=2\)"),
        (lambda: started(Pair()).step(np.zeros((2, 2))), "must have the structure of Tuple"),
        (lambda: started().reset(seed=2**32), r"from 0 to 2\^32 - 1, not 4294967296"),
        (lambda: started().reset(seed=-1), "not -1"),
        (lambda: started().reset(seed=[1]), "seed has 1 entries for 2 environments"),
        (lambda: started().reset(options={"reset_mask": [1, 0]}), r"must be bool\[2\], not int64"),
    ]
)


def test_what_is_made_is_gymnasiums():
    assert isinstance(to_gymnasium("cartpole"), gymnasium.Env)
    assert isinstance(started(), gymnasium.vector.VectorEnv)
    assert repr(started()) == "GymnasiumVectorEnv(num_envs=2)"
