"""GAE against its definition as a sum; standardisation against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops import advantages as ops

gae, center_values = jax.jit(ops.gae), jax.jit(ops.center_values)
standardise = jax.jit(ops.standardise, static_argnames=("axis_name", "floor"))
GAMMA, LAMBDA = 0.9, 0.7


def written_out(rewards, values, next_values, terminated, ended, gamma, lambda_):
    """A[t] = sum over k >= t, up to the end of the episode, of (gamma lambda)^(k - t) delta[k]."""
    advantages = np.zeros(rewards.shape)
    for index in np.ndindex(rewards.shape):
        t, place = index[0], index[1:]
        for k in range(t, rewards.shape[0]):
            at = (k, *place)
            bootstrap = 0.0 if terminated[at] else next_values[at]
            advantages[index] += (gamma * lambda_) ** (k - t) * (
                rewards[at] + gamma * bootstrap - values[at]
            )
            if ended[at]:
                break
    return advantages


def random_steps(seed, shape):
    """Rewards, values, next values, terminated, ended; a third of the ends are time limits."""
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, *shape)).astype(np.float32)
    terminated = rng.random(shape) < 0.2
    truncated = (rng.random(shape) < 0.1) & ~terminated
    left = rng.random(shape) < 0.1
    return rewards, values, next_values, terminated & ~left, terminated | truncated | left


@pytest.mark.parametrize("shape", [(1,), (12,), (9, 4), (7, 3, 2)])
def test_gae_is_the_discounted_sum_of_td_errors_up_to_the_end_of_the_episode(shape):
    for seed in range(5):
        steps = random_steps(seed, shape)
        advantages, targets = gae(*steps, gamma=GAMMA, lambda_=LAMBDA)
        expected = written_out(*steps, GAMMA, LAMBDA)
        np.testing.assert_allclose(advantages, expected, atol=1e-5)
        np.testing.assert_allclose(targets, expected + steps[1], atol=1e-5)


def test_gae_bootstraps_through_a_time_limit_but_not_through_a_fall():
    rewards, values, next_values = jnp.ones(2), jnp.zeros(2), jnp.array([0.0, 10.0])
    ended = jnp.array([False, True])

    def run(terminated):
        return gae(rewards, values, next_values, terminated, ended, gamma=0.5, lambda_=1.0)[0]

    np.testing.assert_allclose(run(jnp.array([False, True])), [1.5, 1.0])  # fell: 1 + 1/2, 1
    np.testing.assert_allclose(run(jnp.array([False, False])), [4.0, 6.0])  # cut: 1 + 6/2, 1 + 10/2


def test_with_lambda_0_the_advantage_is_the_td_error():
    rewards, values, next_values, terminated, ended = random_steps(1, (8, 3))
    steps = rewards, values, next_values, terminated, ended
    advantages, _ = gae(*steps, gamma=GAMMA, lambda_=0.0)
    np.testing.assert_allclose(
        advantages, rewards + GAMMA * np.where(terminated, 0, next_values) - values, atol=1e-6
    )


def test_with_lambda_1_the_advantage_is_the_discounted_return_less_the_value():
    """Where V(s') of a step is V(s) of the next, the values in between cancel."""
    rng = np.random.default_rng(2)
    rewards, values = rng.normal(size=(2, 6)).astype(np.float32)
    next_values = np.append(values[1:], np.float32(3.0))
    terminated = ended = np.array([False, False, True, False, False, False])
    steps = rewards, values, next_values, terminated, ended
    advantages, targets = gae(*steps, gamma=GAMMA, lambda_=1.0)
    returns, following = np.zeros(6), 3.0
    for t in reversed(range(6)):
        following = 0.0 if terminated[t] else following
        returns[t] = following = rewards[t] + GAMMA * following
    np.testing.assert_allclose(advantages, returns - values, atol=1e-5)
    np.testing.assert_allclose(targets, returns, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, LAMBDA, 1.0])
def test_centered_values_have_advantages_of_mean_0_and_those_of_values_with_the_same_constant(
    lambda_,
):
    """By an oracle: the constant is searched for among advantages of shifted values."""
    rewards, values, next_values, terminated, ended = random_steps(4, (9, 4))
    ends = {"terminated": terminated, "ended": ended, "gamma": GAMMA, "lambda_": lambda_}
    shifted = lambda by: np.asarray(gae(rewards, values + by, next_values + by, **ends)[0])
    weights = jnp.ones((9, 4)).at[3].set(0.0)
    mean = lambda advantages: np.average(advantages, weights=weights)
    constant = -mean(shifted(0.0)) / (mean(shifted(1.0)) - mean(shifted(0.0)))
    centered = center_values(jnp.asarray(shifted(0.0)), weights, **ends)
    assert mean(centered) == pytest.approx(0.0, abs=1e-4)
    np.testing.assert_allclose(centered[weights > 0], shifted(constant)[weights > 0], atol=1e-3)


