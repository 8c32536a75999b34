"""Drawings of every environment: traced and vmapped, with everything where the state has it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core.drawing import Circles, Rectangles, Text, broken_rule, with_all_axes
from jaxrl.core.env import lift
from jaxrl.core.spaces import Box

NAMES = ("arena", "cartpole", "pursuit", "waterworld")
NUM_STEPS = 20


def played(name, **env_args):
    """(env, params, states [T, ...]) of random actions."""
    env, params = jaxrl.make(name, **env_args)
    many = lift(env)

    def step(state, key):
        actions = {agent: many.action_space(agent, params).sample(key) for agent in many.agents}
        _, state, *_ = many.step(key, state, actions, params)
        return state, state

    @jax.jit
    def play(key):
        _, state = many.reset(key, params)
        return jax.lax.scan(step, state, jax.random.split(key, NUM_STEPS))[1]

    return env, params, jax.device_get(play(jax.random.key(0)))


@pytest.fixture(scope="module", params=NAMES)
def drawn(request):
    """(env, params, states, their drawings as arrays, the drawing of a first state)."""
    env, params, states = played(request.param)
    draw = jax.jit(jax.vmap(lambda state: with_all_axes(env.draw(state, params))))
    first = env.draw(jax.tree.map(lambda leaf: leaf[0], states), params)
    return env, params, states, jax.device_get(draw(states)), first


@pytest.mark.long
def test_draw_traces_under_vmap_and_keeps_the_rules(drawn):
    _, _, _, arrays, first = drawn
    assert broken_rule(first) is None
    assert arrays["bounds"].shape == (NUM_STEPS, 4)
    for shapes in arrays["shapes"]:
        assert all(len(array) == NUM_STEPS for array in shapes.values())


def test_params_may_be_traced_and_vmapped_too(drawn):
    env, params, states, arrays, _ = drawn
    state = jax.tree.map(lambda leaf: leaf[0], states)
    two = jax.tree.map(lambda leaf: np.stack([leaf] * 2), params)
    both = jax.jit(jax.vmap(lambda params: with_all_axes(env.draw(state, params))))(two)
    np.testing.assert_allclose(both["bounds"][1], arrays["bounds"][0], rtol=1e-6)


def test_what_is_drawn_of_the_bodies_lies_within_the_bounds(drawn):
    """Waterworld's walls give way a little, as the reference's do: a twentieth of the width."""
    _, _, _, arrays, first = drawn
    left, bottom, right, top = np.moveaxis(arrays["bounds"], -1, 0)
    slack = 0.05 * (right - left)
    left, right = left - slack, right + slack
    for shapes, found in zip(first.shapes, arrays["shapes"], strict=True):
        if isinstance(shapes, Circles) or (isinstance(shapes, Rectangles) and shapes.corner):
            x, y = np.moveaxis(found["center"], -1, 0)
            low, high = np.minimum(bottom, top) - slack, np.maximum(bottom, top) + slack
            assert np.all((x >= left[:, None]) & (x <= right[:, None]))
            assert np.all((y >= low[:, None]) & (y <= high[:, None]))


def test_actions_are_named(drawn):
    env, params, *_ = drawn
    many = lift(env)
    space = many.action_space(many.agents[0], params)
    assert len(env.action_names) == (space.size if isinstance(space, Box) else space.n)


@functools.cache
def first_state(name, **env_args):
    """(env, params, first state)."""
    env, params = jaxrl.make(name, **env_args)
    return env, params, jax.jit(env.reset)(jax.random.key(0), params)[1]


def drawing_of(name, change, **env_args):
    """The drawing of a first state that `change` rewrites."""
    env, params, state = first_state(name, **env_args)
    return env.draw(change(state), params)


def test_the_cart_is_at_x_and_the_tip_of_the_pole_a_metre_away_at_its_angle():
    motion = jnp.array([1.5, 0.0, 0.1, 0.0])
    shapes = drawing_of("cartpole", lambda state: state.replace(motion=motion)).shapes
    cart, pole = shapes[4], shapes[5]
    assert cart.center[0][0] == 1.5
    start, end = np.array(pole.start[0]), np.array(pole.end[0])
    np.testing.assert_allclose(end - start, [np.sin(0.1), np.cos(0.1)], rtol=1e-6)


def test_the_arena_shows_agents_in_their_cells_and_tints_what_was_visited():
    def change(state):
        visited = jnp.array([0b1000001], jnp.uint32)  # cells 0 and 6 of 3 x 4
        return state.replace(positions=jnp.array([6, 11]), visited=visited)

    cells, agent1, agent2 = drawing_of("arena", change, height=3, width=4).shapes
    np.testing.assert_array_equal(agent1.center, [[2.5, 1.5]])  # row 1, column 2
    np.testing.assert_array_equal(agent2.center, [[3.5, 2.5]])
    np.testing.assert_array_equal(np.flatnonzero(cells.color_index), [0, 6])
    np.testing.assert_array_equal(cells.center[6], [2.5, 1.5])


@pytest.mark.long
def test_waterworld_shows_every_body_with_its_radius():
    drawing = drawing_of("waterworld", lambda state: state)
    _, _, state = first_state("waterworld")
    _, _, obstacles, poison, food, pursuers, _ = drawing.shapes
    positions = np.concatenate([pursuers.center, food.center, poison.center])
    np.testing.assert_array_equal(positions, state.position.T)
    np.testing.assert_allclose(pursuers.radius, 750 * 0.015, rtol=1e-6)
    np.testing.assert_allclose(food.radius, 750 * 0.03, rtol=1e-6)
    np.testing.assert_array_equal(obstacles.center, [[375, 375]])


@pytest.mark.long
def test_pursuit_hides_caught_evaders_and_counts_pursuers_that_share_a_cell():
    def change(state):
        pursuers = jnp.array([[1, 1, 4], [2, 2, 0]], jnp.int32)
        return state.replace(pursuers=pursuers, alive=jnp.array([True, False]))

    drawing = drawing_of("pursuit", change, n_pursuers=3, n_evaders=2)
    *_, squares, evaders, counts = drawing.shapes
    np.testing.assert_array_equal(squares.center, [[1.5, 2.5], [1.5, 2.5], [4.5, 0.5]])
    np.testing.assert_array_equal(evaders.visible, [True, False])
    assert isinstance(counts, Text)
    said = [counts.words[i] for i in counts.word_index]
    assert [word for word, shown in zip(said, counts.visible, strict=True) if shown] == ["2", ""]
