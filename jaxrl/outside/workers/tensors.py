"""Tensors of PyTorch, Warp and others as arrays of JAX, and the other way round, by DLPack.

Nothing is copied where JAX has the tensor's device and its type: the array is a view, which changes
with the tensor. No library is imported here but the one that a tensor is of.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree


def tree_of_tensors(value: Any) -> PyTree:
    """A tensor, or dicts of them: those of tensordict, which are no dicts, too."""
    if isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys")):
        return {str(name): tree_of_tensors(part) for name, part in value.items()}
    return value


def to_jax(tensor: Any, device: jax.Device) -> jax.Array:
    """A tensor as an array on a device: a view of it, if the device and the type are JAX's."""
    array = None
    for form in (_as_it_is, _compact, _on_host):
        try:
            array = jax.dlpack.from_dlpack(form(tensor))
            break
        except (RuntimeError, BufferError, TypeError, ValueError, AttributeError):
            continue  # it has gaps, is on a device of others, or is no tensor at all
    if array is None:
        array = jnp.asarray(np.asarray(tensor))
    return array if device in array.devices() else jax.device_put(array, device)


def to_host(tensor: Any) -> np.ndarray:
    """A tensor as an array of NumPy: a view, if it is in the host's memory."""
    try:
        return np.asarray(tensor)
    except (RuntimeError, TypeError, ValueError):
        return np.asarray(_on_host(tensor))


def maker_like(tensor: Any) -> Callable[[jax.Array, str], Any]:
    """A function that makes tensors of this one's library and device, of an array and a type."""
    library, device = type(tensor).__module__.partition(".")[0], getattr(tensor, "device", None)
    if library in ("numpy", "builtins"):
        return lambda array, dtype: np.array(array, dtype)
    module = importlib.import_module(library)
    if library.startswith("jax"):
        return lambda array, dtype: array

    def make(array: jax.Array, dtype: str) -> Any:
        if library == "torch":
            return module.from_dlpack(array).to(device=device, dtype=getattr(module, dtype))
        made = module.from_dlpack(array.astype(dtype))
        return made.to(device) if hasattr(made, "to") else made

    return make


def _as_it_is(tensor: Any) -> Any:
    return tensor


def _compact(tensor: Any) -> Any:
    """A copy without gaps; a tensor of PyTorch without its gradient."""
    if hasattr(tensor, "detach"):
        return tensor.detach().contiguous()
    return np.array(tensor)


def _on_host(tensor: Any) -> Any:
    tensor = tensor.detach() if hasattr(tensor, "detach") else tensor
    return tensor.cpu() if hasattr(tensor, "cpu") else np.array(tensor.numpy())
