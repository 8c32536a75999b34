"""Numbers in nested lists, as messages bring them, to arrays: looked at before anything is made.

NumPy makes texts of all elements as long as the longest one, so a message of half a megabyte could
ask for gigabytes.
"""

from typing import Any

import numpy as np

NUMBERS = {int, float, bool}


def array_of(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array of numbers of a certain shape; None where the value is none.

    What is allocated is bounded by `shape`.
    """
    if not _has_shape(value, shape):
        return None
    array = np.asarray(value)
    # Integers of more than 64 bits are objects.
    return array if array.dtype.kind in "biuf" else None


def _has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return np.shape(value) == shape
    if not shape:
        return type(value) in NUMBERS
    if not isinstance(value, list | tuple) or len(value) != shape[0]:
        return False
    if len(shape) == 1:
        return set(map(type, value)) <= NUMBERS or all(_has_shape(part, ()) for part in value)
    return all(_has_shape(part, shape[1:]) for part in value)
