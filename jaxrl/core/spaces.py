"""Spaces of observations and actions: frozen and hashable, so that they can be static arguments."""

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.fields import freeze
from jaxrl.core.types import Key, PyTree


@dataclass(frozen=True)
class Discrete:
    """An integer in [0, n)."""

    n: int

    def __post_init__(self):
        object.__setattr__(self, "n", _count(self.n, f"Discrete(n={self.n!r})"))

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("int32")

    def sample(self, key: Key) -> jax.Array:
        """A uniform draw, i32[]."""
        return jax.random.randint(key, (), 0, self.n)

    def contains(self, value) -> jax.Array:
        """bool[]: an integer scalar within the range."""
        return _is_below(value, self.n, ())


@dataclass(frozen=True)
class MultiDiscrete:
    """A vector of integers, entry i in [0, nvec[i])."""

    nvec: tuple[int, ...]

    def __post_init__(self):
        what = f"MultiDiscrete(nvec={self.nvec!r})"
        if np.ndim(self.nvec) != 1 or not len(self.nvec):
            raise UsageError(f"{what}: nvec must be a row of one or more counts")
        object.__setattr__(self, "nvec", tuple(_count(n, what) for n in self.nvec))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("int32")

    def sample(self, key: Key) -> jax.Array:
        """A uniform draw, i32[len(nvec)]."""
        return jax.random.randint(key, self.shape, 0, np.asarray(self.nvec))

    def contains(self, value) -> jax.Array:
        """bool[]: integers of the right shape, each within its range."""
        return _is_below(value, np.asarray(self.nvec), self.shape)


