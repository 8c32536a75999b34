"""Waterworld against recorded transitions of PettingZoo, and against its rules in plain NumPy."""

import functools
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
from jaxrl.envs import waterworld_physics
from jaxrl.envs.waterworld import Params, State, Waterworld
from jaxrl.envs.waterworld_physics import SIZE, Places
from tests.messages import refused_by
from tests.oracles.waterworld import PlainWaterworld

KEY = jax.random.key(0)
REFERENCE = Path(__file__).parents[1] / "reference" / "waterworld_v4.npz"
STRUCTURE = (
    "n_pursuers",
    "n_evaders",
    "n_poisons",
    "n_obstacles",
    "n_sensors",
    "obstacle_coord",
    "speed_features",
)
POOL, PARAMS = Waterworld(), Params()


def made(**config):
    """(env, params) of the reference's keyword arguments."""
    structure = {name: value for name, value in config.items() if name in STRUCTURE}
    return Waterworld(**structure), Params(
        **{name: value for name, value in config.items() if name not in structure}
    )


@functools.cache
def stepper(env):
    """`step_with` over a batch of states, compiled once."""
    return jax.jit(jax.vmap(env.step_with, in_axes=(0, 0, 0, None)))


@functools.partial(jax.jit, static_argnums=0)
def single_step(env, state, action, places, params):
    return env.step_with(state, action, places, params)


def state_of(
    env,
    position,
    velocity=None,
    correction=None,
    counter=None,
    food=None,
    poison=None,
    obstacles=None,
    t=0,
):
    """States [T] from bodies f64[T, N, 2], counter [T, F], touches bool[T, P, F] and [T, P, Q]."""
    position = np.asarray(position)
    count = len(position)
    pursuers, foods, poisons = (env.n_pursuers, env.n_evaders, env.n_poisons)
    zeros = np.zeros_like(position)
    body = lambda rows: np.float32(np.swapaxes(zeros if rows is None else np.asarray(rows), 1, 2))
    food = np.zeros((count, pursuers, foods), bool) if food is None else food
    poison = np.zeros((count, pursuers, poisons), bool) if poison is None else poison
    counter = np.zeros((count, foods), int) if counter is None else counter
    obstacles = (
        np.tile(np.array([env.obstacle_coord]) * SIZE, (count, 1, 1))
        if obstacles is None
        else obstacles
    )
    touched = np.concatenate([np.zeros((count, pursuers, pursuers), bool), food, poison], axis=2)
    return State(
        position=body(position),
        velocity=body(velocity),
        correction=body(correction),
        counter=np.int32(np.pad(counter, ((0, 0), (pursuers, poisons)))),
        touched=touched,
        poisoned=np.zeros((count, pursuers), np.int32),
        obstacles=body(obstacles),
        time=np.broadcast_to(np.int32(t), (count,)),
    )


def rows(vectors):
    """[..., N, 2] of [..., 2, N]."""
    return np.swapaxes(np.asarray(vectors), -1, -2)


def contact_flags(env, params, position, obstacles):
    """bool[N, 4 + K] in the reference's order: bottom, right, top, left, obstacles.

    position: f32[2, N].
    """
    low, high, *solid = waterworld_physics.contacts(position, env.radii(params) * SIZE, obstacles)
    gaps = [
        low.gap[1],
        high.gap[0],
        high.gap[1],
        low.gap[0],
        *(contact.gap[0] for contact in solid),
    ]
    return jnp.stack(gaps, axis=1) < 0


# Recorded transitions


@functools.cache
def recorded(config):
    """(env, params, arrays by name without the configuration's own prefix)."""
    with np.load(REFERENCE) as file:
        arrays = {name[3:]: file[name] for name in file.files if name.startswith(f"{config}_")}
    return *made(**json.loads(str(arrays.pop("config")))), arrays


@functools.cache
def replayed(config):
    """Our step from each recorded state with the recorded respawns.

    Returns the five results, and contact flags [T, N, 4 + K].
    """
    env, params, ref = recorded(config)
    count = len(ref["t"])
    names = ("pos", "vel", "vbias", "counter", "touch_pe", "touch_pp")
    before = [ref[f"{name}_before"] for name in names]
    obstacles = np.tile(ref["obstacle_pos"], (count, 1, 1))
    states = state_of(env, *before, obstacles, ref["t"])
    places = np.concatenate(
        [np.full((count, env.n_pursuers, 4), np.nan), ref["respawn_evader"], ref["respawn_poison"]],
        1,
    )
    places = Places(*(np.float32(np.swapaxes(part, 1, 2)) for part in np.split(places, 2, axis=2)))
    results = jax.device_get(stepper(env)(states, ref["action"], places, params))

    def flags(state, action):
        velocity, _ = waterworld_physics.thrust(
            state.velocity[:, : env.n_pursuers], action, 0.5, 150.0, -0.5
        )
        velocity = jnp.concatenate([velocity, state.velocity[:, env.n_pursuers :]], axis=1)
        reached = waterworld_physics.integrate(state.position, velocity, state.correction, 1 / 15)
        return contact_flags(env, params, reached, state.obstacles)

    return *results, jax.jit(jax.vmap(flags))(states, ref["action"])


