"""Model protocols: parameters from a key, and a function from observations to actions and values."""

import functools
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.core.types import Key, PyTree
from jaxrl.ops.distributions import Distribution


class Model(Protocol):
    """A policy and its value function. Hashable, since it is part of the key that a compiled program is kept under.

    Two more methods are optional: `loss(params, batch)` -> (scalar, {name: scalar}), added to PPO's
    loss of a minibatch (`batch`: its `Batch`, of a model with memory in sequences; rows of `weight`
    0 count for nothing and are all zeros), and `intrinsic_reward(params, trajectory)` -> f32[T, E,
    M], added to what is learned from.
    """

    def init(self, key: Key) -> PyTree:
        """The parameters at the start: a pytree of f32 arrays."""

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """(distribution over actions, value f32[...]) of observations `[..., *observation_space.shape]`."""


class RecurrentModel(Protocol):
    """A model that remembers: what it carries from step to step of an episode is handed to it and taken back.

    Whoever calls it starts the carry again where an episode began, so a model need not know of
    episodes, but in `apply_sequence`, which goes over them.
    """

    init = Model.init

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """What is carried into the first step of an episode, arrays [*batch_shape, ...]."""

    def apply(
        self, params: PyTree, obs: PyTree, carry: PyTree
    ) -> tuple[Distribution, jax.Array, PyTree]:
        """(distribution, value f32[...], carry) of one step."""

    def apply_sequence(
        self, params: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array
    ) -> tuple[Distribution, jax.Array, PyTree]:
        """What `apply` gives for L steps one after the other, all at once: [L, B, ...].

        Args:
            obs: [L, B, ...].
            carry: [B, ...], into the first step.
            begins: bool[L, B], where a step is the first of its episode: the carry starts again
            there.
        """


def has_memory(model: Model | RecurrentModel) -> bool:
    return hasattr(model, "initial_carry")


def carried(begins: jax.Array, fresh: PyTree, carry: PyTree) -> PyTree:
    """`carry` [..., *shape], started again where `begins`, bool[...], is set."""
    return jax.tree.map(
        lambda new, old: jnp.where(
            begins.reshape(*begins.shape, *[1] * (old.ndim - begins.ndim)), new, old
        ),
        fresh,
        carry,
    )


@functools.lru_cache
def num_parameters(model: Model | RecurrentModel) -> int:
    """How many numbers are trained; traces the model once and computes nothing."""
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(model)))


def parameter_shapes(model: Model | RecurrentModel) -> PyTree:
    """The parameters' shapes; nothing is computed."""
    return jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))


def model_table(model: Model | RecurrentModel) -> str:
    """A line for each array of parameters, and their sum; nothing is computed."""
    rows = [("parameters", "shape", "numbers")]
    for path, leaf in jax.tree.leaves_with_path(parameter_shapes(model)):
        shape = " x ".join(map(str, leaf.shape)) or "one"
        rows.append(
            (jax.tree_util.keystr(path, simple=True, separator="."), shape, f"{leaf.size:,}")
        )
    rows.append(("in all", "", f"{num_parameters(model):,}"))
    name, shape, number = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"{row[0]:<{name}}  {row[1]:>{shape}}  {row[2]:>{number}}" for row in rows)
