"""Observations and actions as messages have them."""

from typing import Any

import numpy as np


def to_message(value: Any, space: dict[str, Any] | None, *, binary: bool) -> Any:
    """A value of a space, for a message: in msgpack arrays are bytes.

    A value that is not of the space is sent as it is, for the server to say what is wrong.
    """
    kind = space and space["space"]
    if kind == "Dict" and isinstance(value, dict):
        message = {}
        for name, part in value.items():
            message[name] = to_message(part, space["spaces"].get(name), binary=binary)
        return message
    if kind == "Tuple" and isinstance(value, (tuple, list)):
        parts = [*space["spaces"], *[None] * len(value)]
        return [to_message(part, parts[i], binary=binary) for i, part in enumerate(value)]
    array = np.asarray(value)
    if binary and kind == "Box" and array.ndim and array.shape == tuple(space["shape"]):
        dtype = np.dtype(space["dtype"])
        if array.dtype == dtype or is_held(array, dtype):
            return array.astype(dtype.newbyteorder("<")).tobytes()
    return array.tolist()


def is_held(array: np.ndarray, dtype: np.dtype) -> bool:
    """Returns whether a type holds all numbers of an array, but for the rounding of floats."""
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return False
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.kind == "f":
        return not np.any(np.isinf(cast) & np.isfinite(array))
    return bool(np.all(cast == array))


def from_action(value: Any, space: dict[str, Any]) -> Any:
    """An action of a message: an int of a Discrete space, else an array; in dicts and tuples."""
    if space["space"] == "Dict":
        return {name: from_action(value[name], part) for name, part in space["spaces"].items()}
    if space["space"] == "Tuple":
        return tuple(from_action(*pair) for pair in zip(value, space["spaces"], strict=True))
    if space["space"] == "Discrete":
        return int(value)
    return np.asarray(value, space.get("dtype", "int32"))
