"""Model protocols, with and without memory; models of users; a table of a model's parameters."""

import functools
import inspect
from types import FunctionType
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.trust import Kind
from jaxrl.core.types import Key, PyTree
from jaxrl.ops.distributions import Distribution


class Model(Protocol):
    """A policy and its value function; hashable, since compiled programs are cached by model.

    Optional methods:
        loss(params, batch): (scalar, {name: scalar}), added to PPO's loss of a minibatch. `batch`
            is its `Batch`, in sequences for a model with memory; rows of `weight` 0 do not count
            and are all zeros.
        intrinsic_reward(params, trajectory): f32[T, E, M], which learning adds to the reward, times
            `intrinsic_reward_coeff`. `trajectory.obs` is as the model reads it; `next_obs`, that
            each step reached before any reset, is without what else the model is told. With this
            method the batch of `loss` has `next_obs` too.
    """

    def init(self, key: Key) -> PyTree:
        """The initial parameters: a pytree of f32 arrays."""

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """(distribution over actions, value f32[...]) of `[..., *observation_space.shape]`."""


class RecurrentModel(Protocol):
    """A model with memory: it receives a carry and returns the new one.

    The framework resets the carry at episode boundaries, so only `apply_sequence` needs to know
    where an episode begins.
    """

    init = Model.init

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """The carry into the first step of an episode, arrays [*batch_shape, ...]."""

    def apply(
        self, params: PyTree, obs: PyTree, carry: PyTree
    ) -> tuple[Distribution, jax.Array, PyTree]:
        """(distribution, value f32[...], carry) of one step."""

    def apply_sequence(
        self, params: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array
    ) -> tuple[Distribution, jax.Array, PyTree]:
        """Applies the model like `apply`, to L successive steps at once: [L, B, ...].

        Args:
            obs: [L, B, ...].
            carry: [B, ...], into the first step.
            begins: bool[L, B], set at the first step of an episode, where the carry is reset.
        """


class ActorCritic(struct.PyTreeNode):
    """A value for the policy network and one for a value network that reads other observations.

    As a model's input, `value` is None where a policy acts without its critic; values are then 0.
    """

    policy: PyTree
    value: PyTree | None = None


def _is_model(found: Any) -> bool:
    """Returns whether it is a class or object with `init` and `apply`, a tuple, or a factory."""
    if isinstance(found, FunctionType):
        takes = inspect.signature(found).parameters
        return bool(SPACES & set(takes)) or sum(map(_is_required, takes.values())) == 2
    if isinstance(found, tuple):
        return is_triple(found)
    return callable(getattr(found, "init", None)) and callable(getattr(found, "apply", None))


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind.name.startswith("VAR_")
    return parameter.default is inspect.Parameter.empty and not variadic


def is_triple(found: Any) -> bool:
    """Returns whether it is a model as functions: (init, apply), or with initial_carry."""
    return isinstance(found, tuple) and 2 <= len(found) <= 3 and all(map(callable, found))


SPACES = {"observation_space", "action_space"}
MODEL = Kind(
    "model",
    "jaxrl.models",
    "a flax module, a class or an object with init(key, obs) and apply(params, obs), "
    "a pair (init, apply), or a function of (observation_space, action_space)",
    _is_model,
)


def has_memory(model: Model | RecurrentModel) -> bool:
    return hasattr(model, "initial_carry")


def carried(begins: jax.Array, fresh: PyTree, carry: PyTree) -> PyTree:
    """`carry` [..., *shape], with `fresh` in place of it where `begins`, bool[...], is set."""

    def choose(new, old):
        wide = begins.reshape(*begins.shape, *[1] * (old.ndim - begins.ndim))
        return jnp.where(wide, new, old)

    return jax.tree.map(choose, fresh, carry)


@functools.lru_cache
def num_parameters(model: Model | RecurrentModel) -> int:
    """The number of trained numbers; traces the model once and computes nothing."""
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(model)))


def parameter_shapes(model: Model | RecurrentModel) -> PyTree:
    """The shapes of the parameters; nothing is computed."""
    return jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))


def model_table(model: Model | RecurrentModel) -> str:
    """A line for each array of parameters, and their total size; nothing is computed."""
    rows = [("parameters", "shape", "numbers")]
    for path, leaf in jax.tree.leaves_with_path(parameter_shapes(model)):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        shape = " x ".join(map(str, leaf.shape)) or "one"
        rows.append((name, shape, f"{leaf.size:,}"))
    rows.append(("in all", "", f"{num_parameters(model):,}"))
    name, shape, number = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"{row[0]:<{name}}  {row[1]:>{shape}}  {row[2]:>{number}}" for row in rows)
