"""Spaces of observations and actions: frozen and hashable, so that they can be static arguments."""

import dataclasses
import math
import operator
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.frozen import freeze
from jaxrl.core.types import Key, PyTree


class Drawable:
    """A space that values can be drawn from."""

    def sample(self, key: Key | None = None) -> PyTree:
        """A draw by `key`; without one a NumPy value that no seed repeats, as Gymnasium draws."""
        if key is not None:
            return self._draw(key)
        drawn = self._draw(jax.random.key(secrets.randbits(31)))
        if isinstance(jax.tree.leaves(drawn)[0], jax.core.Tracer):
            raise UsageError(
                "sample() in a compiled program would draw once and for all: give it a key"
            )
        return jax.tree.map(lambda leaf: np.asarray(leaf)[()], drawn)


@dataclass(frozen=True)
class Discrete(Drawable):
    """An integer in [start, start + n)."""

    n: int
    start: int = 0

    def __post_init__(self):
        what = f"Discrete(n={brief(self.n)})"
        counts = _counts(self.n, what)
        if counts.ndim:
            raise UsageError(f"{what}: n must be one whole number")
        object.__setattr__(self, "n", int(counts))
        object.__setattr__(self, "start", _start(self.start, (), what))
        _check_32_bits(self, what)

    def __repr__(self):
        return f"Discrete(n={self.n}{_shown_start(self.start)})"

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("int32")

    @property
    def counts(self) -> tuple[int, ...]:
        """(n,), as `MultiDiscrete.counts`."""
        return (self.n,)

    def _draw(self, key: Key) -> jax.Array:
        """A uniform draw, i32[]."""
        return jax.random.randint(key, (), self.start, self.start + self.n)

    def contains(self, value) -> jax.Array:
        """bool[]: an integer scalar within the range."""
        return _is_within(self, value)


@dataclass(frozen=True)
class MultiDiscrete(Drawable):
    """An array of integers, entry i in [start[i], start[i] + nvec[i]).

    `nvec` has any shape, as nested tuples. `start` is one integer, or one for each entry.
    """

    nvec: tuple
    start: int | tuple = 0

    def __post_init__(self):
        what = f"MultiDiscrete(nvec={brief(self.nvec)})"
        counts = _counts(self.nvec, what)
        if not counts.ndim or not counts.size:
            raise UsageError(f"{what}: nvec must be an array of one or more counts")
        object.__setattr__(self, "nvec", _tuples(counts.tolist()))
        object.__setattr__(self, "start", _start(self.start, counts.shape, what))
        _check_32_bits(self, what)

    def __repr__(self):
        return f"MultiDiscrete(nvec={self.nvec}{_shown_start(self.start)})"

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.nvec)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("int32")

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of values of all entries, in a row."""
        return tuple(np.ravel(self.nvec).tolist())

    def _draw(self, key: Key) -> jax.Array:
        """A uniform draw, integers of the space's shape."""
        start = np.asarray(self.start)
        return jax.random.randint(key, self.shape, start, start + np.asarray(self.nvec))

    def contains(self, value) -> jax.Array:
        """bool[]: integers of the right shape, each within its range."""
        return _is_within(self, value)


