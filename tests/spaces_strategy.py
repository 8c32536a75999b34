"""Spaces that hypothesis draws: every kind, with starts, shapes, types, and nested."""

import math

import jax
import numpy as np
from hypothesis import strategies as st

from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, parts_of, tree_of
from jaxrl.core.types import PyTree

SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])
FLOATS = st.sampled_from(["float32", "float16"])
INTEGERS = st.sampled_from(["int32", "int8", "uint8"])


def discretes() -> st.SearchStrategy[Discrete]:
    return st.builds(Discrete, st.integers(1, 5), start=st.integers(-3, 7))


@st.composite
def multi_discretes(draw) -> MultiDiscrete:
    """Of one or two axes, with no start, one start, or one for each entry."""
    shape = draw(st.sampled_from([(1,), (3,), (2, 3)]))
    entries = lambda numbers: np.reshape(
        draw(st.lists(numbers, min_size=math.prod(shape), max_size=math.prod(shape))), shape
    )
    start = draw(st.sampled_from(["none", "one", "each"]))
    starts = {"none": lambda: 0, "one": lambda: draw(st.integers(-3, 7))}
    return MultiDiscrete(
        entries(st.integers(1, 4)), starts.get(start, lambda: entries(st.integers(-3, 7)))()
    )


@st.composite
def float_boxes(draw) -> Box:
    """With bounds on both sides, on one, or on none."""
    low = draw(st.sampled_from([-math.inf, -2.0, 0.5]))
    high = draw(st.sampled_from([1.0, 3.5, math.inf]))
    return Box(low, high, draw(SHAPES), draw(FLOATS))


@st.composite
def integer_boxes(draw) -> Box:
    low = draw(st.integers(0, 3))
    return Box(low, low + draw(st.integers(0, 3)), draw(SHAPES), draw(INTEGERS))


def integers() -> st.SearchStrategy[Space]:
    """Spaces that can be masked."""
    return st.one_of(discretes(), multi_discretes())


def action_boxes() -> st.SearchStrategy[Box]:
    """Numbers with both bounds or with none."""
    bounds = st.sampled_from([(-2.0, 3.5), (-math.inf, math.inf)])
    return st.builds(lambda bounds, shape: Box(*bounds, shape), bounds, SHAPES)


def actions() -> st.SearchStrategy[Space]:
    """Integers, numbers, and Dicts and Tuples of both."""
    return trees(st.one_of(discretes(), multi_discretes(), integer_boxes(), action_boxes()))


def plain() -> st.SearchStrategy[Space]:
    return st.one_of(discretes(), multi_discretes(), float_boxes(), integer_boxes())


def trees(leaves: st.SearchStrategy[Space] | None = None) -> st.SearchStrategy[Space]:
    """Plain spaces, and Dicts and Tuples of them, one within another."""

    def grow(inner):
        named = st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3)
        listed = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(st.builds(Dict, named), st.builds(Tuple, listed))

    return st.recursive(plain() if leaves is None else leaves, grow, max_leaves=4)


def member(space: Space, seed: int, batch: tuple[int, ...] = ()) -> PyTree:
    """A value of the space, [*batch, ...] in NumPy, as an environment would give it."""
    rng = np.random.default_rng(seed)

    def draw(part: Space) -> np.ndarray:
        shape = (*batch, *part.shape)
        if not isinstance(part, Box):
            counts = part.nvec if part.shape else part.n
            return np.int32(part.start + rng.integers(0, counts, shape))
        low, high = (np.broadcast_to(bound, shape) for bound in (part.low, part.high))
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 1, -1.0))
        high = np.where(np.isfinite(high), high, low + 1)
        if np.issubdtype(part.dtype, np.integer):
            return rng.integers(low, high + 1).astype(part.dtype)
        return rng.uniform(low, high).astype(part.dtype)

    return jax.tree.map(draw, tree_of(space))


def is_equal(space: Space, found: PyTree, expected: PyTree, atol: float = 0.0) -> bool:
    """Whether two values of a space are the same in structure, and numbers to within `atol`."""
    pairs = zip(parts_of(space, found), parts_of(space, expected), strict=True)
    return all(
        np.shape(left) == np.shape(right) and np.allclose(left, right, rtol=0.0, atol=atol)
        for (*_, left), (*_, right) in pairs
    )
