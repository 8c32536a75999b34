"""Pursuit against recordings of the reference, and against `tests/oracles/pursuit.py` in NumPy."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.core.env_contract import check_stacked_types, check_types, examine
from jaxrl.envs.pursuit import Pursuit
from jaxrl.envs.pursuit_rules import (
    Params,
    State,
    building,
    catch,
    move,
    observe,
    place,
    reward,
    room,
    starts,
    tag,
    wander,
)
from tests.messages import refused_by
from tests.oracles.pursuit import PlainPursuit

LEFT, RIGHT, DOWN, UP, STAY = range(5)
KEY = jax.random.key(0)
WORLD, PARAMS = Pursuit(), Params()
RECORDED = np.load(Path(__file__).parents[1] / "reference" / "pursuit_v4.npz")
NUMBERS = (
    "max_cycles",
    "n_catch",
    "tag_reward",
    "catch_reward",
    "urgency_reward",
    "constraint_window",
)


def made(**settings):
    """(environment, its numbers) of the reference's settings."""
    numbers = {name: value for name, value in settings.items() if name in NUMBERS}
    return Pursuit(**{key: value for key, value in settings.items() if key not in numbers}), Params(
        **numbers
    )


def state_of(pursuers, evaders, alive=None, time=0):
    """A state of these (x, y) cells, [n, 2] and [m, 2]."""
    pursuers, evaders = np.array(pursuers, np.int32), np.array(evaders, np.int32)
    alive = np.ones(len(evaders), bool) if alive is None else np.array(alive)
    return State(pursuers=pursuers.T, evaders=evaders.T, alive=alive, time=np.int32(time))


def recording(name):
    """One configuration's transitions by name."""
    prefix = f"{name}_"
    return {
        key.removeprefix(prefix): RECORDED[key] for key in RECORDED.files if key.startswith(prefix)
    }


@pytest.mark.parametrize("name, transitions", [("c0", 180), ("c1", 150), ("c2", 94)])
def test_every_recorded_transition_of_the_reference_is_repeated(name, transitions):
    rows = recording(name)
    assert len(rows["t"]) == transitions
    env, params = made(**json.loads(str(rows["config"])))
    states = State(
        pursuers=np.int32(rows["pursuer_pos_before"]).swapaxes(1, 2),
        evaders=np.int32(rows["evader_pos_before"]).swapaxes(1, 2),
        alive=rows["evader_alive_before"],
        time=np.int32(rows["t"]),
    )

    def step(state, action, evader_action):
        obs, state, rewards, terminated, info = env.step_with(state, action, evader_action, params)
        return (
            obs,
            state,
            rewards,
            terminated,
            env.is_truncated(state, params),
            info["metrics"]["catches"],
        )

    actions = np.int32(rows["action"]), np.int32(rows["evader_action"])
    obs, states, rewards, terminated, truncated, catches = jax.jit(jax.vmap(step))(states, *actions)
    alive = rows["evader_alive_after"]
    np.testing.assert_array_equal(states.pursuers.swapaxes(1, 2), rows["pursuer_pos_after"])
    np.testing.assert_array_equal(states.alive, alive)
    np.testing.assert_array_equal(
        np.asarray(states.evaders).swapaxes(1, 2)[alive], rows["evader_pos_after"][alive]
    )
    np.testing.assert_array_equal(obs, rows["obs_after"])
    np.testing.assert_array_equal(terminated, rows["terminated"])
    np.testing.assert_array_equal(truncated[:, None] | np.zeros_like(terminated), rows["truncated"])
    np.testing.assert_allclose(rewards, rows["reward"], atol=1e-6)
    np.testing.assert_array_equal(catches, (rows["evader_alive_before"] & ~alive).sum(1))


seen = jax.jit(observe, static_argnums=3)


@pytest.mark.parametrize("name, seed", [("c0", 0), ("c0", 1), ("c0", 2), ("c1", 3), ("c2", 4)])
def test_recorded_starts_look_as_they_did(name, seed):
    rows = recording(name)
    env, _ = made(**json.loads(str(rows["config"])))
    state = state_of(rows[f"reset_pursuer_pos_seed{seed}"], rows[f"reset_evader_pos_seed{seed}"])
    np.testing.assert_array_equal(
        seen(state.pursuers, state.evaders, state.alive, env), rows[f"reset_obs_seed{seed}"]
    )


