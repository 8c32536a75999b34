"""What a model is: parameters from a key, and a function of them and observations to actions and values."""

import functools
from typing import Protocol

import jax

from jaxrl.core.types import Key, PyTree
from jaxrl.ops.distributions import Distribution


class Model(Protocol):
    """A policy and its value function. Hashable, since it is part of the key that a compiled program is kept under."""

    def init(self, key: Key) -> PyTree:
        """The parameters at the start: a pytree of f32 arrays."""

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """(distribution over actions, value f32[...]) of observations `[..., *observation_space.shape]`."""


@functools.lru_cache
def num_parameters(model: Model) -> int:
    """How many numbers are trained; traces the model once and computes nothing."""
    shapes = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