@dataclass(frozen=True)
class Box:
    """Arrays of `shape` between `low` and `high`.

    Each bound is a number, or one number per element (stored as nested tuples).
    """

    low: float | tuple
    high: float | tuple
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"

    def __post_init__(self):
        object.__setattr__(self, "shape", _shape(self.low, self.high, self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        for bound in ("low", "high"):
            object.__setattr__(self, bound, _freeze_bound(getattr(self, bound), self.shape, bound))
        if np.any(np.asarray(self.low) > np.asarray(self.high)):
            raise UsageError(f"Box low {self.low} is above high {self.high}")

    def __str__(self):
        return f"Box({_shown(self.low)} to {_shown(self.high)}, {self.shape}, {self.dtype})"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def sample(self, key: Key) -> jax.Array:
        """A draw: uniform where both bounds are finite, else standard normal, clipped.

        Integers are uniform between the bounds, both included.
        """
        low = np.broadcast_to(np.asarray(self.low, np.float64), self.shape)
        high = np.broadcast_to(np.asarray(self.high, np.float64), self.shape)
        if np.issubdtype(self.dtype, np.integer):
            limits = np.iinfo(self.dtype)
            least, most = max(limits.min, -(2**31)), min(limits.max, 2**31 - 2)
            low = np.clip(np.ceil(low), least, most).astype(np.int64)
            high = np.clip(np.floor(high), least, most).astype(np.int64)
            return jax.random.randint(key, self.shape, low, high + 1).astype(self.dtype)
        bounded = (low > -1e30) & (high < 1e30)  # if wider, high - low overflows f32
        minval, maxval = np.where(bounded, low, 0.0), np.where(bounded, high, 1.0)
        uniform = jax.random.uniform(key, self.shape, minval=minval, maxval=maxval)
        low = np.clip(low, -1e38, 1e38).astype(np.float32)
        high = np.clip(high, -1e38, 1e38).astype(np.float32)
        normal = jnp.clip(jax.random.normal(key, self.shape), low, high)
        return jnp.where(bounded, uniform, normal).astype(self.dtype)

    def contains(self, value) -> jax.Array:
        """bool[]: the right shape, within the bounds, no NaN."""
        value = jnp.asarray(value)
        if value.shape != self.shape:
            return jnp.array(False)
        return jnp.all((value >= jnp.asarray(self.low)) & (value <= jnp.asarray(self.high)))


@dataclass(frozen=True)
class Dict:
    """A dict of spaces by name; their order is by name, as JAX orders a dict."""

    parts: tuple[tuple[str, "Space"], ...]  # made from a mapping, or from such pairs

    def __post_init__(self):
        pairs = self.parts.items() if isinstance(self.parts, Mapping) else self.parts
        named = isinstance(pairs, Iterable) and all(map(_is_named, pairs))
        if not named or not pairs or len(dict(pairs)) < len(pairs):
            raise UsageError(
                "Dict needs a mapping {name: space} of one or more spaces, "
                f"not {self.parts!r:.80}"
            )
        for name, space in pairs:
            _check_part(space, f"Dict[{name!r}]")
        object.__setattr__(self, "parts", tuple(sorted(pairs, key=lambda pair: pair[0])))

    def __str__(self):
        return f"Dict({', '.join(f'{name}={space}' for name, space in self.parts)})"

    def __getitem__(self, name: str) -> "Space":
        return self.spaces[name]

    @property
    def spaces(self) -> dict[str, "Space"]:
        return dict(self.parts)

    def sample(self, key: Key) -> dict[str, PyTree]:
        """A draw of every part, each with a separate key."""
        keys = jax.random.split(key, len(self.parts))
        return {name: space.sample(keys[i]) for i, (name, space) in enumerate(self.parts)}

    def contains(self, value) -> jax.Array:
        """bool[]: a mapping of the same names, every part in its space."""
        if not isinstance(value, Mapping) or set(value) != set(self.spaces):
            return jnp.array(False)
        return _all(space.contains(value[name]) for name, space in self.parts)


@dataclass(frozen=True)
class Tuple:
    """A tuple of spaces."""

    spaces: tuple["Space", ...]

    def __post_init__(self):
        is_list = isinstance(self.spaces, Iterable) and not isinstance(self.spaces, Mapping)
        if not is_list or not tuple(self.spaces):
            raise UsageError(f"Tuple needs a list of one or more spaces, not {self.spaces!r}")
        object.__setattr__(self, "spaces", tuple(self.spaces))
        for i, space in enumerate(self.spaces):
            _check_part(space, f"Tuple[{i}]")

    def __str__(self):
        return f"Tuple({', '.join(map(str, self.spaces))})"

    def __getitem__(self, index: int) -> "Space":
        return self.spaces[index]

    def sample(self, key: Key) -> tuple[PyTree, ...]:
        """A draw of every part, each with a separate key."""
        keys = jax.random.split(key, len(self.spaces))
        return tuple(space.sample(keys[i]) for i, space in enumerate(self.spaces))

    def contains(self, value) -> jax.Array:
        """bool[]: a tuple of the same length, every part in its space."""
        if not isinstance(value, tuple) or len(value) != len(self.spaces):
            return jnp.array(False)
        return _all(space.contains(part) for space, part in zip(self.spaces, value, strict=True))


Space = Discrete | MultiDiscrete | Box | Dict | Tuple


def is_tree(space: Space) -> bool:
    """Whether a space is made of other spaces."""
    return isinstance(space, Dict | Tuple)


def tree_of(space: Space) -> PyTree:
    """The plain spaces (Discrete, MultiDiscrete, Box), as leaves of a pytree like the observations.

    So `jax.tree.map(lambda part, leaf: ..., tree_of(space), obs)` visits both together.
    """
    match space:
        case Dict(parts):
            return {name: tree_of(part) for name, part in parts}
        case Tuple(spaces):
            return tuple(map(tree_of, spaces))
    return space


def space_of(tree: PyTree) -> Space:
    """The inverse of `tree_of`: one space of dicts and tuples of spaces."""
    if isinstance(tree, dict):
        return Dict({name: space_of(part) for name, part in tree.items()})
    return Tuple(tuple(map(space_of, tree))) if isinstance(tree, tuple) else tree


def box_of(leaf: jax.ShapeDtypeStruct) -> Box:
    """The space of an observation of which only the shape and the type are known."""
    if leaf.dtype == bool:
        return Box(0, 1, leaf.shape, "bool")
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return Box(-math.inf, math.inf, leaf.shape, leaf.dtype.name)
    limits = np.iinfo(leaf.dtype)
    return Box(limits.min, limits.max, leaf.shape, leaf.dtype.name)


def parts_of(space: Space, values: PyTree) -> Iterator[tuple[str, Space, PyTree]]:
    """(name, plain space, part of `values`) of each leaf in JAX's order; names: "outer/inner"."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree_of(space))
    for (path, part), value in zip(paths, structure.flatten_up_to(values), strict=True):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), part, value


def to_json(space: Space) -> dict[str, Any]:
    """The space as plain values for JSON; the inverse of `from_json`."""
    kind = {"space": type(space).__name__}
    match space:
        case Dict(parts):
            return kind | {"spaces": {name: to_json(part) for name, part in parts}}
        case Tuple(spaces):
            return kind | {"spaces": [to_json(part) for part in spaces]}
    return kind | dataclasses.asdict(space)


def from_json(values: Mapping[str, Any]) -> Space:
    """The inverse of `to_json`."""
    if values["space"] == "Dict":
        return Dict({name: from_json(part) for name, part in values["spaces"].items()})
    if values["space"] == "Tuple":
        return Tuple(tuple(map(from_json, values["spaces"])))
    kinds = {kind.__name__: kind for kind in (Discrete, MultiDiscrete, Box)}
    arguments = {name: freeze(value) for name, value in values.items() if name != "space"}
    return kinds[values["space"]](**arguments)


def _is_named(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)


def _check_part(space: Any, where: str) -> None:
    if not isinstance(space, Space):
        raise UsageError(f"{where} must be a space of jaxrl.core.spaces, not {space!r:.80}")


def _all(flags: Iterable[jax.Array]) -> jax.Array:
    return jnp.all(jnp.stack(list(flags)))


def _shown(bound: float | tuple) -> str:
    """A Box's bound in a few digits: up to four numbers, or the smallest and largest of more.

    The largest float32 numbers, which some environments give, are shown as infinity.
    """
    numbers = np.asarray(bound, np.float64).reshape(-1)
    if len(numbers) > 4 or len(set(numbers)) == 1:
        numbers = np.unique(numbers)
    most = float(np.finfo(np.float32).max)
    words = [f"{number:g}" for number in np.where(np.abs(numbers) >= most, np.inf, 1) * numbers]
    if len(words) > 4:
        return f"[{words[0]} ... {words[-1]}]"
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def _is_below(value, n, shape: tuple[int, ...]) -> jax.Array:
    """bool[]: integers of `shape` in [0, n)."""
    value = jnp.asarray(value)
    if value.shape != shape or not jnp.issubdtype(value.dtype, jnp.integer):
        return jnp.array(False)
    return jnp.all((value >= 0) & (value < n))


def _count(value, what: str) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise UsageError(f"{what}: {value!r} is no whole number") from None
    if count < 1:
        raise UsageError(f"{what}: {value!r} must be at least 1")
    return count


def _shape(low, high, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """`shape`, or if it is None the broadcast shape of both bounds."""
    try:
        shape = np.broadcast_shapes(np.shape(low), np.shape(high)) if shape is None else shape
        return tuple(operator.index(size) for size in shape)
    except ValueError:
        raise UsageError(
            f"Box low of shape {np.shape(low)} does not fit high of shape {np.shape(high)}"
        ) from None
    except TypeError:
        raise UsageError(f"Box shape must be a tuple of whole numbers, not {shape!r}") from None


def _freeze_bound(bound, shape: tuple[int, ...], name: str):
    """One number where all elements are equal, nested tuples otherwise."""
    array = np.asarray(bound, np.float64)
    if np.isnan(array).any():
        raise UsageError(f"Box {name} holds NaN: {bound}")
    try:
        array = np.broadcast_to(array, shape)
    except ValueError:
        raise UsageError(f"Box {name} of shape {array.shape} does not fit shape {shape}") from None
    if array.size == 0 or (array == array.flat[0]).all():
        return float(array.flat[0]) if array.size else 0.0
    return _tuples(array.tolist())


def _tuples(value):
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
