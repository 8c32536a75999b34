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
