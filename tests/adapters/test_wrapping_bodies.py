"""Pictures of MuJoCo's bodies: a model written by hand, whose shapes are measured in pixels."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.adapters import wrapping_bodies
from jaxrl.adapters.wrapping_bodies import (
    BOX,
    CAPSULE,
    CYLINDER,
    ELLIPSOID,
    FREE,
    HEIGHT,
    MARGIN,
    PLANE,
    SPHERE,
    WIDTH,
    bodies_of,
    draw_bodies,
)

RED, GREEN = (1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 0.0, 1.0)
UPRIGHT = (1.0, 0.0, 0.0, 0.0)
LYING = (np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0)  # a quarter turn around y: z comes to lie along x


def model_of(*shapes, joints=(), ground=False):
    """A model of (kind, size, body, position, colour): one shape for each body beside the world."""
    shapes = [*shapes, *([(PLANE, (1, 1, 1), 0, (0, 0, 0), RED)] if ground else [])]
    kinds, sizes, body, position, colour = map(np.array, zip(*shapes, strict=True))
    num_bodies = body.max() + 1
    return SimpleNamespace(
        nbody=num_bodies,
        njnt=len(joints),
        jnt_type=np.array(joints),
        jnt_limited=np.zeros(len(joints)),
        jnt_bodyid=np.ones(len(joints), int),
        body_parentid=np.zeros(num_bodies, int),
        body_pos=np.zeros((num_bodies, 3)),
        body_quat=np.tile(UPRIGHT, (num_bodies, 1)),
        geom_type=kinds,
        geom_size=np.float64(sizes),
        geom_bodyid=body,
        geom_pos=np.float64(position),
        geom_quat=np.tile(UPRIGHT, (len(kinds), 1)),
        geom_rgba=colour,
        geom_matid=np.full(len(kinds), -1),
        geom_group=np.zeros(len(kinds), int),
        geom_aabb=np.zeros((len(kinds), 6)),
    )


def picture_of(model, places, turns=None):
    """The picture, and the size of a pixel."""
    bodies = bodies_of(model)
    places = jnp.array([(0.0, 0.0, 0.0), *places])
    turns = jnp.array([UPRIGHT, *([UPRIGHT] * (len(places) - 1) if turns is None else turns)])
    picture = np.asarray(jax.jit(lambda *poses: draw_bodies(bodies, *poses))(places, turns))
    assert picture.shape == (HEIGHT, WIDTH, 3) and picture.dtype == np.uint8
    return picture, 2 * MARGIN * bodies.size / HEIGHT


def extent(picture, channel):
    """(width, height) in pixels of what has a colour: the one in `channel`, and no other."""
    others = [i for i in range(3) if i != channel]
    rows, columns = np.nonzero((picture[..., channel] > 60) & (picture[..., others] < 60).all(-1))
    return np.ptp(columns) + 1, np.ptp(rows) + 1


@pytest.mark.parametrize(
    ("kind", "size", "turn", "expected"),
    [
        (SPHERE, (1, 0, 0), UPRIGHT, (2, 2)),
        (CAPSULE, (0.5, 1, 0), LYING, (3, 1)),
        # The camera looks down by 30 degrees: z is shown by its cosine, y by its sine.
        (CAPSULE, (0.5, 1, 0), UPRIGHT, (1, 2 * np.sqrt(0.75) + 1)),
        (BOX, (1, 0.5, 0.25), UPRIGHT, (2, 2 * (0.5 * 0.5 + 0.25 * np.sqrt(0.75)))),
        (ELLIPSOID, (1, 0.5, 0.25), LYING, (0.5, 2 * np.hypot(0.5 * 0.5, np.sqrt(0.75)))),
        (CYLINDER, (1, 0.25, 0), UPRIGHT, (2, 2 * (0.25 * np.sqrt(0.75) + 0.5))),
    ],
)
def test_a_shape_is_as_large_as_its_projection(kind, size, turn, expected):
    model = model_of((kind, size, 1, (0, 0, 0), RED))
    picture, pixel = picture_of(model, [(0.0, 0.0, 0.0)], [turn])
    np.testing.assert_allclose(extent(picture, 0), np.array(expected) / pixel, atol=2)


@pytest.mark.parametrize("nearer", [0, 1])
def test_what_is_nearer_covers_what_is_behind(nearer):
    shapes = [(SPHERE, (1, 0, 0), body, (0, 0, 0), (RED, GREEN)[body - 1]) for body in (1, 2)]
    # Five along the line of sight, so both are in the middle.
    towards = -5 * np.array(wrapping_bodies.AWAY)
    places = [tuple(towards * (body == nearer)) for body in (0, 1)]
    picture, _ = picture_of(model_of(*shapes), places)
    middle = picture[HEIGHT // 2, WIDTH // 2]
    assert middle[nearer] == 255 and middle[1 - nearer] == 0


def test_a_body_that_can_leave_stays_in_the_middle_and_the_ground_passes():
    model = model_of((SPHERE, (1, 0, 0), 1, (0, 0, 0), RED), joints=[FREE], ground=True)
    here, pixel = picture_of(model, [(0.0, 0.0, 0.0)])
    passed = 28  # pixels
    there, _ = picture_of(model, [(passed * pixel, 0.0, 0.0)])
    is_body = (here[..., 0] > 60) & (here[..., 1] == 0)  # and no pixel of its edge
    np.testing.assert_array_equal(here[is_body], there[is_body])
    above = slice(0, 20)  # rows with ground alone
    assert (here[above] != there[above]).mean() > 0.5
    assert (here[above, passed:] != there[above, :-passed]).mean() < 0.05
    fixed = model_of((SPHERE, (1, 0, 0), 1, (0, 0, 0), RED), ground=True)
    moved, _ = picture_of(fixed, [(0.3, 0.0, 0.0)])
    assert (moved[above] == here[above]).all() and (moved != here).any()