CONFIGS = pytest.mark.parametrize("config", ["c0", "c1", "c4"])
SENSOR_FLIPS = {
    "c0": 0,
    "c1": 0,
    "c4": 0,
}  # readings on the other side of a threshold, in single precision


@CONFIGS
def test_bodies_move_as_recorded(config):
    _, _, ref = recorded(config)
    state = replayed(config)[1]
    np.testing.assert_allclose(rows(state.position), ref["pos_after"], rtol=0, atol=5e-4)
    np.testing.assert_allclose(rows(state.velocity), ref["vel_after"], rtol=0, atol=2e-3)
    np.testing.assert_allclose(rows(state.correction), ref["vbias_after"], rtol=0, atol=2e-3)


@CONFIGS
def test_counters_touches_contacts_and_truncation_are_as_recorded(config):
    env, params, ref = recorded(config)
    _, state, _, terminated, info, contacts = replayed(config)
    foods = slice(env.n_pursuers, env.n_pursuers + env.n_evaders)
    np.testing.assert_array_equal(state.counter[:, foods], ref["counter_after"])
    np.testing.assert_array_equal(state.touched[:, :, foods], ref["touch_pe_after"])
    np.testing.assert_array_equal(state.touched[:, :, foods.stop :], ref["touch_pp_after"])
    np.testing.assert_array_equal(contacts, ref["static_contact"])
    over = jax.jit(jax.vmap(env.is_truncated, in_axes=(0, None)))(state, params)
    np.testing.assert_array_equal(
        np.repeat(np.asarray(over)[:, None], env.n_pursuers, 1), ref["truncated"]
    )
    assert not terminated.any() and not ref["terminated"].any()
    began_poison = (ref["events"][:, :, 0] == 1).sum(1)
    np.testing.assert_array_equal(info["metrics"]["poison_touched"], began_poison)


@CONFIGS
def test_rewards_are_as_recorded(config):
    """But where the engine's order among simultaneous touches of one food decided."""
    _, _, ref = recorded(config)
    clear = ~ref["order_ambiguous"]
    assert clear.sum() >= len(clear) - 4
    np.testing.assert_allclose(
        np.asarray(replayed(config)[2])[clear], ref["reward"][clear], rtol=0, atol=1e-5
    )


@CONFIGS
def test_observations_are_as_recorded(config):
    _, _, ref = recorded(config)
    off = np.abs(np.asarray(replayed(config)[0]) - ref["obs_after"]) > 1e-4
    assert off.sum() == SENSOR_FLIPS[config]


@pytest.mark.parametrize("config, seed", [("c0", 0), ("c0", 1), ("c1", 2), ("c4", 5)])
def test_first_observations_are_as_recorded(config, seed):
    env, params, ref = recorded(config)
    states = state_of(
        env,
        ref[f"reset_pos_seed{seed}"][None],
        ref[f"reset_vel_seed{seed}"][None],
        obstacles=ref["obstacle_pos"][None],
    )
    obs = jax.jit(jax.vmap(env.observe, in_axes=(0, None)))(states, params)[0]
    np.testing.assert_allclose(obs, ref[f"reset_obs_seed{seed}"], rtol=0, atol=1e-4)


# Random states against the rules in plain NumPy

PLAIN_CONFIGS = [
    {
        "n_pursuers": 3, "n_evaders": 3, "n_poisons": 4, "n_coop": 2, "local_ratio": 0.3,
        "n_sensors": 7, "FPS": 10,
    },
    {
        "n_pursuers": 1, "n_evaders": 2, "n_poisons": 3, "n_sensors": 8, "radius": 0.04,
        "pursuer_max_accel": 0.1,
    },
    {
        "n_pursuers": 4, "n_evaders": 2, "n_poisons": 1, "n_coop": 3, "n_sensors": 5,
        "speed_features": False, "FPS": 30,
    },
    {
        "n_pursuers": 2, "n_evaders": 4, "n_poisons": 2, "n_sensors": 12, "sensor_range": 0.5,
        "n_obstacles": 3, "obstacle_coord": ((0.2, 0.3), (0.5, 0.5), (0.97, 0.6)),
        "obstacle_radius": 0.05, "FPS": 12, "pursuer_speed": 0.7, "evader_speed": 0.3,
        "local_ratio": 0.0, "thrust_penalty": -2.0, "encounter_reward": 0.5,
    },
]  # fmt: skip


