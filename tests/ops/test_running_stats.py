"""Running mean and variance against NumPy, and scaled rewards against Gymnasium."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.ops.running_stats import (
    RunningMeanStd,
    discounted_returns,
    init_running_stats,
    normalise,
    scale_rewards,
    update,
)

few = settings(max_examples=10, database=None)
update_jit, normalise_jit = jax.jit(update), jax.jit(normalise)


def discount_and_scale(moments, before, rewards, ended, active, gamma, axis_name=None):
    """(scaled rewards, moments, returns of the last step) of T steps, as PPO calls the two."""
    returns, last = discounted_returns(before, rewards, ended, gamma)
    return *scale_rewards(moments, rewards, returns, active, axis_name), last


scale_jit = jax.jit(discount_and_scale)


def batches(offset, scale, seed, count=4, size=16):
    random = np.random.default_rng(seed)
    return np.float32(offset + scale * random.normal(size=(count, size, 3))), random.random(
        (count, size)
    ) < 0.7


@few
@given(st.floats(-1000, 1000), st.floats(0.1, 10), st.integers(0, 1000))
def test_the_moments_of_several_batches_are_those_of_all_their_weighted_rows(offset, scale, seed):
    rows, masks = batches(offset, scale, seed)
    moments = init_running_stats((3,))
    for values, mask in zip(rows, masks, strict=True):
        moments = update_jit(moments, jnp.asarray(values), jnp.float32(mask))
    seen = np.float64(rows[masks])
    assert moments.count == len(seen)
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_allclose(moments.variance, seen.var(0), rtol=2e-3)


def test_rows_split_over_a_mapped_axis_give_the_moments_of_all():
    rows, masks = batches(5.0, 2.0, seed=0, count=2)
    masks = np.float32(masks)
    whole = update_jit(init_running_stats((3,)), rows.reshape(-1, 3), masks.reshape(-1))
    split = jax.vmap(
        lambda values, mask: update(init_running_stats((3,)), values, mask, "devices"),
        axis_name="devices",
    )
    members = jax.device_get(jax.jit(split)(rows, masks))
    for device in (0, 1):
        jax.tree.map(
            lambda part, all_, d=device: np.testing.assert_allclose(part[d], all_, rtol=1e-5),
            members,
            whole,
        )


def test_a_batch_without_rows_changes_nothing():
    moments = RunningMeanStd(jnp.float32(5.0), jnp.array([1.0, 2.0]), jnp.array([3.0, 0.5]))
    after = update_jit(moments, jnp.full((4, 2), 7.0), jnp.zeros(4))
    jax.tree.map(np.testing.assert_array_equal, after, moments)


def test_normalised_rows_have_mean_0_and_variance_1_within_the_clip():
    rows, _ = batches(100.0, 3.0, seed=1, count=1, size=500)
    moments = update_jit(init_running_stats((3,)), jnp.asarray(rows[0]), jnp.ones(500))
    normal = np.asarray(normalise_jit(moments, jnp.asarray(rows[0])))
    np.testing.assert_allclose(normal.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(normal.std(0), 1.0, atol=1e-3)
    np.testing.assert_array_equal(
        normalise_jit(moments, jnp.full((1, 3), 1e6)), np.full((1, 3), 10.0)
    )


def test_an_element_that_never_moved_stays_finite_and_observations_unseen_stay_as_they_are():
    moments = update_jit(init_running_stats((1,)), jnp.full((8, 1), 4.0), jnp.ones(8))
    np.testing.assert_array_equal(
        normalise_jit(moments, jnp.array([[4.0], [4.1]])), [[0.0], [10.0]]
    )
    np.testing.assert_array_equal(
        normalise_jit(init_running_stats((1,)), jnp.array([[123.0]])), [[123.0]]
    )


# Rewards in units of the return's deviation


def discounted(rewards, ended, gamma):
    """PPO2's: ret = ret * gamma + reward, kept as it is, then 0 where the episode ended."""
    returns, running = np.zeros_like(rewards), np.zeros(rewards.shape[1:])
    for t, reward in enumerate(rewards):
        running = returns[t] = running * gamma + reward
        running = np.where(ended[t], 0.0, running)
    return returns, running


