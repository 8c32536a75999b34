"""Observations, masks and actions of messages, checked and read as arrays."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import brief
from jaxrl.core.program_spaces import countable, mask_length
from jaxrl.core.spaces import Box, Dict, Space, Tuple, beyond, tree_of
from jaxrl.core.types import PolicyId, PyTree
from jaxrl.run.inference.act_inputs import as_flags, checked_part
from jaxrl.serving.nested_numbers import array_of


class Refused(ValueError):
    """A message that cannot be done, in one line; its episode is dropped."""


def read_observation(space: Space, value: Any, policy: PolicyId) -> list[np.ndarray]:
    """The parts of an observation, in JAX's order."""
    return [
        checked_part(part, read_array(part, found, f"policy {policy!r}: an observation"), policy)
        for part, found in _leaves(space, value, "an observation")
    ]


def read_action(space: Space, value: Any, policy: PolicyId) -> PyTree:
    """An action of an agent, in the environment's units."""
    leaves = [
        _read_action(part, found, policy) for part, found in _leaves(space, value, "an action")
    ]
    return jax.tree.structure(tree_of(space)).unflatten(leaves)


def _read_action(space: Space, value: Any, policy: PolicyId) -> np.ndarray:
    action = read_array(space, value, f"policy {policy!r}: an action")
    if isinstance(space, Box) and not np.all(np.isfinite(action)):
        raise Refused(f"policy {policy!r}: an action must be finite numbers, not {brief(value)}")
    if mask_length(space) and np.any(beyond(countable(space), action)):
        raise Refused(f"policy {policy!r} takes actions of {space}, not {brief(value)}")
    return action


def read_mask(space: Space, value: Any) -> np.ndarray:
    """The possible actions, bool[A]."""
    length = mask_length(space)
    if not length:
        raise Refused(f"a mask needs discrete actions, not {space}")
    shape = (length,)
    mask = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else array_of(value, shape)
    is_right = mask is not None and mask.shape == shape and mask.dtype.kind != "f"
    if not is_right or (flags := as_flags(mask)) is None:
        raise Refused(f"a mask must be {length} times true or false, not {brief(value)}")
    return flags


def read_array(space: Space, value: Any, what: str) -> np.ndarray:
    """A value of a plain space, from nested lists or from the bytes of a little-endian array."""
    dtype = np.dtype(space.dtype)
    if isinstance(value, bytes):
        if len(value) != dtype.itemsize * int(np.prod(space.shape)):
            raise Refused(f"{what} must be {list(space.shape)} of {dtype}, not {len(value)} bytes")
        return np.frombuffer(value, dtype.newbyteorder("<")).reshape(space.shape).astype(dtype)
    array = array_of(value, space.shape)
    if array is None:
        raise Refused(f"{what} must be {list(space.shape)} of {dtype}, not {brief(value)}")
    if dtype.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise Refused(f"{what} must be within {dtype}, not {brief(value)}")
        return array.astype(dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is refused as such
            return array.astype(dtype)
    return array


def _leaves(space: Space, value: Any, what: str) -> Sequence[tuple[Space, Any]]:
    """The plain spaces of a space with the parts of a value, in JAX's order."""
    if isinstance(space, Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            names = ", ".join(space.spaces)
            raise Refused(f"{what} must be a dict of {names}, not {brief(value)}")
        pairs = [(part, value[name]) for name, part in space.parts]
    elif isinstance(space, Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            number = len(space.spaces)
            raise Refused(f"{what} must be a list of {number}, not {brief(value)}")
        pairs = list(zip(space.spaces, value, strict=True))
    else:
        return [(space, value)]
    leaves = []
    for part, found in pairs:
        leaves.extend(_leaves(part, found, what))
    return leaves
