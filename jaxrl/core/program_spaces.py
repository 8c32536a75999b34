"""The environment's values and the program's: one way between them, in both directions.

A space says what the environment gives and takes. Inside of a policy integers count from 0, in a
row: tables are looked up by them, and logits belong to them. Only `PolicySpec` and what it is made
of use this second form.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl.core.spaces import Dict, Discrete, MultiDiscrete, Space, Tuple, from_json
from jaxrl.core.types import PyTree


def program_space(space: Space) -> Space:
    """The space inside of a policy: integers from 0, those of an array in a row; Boxes alike."""
    match space:
        case Discrete(n):
            return Discrete(n)
        case MultiDiscrete():
            return MultiDiscrete(space.counts)
        case Dict(parts):
            return Dict({name: program_space(part) for name, part in parts})
        case Tuple(spaces):
            return Tuple(tuple(map(program_space, spaces)))
    return space


def is_program(space: Space) -> bool:
    """Whether the environment's values are the program's."""
    return program_space(space) == space


def to_program(space: Space, values: PyTree, xp: Any = np) -> PyTree:
    """The environment's values, [..., *shape], as those of `program_space(space)`.

    Args:
        xp: the library of the arrays, `numpy` or `jax.numpy`.
    """
    return _converted(_part_to_program, space, values, xp)


def from_program(space: Space, values: PyTree, xp: Any = np) -> PyTree:
    """The inverse of `to_program`."""
    return _converted(_part_from_program, space, values, xp)


def _converted(convert: Callable, space: Space, values: PyTree, xp: Any) -> PyTree:
    """The plain parts converted; what needs no conversion is returned itself."""
    if is_program(space):
        return values
    if isinstance(space, Dict):
        return {name: _converted(convert, part, values[name], xp) for name, part in space.parts}
    if isinstance(space, Tuple):
        pairs = zip(space.spaces, values, strict=True)
        return tuple(_converted(convert, part, value, xp) for part, value in pairs)
    return convert(space, xp.asarray(values).astype(np.int32))


def _part_to_program(space: Discrete | MultiDiscrete, values: Any) -> Any:
    batch = values.shape[: values.ndim - len(space.shape)]
    values = values - _start_like(space, values)
    return values.reshape(*batch, len(space.counts)) if space.shape else values


def _part_from_program(space: Discrete | MultiDiscrete, values: Any) -> Any:
    if space.shape:
        values = values.reshape(*values.shape[:-1], *space.shape)
    return values + _start_like(space, values)


def _start_like(space: Discrete | MultiDiscrete, values: Any) -> np.ndarray:
    """`start` with as many axes as `values`, which JAX may be told to demand."""
    start = np.asarray(space.start, np.int32)
    return start.reshape((1,) * (values.ndim - start.ndim) + start.shape) if start.ndim else start


def is_alike_inside(saved: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Whether a network for the one space, both as of `to_json`, serves the other.

    Formerly the spaces of Python environments were written as the program has them.
    """
    if saved is None or saved == other:
        return saved == other
    return program_space(from_json(saved)) == program_space(from_json(other))