def test_buildings_are_where_the_reference_has_them():
    np.testing.assert_array_equal(building(16, 16), recording("c0")["map"] == -1)
    for x_size, y_size in ((10, 12), (8, 8), (32, 32), (1, 1), (2, 7), (20, 10)):
        solid = PlainPursuit(x_size, y_size).solid
        assert {tuple(cell) for cell in np.argwhere(building(x_size, y_size)).tolist()} == solid


# Sizes with edges, with no building at all, odd and even windows, wider than the grid too.
WORLDS = [
    dict(x_size=16, y_size=16, obs_range=7, n_pursuers=8, n_evaders=30),
    dict(x_size=8, y_size=10, obs_range=6, n_pursuers=5, n_evaders=6, shared_reward=False),
    dict(x_size=7, y_size=5, obs_range=11, n_pursuers=6, n_evaders=4, surround=False,
         shared_reward=False),
    dict(x_size=4, y_size=4, obs_range=1, n_pursuers=4, n_evaders=3, shared_reward=False),
    dict(x_size=5, y_size=12, obs_range=2, n_pursuers=9, n_evaders=15, surround=False, n_catch=3),
    dict(x_size=5, y_size=4, obs_range=3, n_pursuers=3, n_evaders=2, max_cycles=3, n_catch=1,
         surround=False),
]  # fmt: skip
STEPS = [
    jax.jit(jax.vmap(made(**settings)[0].step_with, in_axes=(0, 0, 0, None))) for settings in WORLDS
]


