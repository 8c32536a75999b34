"""First layers of integers and trees: integers are looked up, as rows of the kernel."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, parts_of
from jaxrl.core.types import PyTree


def read_parts(space: Space, kernel: jax.Array, obs: PyTree) -> jax.Array:
    """The product of an encoded observation and the kernel, f32[..., out].

    A tree is one product for each run of Boxes, and one lookup of all integers.
    """
    terms, rows, first = [], [], 0
    is_box_part = lambda named: isinstance(named[1], Box)
    for is_box, run in itertools.groupby(parts_of(space, obs), is_box_part):
        numbers, begin = [], first
        for _, part, values in run:
            if is_box:
                batch = values.shape[: values.ndim - len(part.shape)]
                numbers.append(values.reshape(*batch, part.size).astype(kernel.dtype))
            else:
                rows.append(_rows(part, values.astype(jnp.int32)) + first)
            first += part.size if is_box else sum(part.counts)
        if is_box:
            terms.append(jnp.concatenate(numbers, axis=-1) @ kernel[begin:first])
    if rows:
        terms.append(lookup(kernel, jnp.concatenate(rows, axis=-1)))
    return sum(terms[1:], start=terms[0])


def lookup(kernel: jax.Array, index: jax.Array) -> jax.Array:
    """The sum of the rows `index`, i32[..., K], of `kernel`, f32[..., out]."""
    return jnp.sum(kernel[index], axis=-2)


def _rows(space: Discrete | MultiDiscrete, obs: jax.Array) -> jax.Array:
    """The rows of the kernel that encode an observation, [..., K]."""
    if isinstance(space, Discrete):
        return obs[..., None]
    offsets = np.cumsum((0, *space.counts[:-1]), dtype=np.int32)
    return obs + offsets.reshape((1,) * (obs.ndim - 1) + (-1,))