@few
@given(st.integers(0, 1000), st.floats(0, 0.9375, width=32))
def test_rewards_are_divided_by_the_deviation_of_all_discounted_returns_so_far(seed, gamma):
    random = np.random.default_rng(seed)
    rewards, ended = random.normal(0.5, 2.0, (12, 3, 2)), random.random((12, 3, 2)) < 0.3
    active = random.random((12, 3, 2)) < 0.8
    rewards[~active], ended[~active] = 0.0, True
    returns, last = discounted(rewards, ended, gamma)
    moments, before = init_running_stats(()), jnp.zeros((3, 2))
    for rows in (slice(0, 4), slice(4, 12)):
        scaled, moments, before = scale_jit(
            moments,
            before,
            jnp.float32(rewards[rows]),
            ended[rows],
            active[rows],
            jnp.float32(gamma),
        )
        seen = returns[: rows.stop][active[: rows.stop]]
        np.testing.assert_allclose(moments.variance, seen.var(), rtol=1e-3)
        np.testing.assert_allclose(scaled, rewards[rows] / seen.std(), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(before, last, rtol=1e-4, atol=1e-5)


class Given(gymnasium.vector.VectorEnv):
    """Pays what it was given and never ends."""

    def __init__(self, rewards):
        self.rewards, self.num_envs = iter(rewards), rewards.shape[1]

    def step(self, actions):
        never = np.zeros(self.num_envs, bool)
        return np.zeros(self.num_envs), next(self.rewards), never, never, {}


def test_step_by_step_rewards_are_those_of_gymnasiums_wrapper():
    rewards = np.random.default_rng(0).normal(1.0, 3.0, (50, 8)).astype(np.float32)
    wrapped = gymnasium.wrappers.vector.NormalizeReward(Given(rewards), gamma=0.9)
    moments, before = init_running_stats(()), jnp.zeros(8)
    never, always = np.zeros((1, 8), bool), np.ones((1, 8), bool)
    for reward in rewards:
        scaled, moments, before = scale_jit(
            moments, before, jnp.asarray(reward[None]), never, always, 0.9
        )
        expected = wrapped.step(None)[1]  # whose count begins at 1e-4, with a variance of 1
        np.testing.assert_allclose(scaled[0], expected, rtol=2e-3)


def test_an_end_starts_the_return_again_and_counts_itself():
    """Rewards 1, an end after the second: returns 1, 1.5, 1, 1.5 at gamma 1/2, of deviation 1/4."""
    ended = np.array([[False], [True], [False], [False]])
    scaled, moments, before = scale_jit(
        init_running_stats(()), jnp.zeros(1), jnp.ones((4, 1)), ended, ended | True, 0.5
    )
    np.testing.assert_allclose([moments.mean, moments.variance], [1.25, 0.0625])
    np.testing.assert_allclose(scaled, np.full((4, 1), 4.0), rtol=1e-5)
    np.testing.assert_allclose(before, [1.5])


def test_rewards_stay_within_ten_deviations_and_as_they_are_before_anybody_acted():
    rewards = jnp.zeros((400, 1)).at[7].set(-5.0)
    never = np.zeros((400, 1), bool)
    scaled, _, _ = scale_jit(init_running_stats(()), jnp.zeros(1), rewards, never, ~never, 0.0)
    assert scaled.min() == -10.0
    same, moments, _ = scale_jit(
        init_running_stats(()), jnp.zeros(1), jnp.full((2, 1), 99.0), ~never[:2], never[:2], 0.5
    )
    assert (moments.count, float(same[0, 0])) == (0, 99.0)


@pytest.mark.long
def test_rewards_split_over_a_mapped_axis_are_scaled_as_all_together():
    random = np.random.default_rng(0)
    rewards, ended = random.normal(size=(6, 4)).astype(np.float32), random.random((6, 4)) < 0.2
    whole, moments, before = scale_jit(
        init_running_stats(()), jnp.zeros(4), rewards, ended, np.ones((6, 4), bool), 0.9
    )

    def member(before, rewards, ended):
        active = jnp.ones(ended.shape, bool)
        first = init_running_stats(())
        return discount_and_scale(first, before, rewards, ended, active, 0.9, "devices")

    halves = [np.stack(np.split(array, 2, axis=1)) for array in (rewards, ended)]
    split = jax.jit(jax.vmap(member, axis_name="devices"))(np.zeros((2, 2), np.float32), *halves)
    np.testing.assert_allclose(np.concatenate(split[0], axis=1), whole, rtol=1e-5)
    np.testing.assert_allclose(split[1].variance, [moments.variance] * 2, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(split[2]), before, rtol=1e-6)