@pytest.mark.long
@settings(max_examples=40)
@given(st.integers(0, len(WORLDS) - 1), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_steps_from_anywhere_agree_with_the_rules_in_plain_numpy(index, seed, crowding):
    env, params = made(**WORLDS[index])
    random = np.random.default_rng(seed)
    free = np.argwhere(~building(env.x_size, env.y_size))
    free = free[
        : len(free) // 2**crowding + 3
    ]  # fewer cells from the corner on: more of all that happens in crowds
    draws = []
    for _ in range(8):
        pursuers, evaders = free[random.integers(len(free), size=env.n_pursuers)], free[
            random.integers(len(free), size=env.n_evaders)
        ]  # fmt: skip
        alive = random.random(env.n_evaders) < random.choice([0.1, 0.9])
        actions = random.integers(5, size=env.n_pursuers), random.integers(5, size=env.n_evaders)
        draws.append(
            (
                state_of(pursuers, evaders, alive, int(random.integers(params.max_cycles))),
                *map(np.int32, actions),
            )
        )
    states, actions, evader_actions = jax.tree.map(lambda *leaves: np.stack(leaves), *draws)
    obs, reached, rewards, terminated, info = jax.device_get(
        STEPS[index](states, actions, evader_actions, params)
    )
    plain = PlainPursuit(**WORLDS[index])
    for t in range(len(draws)):
        evaders = [
            tuple(cell) if is_in else None
            for cell, is_in in zip(states.evaders[t].T, states.alive[t], strict=True)
        ]
        plain.put(states.pursuers[t].T, evaders, int(states.time[t]))
        plain_obs, plain_rewards, plain_terminated, plain_truncated, caught = plain.step(
            actions[t], evader_actions[t]
        )
        assert reached.pursuers[t].T.tolist() == [list(cell) for cell in plain.pursuers]
        evaders = zip(reached.evaders[t].T.tolist(), reached.alive[t], strict=True)
        assert [tuple(cell) if is_in else None for cell, is_in in evaders] == plain.evaders
        np.testing.assert_array_equal(obs[t], plain_obs)
        np.testing.assert_allclose(rewards[t], plain_rewards, atol=2e-6)
        assert (terminated[t] == plain_terminated).all()
        assert (reached.time[t] >= params.max_cycles) == plain_truncated
        assert info["metrics"]["catches"][t] == caught


def test_moves_into_walls_and_the_building_leave_a_body_where_it_is():
    cells = jnp.array([[0, 3], [4, 4], [4, 4], [15, 15], [8, 3]]).T
    there = move(cells, jnp.array([LEFT, RIGHT, DOWN, UP, DOWN]), WORLD)
    assert there.T.tolist() == [[0, 3], [4, 4], [4, 5], [15, 14], [8, 3]]


def test_tags_mix_old_and_new_cells_by_the_pursuers_number_and_count_border_cells_again():
    world = Pursuit(n_pursuers=2, n_evaders=2)
    evaders, alive = jnp.array([[0, 0], [0, 1]]).T, jnp.array([True, True])
    old, new = jnp.array([[3, 3], [3, 3]]).T, jnp.array([[0, 0], [0, 0]]).T
    # In the corner: the evader there counts twice, the one above it once.
    np.testing.assert_allclose(tag(old, new, evaders, alive, world), [3.0, 1.5])
    np.testing.assert_allclose(tag(old, new, evaders, jnp.array([False, True]), world), [1.0, 0.5])


def test_an_evader_in_a_corner_is_surrounded_by_two_and_pays_each_pursuer_once():
    world = Pursuit(n_pursuers=4, n_evaders=2)
    pursuers, evaders = jnp.array([[0, 1], [1, 0], [1, 0], [0, 0]]).T, jnp.array([[0, 0], [0, 0]]).T
    caught, credit = catch(pursuers, evaders, jnp.array([True, True]), 2, world)
    assert caught.tolist() == [True, True] and credit.tolist() == [True, True, True, False]
    params = Params(tag_reward=0.0)
    state = state_of(pursuers.T, evaders.T)
    _, state, rewards, terminated, info = jax.jit(world.step_with)(
        state, jnp.full(4, STAY), jnp.full(2, RIGHT), params
    )
    np.testing.assert_allclose(rewards, 3 / 4 * 5.0 - 0.1, rtol=1e-6)
    assert terminated.all() and info["metrics"]["catches"] == 2


def test_the_clock_goes_before_the_end_of_the_world():
    world = Pursuit(n_pursuers=2, n_evaders=1)
    state, stay = state_of([[0, 1], [1, 0]], [[0, 0]], time=6), jnp.full(2, STAY)
    step = jax.jit(world.step_with)
    for max_cycles, terminated in ((7, False), (8, True)):
        _, reached, _, ends, _ = step(state, stay, stay[:1], Params(max_cycles=max_cycles))
        assert (ends == terminated).all() and world.is_truncated(
            reached, Params(max_cycles=max_cycles)
        ) == (not terminated)


def test_starts_keep_their_distance_and_stay_off_the_building():
    free = ~building(16, 16)
    _, states = jax.jit(jax.vmap(WORLD.reset_stacked, in_axes=(0, None)))(
        jax.random.split(KEY, 500), PARAMS
    )
    for positions in (np.asarray(states.pursuers), np.asarray(states.evaders)):
        assert free[positions[:, 0], positions[:, 1]].all()
        apart = np.abs(positions[..., None] - positions[..., None, :]).sum(1)
        assert (apart + 2 * np.eye(apart.shape[-1], dtype=int) >= 2).all()
    assert states.alive.all() and (states.time == 0).all()


def test_starts_are_distributed_as_by_rejection():
    num = 4000
    plain, random = PlainPursuit(8, 8), np.random.default_rng(0)
    expected = np.array([plain.sample_start(random, 8) for _ in range(num)])
    legal = jnp.asarray(~building(8, 8))
    drawn = np.asarray(
        jax.jit(jax.vmap(lambda key: place(key, 8, legal)))(jax.random.split(KEY, num))
    ).swapaxes(1, 2)
    for body in (slice(0, 1), slice(3, 4), slice(7, 8), slice(0, 8)):
        counts = [
            np.bincount((cells[:, body] @ [8, 1]).reshape(-1), minlength=64)
            for cells in (drawn, expected)
        ]
        assert chi_square(*counts) < 49 + 5 * np.sqrt(2 * 49)  # of 64 cells 49 are free
    pairs = [
        np.abs(cells[:, :, None] - cells[:, None]).sum(-1).reshape(-1)
        for cells in (drawn, expected)
    ]
    assert chi_square(*(np.bincount(apart, minlength=15)[2:] for apart in pairs)) < 5 * 13


def chi_square(some, others):
    """The statistic for two histograms with equal sums: about the number of cells if they agree."""
    total = some + others
    return ((some - others) ** 2 / np.where(total == 0, 1, total)).sum()


def test_windows_lie_anywhere_and_have_their_size():
    world = Pursuit(n_pursuers=2, n_evaders=2)
    windows = np.asarray(jax.vmap(lambda key: starts(key, 0.5, world))(jax.random.split(KEY, 300)))
    assert not (windows & building(16, 16)).any()
    x_used, y_used = windows.any(2), windows.any(1)
    for used in (x_used, y_used):
        first, last = used.argmax(1), 15 - used[:, ::-1].argmax(1)
        assert (last - first < 9).all() and set(first.tolist()) >= set(range(8))


def test_bodies_without_a_cell_left_join_the_first():
    legal = np.zeros((4, 4), bool)
    legal[1, 1] = legal[2, 1] = True
    cells = np.asarray(place(KEY, 3, jnp.array(legal)))
    assert (cells == cells[:, :1]).all() and legal[tuple(cells[:, 0])]


def test_evaders_walk_uniformly_and_each_by_itself():
    actions = np.asarray(jax.vmap(lambda key: wander(key, 30))(jax.random.split(KEY, 4000)))
    counts = np.bincount(actions.reshape(-1), minlength=5)
    assert counts.size == 5 and np.abs(counts - 24_000).max() < 4 * np.sqrt(120_000 * 0.16)
    correlation = np.corrcoef(actions.T) - np.eye(30)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


def towards_origin(key, state, world):
    """Up, where no pursuer has just come to stand in the first row."""
    return jnp.where(jnp.any(state.pursuers[1] == 0), STAY, jnp.full(world.n_evaders, UP))


def test_evaders_are_frozen_or_follow_their_controller():
    state = state_of([[0, 3], [9, 1]], [[3, 3], [14, 14], [0, 0]])

    def step(action, **settings):
        world = Pursuit(n_pursuers=2, n_evaders=3, **settings)
        evaders = lambda action: world.step_stacked(KEY, state, action, PARAMS)[1].evaders
        return jax.jit(evaders)(jnp.array([STAY, action])).T.tolist()

    before = [[3, 3], [14, 14], [0, 0]]
    assert step(STAY, freeze_evaders=True) == before
    assert step(STAY, evader_controller=towards_origin) == [[3, 2], [14, 13], [0, 0]]
    # It sees where the pursuers have got to
    assert step(UP, evader_controller=towards_origin) == before
    expected = [[3, 2], [14, 13], [0, 0]]
    assert step(STAY, evader_controller=towards_origin, freeze_evaders=True) == expected


def test_it_keeps_to_the_contract_of_types_with_other_settings_too():
    """Rollouts of the default settings: tests/core/test_env_checker.py."""
    grid = {"x_size": 6, "y_size": 6, "n_pursuers": 4, "n_evaders": 2, "obs_range": 4}
    rules = {"surround": False, "n_catch": 1, "max_cycles": 50, "constraint_window": 0.9}
    case = examine(*made(**grid, **rules))
    check_stacked_types(case, KEY)
    check_types(case, KEY)


def test_every_environment_may_have_numbers_of_its_own():
    state = state_of([[0, 1], [1, 0]], [[0, 0]])
    params = Params(
        catch_reward=jnp.array([1.0, 7.0]),
        max_cycles=jnp.array([1, 5]),
        constraint_window=jnp.array([0.5, 1.0]),
    )
    axes = Params(0, None, None, 0, None, 0)
    world, stay = Pursuit(n_pursuers=2, n_evaders=1), jnp.full(2, STAY)
    step = jax.vmap(
        lambda params: world.step_with(state, stay, stay[:1], params)[2:4], in_axes=(axes,)
    )
    rewards, terminated = jax.jit(step)(params)
    np.testing.assert_allclose(rewards[1] - rewards[0], 6.0, rtol=1e-6)
    assert terminated.tolist() == [[False, False], [True, True]]
    jax.eval_shape(jax.vmap(world.reset_stacked, in_axes=(None, axes)), KEY, params)


def test_agents_share_a_policy_and_know_their_spaces():
    assert WORLD.agents == tuple(f"pursuer_{i}" for i in range(8))
    assert WORLD.default_policies == {"pursuer": WORLD.agents}
    space = WORLD.observation_space("pursuer_0")
    assert (space.low, space.high, space.shape) == (0, 30, (7, 7, 3)) and WORLD.action_space(
        "pursuer_0"
    ).n == 5
    obs, _ = jax.jit(WORLD.reset)(KEY)
    assert obs["pursuer_3"].dtype == jnp.float32 and space.contains(obs["pursuer_3"])


test_bad_settings_are_refused_with_their_values = refused_by(
    lambda settings: jaxrl.make("pursuit", **settings), [
    (dict(n_evaders=0), "n_evaders=0"), (dict(n_pursuers=-2), "n_pursuers=-2"),
    (dict(obs_range=0), "obs_range=0"), (dict(x_size=2.5), "x_size=2.5"),
    (dict(y_size=0), "y_size=0"), (dict(n_evaders=True), "n_evaders=True"),
    (dict(n_evaders=74), "n_evaders=74.*no more than some 73"),
    (dict(n_pursuers=200), "n_pursuers=200.*no more than"),
    (dict(max_cycles=-1), "max_cycles=-1"), (dict(max_cycles=0), "max_cycles=0"),
    (dict(n_catch=0), "n_catch=0"), (dict(constraint_window=0.0), "constraint_window=0.0"),
    (dict(constraint_window=1.5), "constraint_window=1.5"),
    (dict(constraint_window=0.05), "constraint_window=0.05.*x_size=16"),
    (dict(constraint_window=0.3), "4 x 4 of the 16 x 16.*no more than some 3"),
    (dict(x_size=1), "x_size=1: it must be an integer of at least 2"), (dict(y_size=1), "y_size=1"),
    (dict(render_mode="human"), "render_mode='human': it must be None"),
    (dict(pursuer_controller=1), "pursuer_controller=1: it must be None"),
    (dict(shared_reward=1.5), "shared_reward=1.5.*a share between 0 and 1"),
    (dict(catch="high"), "catch"), (dict(evader_controller="runs"), "evader_controller='runs'"),
    (dict(constraint_window=0.7), "n_evaders=30.*11 x 11 of the 16 x 16.*no more than some"),
    (dict(surround=False, n_catch=9), "n_catch=9 and n_pursuers=8: nothing could be caught"),
    (dict(max_cycles=10**12), "max_cycles must be an integer below"),
    (dict(n_catch=True), "n_catch must be an integer"),
    (dict(surround="no"), "surround='no'.*True or False"),
])  # fmt: skip


def test_settings_that_the_reference_takes_are_taken():
    for config in (
        dict(n_evaders=70, n_pursuers=70),
        dict(x_size=10, y_size=10, n_evaders=10, n_pursuers=4, constraint_window=0.8),
        dict(n_pursuers=4, n_evaders=6, constraint_window=0.5),
        dict(constraint_window=0.8),
    ):
        jaxrl.make("pursuit", **config)
    assert jaxrl.make("pursuit", render_mode=None, pursuer_controller=None)[0] == WORLD
    env, params = jaxrl.make(
        "pursuit", n_evaders=np.int64(5), max_cycles=1000.0, tag_reward=np.float32(0.5)
    )
    assert (env, params) == (Pursuit(n_evaders=5), Params(max_cycles=1000, tag_reward=0.5))
    assert type(Pursuit(n_evaders=np.int32(5)).n_evaders) is int


def test_there_is_room_for_some_38_bodies_in_a_hundred_free_cells():
    assert room(16, 16, 16, 16) == int(0.38 * (256 - 63))  # the building has 7 x 9 cells
    assert room(2, 2, 2, 2) == 1


def test_rewards_may_be_shared_in_part():
    rewards = lambda share: reward(
        jnp.array([0.0, 10.0]), jnp.zeros(2), PARAMS, Pursuit(shared_reward=share)
    )
    np.testing.assert_allclose(rewards(0.5), (rewards(True) + rewards(False)) / 2, rtol=1e-6)
    np.testing.assert_allclose(
        rewards(0.25), 0.25 * rewards(True) + 0.75 * rewards(False), rtol=1e-6
    )


def test_environments_of_one_structure_are_equal_and_hashable():
    assert Pursuit(n_evaders=5) == Pursuit(n_evaders=5) != Pursuit(n_evaders=6)
    assert (
        len({Pursuit(evader_controller=towards_origin), Pursuit(evader_controller=towards_origin)})
        == 1
    )


def test_pictures_of_a_batch_show_bodies_and_the_building():
    world = Pursuit(n_pursuers=2, n_evaders=3)
    states = [
        state_of([[2, 1], [9, 14]], [[4, 2], [2, 2], [12, 13]]),
        state_of([[0, 0], [0, 0]], [[9, 1], [9, 1], [9, 1]]),
    ]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    pictures = np.asarray(jax.jit(jax.vmap(world.render, in_axes=(0, None)))(states, PARAMS))
    assert pictures.shape == (2, 481, 481, 3) and pictures.dtype == np.uint8
    colour = lambda picture, x, y: tuple(pictures[picture, 30 * y + 15, 30 * x + 15].tolist())
    pursuer, evader, solid, free = (25, 98, 170), (238, 124, 34), (72, 78, 90), (249, 249, 246)
    expected = [pursuer, evader, solid, free]
    assert [colour(0, *cell) for cell in ((2, 1), (4, 2), (8, 8), (15, 0))] == expected
    assert [colour(1, *cell) for cell in ((0, 0), (9, 1), (12, 13))] == [pursuer, evader, free]
    assert colour(0, 2, 3) != free  # in sight of a pursuer


def test_pictures_fit_any_grid():
    world = Pursuit(x_size=5, y_size=10, n_pursuers=2, n_evaders=2)
    assert jax.eval_shape(lambda key: world.render(world.reset(key)[1], PARAMS), KEY).shape == (
        481,
        241,
        3,
    )
