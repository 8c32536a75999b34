"""The environment's values and the program's: one way between them, in both directions.

A space says what the environment gives and takes. Inside of a policy integers count from 0, in a
row: tables are looked up by them, and logits belong to them. An action of several parts is one row
of numbers there. Only `PolicySpec` and what it is made of use this second form.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    Tuple,
    from_json,
    is_tree,
    space_of,
    tree_of,
)
from jaxrl.core.types import PyTree

MOST_CHOICES = 10_000  # of the integers of a Box that are chosen, together


def program_space(space: Space) -> Space:
    """The space inside of a policy: integers from 0, those of an array in a row; Boxes alike."""
    match space:
        case Discrete(n) if space.start:
            return Discrete(n)
        case MultiDiscrete():
            return MultiDiscrete(space.counts)
        case Dict(parts):
            return Dict({name: program_space(part) for name, part in parts})
        case Tuple(spaces):
            return Tuple(tuple(map(program_space, spaces)))
    return space


def is_program(space: Space) -> bool:
    """Returns whether the environment's values are the program's."""
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


# ---- actions


@functools.lru_cache(maxsize=256)  # of a policy it is asked for with each distribution
def action_space_inside(space: Space) -> Space:
    """The space of a policy's choices: as `program_space`, and integers of a Box are categories."""
    return program_space(countable(space))


def countable(space: Space) -> Space:
    """The space with Boxes of integers as what they are to a policy: one choice for each number.

    Raises:
        UsageError: more choices than a network can have outputs for.
    """
    if is_tree(space):
        return space_of(jax.tree.map(countable, tree_of(space)))
    if not is_integer_box(space):
        return space
    low = np.broadcast_to(np.ceil(np.asarray(space.low, np.float64)), space.shape)
    counts = np.broadcast_to(np.floor(np.asarray(space.high, np.float64)), space.shape) - low + 1
    if not counts.sum() <= MOST_CHOICES:
        raise UsageError(
            f"actions of {space} are {counts.sum():,.0f} choices of integers, more than "
            f"{MOST_CHOICES:,}: give the environment a Box of floating numbers, and round there"
        )
    low, counts = low.astype(np.int64), counts.astype(np.int64)
    if space.shape == ():
        return Discrete(int(counts), start=int(low))
    return MultiDiscrete(counts, start=low)


def is_integer_box(space: Space) -> bool:
    """Returns whether a space is a Box of integers, which a policy chooses one by one."""
    return isinstance(space, Box) and np.dtype(space.dtype).kind in "iub" and space.size > 0


def sampled_space(space: Space) -> Space:
    """Actions as a policy samples them: a Box's numbers are not stretched to its bounds."""
    return space_of(jax.tree.map(_unbounded, tree_of(countable(space))))


def _unbounded(part: Space) -> Space:
    return Box(-math.inf, math.inf, part.shape) if isinstance(part, Box) else part


def mask_length(space: Space) -> int:
    """The number of entries of a mask, the choices of all integers in a row; 0: there are none."""
    parts = jax.tree.leaves(tree_of(countable(space)))
    return sum(sum(part.counts) for part in parts if not isinstance(part, Box))


def action_to_program(space: Space, action: PyTree, xp: Any = np) -> Any:
    """The environment's actions, [..., *shape], as the policy has them: one array.

    Numbers of a Box are not changed. Of a Dict or Tuple it is f32[..., K], all parts in a row.
    """
    inside = to_program(countable(space), action, xp)
    return packed(action_space_inside(space), inside, xp) if is_tree(space) else inside


def action_from_program(space: Space, action: Any, xp: Any = np) -> PyTree:
    """The inverse of `action_to_program`."""
    if is_tree(space):
        action = unpacked(action_space_inside(space), action)
    converted = from_program(countable(space), action, xp)
    typed = lambda part, leaf: leaf.astype(part.dtype) if is_integer_box(part) else leaf
    return jax.tree.map(typed, tree_of(space), converted)


def is_action_of_program(space: Space) -> bool:
    """Returns whether the environment's actions are the policy's, except for a Box's bounds."""
    return not is_tree(space) and action_space_inside(space) == space


def num_chosen(space: Space) -> int:
    """The numbers of an action inside, those of all parts in a row."""
    return sum(math.prod(part.shape) for part in jax.tree.leaves(tree_of(space)))


def type_inside(space: Space) -> jax.ShapeDtypeStruct:
    """The shape and type of an action as the policy has it: f32 for a Box of any type."""
    inside = action_space_inside(space)
    if is_tree(inside):
        return jax.ShapeDtypeStruct((num_chosen(inside),), np.float32)
    dtype = np.float32 if isinstance(inside, Box) else inside.dtype
    return jax.ShapeDtypeStruct(inside.shape, dtype)


def packed(space: Space, parts: PyTree, xp: Any = np) -> Any:
    """The parts of an action inside, [..., *shape], in a row, f32[..., K]."""
    leaves = []
    for part, leaf in zip(
        jax.tree.leaves(tree_of(space)),
        jax.tree.structure(tree_of(space)).flatten_up_to(parts),
        strict=True,
    ):
        leaf = xp.asarray(leaf)
        batch = leaf.shape[: leaf.ndim - len(part.shape)]
        leaves.append(leaf.reshape(*batch, num_chosen(part)).astype(np.float32))
    return xp.concatenate(leaves, axis=-1)


def unpacked(space: Space, row: Any) -> PyTree:
    """The inverse of `packed`."""
    spaces, structure = jax.tree.flatten(tree_of(space))
    parts, first = [], 0
    for part in spaces:
        numbers = row[..., first : first + num_chosen(part)]
        first += num_chosen(part)
        dtype = np.float32 if isinstance(part, Box) else np.int32
        parts.append(numbers.reshape((*row.shape[:-1], *part.shape)).astype(dtype))
    return structure.unflatten(parts)


def numbers_of(space: Space, action: PyTree) -> jax.Array:
    """The numbers of all Boxes of an action in parts, [..., *shape], in a row: f32[..., d]."""
    spaces, structure = jax.tree.flatten(tree_of(space))
    rows = []
    for part, leaf in zip(spaces, structure.flatten_up_to(action), strict=True):
        if isinstance(part, Box) and not is_integer_box(part):
            batch = leaf.shape[: leaf.ndim - len(part.shape)]
            rows.append(leaf.reshape(*batch, num_chosen(part)).astype(np.float32))
    return jax.numpy.concatenate(rows, axis=-1)


def is_alike_inside(saved: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Returns whether a network for the first space serves the second, both as of `to_json`.

    Within the program spaces may be alike that differ outside, as in where integers begin.
    """
    if saved is None or saved == other:
        return saved == other
    return program_space(from_json(saved)) == program_space(from_json(other))
