"""Copies of what others go on to change: observations, infos and the like."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

UNCHANGING = frozenset(
    {bool, int, float, str, bytes, type(None)}
    | {np.bool_, np.float32, np.float64, np.int32, np.int64}
)


def owned(value: Any) -> Any:
    """A copy that nobody else can change: of an array, and of dicts, tuples and lists of them.

    Numbers and texts, which do not change, are kept. So are objects of other kinds, such as an
    environment among the infos.
    """
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if kind is dict:
        return {name: owned(part) for name, part in value.items()}
    return _owned_of_others(value)


def _owned_of_others(value: Any) -> Any:
    """`owned` of the kinds that come less often, and are asked for less quickly."""
    if isinstance(value, np.ndarray):
        copied = value.copy()
        if value.dtype == object:
            for place in np.ndindex(value.shape):
                copied[place] = owned(value[place])
        return copied
    if isinstance(value, Mapping):
        return {name: owned(part) for name, part in value.items()}
    if isinstance(value, tuple):
        parts = map(owned, value)
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, list):
        return list(map(owned, value))
    if isinstance(value, set | bytearray):
        return copy.copy(value)
    is_tensor = hasattr(value, "__array__") and hasattr(value, "clone")
    return value.clone() if is_tensor else value
