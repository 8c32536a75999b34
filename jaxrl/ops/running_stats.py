"""Running mean and variance: normalised observations, and rewards scaled by their returns."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.types import PyTree
from jaxrl.ops.collectives import over_axis, total

EPSILON = 1e-8  # added to the variance
MAX_STDS = 10.0  # clips the first change of an element that was constant so far


class RunningMeanStd(struct.PyTreeNode):
    """Running mean and variance of every element of an observation, over all rows so far.

    Of an observation in parts, `mean` and `variance` are trees of arrays.
    """

    count: jax.Array  # f32[]
    mean: PyTree  # f32[...]
    variance: PyTree  # f32[...]


def init_running_stats(shapes: PyTree) -> RunningMeanStd:
    """Statistics of no rows: mean 0 and variance 1; `normalise` does not change observations.

    Args:
        shapes: a shape, or of several parts {name: shape}.
    """
    if not isinstance(shapes, dict):
        return RunningMeanStd(jnp.zeros(()), jnp.zeros(shapes), jnp.ones(shapes))
    mean = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    return RunningMeanStd(jnp.zeros(()), mean, jax.tree.map(jnp.ones_like, mean))


def update(
    moments: RunningMeanStd, values: PyTree, weights: jax.Array, axis_name: str | None = None
) -> RunningMeanStd:
    """`moments` with more rows (Chan et al. 1979, eq. 2.1: exact, and stable for means far from 0).

        d = mean_b - mean,    n = count + count_b
        mean += d count_b / n
        variance = (count variance + count_b variance_b + d^2 count count_b / n) / n

    Args:
        values: f32[B, ...], in the structure of `moments.mean`.
        weights: f32[B], 1 for rows that count, else 0.
        axis_name: a mapped axis over which the rows are split, or None.
    """
    added = total(weights, axis_name)
    count = moments.count + added
    share = added / jnp.maximum(count, 1.0)

    def merge(old_mean, old_variance, values):
        weights_of_values = weights.reshape(-1, *[1] * (values.ndim - 1))
        mean = _sum(weights_of_values * values, axis_name) / jnp.maximum(added, 1.0)
        squares = _sum(weights_of_values * (values - mean[None]) ** 2, axis_name)
        away = mean - old_mean
        variance = (
            (1 - share) * old_variance
            + squares / jnp.maximum(count, 1.0)
            + away**2 * share * (1 - share)
        )
        return old_mean + away * share, variance

    merged = jax.tree.map(merge, moments.mean, moments.variance, values)
    mean, variance = jax.tree.transpose(
        jax.tree.structure(moments.mean), jax.tree.structure((0, 0)), merged
    )
    merged = RunningMeanStd(count, mean, variance)
    return jax.tree.map(lambda new, old: jnp.where(added > 0, new, old), merged, moments)


def normalise(moments: RunningMeanStd, values: PyTree) -> PyTree:
    """(values - mean) / sqrt(variance + 1e-8) within +-10, f32[..., *shape].

    Before the first rows, `values` unchanged.

    Args:
        values: f32[..., *shape], in the structure of `moments.mean`.
    """

    def each(mean, variance, values):
        axes = tuple(range(values.ndim - mean.ndim))
        mean, variance = jnp.expand_dims(mean, axes), jnp.expand_dims(variance, axes)
        normal = jnp.clip((values - mean) / jnp.sqrt(variance + EPSILON), -MAX_STDS, MAX_STDS)
        return jnp.where(moments.count > 0, normal, values)

    return jax.tree.map(each, moments.mean, moments.variance, values)


def discounted_returns(
    before: jax.Array,
    rewards: jax.Array,
    ended: jax.Array,
    gamma: jax.Array | float,
    waited: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The running discounted return of each step, from the episode's start.

        G[t] = r[t] + gamma (1 - ended[t-1]) G[t-1]

    Args:
        before: f32[...], G of the previous step, 0 where an episode ended with it; at first all 0.
        rewards, ended: f32 and bool[T, ...].
        waited: as in `gae`.

    Returns:
        (G f32[T, ...], f32[...] as `before` of the next call).
    """

    def step(before, row):
        reward, ended, waited = row
        reached = reward + gamma * before
        after = jnp.where(ended, 0.0, reached)
        return (after if waited is None else jnp.where(waited, before, after)), reached

    after, returns = jax.lax.scan(step, before, (rewards, ended, waited))
    return returns, after


def scale_rewards(
    moments: RunningMeanStd,
    rewards: jax.Array,
    returns: jax.Array,
    active: jax.Array,
    axis_name: str | None = None,
) -> tuple[jax.Array, RunningMeanStd]:
    """Rewards divided by the standard deviation of the discounted return (Engstrom et al. 2020).

        r[t] / sqrt(Var(G) + 1e-8), within +-10

    Section 3 of the paper, and PPO2. The variance is over all rows so far, these included; the mean
    is not subtracted. Value functions then predict in these units too.

    Args:
        moments: of G until now, at first `init_running_stats(())`.
        rewards, returns, active: f32, f32 and bool[T, ...], `returns` of `discounted_returns`;
            inactive rows do not count.
        axis_name: as in `update`.

    Returns:
        (rewards f32[T, ...], moments).
    """
    # Inactive rows may hold NaN, and weight 0 times NaN is NaN.
    returns = jnp.where(active, returns, 0.0)
    weights = active.reshape(-1).astype(jnp.float32)
    moments = update(moments, returns.reshape(-1), weights, axis_name)
    scaled = jnp.clip(rewards / jnp.sqrt(moments.variance + EPSILON), -MAX_STDS, MAX_STDS)
    return jnp.where(moments.count > 0, scaled, rewards), moments


def _sum(values: jax.Array, axis_name: str | None) -> jax.Array:
    """The sum over the rows, f32[...]."""
    return over_axis(jnp.sum(values, axis=0), axis_name)
