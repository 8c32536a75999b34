"""Sums over time in two parts: float32 that stays right, however long an episode or a training is.

A float32 sum of 200,000 rewards of 0.1 is 19,959. Here a sum has a lower part beside it: what
rounding has left out. Both are float32, the sum is always the nearest to the two together, and
whole numbers are exact up to 2**48.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree


def add(sums: PyTree, lower: PyTree, new: PyTree) -> tuple[PyTree, PyTree]:
    """(sums, lower) with `new` added (Kahan 1965, with the exact error of Knuth's TwoSum).

        y = new + lower,    s' = s + y,    lower' = (s + y) - s'

    Args:
        sums, lower, new: trees of arrays alike; `lower` is 0 at first.
    """
    leaves, structure = jax.tree.flatten(sums)
    pairs = map(_add, leaves, structure.flatten_up_to(lower), structure.flatten_up_to(new))
    sums, lower = zip(*pairs, strict=True) if leaves else ((), ())
    return structure.unflatten(sums), structure.unflatten(lower)


def _add(sums: jax.Array, lower: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
    return two_sum(sums, new + lower)


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(a + b rounded, what rounding left out), exactly (Knuth 1969); 0 where it is not finite."""
    rounded = a + b
    from_b = rounded - a
    lower = (a - (rounded - from_b)) + (b - from_b)
    return rounded, jnp.where(jnp.isfinite(lower), lower, jnp.zeros_like(lower))


def total(
    values: jax.Array, lower: jax.Array | float = 0.0, axis: int = 0
) -> tuple[jax.Array, jax.Array]:
    """(sum, lower) of many numbers at once, over an axis.

    The upper bits of all are added without any rounding, in whatever order; what is below them is
    added apart (Rump, Ogita and Oishi 2008).

    Args:
        lower: the numbers' own lower parts, which are added to that of the sum alone.
    """
    if not values.shape[axis]:
        nothing = jnp.sum(values, axis)
        return nothing, nothing
    _, exponent = jnp.frexp(jnp.max(jnp.abs(values), axis, keepdims=True))
    above = math.ceil(math.log2(values.shape[axis] + 2))
    # Adding and subtracting it cuts off the bits that would not fit into the sum.
    unit = jnp.ldexp(jnp.ones(exponent.shape, values.dtype), exponent + above)
    upper = (unit + values) - unit
    rounded, left_out = two_sum(jnp.sum(upper, axis), jnp.sum(values - upper, axis))
    left_out += jnp.sum(jnp.broadcast_to(lower, values.shape), axis)
    return jnp.where(jnp.isfinite(rounded), rounded, jnp.sum(values, axis)), left_out


def on_host(sums: np.ndarray, lower: np.ndarray | float) -> np.ndarray:
    """The sums in float64."""
    return np.asarray(sums, np.float64) + np.asarray(lower, np.float64)
