"""Sums over arrays, and over a mapped axis (`vmap`, `shard_map`) where there is one."""

import jax
import jax.numpy as jnp

from jaxrl.core.types import PyTree


def total(values: jax.Array, axis_name: str | None = None) -> jax.Array:
    """The sum over all axes, and over the mapped axis `axis_name` if there is one."""
    return over_axis(jnp.sum(values), axis_name)


def over_axis(values: PyTree, axis_name: str | None) -> PyTree:
    """Sums over the mapped axis `axis_name`, if there is one."""
    return values if axis_name is None else jax.lax.psum(values, axis_name)


def reduced_over_axis(value: jax.Array, reduce: str, axis_name: str | None) -> jax.Array:
    """The "mean", "min", "max" or "sum" of what the members of a mapped axis hold."""
    if axis_name is None:
        return value
    reductions = {"min": jax.lax.pmin, "max": jax.lax.pmax, "sum": jax.lax.psum}
    return reductions.get(reduce, jax.lax.pmean)(value, axis_name)
