"""The pictures of an episode, state by state: the environment's drawings, or its observations."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.drawing import (
    Circles,
    Lines,
    Rectangles,
    Shapes,
    Text,
    broken_rule,
    roles_of,
    with_all_axes,
)
from jaxrl.core.env import MultiAgentEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.play.recording import EpisodeRecording

DRAWN_AT_ONCE = 128  # states
KINDS = {Circles: "circles", Rectangles: "rectangles", Lines: "lines", Text: "text"}
MAX_NUMBERS = 64  # of an observation that are shown as bars
MAX_CHANNELS = 16  # of an observation [H, W, C] that is shown as a picture
CHANNELS = ("agent0", "agent1", "good", "bad", "agent4", "agent5", "agent6", "agent7")


class Drawings(NamedTuple):
    """The drawings of T + 1 states.

    numbers: of an observation that is shown as bars, to be written beside them.
    """

    bounds: np.ndarray  # f32[T + 1, 4]
    looks: list[dict[str, Any]]  # of each group of shapes: kind, colours, words, ...
    arrays: list[dict[str, np.ndarray]]  # of each: {field: [T + 1, n, ...]}
    numbers: np.ndarray | None = None  # [T + 1, k]


def drawings_of(recording: EpisodeRecording) -> Drawings:
    """The drawings of the environment's `draw`, compiled once for episodes of any length.

    Raises:
        UsageError: a drawing that breaks a rule of `jaxrl.core.drawing`.
    """
    first = jax.tree.map(lambda leaf: leaf[0], recording.states)
    env, env_params = recording.env, recording.env_params
    looks = _looks(env, first, env_params)
    parts, number = [], recording.num_steps + 1
    for begin in range(0, number, DRAWN_AT_ONCE):
        # One shape, one compilation: the last state fills the last part.
        index = np.minimum(np.arange(begin, begin + DRAWN_AT_ONCE), number - 1)
        states = jax.tree.map(lambda leaf, index=index: leaf[index], recording.states)
        parts.append(jax.device_get(_draw(env, states, env_params)))
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:number], *parts)
    return Drawings(whole["bounds"], looks, whole["shapes"])


def observations_drawn(recording: EpisodeRecording) -> Drawings:
    """Drawings of observations where nothing else is shown: [H, W, C] as cells, others as bars."""
    agent = recording.agents[0]
    observation = recording.observations[agent]
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(observation)]
    if len(leaves) == 1 and leaves[0].ndim == 4 and leaves[0].shape[-1] <= MAX_CHANNELS:
        return _cells(leaves[0])
    return _bars(np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1))


def _cells(pictures: np.ndarray) -> Drawings:
    """Observations as coloured cells, each in the colour of its last channel that is not 0."""
    num_states, height, width, num_channels = pictures.shape
    order = np.arange(1, num_channels + 1)
    channel = np.max(np.where(pictures != 0, order, 0), axis=-1).reshape(num_states, -1)
    rows, columns = np.divmod(np.arange(height * width), width)
    centers = np.stack([columns, rows], axis=1) + 0.5
    roles = [CHANNELS[i % len(CHANNELS)] for i in range(num_channels)]
    looks = {"kind": "rectangles", "colors": ["ground", *roles], "opacity": 1.0, "corner": 0.1}
    arrays = {
        "center": centers[None],
        "size": np.full((1, 1, 2), 0.94),
        "angle": np.zeros((1, 1)),
        "color_index": channel,
        "visible": np.ones((1, 1)),
    }
    return Drawings(np.array([[0.0, height, width, 0.0]]), [looks], [arrays])


def _bars(numbers: np.ndarray) -> Drawings:
    """Bars from a line at 0, each in units of its largest size in the episode."""
    numbers = np.nan_to_num(numbers[:, :MAX_NUMBERS], posinf=0.0, neginf=0.0)
    largest = np.maximum(np.abs(numbers).max(axis=0), 1e-9)
    heights, count = numbers / largest, numbers.shape[1]
    x = np.arange(count) + 0.5
    centers = np.stack([np.broadcast_to(x, heights.shape), heights / 2], axis=-1)
    sizes = np.stack([np.full(heights.shape, 0.7), np.abs(heights)], axis=-1)
    ratio = max(count / 2.4, 1.0)  # so that the picture is 2.4 times as wide as it is high
    scale = np.array([1.0, ratio / 2.4])
    always = {"visible": np.ones((1, 1))}
    edge, below = 1.15 * scale[1], 0.4
    looks = [
        {"kind": "lines", "colors": ["line"], "opacity": 1.0},
        {"kind": "rectangles", "colors": ["agent0"], "opacity": 1.0, "corner": 0.06},
        {
            "kind": "text",
            "colors": ["muted"],
            "opacity": 1.0,
            "words": list(map(str, range(count))),
        },
    ]
    arrays = [
        {
            "start": np.array([[[0.0, 0.0]]]),
            "end": np.array([[[count, 0.0]]]),
            "width": np.zeros((1, 1)),
        },
        {"center": centers * scale, "size": sizes * scale, "angle": np.zeros((1, 1))},
        {
            "position": np.stack([x, np.full(count, -edge - 0.1)], axis=-1)[None],
            "size": np.full((1, 1), min(0.035 * count, 0.5)),
        },
    ]
    bounds = np.array([[0.0, -edge - below, float(count), edge]])
    return Drawings(bounds, looks, [{**drawing, **always} for drawing in arrays], numbers)


@functools.partial(jax.jit, static_argnums=0)
def _draw(env: MultiAgentEnvironment, states: PyTree, env_params: PyTree) -> Mapping[str, PyTree]:
    return jax.vmap(lambda state: with_all_axes(env.draw(state, env_params)))(states)


def _looks(env: MultiAgentEnvironment, state: PyTree, env_params: PyTree) -> list[dict[str, Any]]:
    """The constant parts of a drawing, found while it is traced."""
    found = []

    def look(state, env_params):
        drawing = env.draw(state, env_params)
        if broken := broken_rule(drawing):
            raise UsageError(f"environment {env.name}: draw {broken}")
        found.extend(map(_look, drawing.shapes))

    jax.eval_shape(look, state, env_params)
    return found


def _look(shapes: Shapes) -> dict[str, Any]:
    look = {"kind": KINDS[type(shapes)], "colors": roles_of(shapes), "opacity": shapes.opacity}
    for name in ("corner", "words", "line_width"):
        if hasattr(shapes, name):
            look[name] = getattr(shapes, name)
    return look