def random_state(plain, random):
    """Bodies anywhere, in corners, at walls, obstacles and pursuers; mostly current touches."""
    near = lambda spread: random.normal(0, spread, 2)
    places = (
        lambda: random.uniform(0, SIZE, 2),
        lambda: random.choice([0.0, SIZE], 2) + near(25),
        lambda: (
            np.where(random.random(2) < 0.5, random.uniform(0, SIZE, 2), random.choice([0, SIZE]))
            + near(15)
        ),
        lambda: plain.obstacles[random.integers(len(plain.obstacles))] + near(75),
        lambda: plain.position[random.integers(plain.n_pursuers)] + near(30),
    )
    for body in range(plain.num_bodies):
        plain.position[body] = places[random.integers(len(places))]()
    plain.velocity = random.uniform(-150, 150, plain.velocity.shape)
    plain.correction = random.uniform(-30, 30, plain.correction.shape) * (
        random.random((plain.num_bodies, 1)) < 0.3
    )
    plain.counter = random.integers(-2, plain.n_coop + 1, plain.n_evaders).tolist()
    plain.touched_food = random.random(plain.touched_food.shape) < 0.4
    plain.touched_poison = random.random(plain.touched_poison.shape) < 0.4
    for array in (plain.position, plain.velocity, plain.correction):
        array[...] = np.float32(array)  # both start from the same numbers


@pytest.mark.long
@pytest.mark.parametrize("config", PLAIN_CONFIGS, ids=range(len(PLAIN_CONFIGS)))
def test_any_step_is_that_of_the_rules_in_plain_numpy(config):
    env, params = made(**config)
    batch = 16
    step = stepper(env)
    compared = []

    @settings(max_examples=5)
    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        random = np.random.default_rng(seed)
        envs = [PlainWaterworld(**config) for _ in range(batch)]
        for world in envs:
            random_state(world, random)
        gather = lambda name: np.stack([np.asarray(getattr(world, name)) for world in envs])
        names = (
            "position",
            "velocity",
            "correction",
            "counter",
            "touched_food",
            "touched_poison",
            "obstacles",
        )
        states = state_of(env, *map(gather, names))
        actions = np.float32(random.uniform(-1.4, 1.4, (batch, env.n_pursuers, 2)))
        places = np.float32(random.uniform(0, SIZE, (batch, env.num_bodies, 4)))
        halves = Places(*(np.swapaxes(part, 1, 2) for part in np.split(places, 2, axis=2)))
        obs, after, rewards, _, info = jax.device_get(step(states, actions, halves, params))
        for i, world in enumerate(envs):
            plain_obs, plain_rewards, _, _ = world.step(actions[i], places[i])
            if world.margin < 1e-2:
                continue
            compared.append(world.num_caught)
            np.testing.assert_allclose(rows(after.position[i]), world.position, rtol=0, atol=1e-3)
            np.testing.assert_allclose(rows(after.velocity[i]), world.velocity, rtol=0, atol=5e-3)
            # Corrections of hundreds push bodies apart whose centres are near each other, where
            # float32 knows their direction less well.
            np.testing.assert_allclose(
                rows(after.correction[i]), world.correction, rtol=2e-4, atol=5e-3
            )
            np.testing.assert_allclose(obs[i], plain_obs, rtol=0, atol=2e-4)
            np.testing.assert_allclose(rewards[i], plain_rewards, rtol=0, atol=1e-4)
            foods = slice(env.n_pursuers, env.n_pursuers + env.n_evaders)
            assert after.counter[i, foods].tolist() == world.counter
            np.testing.assert_array_equal(after.touched[i, :, foods], world.touched_food)
            np.testing.assert_array_equal(after.touched[i, :, foods.stop :], world.touched_poison)
            assert info["metrics"]["food_caught"][i] == world.num_caught
            assert info["metrics"]["poison_touched"][i] == sum(world.poison_count)

    check()
    assert len(compared) > 20 and sum(compared) > 0  # not all was skipped, and something happened


# The rules, one by one


