"""Dtypes: numbers of users and of files as the types that programs and checkpoints expect."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fast_prng import is_key
from jaxrl.core.types import PyTree


def typed_like(current: PyTree, new: PyTree, what: str) -> PyTree:
    """`new` with every leaf as an array of the type that it has in `current`.

    Args:
        what: the tree's name, for errors: `env_params`.

    Raises:
        UsageError: another structure or shape, or a number that its type cannot hold, such as 30.5
            for an integer.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(current)
    try:
        leaves = structure.flatten_up_to(new)
    except (TypeError, ValueError):
        kind = type(current).__name__
        raise UsageError(
            f"{what} must be a {kind} with the same fields as before, not {brief(new)}"
        ) from None
    typed = []
    for (path, old), value in zip(paths, leaves, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        typed.append(_typed(f"{what}: {name}" if name else what, old, value))
    return structure.unflatten(typed)


class TrainingNumbers:
    """The numbers of a trainer or a learner; new ones keep the types of the first."""

    _hypers: PyTree
    _env_params: PyTree

    @property
    def env_params(self) -> PyTree:
        """The environment's numbers; set them to train on with others, without compiling again.

        Raises:
            UsageError: when set to other fields or shapes, or a number that its type cannot hold.
        """
        return self._env_params

    @env_params.setter
    def env_params(self, new: PyTree) -> None:
        self._env_params = typed_like(self._env_params, new, "env_params")

    @property
    def hypers(self) -> PyTree:
        """The algorithm's numbers by policy, as of `config.hypers()`; set as `env_params` are."""
        return self._hypers

    @hypers.setter
    def hypers(self, new: PyTree) -> None:
        self._hypers = typed_like(self._hypers, new, "hypers")


def narrowed(saved: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A saved 64-bit number as the expected type; unchanged if its value would change.

    Python numbers are 64-bit. Training computed with their narrow forms, so these are the true
    values.
    """
    if saved.dtype not in (np.int64, np.float64) or saved.dtype == dtype:
        return saved
    is_real = np.issubdtype(dtype, np.floating) or np.issubdtype(dtype, np.integer)
    return saved.astype(dtype) if is_real and _fits(saved, dtype) else saved


def _typed(name: str, old: jax.Array, value: Any) -> jax.Array:
    if isinstance(value, jax.Array) and (value.shape, value.dtype) == (old.shape, old.dtype):
        return jax.lax.convert_element_type(value, old.dtype)  # without a weak type
    if is_key(old):
        raise UsageError(f"{name} must be a random key")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name}={brief(value)} must be {_kind(old)}") from None
    if not (_is_kind(array.dtype, old.dtype) and _fits(array, old.dtype)):
        raise UsageError(f"{name}={brief(value)} must be {_kind(old)}")
    if array.shape != old.shape:
        shapes = list(old.shape), list(array.shape)
        raise UsageError(f"{name} must have the shape {shapes[0]}, not {shapes[1]}")
    return jnp.asarray(array, old.dtype)


def _is_kind(dtype: np.dtype, target: np.dtype) -> bool:
    """Returns whether values may take another type: bools stay bools, reals stay real."""
    if jnp.issubdtype(target, jnp.bool_):
        return jnp.issubdtype(dtype, jnp.bool_)
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)


def _fits(array: np.ndarray, dtype: np.dtype) -> bool:
    """Returns whether a type can hold these numbers; integers exactly."""
    if jnp.issubdtype(dtype, jnp.floating):
        finite = array[np.isfinite(array)]
        return bool(np.all(np.abs(finite) <= float(jnp.finfo(dtype).max)))
    if not jnp.issubdtype(dtype, jnp.integer):
        return True
    bounds = jnp.iinfo(dtype)
    within = np.all((array >= int(bounds.min)) & (array <= int(bounds.max)))  # False for NaN
    return bool(within and np.all(array == np.floor(array)))


def _kind(old: jax.Array) -> str:
    if jnp.issubdtype(old.dtype, jnp.bool_):
        return "True or False"
    if jnp.issubdtype(old.dtype, jnp.integer):
        return f"an integer that {old.dtype} holds"
    return f"a number that {old.dtype} holds"