@dataclass(frozen=True)
class Box(Drawable):
    """Arrays of `shape` between `low` and `high`.

    Each bound is a number, or one number per element (stored as nested tuples).
    """

    low: float | tuple
    high: float | tuple
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"

    def __post_init__(self):
        object.__setattr__(self, "shape", _shape(self.low, self.high, self.shape))
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        for bound in ("low", "high"):
            object.__setattr__(self, bound, _freeze_bound(getattr(self, bound), self.shape, bound))
        if np.any(np.asarray(self.low) > np.asarray(self.high)):
            raise UsageError(f"Box low {self.low} is above high {self.high}")

    def __str__(self):
        return f"Box({_shown(self.low)} to {_shown(self.high)}, {self.shape}, {self.dtype})"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def _draw(self, key: Key) -> jax.Array:
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
class Dict(Drawable):
    """A dict of spaces by name; their order is by name, as JAX orders a dict."""

    parts: tuple[tuple[str, "Space"], ...]  # made from a mapping, or from such pairs

    def __post_init__(self):
        pairs = self.parts.items() if isinstance(self.parts, Mapping) else self.parts
        named = isinstance(pairs, Iterable) and all(map(_is_named, pairs))
        if not named or not pairs or len(dict(pairs)) < len(pairs):
            raise UsageError(
                "Dict needs a mapping {name: space} of one or more spaces, "
                f"not {brief(self.parts)}"
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

    def _draw(self, key: Key) -> dict[str, PyTree]:
        """A draw of every part, each with a separate key."""
        keys = jax.random.split(key, len(self.parts))
        return {name: space.sample(keys[i]) for i, (name, space) in enumerate(self.parts)}

    def contains(self, value) -> jax.Array:
        """bool[]: a mapping of the same names, every part in its space."""
        if not isinstance(value, Mapping) or set(value) != set(self.spaces):
            return jnp.array(False)
        return _all(space.contains(value[name]) for name, space in self.parts)


@dataclass(frozen=True)
class Tuple(Drawable):
    """A tuple of spaces."""

    spaces: tuple["Space", ...]

    def __post_init__(self):
        is_list = isinstance(self.spaces, Iterable) and not isinstance(self.spaces, Mapping)
        if not is_list or not tuple(self.spaces):
            raise UsageError(f"Tuple needs a list of one or more spaces, not {brief(self.spaces)}")
        object.__setattr__(self, "spaces", tuple(self.spaces))
        for i, space in enumerate(self.spaces):
            _check_part(space, f"Tuple[{i}]")

    def __str__(self):
        return f"Tuple({', '.join(map(str, self.spaces))})"

    def __getitem__(self, index: int) -> "Space":
        return self.spaces[index]

    def _draw(self, key: Key) -> tuple[PyTree, ...]:
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
    """Returns whether a space is made of other spaces."""
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


def range_of(space: Discrete | MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """(smallest, largest) value of each entry, i64[*shape]."""
    counts = _counts_of(space)
    low = np.broadcast_to(np.int64(space.start), space.shape)
    return low, low + np.asarray(counts, np.int64) - 1


def beyond(space: Discrete | MultiDiscrete, values: Any) -> Any:
    """A mask of the numbers, [..., *shape], that are outside the range of their entry."""
    low, high = range_of(space)
    return (values < low) | (values > high)


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
        case Discrete() | MultiDiscrete() if not space.start:  # as before there were others
            return kind | {"n" if isinstance(space, Discrete) else "nvec": _counts_of(space)}
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


def _counts_of(space: Discrete | MultiDiscrete) -> int | tuple:
    return space.n if isinstance(space, Discrete) else space.nvec


def _is_named(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)


def _check_part(space: Any, where: str) -> None:
    if not isinstance(space, Space):
        raise UsageError(f"{where} must be a space of jaxrl.core.spaces, not {brief(space)}")


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


def _is_within(space: "Discrete | MultiDiscrete", value) -> jax.Array:
    """bool[]: integers of the space's shape, each within its range."""
    value = jnp.asarray(value)
    if value.shape != space.shape or not jnp.issubdtype(value.dtype, jnp.integer):
        return jnp.array(False)
    low, high = range_of(space)
    return jnp.all((value >= low) & (value <= high))


def _counts(value, what: str) -> np.ndarray:
    """i64[...] of whole numbers from 1."""
    counts = _whole_numbers(value, what)
    for count in counts.flat:
        if count < 1:
            raise UsageError(f"{what}: {count} must be at least 1")
    return counts


def _whole_numbers(value, what: str) -> np.ndarray:
    """i64[...] of one number, or of nested lists."""
    numbers = np.asarray(value, object)
    for number in numbers.flat:
        try:
            operator.index(number)
        except TypeError:
            raise UsageError(f"{what}: {brief(number)} is no whole number") from None
        if isinstance(number, bool | np.bool_):
            raise UsageError(f"{what}: {number} is no whole number")
        if abs(number) > 2**32:
            raise _too_large(what)
    return numbers.astype(np.int64)


def _start(start, shape: tuple[int, ...], what: str) -> int | tuple:
    """One integer where all entries have the same, else nested tuples of `shape`."""
    array = _whole_numbers(start, f"{what}: start={brief(start)}")
    if array.shape not in ((), shape):
        raise UsageError(f"{what}: start has the shape {array.shape}, not {shape}")
    first = int(array.flat[0])
    return first if (array == first).all() else _tuples(array.tolist())


def _check_32_bits(space: "Discrete | MultiDiscrete", what: str) -> None:
    limits = np.iinfo(np.int32)
    low, high = range_of(space)
    if np.min(low) < limits.min or np.max(high) > limits.max:
        raise _too_large(what)


def _too_large(what: str) -> UsageError:
    return UsageError(f"{what}: its values do not fit into 32 bits; count from a nearer start")


def _shown_start(start: int | tuple) -> str:
    return f", start={start}" if start else ""


def _shape(low, high, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """`shape`, or if it is None the broadcast shape of both bounds."""
    if not isinstance(shape, Sequence | np.ndarray | None) or isinstance(shape, str | bytes):
        raise _no_shape(shape)
    try:
        shape = np.broadcast_shapes(np.shape(low), np.shape(high)) if shape is None else shape
        if any(isinstance(size, bool) for size in shape):
            raise _no_shape(shape)
        return tuple(operator.index(size) for size in shape)
    except ValueError:
        raise UsageError(
            f"Box low of shape {np.shape(low)} does not fit high of shape {np.shape(high)}"
        ) from None
    except TypeError:
        raise _no_shape(shape) from None


def _no_shape(shape: Any) -> UsageError:
    return UsageError(f"Box shape must be a tuple of whole numbers, not {brief(shape)}")


def _dtype(dtype: Any) -> str:
    """The name of a type of numbers, of NumPy's or Python's."""
    try:
        found = None if dtype is None else np.dtype(dtype)
    except Exception:  # NumPy reads many forms, and fails in as many ways
        found = None
    if found is None or found.kind not in "biuf" or found.shape:
        raise UsageError(f"Box dtype={brief(dtype)} must be a type of numbers such as 'float32'")
    return found.name


def _freeze_bound(bound, shape: tuple[int, ...], name: str):
    """One number where all elements are equal, nested tuples otherwise."""
    try:
        array = np.asarray(bound, np.float64)
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None or isinstance(bound, bool | str | bytes):
        raise UsageError(f"Box {name} must be a number or an array of them, not {brief(bound)}")
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
