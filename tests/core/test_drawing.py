"""Drawings: what is allowed, and the arrays that are made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.drawing import Circles, Drawing, Lines, Rectangles, Text, broken_rule, with_all_axes

UNIT = (0.0, 0.0, 1.0, 1.0)


def drawing(*shapes, bounds=UNIT):
    return Drawing(bounds=bounds, shapes=shapes)


ALLOWED = {
    "points as a list": Circles(center=[(0, 0), (1, 1)], radius=0.1),
    "a number for each": Circles(center=np.zeros((3, 2)), radius=np.ones(3), visible=np.ones(3)),
    "one size for all": Rectangles(center=np.zeros((3, 2)), size=(1.0, 2.0), angle=0.5),
    "roles in turn": Lines(start=[(0, 0)], end=[(1, 1)], color=("good", "bad")),
    "words by index": Text(position=[(0, 0)], size=1.0, words=("", "x"), word_index=np.ones(1)),
    "no shape at all": Circles(center=np.zeros((0, 2)), radius=1.0),
}
BROKEN = {
    "must have Circles with center [n, 2], not [3]": Circles(center=np.zeros(3), radius=1.0),
    "must have Circles with radius [] or [3], not [2]": Circles(
        center=np.zeros((3, 2)), radius=np.ones(2)
    ),
    "must have Rectangles with size [] or [2] or [3, 2], not [3]": Rectangles(
        center=np.zeros((3, 2)), size=np.ones(3)
    ),
    "must have Lines with end [] or [2] or [1, 2], not [2, 2]": Lines(
        start=[(0, 0)], end=[(1, 1), (2, 2)]
    ),
    "must have Circles with visible [] or [1], not [2]": Circles(
        center=[(0, 0)], radius=1.0, visible=np.ones(2, bool)
    ),
    "not 'crimson'": Circles(center=[(0, 0)], radius=1.0, color="crimson"),
    "must have words to write in Text": Text(position=[(0, 0)], size=1.0),
    "must have shapes of the kinds Circles, Rectangles, Lines, Text, not int": 3,
}


@pytest.mark.parametrize("shapes", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed_becomes_arrays_with_all_their_axes(shapes):
    assert broken_rule(drawing(shapes)) is None
    (arrays,) = with_all_axes(drawing(shapes))["shapes"]
    first = next(iter(arrays.values()))
    assert {array.shape[0] for array in arrays.values()} == {first.shape[0]}
    assert arrays["visible"].dtype == bool


@pytest.mark.parametrize(("rule", "shapes"), BROKEN.items(), ids=BROKEN)
def test_what_is_not_allowed_is_said(rule, shapes):
    assert rule in broken_rule(drawing(shapes))


def test_a_drawing_has_bounds_and_a_tuple_of_shapes():
    assert "must have bounds" in broken_rule(drawing(bounds=(0, 1)))
    listed = Drawing(bounds=UNIT, shapes=[])
    assert broken_rule(listed) == "must have a tuple of shapes, not list"


def test_drawings_are_traced_and_vmapped_with_numbers_where_arrays_may_be():
    def draw(x):
        circle = Circles(center=[(x, 2 * x)], radius=x)
        return with_all_axes(drawing(circle, bounds=(0, 0, x, 1)))

    drawn = jax.jit(jax.vmap(draw))(jnp.arange(3.0))
    np.testing.assert_array_equal(drawn["bounds"][:, 2], [0, 1, 2])
    np.testing.assert_array_equal(drawn["shapes"][0]["center"][:, 0], [[0, 0], [1, 2], [2, 4]])
    np.testing.assert_array_equal(drawn["shapes"][0]["radius"], [[0], [1], [2]])


def test_shapes_with_numbers_that_are_not_finite_are_hidden():
    circles = Circles(center=[(0, 0), (np.nan, 0), (0, np.inf)], radius=1.0)
    (arrays,) = with_all_axes(drawing(circles))["shapes"]
    np.testing.assert_array_equal(arrays["visible"], [True, False, False])
    assert np.isfinite(arrays["center"]).all()
