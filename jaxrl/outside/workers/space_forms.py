"""Spaces of Gymnasium as plain values, and their observations and actions as rows of arrays.

Worker processes use this module, so it must not import JAX.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.number_types import NotHeldError, store

NARROWER = {"int64": "int32", "uint64": "uint32"}  # JAX has 32 bits

DOUBLE = np.dtype("float64")
MOST_CHOICES = 10_000  # of the integers of a Box together, where a mask may be of them

log = logging.getLogger(__name__)


class Leaf(NamedTuple):
    """A plain part of a space.

    Attributes:
        path: the keys and indices that lead to it.
        shape, dtype: of its arrays here.
        count: the values of a Discrete part, or of each entry of a MultiDiscrete one in a row; ()
            for a Box.
        start: the smallest value of each entry, in a row.
        given_dtype: as the environment has it.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: str
    count: tuple[int, ...]
    start: tuple[int, ...]
    given_dtype: str


class SpaceForm(NamedTuple):
    """A space of Gymnasium in values that any process can read.

    Attributes:
        json: the space as `jaxrl.core.spaces.from_json` reads it.
        leaves: its plain parts, in JAX's order.
        unread: (name, kind) of the parts of an observation that no network reads; see `form_of`.
    """

    json: dict[str, Any]
    leaves: tuple[Leaf, ...]
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def num_actions(self) -> int:
        """The entries of a mask of possible actions; 0 if none of its parts has integers."""
        return sum(sum(self.counts_of(leaf)) for leaf in self.leaves)

    def counts_of(self, leaf: Leaf) -> tuple[int, ...]:
        """The values of each integer of a part, of a Box too; () if it has none, or very many."""
        if leaf.count or np.dtype(leaf.dtype).kind not in "iub":
            return leaf.count
        json = self.json
        for key in leaf.path:
            json = json["spaces"][key]
        low, high = np.float64(json["low"]), np.float64(json["high"])
        counts = np.broadcast_to(np.floor(high) - np.ceil(low) + 1, leaf.shape)
        few = counts.size and counts.sum() <= MOST_CHOICES
        return tuple(np.ravel(counts).astype(int).tolist()) if few else ()

    @property
    def is_plain(self) -> bool:
        """True if the space is no Dict or Tuple."""
        return not self.leaves[0].path

    def build(self, leaves: list[Any]) -> Any:
        """The observation or action that has these leaves: an array, or dicts and tuples."""
        return _built(self.json, iter(leaves))


def form_of(space: Any, what: str, *, is_observed: bool = False) -> SpaceForm:
    """The form of a space of Gymnasium.

    Args:
        what: names it in errors.
        is_observed: whether it is one of observations. Parts of kinds that have no counterpart here
            are then left out and listed in `unread`, and so are empty Boxes, which hold nothing.

    An integer Box of observations beyond 32 bits becomes one of float32; the log says so once.

    Raises:
        UsageError: a kind of space that has no counterpart here.
    """
    if isinstance(space, type) or not hasattr(space, "sample"):
        raise UsageError(f"{what}={brief(space)} must be a space of jaxrl.core.spaces or Gymnasium")
    leaves: list[Leaf] = []
    unread: list[tuple[str, str]] | None = [] if is_observed else None
    json = _converted(space, what, (), leaves, unread)
    if json is None:
        raise UsageError(f"{what}: {space!r:.200} has nothing that a network can read")
    if not is_observed:
        for leaf in leaves:
            _refuse_rounded(leaf, what)
    return SpaceForm(json, tuple(leaves), tuple(unread or ()))


def _refuse_rounded(leaf: Leaf, what: str) -> None:
    """Raises UsageError for integers beyond 32 bits, since actions are not to be rounded."""
    if np.dtype(leaf.given_dtype).kind in "iu" and np.dtype(leaf.dtype).kind == "f":
        raise UsageError(
            f"{what}{place_of(leaf)}: integers beyond 32 bits cannot be chosen; declare bounds "
            "within them, or a Box of floats"
        )


def without_parts(form: SpaceForm, names: tuple[str, ...]) -> SpaceForm:
    """The form without the parts of an observation that have these names, "outer/inner"."""

    def is_left(leaf: Leaf) -> bool:
        path = name_of(leaf.path)
        return not any(path == name or path.startswith(f"{name}/") for name in names)

    left = list(map(is_left, form.leaves))
    leaves = tuple(itertools.compress(form.leaves, left))
    return form._replace(json=_pruned(form.json, iter(left)), leaves=leaves)