def test_a_push_is_clipped_to_the_unit_disc_and_costs_its_length():
    action = jnp.array([[0.6, 0.8], [3.0, 4.0], [-9.0, 0.0], [0.3, 0.0], [0.0, 0.0]])
    velocity, penalty = waterworld_physics.thrust(jnp.zeros((2, 5)), action, 0.1, 1000.0, -0.5)
    corner = 75 / np.sqrt(2)  # clipped to (1, 1) first
    expected = [[45, 60], [corner, corner], [-75, 0], [22.5, 0], [0, 0]]
    np.testing.assert_allclose(rows(velocity), expected, rtol=1e-5)
    np.testing.assert_allclose(penalty, [-0.05, -0.05, -0.05, -0.015, 0], rtol=1e-5)


def test_the_speed_is_clipped_in_each_component():
    velocity, _ = waterworld_physics.thrust(
        jnp.array([[100.0], [-140.0]]), jnp.array([[1.0, -1.0]]), 0.5, 150.0, -0.5
    )
    np.testing.assert_allclose(velocity[:, 0], [150, -150])


def test_the_correction_acts_in_one_step_alone():
    position = waterworld_physics.integrate(
        jnp.ones((2, 1)), jnp.full((2, 1), 30.0), jnp.full((2, 1), -15.0), 1 / 15
    )
    np.testing.assert_allclose(position, 2)
    state = start([[300.0, 100.0]], correction=[[15.0, 0.0]])
    after = played(state)[1]
    assert after.position[0, 0] == 301 and (after.correction == 0).all()
    assert played(after)[1].position[0, 0] == 301


LONER = Waterworld(n_pursuers=1, n_evaders=1, n_poisons=1, n_sensors=4)
PAIR = Waterworld(n_pursuers=2, n_evaders=1, n_poisons=1, n_sensors=4)
observed = jax.jit(LONER.observe)
FAR = [[600.0, 600.0], [150.0, 650.0]]  # food and poison out of everybody's way


def start(pursuers, food=FAR[0], poison=FAR[1], **more):
    """A state of one pool; `more` as for `state_of`, of bodies those of the pursuers."""
    env = LONER if len(pursuers) == 1 else PAIR
    for name in ("velocity", "correction"):
        if name in more:
            more[name] = [[*more[name], *np.zeros((env.num_bodies - len(more[name]), 2))]]
    more = {
        name: [value] if name in ("counter", "food", "poison") else value
        for name, value in more.items()
    }
    states = state_of(
        env, [[*pursuers, food, poison]], **{name: np.array(value) for name, value in more.items()}
    )
    return jax.tree.map(lambda leaf: leaf[0], states)


def played(state, action=None, params=PARAMS, place=(333.0, 222.0)):
    """One step of LONER or PAIR; whatever respawns does so at `place` with no velocity."""
    env = LONER if state.touched.shape[0] == 1 else PAIR
    action = np.float32(np.zeros((env.n_pursuers, 2)) if action is None else action)
    there = Places(
        np.tile(np.float32(place)[:, None], (1, env.num_bodies)),
        np.zeros((2, env.num_bodies), np.float32),
    )
    return single_step(env, state, action, there, params)


def test_a_wall_takes_a_thousandth_of_the_speed_and_an_obstacle_nothing():
    after = played(start([[12.0, 375.0]], velocity=[[-150.0, 40.0]]))[
        1
    ]  # 2 px after the step: 9.25 px too deep
    np.testing.assert_allclose(after.velocity[:, 0], [149.85, 40], rtol=1e-6)
    np.testing.assert_allclose(after.correction[:, 0], [9.15 * 15 * (1 - 0.9**4), 0], rtol=1e-5)
    after = played(start([[375.0, 285.0]], velocity=[[30.0, 60.0]]))[1]
    assert np.linalg.norm(after.velocity[:, 0]) == pytest.approx(np.hypot(30, 60), rel=1e-5)
    assert after.velocity[1, 0] < 0


def test_what_leaves_a_wall_or_only_grazes_it_keeps_its_velocity():
    after = played(start([[2.0, 200.0]], velocity=[[60.0, 0.0]]))[1]
    assert after.velocity[0, 0] == 60 and after.correction[0, 0] > 0
    after = played(start([[11.2, 200.0]]))[1]  # 0.05 px deep, less than what is left alone
    assert after.velocity[0, 0] == 0 and after.correction[0, 0] == 0


def test_both_walls_of_a_corner_answer():
    after = played(start([[10.0, 742.0]], velocity=[[-15.0, 15.0]]))[1]
    np.testing.assert_allclose(after.velocity[:, 0], [14.985, -14.985], rtol=1e-5)
    assert after.correction[0, 0] > 0 > after.correction[1, 0]


def test_bodies_of_one_kind_and_food_and_poison_pass_through_each_other():
    state = start([[200.0, 200.0], [205.0, 200.0]], food=[600.0, 600.0], poison=[602.0, 600.0])
    after = played(state)[1]
    assert (after.velocity == 0).all() and not after.touched.any()


