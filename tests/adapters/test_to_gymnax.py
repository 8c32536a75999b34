"""Environments as gymnax's: the numbers of our own `step`, in six values or in five."""

import copy

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment, spaces
from gymnax.wrappers.purerl import FlattenObservationWrapper, LogWrapper

import jaxrl
from jaxrl import to_gymnax
from jaxrl.core.spaces import MultiDiscrete
from tests.messages import refused
from tests.probes import Forbidden, Probe, Target, Watch

POLE, PARAMS = jaxrl.make("cartpole", max_steps_in_episode=15)


def play(env, params, num_steps=1000):
    """What `step` returns but the state, in an episode after the other, with random actions."""
    discrete = env.action_space(params)

    def step(carry, key):
        act_key, step_key = jax.random.split(key)
        action = discrete.sample(act_key)
        obs, state, *results = env.step(step_key, carry, action, params)
        return state, (obs, *results)

    @jax.jit
    def run(key):
        obs, state = env.reset(key, params)
        return obs, jax.lax.scan(step, state, jax.random.split(key, num_steps))[1]

    with jax.numpy_rank_promotion("allow"):  # which gymnax's own code needs
        return run(jax.random.key(3))


def test_the_same_keys_and_actions_give_what_our_own_step_gives():
    first, (*results, info) = play(to_gymnax(POLE, PARAMS), PARAMS)
    expected_first, (*expected, expected_info) = play(POLE, PARAMS)
    np.testing.assert_array_equal(first, expected_first)
    for array, expected_array in zip(results, expected, strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-4, atol=1e-6)
    final = (info["final_observation"], expected_info["final_observation"])
    np.testing.assert_allclose(*final, rtol=1e-4, atol=1e-6)
    terminated, truncated = results[2:]
    assert terminated.any() and truncated.any() and not (terminated & truncated).any()


def test_legacy_environments_have_one_done_for_both_ends():
    _, (obs, reward, done, _) = play(to_gymnax(POLE, PARAMS, legacy=True), PARAMS)
    _, (*expected, terminated, truncated, _) = play(POLE, PARAMS)
    for array, expected_array in zip((obs, reward), expected, strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(done, terminated | truncated)


def test_gymnaxs_wrappers_work_on_top_and_count_episodes():
    env = LogWrapper(FlattenObservationWrapper(to_gymnax(Watch())))
    _, (obs, _, _, truncated, info) = play(env, Watch().default_params, 60)
    ended = info["returned_episode"]
    assert ended.any() and truncated.any() and obs.shape == (60, 1)
    returns = {1: 10.0, 2: 30.0, 3: 60.0}  # 10 times the sum of the times
    lengths = info["returned_episode_lengths"][ended].tolist()
    assert info["returned_episode_returns"][ended].tolist() == [returns[n] for n in lengths]


def test_spaces_are_gymnaxs_and_parameters_are_the_given_ones():
    env = to_gymnax(POLE, PARAMS)
    assert isinstance(env, environment.Environment)
    assert (env.default_params, env.name, env.num_actions) == (PARAMS, "CartPole", 2)
    box, expected = env.observation_space(PARAMS), POLE.observation_space(PARAMS)
    assert isinstance(box, spaces.Box) and isinstance(env.action_space(), spaces.Discrete)
    np.testing.assert_allclose(box.high, np.float32(expected.high))
    shown = to_gymnax(Forbidden("part")).observation_space().spaces["observation"]
    assert (shown.shape, shown.dtype, shown.high.tolist()) == ((4,), jnp.int32, [1, 1, 1, 1])
    assert to_gymnax(Target()).num_actions == 1
    assert to_gymnax(Probe()).observation_space().n == 6


def test_a_copy_has_the_same_spaces():
    """rejax copies the environment that it is given."""
    copied = copy.deepcopy(to_gymnax("cartpole", legacy=True))
    assert copied.action_space().n == 2


def test_environments_of_gymnax_become_legacy_ones_too():
    env = to_gymnax("gymnax:Catch-bsuite", legacy=True)
    _, (obs, _, done, _) = play(env, env.default_params, 30)
    assert obs.shape[1:] == env.observation_space(env.default_params).shape
    assert np.flatnonzero(done).tolist() == [8, 17, 26]  # nine rows to fall, of ten
    assert gymnax.make("Catch-bsuite")[0].num_actions == env.num_actions


class ManyLevers(Watch):
    def action_space(self, params=None):
        return MultiDiscrete((2, 3))

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, action[0], params)


test_bad_input_is_refused_in_one_line = refused(
    [
        (lambda: to_gymnax("arena"), "to_gymnax takes an environment of one agent"),
        (lambda: to_gymnax(ManyLevers()), "gymnax has no space for the actions of ManyLevers"),
    ]
)
