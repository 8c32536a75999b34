"""Generalised advantage estimation (GAE), and advantages standardised to mean 0 and std 1."""

import chex
import jax
import jax.numpy as jnp

from jaxrl.ops import collectives

# With gamma 1 and no termination all levels are right: `center_values` then changes nothing.
SMALLEST_SLOPE = 1e-3


def gae(
    rewards: jax.Array,
    values: jax.Array,
    next_values: jax.Array,
    terminated: jax.Array,
    ended: jax.Array,
    *,
    gamma: jax.Array | float,
    lambda_: jax.Array | float,
    waited: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

        delta[t] = r[t] + gamma (1 - terminated[t]) V(s'[t]) - V(s[t])
        A[t]     = delta[t] + gamma lambda (1 - ended[t]) A[t+1],    A[T] = 0

    `s'[t]` is the state that step t reached, before any reset: a time limit (ended, not terminated)
    still bootstraps, from the episode's own last state.

    Rows in which an agent waited are skipped: t + 1 then stands for the agent's next action.

    Args:
        rewards, values, next_values: f32[T, ...].
        terminated, ended: bool[T, ...].
        gamma, lambda_: scalars, possibly traced.
        waited: bool[T, ...], the rows to skip, whose results mean nothing; None: no agent waits.

    Returns:
        (advantages, targets), both f32[T, ...], with targets = advantages + values.
    """
    chex.assert_equal_shape([rewards, values, next_values, terminated, ended])
    chex.assert_type([terminated, ended], bool)
    deltas = rewards + gamma * jnp.where(terminated, 0.0, next_values) - values

    def backward(advantage, step):
        delta, ended, waited = step
        later = advantage
        advantage = delta + gamma * lambda_ * jnp.where(ended, 0.0, later)
        advantage = advantage if waited is None else jnp.where(waited, later, advantage)
        return advantage, advantage

    _, advantages = jax.lax.scan(
        backward, jnp.zeros_like(deltas[0]), (deltas, ended, waited), reverse=True
    )
    return advantages, advantages + values


def center_values(
    advantages: jax.Array, weights: jax.Array, *, axis_name: str | None = None, **ends
) -> jax.Array:
    """The advantages of `gae`, as if all values had one constant L more, so that their mean is 0.

        A'[t] = A[t] + L c[t],    c = gae(rewards 0, values 1),    L = -mean(A) / mean(c)

    Advantages are linear in the values. L is what LSTD (Bradtke and Barto 1996) finds with a
    constant as its only feature; where no episode terminates this is the reward centering of Naik
    et al. (2024).

    Args:
        advantages, weights: f32[T, ...]; rows of weight 0 do not count.
        axis_name: as in `standardise`.
        **ends: `terminated`, `ended`, `gamma`, `lambda_` and `waited`, as `gae` had them.
    """
    ones = jnp.ones_like(advantages)
    per_level, _ = gae(jnp.zeros_like(ones), ones, ones, **ends)
    per_level = jnp.where(weights > 0, per_level, 0.0)
    error, _ = moments(advantages, weights, axis_name=axis_name)
    slope, _ = moments(per_level, weights, axis_name=axis_name)
    level = -error * slope / (slope**2 + SMALLEST_SLOPE**2)
    return advantages + level * per_level


def standardise(
    values: jax.Array, weights: jax.Array, *, floor: float = 1e-4, axis_name: str | None = None
) -> jax.Array:
    """(x - mean) / max(std, floor), both moments weighted; rows of weight 0 become 0.

    Args:
        values, weights: f32[...] of one shape.
        floor: the smallest standard deviation to divide by (RLlib's value).
        axis_name: a mapped axis over which the moments are taken as well.

    Returns:
        f32[...].
    """
    mean, variance = moments(values, weights, axis_name=axis_name)
    return jnp.where(weights > 0, (values - mean) / jnp.maximum(jnp.sqrt(variance), floor), 0.0)


def moments(
    values: jax.Array, weights: jax.Array, *, axis_name: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Weighted (mean, variance), f32[] of f32[...]; both 0 where all weights are 0.

    `axis_name`: as in `standardise`.
    """
    chex.assert_equal_shape([values, weights])
    count = jnp.maximum(collectives.total(weights, axis_name), 1.0)
    mean = collectives.total(weights * values, axis_name) / count
    return mean, collectives.total(weights * (values - mean) ** 2, axis_name) / count
