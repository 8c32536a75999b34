"""Values in an episode: nested dicts and tuples of arrays, and what a space says about them.

Spaces are those of `jaxrl.core.spaces` or of Gymnasium: anything with `spaces`, `nvec`, `n` and
`shape`. Nothing here imports either, so episodes need no JAX.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import brief
from jaxrl.core.number_types import flag_in
from jaxrl.episodes.errors import EpisodeError

Nested = Any  # a leaf, or a dict or tuple of nested values; a list is a leaf
Space = Any


def map_nested(function: Callable, *trees: Nested) -> Nested:
    """`function` of the leaves of trees that have one structure."""
    first = trees[0]
    if isinstance(first, Mapping):
        for tree in trees:
            if not isinstance(tree, Mapping) or set(tree) != set(first):
                raise EpisodeError(
                    f"expected a dict of {sorted(map(str, first))}, got {brief(tree)}"
                )
        return {name: map_nested(function, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, tuple):
        for tree in trees:
            if not isinstance(tree, tuple) or len(tree) != len(first):
                raise EpisodeError(f"expected a tuple of {len(first)} values, got {brief(tree)}")
        return tuple(map_nested(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def leaves(tree: Nested) -> Iterator[Any]:
    """The leaves of a tree, in its order."""
    if isinstance(tree, Mapping | tuple):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(part)
    else:
        yield tree


def equal(first: Nested, second: Nested) -> bool:
    """Returns whether two observations are equal; NaN equals NaN."""
    try:
        return all(leaves(map_nested(_equal_leaves, first, second)))
    except EpisodeError:
        return False


def _equal_leaves(first: Any, second: Any) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    can_be_nan = first.dtype.kind in "fc" and second.dtype.kind in "fc"
    return np.array_equal(first, second, equal_nan=can_be_nan)


def stack(items: list[Nested] | Nested, space: Space = None) -> Nested:
    """A list of values as one value, whose leaves have the list's length as their first axis.

    Arrays are returned as they are.

    Args:
        space: the space of one value; gives an empty list its shapes and types.
    """
    if not isinstance(items, list):
        return items
    if items:
        return map_nested(_stack_leaves, *items)
    if space is None:
        return np.zeros(0)
    return map_space(lambda part: np.zeros((0, *part.shape), part.dtype), space)


def _stack_leaves(*parts: Any) -> np.ndarray:
    try:
        return np.array(parts) if np.ndim(parts[0]) == 0 else np.stack(parts)
    except ValueError:
        shapes = {np.shape(part) for part in parts}
        raise EpisodeError(
            f"values of different shapes cannot become one array: {brief(shapes)}"
        ) from None


def unstack(arrays: Nested) -> list[Nested]:
    """The inverse of `stack`; a list is returned as it is."""
    if isinstance(arrays, list):
        return arrays
    if any(np.ndim(leaf) == 0 for leaf in leaves(arrays)):
        raise EpisodeError(f"expected a list of values or arrays of them, got {brief(arrays)}")
    count = len(next(leaves(arrays)))
    return [map_nested(lambda leaf, i=i: leaf[i], arrays) for i in range(count)]


def as_rewards(rewards: list | np.ndarray | None) -> list[float] | np.ndarray:
    """Rewards as floats; NaN is refused, since every sum over it would be NaN."""
    if rewards is None or isinstance(rewards, list | tuple):
        return list(map(as_reward, rewards or ()))
    rewards = np.asarray(rewards)
    if rewards.dtype.kind not in "iubf" or rewards.ndim != 1 or np.isnan(rewards).any():
        raise EpisodeError(f"rewards are a row of numbers, none of them NaN, not {brief(rewards)}")
    return rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)


def as_reward(reward: Any) -> float:
    if isinstance(reward, float) and not math.isnan(reward):
        return reward
    try:
        number = float(reward) if np.ndim(reward) == 0 else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise EpisodeError(f"a reward is one number, not {brief(reward)}")
    return number


def as_flag(name: str, value: Any) -> bool:
    """The value of a flag, which says whether something has ended."""
    found = flag_in(value)
    if found is None:
        raise EpisodeError(f"{name}={brief(value)} must be True or False")
    return found


def as_infos(infos: Any) -> list:
    """The infos of an episode as a list; empty where there are none."""
    if infos is None or isinstance(infos, list | tuple):
        return [by_name("infos", info) for info in infos or ()]
    raise EpisodeError(f"infos={brief(infos)} must be a list of dicts, or None")


def by_name(name: str, value: Any) -> Mapping[str, Any] | None:
    """Infos or outputs of a step: a dict, or None."""
    if value is None or isinstance(value, Mapping):
        return value
    raise EpisodeError(f"{name}={brief(value)} must be a dict, or None")


def map_space(function: Callable, space: Space, *trees: Nested) -> Nested:
    """`function(space, *leaves)` for each plain space of a Dict or Tuple space."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {
            name: map_space(function, part, *(tree[name] for tree in trees))
            for name, part in parts.items()
        }
    if isinstance(parts, tuple | list):
        return tuple(
            map_space(function, part, *(tree[i] for tree in trees)) for i, part in enumerate(parts)
        )
    return function(space, *trees)


