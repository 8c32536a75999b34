"""Jumanji's environments: the library's own steps, its ends told apart by its discount."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jumanji", reason="the extra jumanji is not installed")

import jumanji
from jumanji.environments import Snake
from jumanji.wrappers import AutoResetWrapper
from matplotlib import pyplot as plt

from jaxrl.adapters.from_jumanji import constructor
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps, legal_action

NAMES = ["Snake-v1", "Maze-v0", "RubiksCube-v0"]
NUMBERS = np.random.default_rng(0).integers(1000, size=3000, dtype=np.int32)


@pytest.fixture(autouse=True)
def ranks_are_promoted():
    """As some of Jumanji's environments need."""
    with jax.numpy_rank_promotion("allow"):
        yield


def library_player(name, choose=lambda number, obs: number, **args):
    """The library by its own reading: a last step with a discount of 1 is by the clock.

    Args:
        choose: (number, observation) -> the library's action.
    """
    env = jumanji.make(name, **args)
    named = lambda obs: dict(obs._asdict())

    def reset(key):
        state, timestep = env.reset(jax.random.key_data(key))
        return named(timestep.observation), (state, timestep)

    def step(key, before, number):
        state, timestep = before
        state, timestep = env.step(state, choose(number, timestep.observation))
        reward, done = jnp.sum(timestep.reward), jnp.all(timestep.discount == 0)
        terminated, truncated = timestep.last() & done, timestep.last() & ~done
        return named(timestep.observation), (state, timestep), reward, terminated, truncated

    return Player(reset, step)


def test_the_same_keys_and_legal_actions_give_the_librarys_snake():
    args = {"num_rows": 5, "num_cols": 5, "time_limit": 60}
    choose = lambda number, obs: legal_action(obs.action_mask, number)
    adapter = adapter_player(constructor("Snake-v1")(**args), legal=True)
    assert assert_same_steps(library_player("Snake-v1", choose, **args), adapter, NUMBERS) >= 50


def test_jointly_masked_actions_are_combinations():
    """Of four rotations and ten columns, in the order of the library's mask."""

    def choose(number, obs):
        place = legal_action(obs.action_mask.reshape(-1), number)
        return jnp.stack([place // 10, place % 10])

    env = constructor("Tetris-v0")()
    assert env.action_space() == Discrete(40)
    adapter = adapter_player(env, legal=True)
    assert assert_same_steps(library_player("Tetris-v0", choose), adapter, NUMBERS) > 100


def test_a_team_is_one_agent_and_what_the_library_truncates_is_truncated():
    env = constructor("LevelBasedForaging-v0")(time_limit=20)
    assert env.action_space() == MultiDiscrete((6, 6))
    actions = np.random.default_rng(0).integers(6, size=(3000, 2), dtype=np.int32)
    library = library_player("LevelBasedForaging-v0", time_limit=20)
    assert assert_same_steps(library, adapter_player(env), actions) > 140
    _, state = env.reset_env(jax.random.key(0), env.default_params)
    for step in range(20):
        assert not env.is_truncated(state, env.default_params), step
        stepped = env.step_env(jax.random.key(0), state, jnp.zeros(2, int), env.default_params)
        state, terminated = stepped[1], stepped[3]
    assert env.is_truncated(state, env.default_params) and not terminated


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_holds(name):
    check_env(constructor(name)(), steps=64)


def test_masks_are_the_librarys_and_missing_where_it_has_none():
    env, params = make("jumanji:Maze-v0")
    obs, state = env.reset_env(jax.random.key(0), params)
    np.testing.assert_array_equal(env.action_mask(state, params), obs["action_mask"])
    assert not hasattr(constructor("RubiksCube-v0")(), "action_mask")


def test_observations_are_dicts_by_the_librarys_names():
    space = constructor("Maze-v0")().observation_space()
    assert set(space.spaces) == {
        *("agent_position", "target_position", "walls", "step_count", "action_mask")
    }
    assert set(space["agent_position"].spaces) == {"row", "col"}
    assert space["walls"] == Box(0, 1, (10, 10), "bool")


@pytest.mark.parametrize("name", ["Snake-v1", "Maze-v0", "RubiksCube-v0"])
def test_pictures_are_drawn_within_a_compiled_program_and_no_figure_stays_open(name):
    env, params = make(f"jumanji:{name}")
    reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
    _, states = reset(jax.random.split(jax.random.key(0), 2), params)
    pictures = np.asarray(jax.jit(jax.vmap(env.render, (0, None)))(states, params))
    assert pictures.dtype == np.uint8 and pictures.shape == (2, 500, 500, 3)
    assert (pictures[0] != pictures[0, 0, 0]).any()
    assert (pictures[0] != pictures[1]).any()  # other places, other colours
    assert plt.get_fignums() == []


def test_our_clock_truncates_and_the_librarys_ends_the_world_where_it_says_so():
    env, params = make("jumanji:Maze-v0", time_limit=5, max_steps_in_episode=3)
    _, state = env.reset_env(jax.random.key(0), params)
    ends = []
    for _ in range(5):
        blocked = jnp.argmin(env.action_mask(state, params))  # stays where it is
        _, state, _, terminated, _ = env.step_env(jax.random.key(0), state, blocked, params)
        ends.append((bool(env.is_truncated(state, params)), bool(terminated)))
    assert ends == [(False, False)] * 2 + [(True, False)] * 2 + [(True, True)]


def test_unknown_and_refused_names_and_arguments_are_told_in_one_line():
    with pytest.raises(UsageError, match="did you mean 'Snake-v1'"):
        make("jumanji:Snake-v0")
    with pytest.raises(UsageError, match="'Sokoban-v0' would have to download its levels"):
        make("jumanji:Sokoban-v0")
    with pytest.raises(UsageError, match=r"unknown argument 'num_row'.*did you mean 'num_rows'"):
        make("jumanji:Snake-v1", num_row=5)
    assert make("jumanji:Snake-v1", num_rows=5)[0] != make("jumanji:Snake-v1")[0]


def test_an_object_steps_like_its_name_without_the_librarys_resets():
    maze = jumanji.make("Maze-v0")
    env, params = make(AutoResetWrapper(maze))
    by_name = constructor("Maze-v0")()
    expected = (by_name.observation_space(), by_name.action_space())
    assert (env.observation_space(), env.action_space()) == expected
    key = jax.random.key(3)
    outcomes = []
    for each in (env, by_name):
        obs, state = each.reset_env(key, params)
        outcomes.append((obs, each.step_env(key, state, jnp.int32(1), params)[0]))
    for left, right in zip(*map(jax.tree.leaves, outcomes), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_class_with_arguments_is_made_and_equal_to_another_made_alike():
    env, _ = make(Snake, num_rows=5, num_cols=4)
    assert env.observation_space()["grid"].shape[:2] == (5, 4)
    assert env == make(Snake, num_rows=5, num_cols=4)[0] != make(Snake, num_rows=5, num_cols=5)[0]