def test_food_pays_at_the_touch_and_again_when_the_touch_ends():
    state = start([[200.0, 200.0]], food=[220.0, 200.0])
    obs, state, rewards, _, info = played(state)
    assert rewards[0] == pytest.approx(10.01)
    assert info["metrics"]["food_caught"] == 1
    assert obs[0, -2] == 1
    obs, state, rewards, _, info = played(state)  # still touching: the encounter alone
    assert rewards[0] == pytest.approx(0.01) and info["metrics"]["food_caught"] == 0
    assert state.counter[1] == 1 and state.position[0, 1] == 220
    obs, state, rewards, _, info = played(
        state.replace(position=state.position.at[0, 0].set(100.0))
    )
    assert rewards[0] == pytest.approx(10.0)
    assert info["metrics"]["food_caught"] == 0
    assert obs[0, -2] == 0
    assert state.counter[1] == 0 and state.position[:, 1].tolist() == [333, 222]
    assert state.position[:, 2].tolist() == FAR[1]


def test_poison_costs_and_moves_at_the_touch():
    obs, state, rewards, _, info = played(start([[200.0, 200.0]], poison=[215.0, 200.0]))
    assert rewards[0] == -1 and info["metrics"]["poison_touched"] == 1 and obs[0, -1] == 1
    assert state.position[:, 2].tolist() == [333, 222] and state.touched[0, 2]
    obs, state, rewards, _, _ = played(state)
    assert rewards[0] == 0 and obs[0, -1] == 0 and not state.touched[0, 2]


def test_each_of_two_pursuers_pays_for_one_poison():
    _, _, rewards, _, info = played(start([[200.0, 200.0], [230.0, 200.0]], poison=[215.0, 200.0]))
    assert rewards.tolist() == [-1, -1] and info["metrics"]["poison_touched"] == 2


def test_the_pursuer_that_leaves_second_counts_the_food_below_zero():
    catch = lambda counter, began, ended, n_coop: [
        np.asarray(part).T[0].tolist()
        for part in waterworld_physics.catch(
            jnp.array([counter]), jnp.array(began)[:, None], jnp.array(ended)[:, None], n_coop
        )
    ]
    no, both = [False, False], [True, True]
    assert catch(0, both, no, 1) == [2, both, no]  # each is paid
    assert catch(2, no, both, 1) == [-1, no, [True, False]]  # only the first to leave is paid
    assert catch(-1, both, no, 1) == [1, [False, True], no]  # it now takes two
    assert catch(0, both, no, 2) == [
        2,
        [False, True],
        no,
    ]  # the one whose touch completes it is paid
    assert catch(1, no, [True, False], 2) == [0, no, no]  # left before anybody helped
    assert catch(1, [False, True], [True, False], 2) == [
        0,
        [False, True],
        [True, False],
    ]  # begins come first


def test_the_last_pursuers_penalty_counts_twice():
    behaviour, penalty = jnp.array([1.0, 2.0, 3.0]), jnp.array([-0.1, -0.2, -0.3])
    np.testing.assert_allclose(
        waterworld_physics.reward(behaviour, penalty, 1.0), [0.9, 1.8, 3 - 0.6], rtol=1e-6
    )
    np.testing.assert_allclose(
        waterworld_physics.reward(behaviour, penalty, 0.0), [2 - 0.2 - 0.1] * 3, rtol=1e-6
    )
    rewards = played(start([[100.0, 300.0], [650.0, 300.0]]), [[1.0, 0.0], [1.0, 0.0]])[2]
    np.testing.assert_allclose(rewards, [-0.25, -0.5])


def test_a_body_that_respawns_off_a_wall_still_answers_that_wall():
    state = start([[25.0, 200.0]], poison=[8.0, 200.0])
    after = played(state, place=(5.0, 100.0))[
        1
    ]  # x: 0.4375 px deep before, 3 px nearer to the wall now
    np.testing.assert_allclose(
        after.correction[:, 2], [(0.4375 + 3 - 0.1) * 15 * (1 - 0.9**4), 0], rtol=1e-4
    )
    assert (played(state, place=(300.0, 100.0))[1].correction[:, 2] == 0).all()


# Sensors


