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
    """

    json: dict[str, Any]
    leaves: tuple[Leaf, ...]

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


def form_of(space: Any, what: str) -> SpaceForm:
    """The form of a space of Gymnasium; `what` names it in errors.

    Raises:
        UsageError: a kind of space that has no counterpart here.
    """
    leaves: list[Leaf] = []
    return SpaceForm(_converted(space, what, (), leaves), tuple(leaves))


def _converted(space: Any, what: str, path: tuple, leaves: list[Leaf]) -> dict[str, Any]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not space.spaces or not all(isinstance(name, str) for name in space.spaces):
            raise UsageError(f"{what}: a Dict space needs one or more parts with texts as names")
        parts = {
            name: _converted(space[name], f"{what}[{name!r}]", (*path, name), leaves)
            for name in sorted(space.spaces)
        }
        return {"space": "Dict", "spaces": parts}
    if isinstance(space, spaces.Tuple):
        parts = [
            _converted(part, f"{what}[{i}]", (*path, i), leaves)
            for i, part in enumerate(space.spaces)
        ]
        return {"space": "Tuple", "spaces": parts}
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