def counts_of(space: Space) -> np.ndarray | None:
    """The number of values of each integer of a Discrete or MultiDiscrete space, or None."""
    if hasattr(space, "nvec"):
        return np.asarray(space.nvec)
    return np.asarray(space.n) if hasattr(space, "n") and tuple(space.shape) == () else None


def one_hot(space: Space, value: Nested) -> Nested:
    """Discrete and MultiDiscrete parts as one-hot rows of float32, the others as they are."""
    return map_space(_one_hot_leaf, space, value)


def _one_hot_leaf(space: Space, value: Any) -> Any:
    counts = counts_of(space)
    if counts is None:
        return value
    digits = np.asarray(value) - np.asarray(getattr(space, "start", 0))
    batch = digits.shape[: digits.ndim - counts.ndim]
    rows, digits = [], digits.reshape(*batch, counts.size)
    for i, count in enumerate(counts.reshape(-1)):
        rows.append(np.eye(count, dtype=np.float32)[digits[..., i]])
    return np.concatenate(rows, axis=-1)


def filled(space: Space, fill: Any, one_hot_discrete: bool = False) -> Nested:
    """A value of a space in which every number is `fill`."""

    def leaf(part: Space) -> np.ndarray:
        counts = counts_of(part) if one_hot_discrete else None
        if counts is None:
            return np.full(part.shape, fill).astype(part.dtype)
        return np.full(counts.sum(), fill, np.float32)

    return map_space(leaf, space)


def check_fits(space: Space, value: Nested, what: str, batch_axes: int = 0) -> None:
    """Raises EpisodeError where a value has another structure or shape than its space.

    Integers must be in their range. Numbers of a Box may be outside of its bounds, as actions
    are before they are clipped.

    Args:
        what: the value's name in the error.
        batch_axes: how many axes the leaves have in front of the space's.
    """
    parts = getattr(space, "spaces", None)
    if parts is not None:
        is_dict = isinstance(parts, Mapping)
        is_alike = isinstance(value, dict if is_dict else tuple) and len(value) == len(parts)
        if not is_alike or (is_dict and value.keys() != parts.keys()):
            raise EpisodeError(f"{what} does not fit its space {brief(space)}: {brief(value)}")
        for key in parts if is_dict else range(len(parts)):
            check_fits(parts[key], value[key], f"{what}[{key!r}]", batch_axes)
    elif getattr(space, "shape", None) is not None:
        _check_leaf(space, value, what, batch_axes)


def _check_leaf(space: Space, value: Any, what: str, batch_axes: int) -> None:
    shape = np.shape(value)[batch_axes:]
    if shape != tuple(space.shape):
        raise EpisodeError(f"{what} has shape {shape}, its space {tuple(space.shape)}")
    counts = counts_of(space)
    if counts is None or not np.size(value):
        return
    digits = np.asarray(value)
    start = np.asarray(getattr(space, "start", 0))
    if digits.dtype.kind not in "iub" or not np.all((digits >= start) & (digits < start + counts)):
        raise EpisodeError(f"{what} is not in its space {brief(space)}: {brief(value)}")