def test_rays_see_ahead_and_name_the_speed_of_the_nearest():
    state = start(
        [[200.0, 200.0]], food=[275.0, 210.0], poison=[200.0, 100.0], velocity=[[30.0, 0.0]]
    )
    obs = np.asarray(observed(state, PARAMS))[0, :-2].reshape(8, 4)  # east, north, west, south
    np.testing.assert_allclose(obs[0], 1)  # no obstacle within 150 px
    np.testing.assert_allclose(obs[1], 1)  # nor a wall
    np.testing.assert_allclose(
        obs[2], [0.5, 1, 1, 1], rtol=1e-5
    )  # the food's centre, 75 px along the ray
    np.testing.assert_allclose(obs[3], [-30 / 225, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(obs[4], [1, 1, 1, 100 / 150], rtol=1e-5)
    np.testing.assert_allclose(
        obs[5:], [[0] * 4, [0] * 4, [0] * 4], atol=1e-6
    )  # a lone pursuer's last blocks


def test_walls_are_seen_as_the_share_of_the_ray_within():
    obs = np.asarray(observed(start([[30.0, 700.0]]), PARAMS))[0]
    np.testing.assert_allclose(obs[4:8], [1, 50 / 150, 30 / 150, 1], rtol=1e-5)
    obs = np.asarray(observed(start([[-15.0, 700.0]]), PARAMS))[0]
    assert obs[6] == pytest.approx(-0.1)


def test_a_disc_just_beyond_the_range_tells_its_speed_only_if_it_is_the_first():
    rays = waterworld_physics.directions(4)
    offset = jnp.array([[[1.02, 2.0]], [[0.0, 0.0]]])
    drift = jnp.array([[[0.3, 0.7]], [[0.0, 0.0]]])
    for order, expected in ([0, 1], 0.3), ([1, 0], 0.0):
        distance, speed = waterworld_physics.sense(
            offset[:, :, order], drift[:, :, order], 0.1, rays
        )
        assert (distance[0, 0], speed[0, 0]) == (1, np.float32(expected))


def test_pursuers_see_the_others_and_not_themselves():
    vectors = jnp.arange(6.0).reshape(2, 3)
    others = waterworld_physics.all_but_oneself(vectors)
    assert others[0].tolist() == [[1, 2], [0, 2], [0, 1]] and others[1].tolist() == [
        [4, 5],
        [3, 5],
        [3, 4],
    ]


# Randomness


def test_respawns_are_uniform_outside_the_obstacles():
    clear, top, number = 120.0, 75.0, 40_000
    fixed = jnp.array([[375.0], [375.0]])
    draw = jax.jit(
        lambda bits: waterworld_physics.draw_respawns(
            bits, fixed, jnp.full(number, clear), jnp.full(number, top)
        )
    )
    places = draw(jax.random.bits(KEY, (3, number)))
    x, y = np.asarray(places.position)
    assert np.hypot(x - 375, y - 375).min() > clear
    assert min(x.min(), y.min()) >= 0
    assert max(x.max(), y.max()) < SIZE
    in_box = (np.abs(x - 375) < 150) & (
        np.abs(y - 375) < 150
    )  # around the obstacle, where redraws would show
    free = SIZE**2 - np.pi * clear**2
    for share, area in (
        (in_box, 300**2 - np.pi * clear**2),
        (x < 187.5, SIZE**2 / 4),
        ((x < 75) & (y < 75), 75**2),
    ):
        expected = area / free
        assert abs(share.mean() - expected) < 4 * np.sqrt(expected / number)
    velocity = np.asarray(places.velocity)
    assert abs(velocity).max() <= top and abs(velocity.mean()) < 1
    assert abs(velocity.std() - top / np.sqrt(3)) < 1 and abs(np.corrcoef(velocity)[0, 1]) < 0.02


def test_redrawn_places_are_uniform_too():
    """Those whose first draw was rejected: their bits went through the congruence."""
    number = 400_000

    @jax.jit
    def draw(bits):
        """(first places, places after redraws), f32[2, number] each."""
        fixed, clear, top = jnp.full((2, 1), 375.0), jnp.full(number, 120.0), jnp.ones(number)
        first = waterworld_physics.draw_places(bits, top)
        return first.position, waterworld_physics.draw_respawns(bits, fixed, clear, top).position

    first, (x, y) = map(np.asarray, draw(jax.random.bits(KEY, (3, number))))
    redrawn = (x != first[0]) | (y != first[1])
    assert abs(redrawn.mean() - np.pi * 120**2 / SIZE**2) < 0.002
    expected = (SIZE**2 / 16) / (SIZE**2 - np.pi * 120**2)
    for corner_x in (x < 187.5, x > 562.5):
        for corner_y in (y < 187.5, y > 562.5):
            share = (corner_x & corner_y)[redrawn].mean()
            assert abs(share - expected) < 4 * np.sqrt(expected / redrawn.sum())


def test_later_obstacles_are_kept_clear_of_and_earlier_ones_not_looked_at_again():
    number = 20_000
    obstacles = jnp.array([[200.0, 550.0], [375.0, 375.0]])
    bits = jax.random.bits(KEY, (3, number))
    draw = jax.jit(waterworld_physics.draw_respawns)
    x, y = np.asarray(draw(bits, obstacles, jnp.full(number, 200.0), jnp.ones(number)).position)
    assert np.hypot(x - 550, y - 375).min() > 200
    assert 0.02 < (np.hypot(x - 200, y - 375) <= 200).mean() < 0.08


def test_bits_are_even_and_unalike_between_keys_and_bodies():
    draw = jax.jit(jax.vmap(lambda key: waterworld_physics.draw_bits(key, 18)))
    bits = np.asarray(draw(jax.random.split(KEY, 4000)))
    units = bits.reshape(4000, -1) / 2**32
    assert (abs(units.mean(0) - 0.5) < 5 / np.sqrt(12 * 4000)).all()
    correlation = np.corrcoef(units.T) - np.eye(units.shape[1])
    assert abs(correlation).max() < 5 / np.sqrt(4000)
    ones = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 4 * 0.5 / np.sqrt(bits.size * 32)


def test_resets_are_uniform_over_the_pool_and_may_overlap_the_obstacle():
    number = 3000
    state = jax.jit(jax.vmap(lambda key: POOL.start(key, PARAMS)))(jax.random.split(KEY, number))
    position, velocity = np.asarray(state.position), np.asarray(state.velocity)
    for share in (0.25, 0.5, 0.75):
        assert (abs((position < share * SIZE).mean(0) - share) < 5 * 0.5 / np.sqrt(number)).all()
    inside = (np.hypot(*(np.swapaxes(position, 0, 1) - 375)) < 75).mean()
    assert abs(inside - np.pi * 75**2 / SIZE**2) < 0.005
    assert (velocity[:, :, :2] == 0).all() and abs(velocity).max() <= 75
    assert abs(velocity[:, :, 2:].std() - 75 / np.sqrt(3)) < 0.5
    for leaf in (state.correction, state.counter, state.touched, state.poisoned, state.time):
        assert not np.asarray(leaf).any()
    assert (np.asarray(state.obstacles) == 375).all()


def test_obstacles_without_coordinates_are_anywhere_in_each_episode():
    env = Waterworld(n_obstacles=2, obstacle_coord=None)
    start = jax.jit(jax.vmap(lambda key: env.start(key, PARAMS).obstacles))
    places = np.asarray(start(jax.random.split(KEY, 2000)))
    assert places.shape == (2000, 2, 2)
    assert (abs(places.mean(0) - 375) < 5 * 216.5 / np.sqrt(2000)).all()
    assert abs(np.corrcoef(places.reshape(2000, 4).T) - np.eye(4)).max() < 0.11


# The contract


def test_the_contract_of_types_holds_with_other_settings_too():
    """Rollouts of the default settings: tests/core/test_env_checker.py."""
    config = {"n_pursuers": 1, "n_sensors": 3, "obstacle_coord": None, "max_cycles": 20}
    case = examine(*made(**config))
    check_stacked_types(case, KEY)
    check_types(case, KEY)


def test_the_parameters_are_those_of_the_reference():
    env, params = jaxrl.make("waterworld")
    assert (env, params) == (POOL, PARAMS)
    assert env.agents == ("pursuer_0", "pursuer_1")
    assert env.default_policies == {"pursuer_0": ("pursuer_0",), "pursuer_1": ("pursuer_1",)}
    assert env.observation_space().shape == (242,) and Waterworld(
        speed_features=False
    ).observation_space().shape == (152,)
    env, params = jaxrl.make(
        "waterworld", n_obstacles=2, obstacle_coord=[[0.1, 0.2], [0.3, 1]], n_coop=2, FPS=30
    )
    assert env.obstacle_coord == ((0.1, 0.2), (0.3, 1.0)) and (params.n_coop, params.FPS) == (2, 30)
    assert hash(env) == hash(Waterworld(n_obstacles=2, obstacle_coord=((0.1, 0.2), (0.3, 1.0))))


test_what_makes_no_game_is_refused = refused_by(lambda config: jaxrl.make("waterworld", **config), [
    ({"n_evaders": 0}, "n_evaders must be an integer from 1 to 65536, not 0"),
    ({"n_poisons": 0}, "n_poisons"), ({"n_obstacles": 0}, "n_obstacles"),
    ({"n_pursuers": -1}, "n_pursuers"), ({"n_pursuers": 2.0}, "n_pursuers"),
    ({"n_pursuers": True}, "n_pursuers"), ({"n_sensors": 0}, "n_sensors"),
    ({"speed_features": 1}, "speed_features"),
    ({"obstacle_coord": [[0.5, 0.5], [0.1, 0.1]]}, "2 points"),
    ({"obstacle_coord": [[0.5, 1.5]]}, r"\[0, 1\]"), ({"obstacle_coord": [0.5, 0.5]}, "list of"),
    ({"obstacle_coord": [[float("nan"), 0.5]]}, r"\[0, 1\]"),
    ({"radius": 0.0}, "radius must be above 0, not 0.0"),
    ({"obstacle_radius": -0.1}, "obstacle_radius"), ({"sensor_range": -0.2}, "sensor_range"),
    ({"pursuer_speed": -1.0}, "pursuer_speed"), ({"FPS": 0}, "FPS"),
    ({"evader_speed": -1.0}, "evader_speed"), ({"poison_speed": -1.0}, "poison_speed"),
    ({"n_coop": 0}, "n_coop"),
    ({"pursuer_max_accel": -1.0}, "pursuer_max_accel"), ({"max_cycles": 0}, "max_cycles"),
    ({"max_cycles": 1.5}, "integer"),
    ({"local_ratio": 1.1}, "between 0 and 1, not 1.1"),
    ({"n_coop": 3}, "n_coop=3 is more than n_pursuers=2"),
    ({"obstacle_radius": 0.7}, "no place"),
    ({"obstacle_radius": 0.55}, "no place.*0.610.*96% of the pool and may be 90%"),
    ({"radius": 0.2}, "no place"), ({"render_mode": 1}, "render_mode"),
])  # fmt: skip


def test_settings_that_the_reference_takes_are_taken():
    for config in ({"obstacle_radius": 0.35}, {"radius": 0.1}, {"max_cycles": 1000.0}):
        jaxrl.make("waterworld", **config)
    assert jaxrl.make("waterworld", render_mode=None)[0] == POOL
    assert jaxrl.make("waterworld", n_sensors=np.int64(30), sensor_range=np.float64(0.2)) == (
        POOL,
        PARAMS,
    )


def test_places_are_found_where_four_draws_in_five_are_rejected():
    bits, number = jax.random.bits(KEY, (3, 2000)), 2000
    draw = jax.jit(waterworld_physics.draw_respawns)
    places = draw(bits, jnp.full((2, 1), 375.0), jnp.full(number, 375.0), jnp.ones(number))
    x, y = np.asarray(places.position)
    assert np.hypot(x - 375, y - 375).min() > 375


def test_every_number_may_differ_between_environments():
    params = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf), jnp.asarray(leaf)]), PARAMS)
    params = params.replace(sensor_range=jnp.array([0.2, 0.4]), max_cycles=jnp.array([1, 2]))
    states = state_of(LONER, np.array([[[200.0, 200.0], [275.0, 200.0], *FAR[1:]]] * 2))
    step = jax.jit(
        jax.vmap(lambda state, params: LONER.step(KEY, state, {"pursuer_0": jnp.zeros(2)}, params))
    )
    _, _, _, _, truncated, info = step(states, params)
    np.testing.assert_allclose(info["final_observation"]["pursuer_0"][:, 8], [0.5, 0.25], rtol=1e-5)
    assert truncated["__all__"].tolist() == [True, False]


