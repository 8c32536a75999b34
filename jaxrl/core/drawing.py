"""Drawings of an environment's state, for the replay page: circles, rectangles, lines and text.

`env.draw(state, params)` returns a `Drawing`. It is traced and vmapped over the states of an
episode, so a drawing is arrays: the number of shapes is constant, and `visible` hides some of them.

Coordinates are the world's own, for example metres or cells. Colours are roles (`ROLES`), for which
the page has a light and a dark palette.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.types import PyTree

NUM_AGENT_COLORS = 8  # agents beyond repeat them in turn
ROLES = (
    "ink",  # text and what should stand out
    "muted",  # text and marks beside it
    "line",  # thin lines, such as those of a grid
    "ground",  # what bodies stand on
    "water",
    "trail",  # where somebody was
    "wall",  # what nobody can enter
    "body",  # a thing that moves and is no agent
    "good",
    "bad",
    "goal",
    *(f"agent{i}" for i in range(NUM_AGENT_COLORS)),  # as the page shows that agent's numbers
)


class Shapes(struct.PyTreeNode, kw_only=True):
    """n shapes of one kind. Numbers without an axis hold for all; points may be a list of (x, y).

    color: a role, or a tuple of roles, which the shapes have in turn.
    color_index: which of the tuple each shape has instead; may change from state to state.
    """

    color: str | tuple[str, ...] = struct.field(pytree_node=False, default="ink")
    color_index: jax.Array | None = None  # i32[n]
    visible: jax.Array | bool = True  # bool[n]
    opacity: float = struct.field(pytree_node=False, default=1.0)


class Circles(Shapes, kw_only=True):
    """Filled circles, or rings where `line_width` is positive."""

    center: jax.Array  # f32[n, 2]
    radius: jax.Array | float  # f32[n]
    line_width: float = struct.field(pytree_node=False, default=0.0)


class Rectangles(Shapes, kw_only=True):
    """Filled rectangles."""

    center: jax.Array  # f32[n, 2]
    size: jax.Array | tuple[float, float] | float  # f32[n, 2]    along x and y, before the turn
    angle: jax.Array | float = 0.0  # f32[n]    rad, counter-clockwise where y points up
    corner: float = struct.field(pytree_node=False, default=0.0)  # radius of the corners


class Lines(Shapes, kw_only=True):
    """Straight lines with round ends; a width of 0 is one pixel of the screen."""

    start: jax.Array  # f32[n, 2]
    end: jax.Array  # f32[n, 2]
    width: jax.Array | float = 0.0  # f32[n]


class Text(Shapes, kw_only=True):
    """Words, each centred on its position.

    words: what may be written; the texts have them in turn, or by `word_index`.
    """

    position: jax.Array  # f32[n, 2]
    size: jax.Array | float  # f32[n]    height of the letters
    words: tuple[str, ...] = struct.field(pytree_node=False, default=())
    word_index: jax.Array | None = None  # i32[n]


class Drawing(struct.PyTreeNode):
    """The picture of one state.

    bounds: (left, bottom, right, top) of what is shown. Where bottom > top, y points down, as for
        the rows of a grid.
    shapes: painted one after the other.
    """

    bounds: jax.Array | tuple[float, float, float, float]  # f32[4]
    shapes: tuple[Shapes, ...]


# Arrays of each kind: the axes behind [n].
FIELDS = {
    Circles: {"center": (2,), "radius": ()},
    Rectangles: {"center": (2,), "size": (2,), "angle": ()},
    Lines: {"start": (2,), "end": (2,), "width": ()},
    Text: {"position": (2,), "size": ()},
}


def broken_rule(drawing: PyTree) -> str | None:
    """The fault of a drawing, in words that continue "draw"; None if it has none."""
    if not isinstance(drawing, Drawing):
        return f"must give a jaxrl.core.drawing.Drawing, not {type(drawing).__name__}"
    if _shape_of(drawing.bounds) != (4,):
        return "must have bounds (left, bottom, right, top)"
    if not isinstance(drawing.shapes, tuple):
        return f"must have a tuple of shapes, not {type(drawing.shapes).__name__}"
    return next(filter(None, map(_broken_rule_of, drawing.shapes)), None)


def _broken_rule_of(shapes: Shapes) -> str | None:
    kind = type(shapes)
    if kind not in FIELDS:
        allowed = ", ".join(kind.__name__ for kind in FIELDS)
        return f"must have shapes of the kinds {allowed}, not {kind.__name__}"
    for role in roles_of(shapes):
        if role not in ROLES:
            return f"must have colours among {', '.join(ROLES)}, not {role!r}"
    if kind is Text and not (shapes.words and all(isinstance(word, str) for word in shapes.words)):
        return f"must have words to write in Text, not words={shapes.words!r}"
    number = num_shapes(shapes)
    if number is None:
        first, _ = next(iter(FIELDS[kind].items()))
        return (
            f"must have {kind.__name__} with {first} [n, 2], not "
            f"{list(_shape_of(getattr(shapes, first)) or ())}"
        )
    for name, axes in _all_fields(kind):
        value = getattr(shapes, name)
        shape = () if value is None else _shape_of(value)
        allowed = dict.fromkeys(((), axes, (number, *axes)))
        if shape not in allowed:
            expected = " or ".join(str(list(axes)) for axes in allowed)
            return f"must have {kind.__name__} with {name} {expected}, not {list(shape or ())}"
    return None


def num_shapes(shapes: Shapes) -> int | None:
    """n, of the first of its arrays; None where that has another form."""
    shape = _shape_of(getattr(shapes, next(iter(FIELDS[type(shapes)]))))
    return shape[0] if shape is not None and len(shape) == 2 and shape[1] == 2 else None


def roles_of(shapes: Shapes) -> tuple[str, ...]:
    return (shapes.color,) if isinstance(shapes.color, str) else tuple(shapes.color)


def with_all_axes(drawing: Drawing) -> dict[str, PyTree]:
    """{"bounds": f32[4], "shapes": [{field: array [n, ...]}, ...]}: the arrays alone, traceable.

    Shapes with a number that is not finite are hidden.
    """
    return {
        "bounds": jnp.nan_to_num(jnp.asarray(drawing.bounds, jnp.float32)),
        "shapes": [_with_all_axes(shapes) for shapes in drawing.shapes],
    }


def _with_all_axes(shapes: Shapes) -> dict[str, jax.Array]:
    number, arrays = num_shapes(shapes), {}
    visible = jnp.broadcast_to(jnp.asarray(shapes.visible, bool), (number,))
    for name, axes in FIELDS[type(shapes)].items():
        values = jnp.asarray(getattr(shapes, name), jnp.float32)
        values = jnp.broadcast_to(values, (number, *axes))
        finite = jnp.isfinite(values)
        arrays[name] = jnp.where(finite, values, 0.0)
        visible &= jnp.all(finite, axis=tuple(range(1, finite.ndim)))
    for name in ("color_index", "word_index"):
        index = getattr(shapes, name, None)
        if index is not None:
            arrays[name] = jnp.broadcast_to(jnp.asarray(index, jnp.int32), (number,))
    return {**arrays, "visible": visible}


def _all_fields(kind: type) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from FIELDS[kind].items()
    yield from (("color_index", ()), ("visible", ()))
    if kind is Text:
        yield "word_index", ()


def _shape_of(value: PyTree) -> tuple[int, ...] | None:
    try:
        return jnp.asarray(value).shape
    except (TypeError, ValueError):
        return None