def name_of(path: tuple[str | int, ...]) -> str:
    return "/".join(map(str, path))


def _pruned(json: dict[str, Any], left: Iterator[bool]) -> dict[str, Any] | None:
    """A space without some of its plain parts; None if none is left."""
    if "spaces" not in json:
        return json if next(left) else None
    is_dict, parts = json["space"] == "Dict", {}
    for key, part in json["spaces"].items() if is_dict else enumerate(json["spaces"]):
        pruned = _pruned(part, left)
        if pruned is not None:
            parts[key] = pruned
    if not parts:
        return None
    return {**json, "spaces": parts if is_dict else list(parts.values())}


def _converted(
    space: Any, what: str, path: tuple, leaves: list[Leaf], unread: list[tuple[str, str]] | None
) -> dict[str, Any] | None:
    """The space as values, None if nothing of it is left; its parts go to `leaves`, `unread`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not space.spaces or not all(isinstance(name, str) for name in space.spaces):
            raise UsageError(f"{what}: a Dict space needs one or more parts with texts as names")
        named = [(name, space[name]) for name in sorted(space.spaces)]
    elif isinstance(space, spaces.Tuple):
        named = list(enumerate(space.spaces))
    else:
        return _part(space, what, path, leaves, unread)
    parts = {}
    for key, part in named:
        found = _converted(part, f"{what}[{key!r}]", (*path, key), leaves, unread)
        if found is not None:
            parts[key] = found
    if named and not parts:
        return None
    if isinstance(space, spaces.Dict):
        return {"space": "Dict", "spaces": parts}
    return {"space": "Tuple", "spaces": list(parts.values())}


def _part(
    space: Any, what: str, path: tuple, leaves: list[Leaf], unread: list[tuple[str, str]] | None
) -> dict[str, Any] | None:
    """A plain part as values; None if it is left out."""
    from gymnasium import spaces

    plain_kinds = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary
    if unread is not None and path and not isinstance(space, plain_kinds):
        unread.append((name_of(path), type(space).__name__))
        return None
    if unread is not None and path and isinstance(space, spaces.Box) and 0 in space.shape:
        return None
    json, leaf = _plain(space, what, path)
    leaves.append(leaf)
    return json


def _plain(space: Any, what: str, path: tuple) -> tuple[dict[str, Any], Leaf]:
    from gymnasium import spaces

    shape, given_dtype = tuple(space.shape or ()), np.dtype(space.dtype or "int64").name
    if isinstance(space, spaces.Box):
        dtype = _narrow(space, what)
        json = {"space": "Box", "low": _bound(space.low, dtype), "high": _bound(space.high, dtype)}
        json |= {"shape": list(shape), "dtype": dtype}
        return json, Leaf(path, shape, dtype, (), (), given_dtype)
    if isinstance(space, spaces.Discrete):
        json = {"space": "Discrete", "n": int(space.n), "start": int(space.start)}
        count, start = (json["n"],), (json["start"],)
        return json, Leaf(path, (), "int32", count, start, given_dtype)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        counts = np.full(shape, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
        starts = np.broadcast_to(getattr(space, "start", 0), shape)
        json = {"space": "MultiDiscrete", "nvec": counts.tolist(), "start": starts.tolist()}
        count, start = tuple(np.ravel(counts).tolist()), tuple(np.ravel(starts).tolist())
        return json, Leaf(path, shape, "int32", count, start, given_dtype)
    raise UsageError(
        f"{what}: Gymnasium's {type(space).__name__} space is not supported; allowed: "
        "Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple"
    )


def _narrow(space: Any, what: str) -> str:
    """The type that the numbers of a Box have here, of at most 32 bits.

    Integers whose bounds 32 bits do not hold become floats, which are rounded.
    """
    dtype = np.dtype(space.dtype)
    if dtype.kind == "f":
        return dtype.name if dtype.itemsize < 4 else "float32"
    narrower = NARROWER.get(dtype.name, dtype.name)
    if narrower == dtype.name:
        return narrower
    limits = np.iinfo(narrower)
    if space.low.size and (space.low.min() < limits.min or space.high.max() > limits.max):
        _tell_once(f"{what}: {dtype} beyond 32 bits is learned from as float32, rounded")
        return "float32"
    return narrower


@functools.cache
def _tell_once(line: str) -> None:
    log.warning(line)


def _bound(bound: np.ndarray, dtype: str) -> Any:
    """One number where all elements are equal, else nested lists; infinite beyond `dtype`."""
    bound = np.asarray(bound)
    if np.issubdtype(bound.dtype, np.floating):
        with np.errstate(over="ignore"):
            bound = bound.astype(dtype).astype(np.float64)
    elif np.issubdtype(dtype, np.integer):
        bound = np.clip(bound, np.iinfo(dtype).min, np.iinfo(dtype).max)
    if bound.size and (bound == bound.flat[0]).all():
        return float(bound.flat[0])
    return bound.astype(np.float64).tolist()


def _built(json: dict[str, Any], leaves: Iterator[Any]) -> Any:
    if json["space"] == "Dict":
        return {name: _built(part, leaves) for name, part in json["spaces"].items()}
    if json["space"] == "Tuple":
        return tuple(_built(part, leaves) for part in json["spaces"])
    return next(leaves)


# ---- what an environment gives and takes, and how it is stored


def write(
    form: SpaceForm, views: list[np.ndarray], value: Any, batch: tuple[int, ...] = ()
) -> None:
    """Stores an observation, or with `batch` several, [e, ...], in the arrays of its leaves.

    Floats beyond the range of their type become infinite, which `RangeCheck` finds.

    Raises:
        ValueError: another structure or shape than the space's, or an integer that its type cannot
            hold.
    """
    for leaf, view in zip(form.leaves, views, strict=True):
        part = value
        for key in leaf.path:
            part = part[key]
        if type(part) is int and leaf.count and view.ndim == 0:
            _store_integer(leaf, view, part)
            continue
        array = part if isinstance(part, np.ndarray) else np.asarray(part)
        if array.shape != batch + leaf.shape:
            raise ValueError(
                f"an observation{place_of(leaf)} has shape {array.shape}, not "
                f"{batch + leaf.shape} as its space says"
            )
        _store(leaf, view, array)


def _store(leaf: Leaf, view: np.ndarray, array: np.ndarray) -> None:
    try:
        store(view, array)
    except NotHeldError as error:
        raise ValueError(f"an observation{place_of(leaf)} holds {error}") from None


def _store_integer(leaf: Leaf, view: np.ndarray, number: int) -> None:
    """`_store` of one number of Python, whose range NumPy checks."""
    try:
        view[...] = number
    except OverflowError:
        raise ValueError(
            f"an observation{place_of(leaf)} holds {number}, which {view.dtype} cannot hold"
        ) from None


def place_of(leaf: Leaf) -> str:
    """The path of a part in an observation, as errors show it: `['image'][0]`."""
    return "".join(f"[{key!r}]" for key in leaf.path)


def read(form: SpaceForm, views: list[np.ndarray]) -> Any:
    """The action, or with views [e, ...] the actions, in the environment's types."""
    parts = [
        int(view) if leaf.count and view.ndim == 0 else view.astype(leaf.given_dtype)
        for leaf, view in zip(form.leaves, views, strict=True)
    ]
    return parts[0] if form.is_plain else form.build(parts)


def reader(form: SpaceForm, views: list[np.ndarray]) -> Callable[[], Any]:
    """`read(form, views)` as a function, quick for one number."""
    (leaf, *_), (view, *_) = form.leaves, views
    if form.is_plain and leaf.count and view.ndim == 0:
        return view.item
    return lambda: read(form, views)


def writer(form: SpaceForm, views: list[np.ndarray]) -> Callable[[Any], None]:
    """`write(form, views, value)` as a function of the value, quick for one array of numbers."""
    (leaf, *_), (view, *_) = form.leaves, views
    shape, dtype = leaf.shape, view.dtype
    other, array = DOUBLE if dtype.kind == "f" else dtype, np.ndarray

    def write_array(value: Any) -> None:
        if (
            type(value) is array
            and value.shape == shape
            and (value.dtype is dtype or value.dtype is other)
        ):
            view[()] = value
        else:
            write(form, views, value)

    return write_array if form.is_plain else lambda value: write(form, views, value)