def test_without_discount_and_end_no_level_is_wrong_and_centering_changes_nothing():
    never = jnp.zeros((5, 2), bool)
    ends = {"terminated": never, "ended": never, "gamma": 1.0, "lambda_": LAMBDA}
    advantages = jnp.arange(10.0).reshape(5, 2)
    np.testing.assert_array_equal(center_values(advantages, jnp.ones((5, 2)), **ends), advantages)


def test_the_rows_of_an_agent_that_left_do_not_reach_the_rows_before():
    """The agent terminates in step 2 and is inactive, which is marked ended, in steps 3 to 5."""
    rewards, values, next_values, *_ = random_steps(3, (6, 1, 1))
    ended = np.array([False, False, True, True, True, True]).reshape(6, 1, 1)
    terminated = np.array([False, False, True, False, False, False]).reshape(6, 1, 1)
    left = np.arange(6).reshape(6, 1, 1) >= 3

    def before(garbage):
        garbage = np.float32(garbage)
        steps = [np.where(left, garbage, array) for array in (rewards, values, next_values)]
        return np.asarray(gae(*steps, terminated, ended, gamma=GAMMA, lambda_=1.0)[0][:3])

    np.testing.assert_array_equal(before(0.0), before(1e6))


def test_gae_refuses_flags_that_are_no_booleans_and_shapes_that_differ():
    ones, flags = jnp.ones((3, 2)), jnp.zeros((3, 2), bool)
    with pytest.raises(AssertionError):
        gae(ones, ones, ones, ones, ones, gamma=1.0, lambda_=1.0)
    with pytest.raises(AssertionError):
        gae(ones, ones, jnp.ones((3, 1)), flags, flags, gamma=1.0, lambda_=1.0)


def test_standardised_rows_have_weighted_mean_0_and_deviation_1_and_the_others_are_0():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(5, 3, size=(6, 7, 2)), rng.random((6, 7, 2)) < 0.6
    values[~weights] = 1e6  # must not count
    standard = standardise(jnp.float32(values), jnp.float32(weights))
    assert np.all(np.asarray(standard)[~weights] == 0)
    rows = np.asarray(standard, np.float64)[weights]
    np.testing.assert_allclose([rows.mean(), rows.std()], [0, 1], atol=1e-5)
    np.testing.assert_allclose(
        rows, (values[weights] - values[weights].mean()) / values[weights].std(), atol=1e-4
    )


def test_a_row_of_weight_3_counts_as_three_rows():
    weighted = standardise(jnp.array([1.0, 5.0]), jnp.array([3.0, 1.0]))
    apart = standardise(jnp.array([1.0, 1.0, 1.0, 5.0]), jnp.ones(4))
    np.testing.assert_allclose(weighted, apart[2:], atol=1e-6)
    np.testing.assert_allclose(
        weighted, [-1 / np.sqrt(3), np.sqrt(3)], atol=1e-6
    )  # mean 2, std sqrt(3)


def test_with_weights_of_1_it_is_the_plain_standardisation():
    values = np.random.default_rng(1).normal(2, 4, size=50).astype(np.float32)
    expected = (values - values.mean()) / values.std()
    np.testing.assert_allclose(standardise(jnp.asarray(values), jnp.ones(50)), expected, atol=1e-5)


def test_a_deviation_below_the_floor_is_divided_by_the_floor():
    np.testing.assert_array_equal(standardise(jnp.full(4, 2.0), jnp.ones(4)), np.zeros(4))
    values = jnp.array([-1e-6, 1e-6])
    np.testing.assert_allclose(
        standardise(values, jnp.ones(2)), [-0.01, 0.01], rtol=1e-5
    )  # 1e-6 / 1e-4
    np.testing.assert_allclose(standardise(values, jnp.ones(2), floor=1e-9), [-1, 1], rtol=1e-5)


def test_without_any_weight_all_rows_are_0():
    np.testing.assert_array_equal(standardise(jnp.array([1.0, -7.0]), jnp.zeros(2)), [0.0, 0.0])


def test_over_a_mapped_axis_the_moments_are_those_of_the_whole():
    rng = np.random.default_rng(4)
    values = np.float32(rng.normal(3, 2, size=(4, 5)))
    weights = np.float32(rng.random((4, 5)) < 0.5)
    weights[0] = 0.0  # a part without rows
    over_axis = jax.vmap(lambda v, w: standardise(v, w, axis_name="parts"), axis_name="parts")
    parts = np.asarray(jax.jit(over_axis)(values, weights))
    np.testing.assert_allclose(parts, standardise(values, weights), atol=1e-6)
    alone = np.asarray(jax.jit(jax.vmap(standardise))(values, weights))
    assert np.abs(parts - alone).max() > 0.1