def test_pictures_show_everything_where_it_is():
    first = start([[150.0, 150.0], [600.0, 150.0]], food=[150.0, 600.0], poison=[600.0, 600.0])
    second = start([[600.0, 150.0], [150.0, 150.0]], food=[375.0, 600.0], poison=[600.0, 600.0])
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, second)
    pictures = np.asarray(jax.jit(jax.vmap(PAIR.render, in_axes=(0, None)))(states, PARAMS))
    assert pictures.shape == (2, 500, 500, 3) and pictures.dtype == np.uint8
    # y points up
    colour = lambda picture, x, y: tuple(picture[499 - int(y / 1.5), int(x / 1.5)].tolist())
    blue, violet = PAIR.agent_colors.values()
    green, red, grey = PAIR.legend.values()
    water = (229, 242, 248)
    assert (blue, violet) == ((25, 98, 170), (134, 84, 190))
    assert (green, red) == ((76, 168, 84), (214, 62, 54))
    places = ((150, 150), (600, 150), (150, 600), (600, 600), (375, 375), (375, 600))
    colours = [colour(pictures[0], *place) for place in places]
    assert colours == [blue, violet, green, red, grey, water]
    colours = [colour(pictures[1], *place) for place in places]
    assert colours == [violet, blue, water, red, grey, green]
    # on a ray, and between two
    assert colour(pictures[0], 240, 150) != water == colour(pictures[0], 240, 210)
