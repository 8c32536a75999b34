"""Numbers in arrays of another type: the same numbers, or an error that names one that is lost.

It needs no JAX: worker processes and files use it.
"""

from typing import Any

import numpy as np

from jaxrl.core.errors import brief

FEW = 64  # numbers that are compared faster as Python's


class NotHeldError(ValueError):
    """A number that a type cannot hold; the message is `3.9, which int32 cannot hold`."""


def as_type(values: Any, dtype: Any) -> np.ndarray:
    """Values as an array of `dtype`. Fractions are rounded as floats are; nothing else changes.

    So 300 and -1 are no uint8, 3.9 is no int32, 2 is no bool and 1e5 no float16.

    Raises:
        NotHeldError: a number that the type cannot hold, or no number.
    """
    array, dtype = np.asarray(values), np.dtype(dtype)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise NotHeldError(f"{brief(values)}, which is no array of {dtype}")
    if np.can_cast(array.dtype, dtype):
        return array.astype(dtype)
    cast = _quietly_cast(array, dtype)
    lost = cast != array if dtype.kind != "f" else np.isinf(cast) & np.isfinite(array)
    if lost.any():
        raise NotHeldError(f"{array[lost][0].item()}, which {dtype} cannot hold")
    return cast


@np.errstate(over="ignore", invalid="ignore")
def _quietly_cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array.astype(dtype)


def store(view: np.ndarray, values: np.ndarray) -> None:
    """Writes values over those of `view`, as `as_type` converts them; quick for usual types.

    Floats beyond the range of the view's become infinite: the caller looks for those.

    Raises:
        NotHeldError: another number that the view's type cannot hold; the view may be changed.
    """
    kind, into = values.dtype.kind, view.dtype.kind
    if kind == into == "f":
        view[...] = values
    elif kind in "iu" and into in "iu":
        view[...] = values
        few = values.size < FEW
        if view.tolist() != values.tolist() if few else (view != values).any():
            as_type(values, view.dtype)
    else:
        view[...] = as_type(values, view.dtype)


def flag_in(value: Any) -> bool | None:
    """The flag that a value is: true or false, 0 or 1, alone or in an array; None: it is none."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):
        return None
    is_flag = found.size == 1 and found.dtype.kind in "biu" and found.item() in (0, 1)
    return bool(found.item()) if is_flag else None


def common_type(arrays: list[np.ndarray]) -> np.dtype:
    """The type of one array that holds the numbers of all.

    Raises:
        NotHeldError: there is none, as for large integers beside fractions.
    """
    dtype = np.result_type(*arrays)
    for array in arrays:
        if array.dtype.kind in "iu" and array.dtype != dtype:
            lost = array.astype(dtype).astype(array.dtype) != array
            if lost.any():
                raise NotHeldError(f"{array[lost][0]} of {array.dtype} is lost beside {dtype}")
    return dtype
