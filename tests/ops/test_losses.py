"""Losses against numbers that can be checked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.ops.losses import (
    clip_fraction,
    clipped_surrogate,
    is_past_target,
    next_kl_coeff,
    value_loss,
)

few = settings(max_examples=10, derandomize=True)

# Ratios 2, 2, 1/2, 1/2, 1.1, 1.1 of advantage +1 and -1 each, clipped to 0.7 ... 1.3.
RATIOS = np.float32([2, 2, 0.5, 0.5, 1.1, 1.1])
ADVANTAGES = np.float32([1, -1, 1, -1, 1, -1])
LOSSES = [-1.3, 2.0, -0.5, 0.7, -1.1, 1.1]
GRADIENTS = [0.0, 2.0, -0.5, 0.0, -1.1, 1.1]  # by log_prob: -ratio * advantage, but 0 where clipped


def surrogate(log_probs, clip_param=0.3):
    return clipped_surrogate(log_probs, jnp.zeros(6), jnp.asarray(ADVANTAGES), clip_param)


def test_the_surrogate_takes_the_worse_of_the_clipped_and_the_unclipped():
    np.testing.assert_allclose(surrogate(jnp.log(RATIOS)), LOSSES, rtol=1e-5)


def test_the_surrogate_has_no_gradient_where_it_is_clipped():
    gradients = jax.grad(lambda log_probs: jnp.sum(surrogate(log_probs)))(jnp.log(RATIOS))
    np.testing.assert_allclose(gradients, GRADIENTS, rtol=1e-5)


def test_the_ratio_is_of_the_new_to_the_old():
    advantages = jnp.ones(1)
    np.testing.assert_allclose(
        clipped_surrogate(jnp.log(3 * advantages), jnp.log(2 * advantages), advantages, 9.0),
        [-1.5],
        rtol=1e-6,
    )


def test_scaling_an_advantage_scales_its_loss():
    log_probs, old, advantages = np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    losses, tripled = (
        clipped_surrogate(jnp.asarray(log_probs), old, c * advantages, 0.2) for c in (1, 3)
    )
    np.testing.assert_allclose(tripled, 3 * losses, rtol=1e-5)


def test_an_infinite_clip_clips_no_ratio():
    np.testing.assert_allclose(surrogate(jnp.log(RATIOS), jnp.inf), -RATIOS * ADVANTAGES, rtol=1e-6)
    gradients = jax.grad(lambda log_probs: jnp.sum(surrogate(log_probs, jnp.inf)))(jnp.log(RATIOS))
    np.testing.assert_allclose(gradients, -RATIOS * ADVANTAGES, rtol=1e-6)


def test_a_dual_clip_bounds_the_loss_of_negative_advantages_and_stops_its_gradient():
    """Ratios 2 and 5 of advantages +-1: the loss of -1 is the ratio, and 3 at most."""
    log_probs = jnp.log(jnp.array([2.0, 5.0, 2.0, 5.0]))
    advantages = jnp.array([-1.0, -1.0, 1.0, 1.0])
    loss = lambda log_probs: clipped_surrogate(log_probs, jnp.zeros(4), advantages, 0.3, 3.0)
    np.testing.assert_allclose(loss(log_probs), [2, 3, -1.3, -1.3], rtol=1e-6)
    gradients = jax.grad(lambda log_probs: jnp.sum(loss(log_probs)))(log_probs)
    np.testing.assert_allclose(gradients, [2, 0, 0, 0], rtol=1e-6)


@few
@given(st.integers(0, 10**6), st.floats(1.0625, 8, width=32))
def test_a_dual_clip_is_the_maximum_of_the_objective_and_the_bound(seed, bound):
    """Ye et al. 2020, eq. 5: max(min(rho A, clip(rho) A), d A) where A < 0."""
    log_probs, old, advantages = np.random.default_rng(seed).normal(size=(3, 64))
    ratio = np.exp(log_probs - old)
    objective = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages)
    objective = np.where(advantages < 0, np.maximum(objective, bound * advantages), objective)
    losses = clipped_surrogate(
        *map(jnp.float32, (log_probs, old, advantages)), 0.2, jnp.float32(bound)
    )
    np.testing.assert_allclose(losses, -objective, rtol=2e-5, atol=1e-6)


def test_an_infinite_dual_clip_gives_the_same_bits_and_makes_no_nan():
    log_probs, advantages = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    advantages[:10] = 0.0

    def loss_and_gradient(dual_clip):
        def loss(log_probs):
            return clipped_surrogate(
                log_probs, jnp.zeros(1000), jnp.asarray(advantages), 0.2, dual_clip
            )

        return loss(jnp.asarray(log_probs)), jax.grad(lambda x: jnp.sum(loss(x)))(
            jnp.asarray(log_probs)
        )

    with jax.debug_nans(True):
        infinite = loss_and_gradient(jnp.float32(jnp.inf))
    for bounded, without in zip(infinite, loss_and_gradient(None), strict=True):
        np.testing.assert_array_equal(bounded, without)


@pytest.mark.parametrize(
    ("kl", "target", "past"),
    [
        (0.016, 0.01, True),
        (0.0149, 0.01, False),
        (1e9, jnp.inf, False),
        (jnp.inf, jnp.inf, False),
        (jnp.nan, 0.01, False),
    ],
)
def test_a_kl_is_past_its_target_beyond_one_and_a_half_times_it(kl, target, past):
    assert bool(is_past_target(jnp.float32(kl), jnp.float32(target))) == past


def test_the_clip_fraction_marks_ratios_outside_the_clip_on_either_side():
    assert clip_fraction(jnp.log(RATIOS), jnp.zeros(6), 0.3).tolist() == [1, 1, 1, 1, 0, 0]
    assert clip_fraction(jnp.log(RATIOS), jnp.zeros(6), 0.6).tolist() == [1, 1, 0, 0, 0, 0]


# V = 3 and 1, V_old = 0, R = 2: errors 1, 1; V within 0.5 of V_old is 0.5, whose error is 2.25.
# R = -2: errors 25 and 9; clipped 6.25.
VALUES = np.float32([3, 1, 3, 1])
TARGETS = np.float32([2, 2, -2, -2])


def losses_and_gradients(kind, clip_param):
    def loss(values):
        return value_loss(values, jnp.zeros(4), jnp.asarray(TARGETS), clip_param, kind)

    return loss(jnp.asarray(VALUES)), jax.grad(lambda values: jnp.sum(loss(values)))(
        jnp.asarray(VALUES)
    )


def test_clipping_the_loss_caps_the_squared_error_and_stops_its_gradient():
    losses, gradients = losses_and_gradients("loss", 10.0)
    np.testing.assert_allclose(losses, [1, 1, 10, 9])
    np.testing.assert_allclose(gradients, [2, -2, 0, 6])


def test_clipping_the_prediction_takes_the_worse_of_the_clipped_and_the_unclipped():
    losses, gradients = losses_and_gradients("prediction", 0.5)
    np.testing.assert_allclose(losses, [2.25, 2.25, 25, 9])
    np.testing.assert_allclose(gradients, [0, 0, 10, 6])


def test_without_a_clip_the_value_loss_is_the_squared_error():
    losses, gradients = losses_and_gradients(None, 0.1)
    np.testing.assert_allclose(losses, [1, 1, 25, 9])
    np.testing.assert_allclose(gradients, [2, -2, 10, 6])


@pytest.mark.parametrize("kind", ["loss", "prediction", None])
def test_an_infinite_clip_clips_no_value_and_no_gradient(kind):
    losses, gradients = losses_and_gradients(kind, jnp.inf)
    np.testing.assert_allclose(losses, [1, 1, 25, 9])
    np.testing.assert_allclose(gradients, [2, -2, 10, 6])


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.021, 1.5),
        (1.0, 1.5),
        (jnp.inf, 1.5),
        (0.0199, 1.0),
        (0.01, 1.0),
        (0.0051, 1.0),
        (0.0049, 0.5),
        (0.0, 0.5),
    ],
)
def test_the_kl_coefficient_rises_past_twice_the_target_and_falls_below_half_of_it(kl, factor):
    assert next_kl_coeff(jnp.float32(0.2), jnp.float32(kl), jnp.float32(0.01)) == pytest.approx(
        0.2 * factor
    )


@pytest.mark.parametrize(("kl", "bound"), [(1.0, 1e3), (0.0, 1e-6)])
def test_the_kl_coefficient_stays_within_its_bounds_over_1000_repetitions(kl, bound):
    def repeat(coeff, _):
        coeff = next_kl_coeff(coeff, jnp.float32(kl), jnp.float32(0.01))
        return coeff, coeff

    last, every = jax.lax.scan(repeat, jnp.float32(0.2), length=1000)
    assert last == pytest.approx(bound)
    assert np.all((every >= np.float32(1e-6)) & (every <= np.float32(1e3)))
    back = next_kl_coeff(last, jnp.float32(1.0 - kl), jnp.float32(0.01))
    assert back == pytest.approx(bound * (0.5 if kl else 1.5))  # and it comes back


@pytest.mark.parametrize("kl", [0.0, 0.01, 1.0, jnp.nan])
def test_a_kl_coefficient_of_0_stays_0(kl):
    assert next_kl_coeff(jnp.float32(0.0), jnp.float32(kl), jnp.float32(0.01)) == 0


def test_a_kl_that_is_no_number_changes_nothing():
    assert next_kl_coeff(jnp.float32(0.2), jnp.float32(jnp.nan), jnp.float32(0.01)) == np.float32(
        0.2
    )


def test_every_coefficient_of_a_stack_moves_on_its_own():
    coefficients = next_kl_coeff(
        jnp.array([0.2, 0.2, 0.0]), jnp.array([1.0, 0.0, 1.0]), jnp.full(3, 0.01)
    )
    np.testing.assert_allclose(coefficients, [0.3, 0.1, 0.0])


def test_a_ratio_beyond_all_numbers_is_clipped_like_any_other():
    gradient = jax.value_and_grad(
        lambda log_prob, a: clipped_surrogate(log_prob, jnp.zeros(()), a, 0.3)
    )
    assert [float(x) for x in gradient(jnp.float32(100.0), jnp.float32(1.0))] == pytest.approx(
        [-1.3, 0.0]
    )
    assert [float(x) for x in gradient(jnp.float32(100.0), jnp.float32(0.0))] == [0.0, 0.0]
