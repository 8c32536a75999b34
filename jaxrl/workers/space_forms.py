"""Spaces of Gymnasium as plain values, and their observations and actions as rows of arrays.

Worker processes use this module, so it must not import JAX.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError

NARROWER = {"float64": "float32", "int64": "int32", "uint64": "uint32"}  # JAX has 32 bits


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
        """The entries of a mask of possible actions; 0 if the space is not one of integers."""
        if len(self.leaves) != 1 or not self.leaves[0].count:
            return 0
        return sum(self.leaves[0].count)

    @property
    def is_plain(self) -> bool:
        """Whether the space is no Dict or Tuple."""
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

    Raises:
        UsageError: a kind of space that has no counterpart here.
    """
    leaves: list[Leaf] = []
    unread: list[tuple[str, str]] | None = [] if is_observed else None
    json = _converted(space, what, (), leaves, unread)
    if json is None:
        raise UsageError(f"{what}: {space!r:.200} has nothing that a network can read")
    return SpaceForm(json, tuple(leaves), tuple(unread or ()))


def without_parts(form: SpaceForm, names: tuple[str, ...]) -> SpaceForm:
    """The form without the parts of an observation that have these names, "outer/inner"."""

    def is_left(leaf: Leaf) -> bool:
        path = name_of(leaf.path)
        return not any(path == name or path.startswith(f"{name}/") for name in names)

    left = [is_left(leaf) for leaf in form.leaves]
    leaves = tuple(leaf for leaf, stays in zip(form.leaves, left, strict=True) if stays)
    return form._replace(json=_pruned(form.json, iter(left)), leaves=leaves)


def name_of(path: tuple[str | int, ...]) -> str:
    return "/".join(map(str, path))


def _pruned(json: dict[str, Any], left: Iterator[bool]) -> dict[str, Any] | None:
    """A space without some of its plain parts; None if none is left."""
    if json["space"] == "Dict":
        found = {name: _pruned(part, left) for name, part in json["spaces"].items()}
        parts = {name: part for name, part in found.items() if part is not None}
    elif json["space"] == "Tuple":
        parts = [part for part in [_pruned(part, left) for part in json["spaces"]] if part]
    else:
        return json if next(left) else None
    return {**json, "spaces": parts} if parts else None


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
    found = {
        key: _converted(part, f"{what}[{key!r}]", (*path, key), leaves, unread)
        for key, part in named
    }
    parts = {key: part for key, part in found.items() if part is not None}
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

    known = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary
    if unread is not None and path and not isinstance(space, known):
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
        dtype = NARROWER.get(given_dtype, given_dtype)
        bounds = [_bound(bound, dtype) for bound in (space.low, space.high)]
        json = {"space": "Box", "low": bounds[0], "high": bounds[1]}
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
        count, start = (tuple(np.ravel(each).tolist()) for each in (counts, starts))
        return json, Leaf(path, shape, "int32", count, start, given_dtype)
    raise UsageError(
        f"{what}: Gymnasium's {type(space).__name__} space is not supported; allowed: "
        "Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple"
    )


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

    Raises:
        ValueError: another structure or shape than the space's.
    """
    for leaf, view in zip(form.leaves, views, strict=True):
        part = value
        for key in leaf.path:
            part = part[key]
        shape = part.shape if isinstance(part, np.ndarray) else np.shape(part)
        if shape != batch + leaf.shape:
            where = "".join(f"[{key!r}]" for key in leaf.path)
            raise ValueError(
                f"an observation{where} has shape {shape}, not {batch + leaf.shape} as its space "
                "says"
            )
        view[...] = part


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
    shape = leaf.shape

    def write_array(value: Any) -> None:
        if isinstance(value, np.ndarray) and value.shape == shape:
            view[...] = value
        else:
            write(form, views, value)

    return write_array if form.is_plain else lambda value: write(form, views, value)
