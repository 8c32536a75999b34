"""Tests of `ShuffledSeats`: the same game, whoever sits where."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import ShuffledSeats, StackedEnvironment, check_env
from jaxrl.core.env import raw_step
from tests.messages import refused_by
from tests.probes import Crowd, Leavers, Recall, TicTacToe, Twins


@pytest.mark.long
@pytest.mark.parametrize("game", [TicTacToe(), Twins(), Crowd(3)], ids=lambda game: game.name)
def test_a_game_with_drawn_seats_keeps_the_contract(game):
    check_env(ShuffledSeats(game))


@pytest.mark.long
def test_every_player_takes_every_seat_alike_often():
    env = ShuffledSeats(TicTacToe())
    keys = jax.random.split(jax.random.key(0), 1000)
    _, states = jax.vmap(env.reset_stacked, in_axes=(0, None))(keys, env.default_params)
    assert 0.45 < (states.seats[:, 0] == 0).mean() < 0.55
    assert (states.seats.sum(axis=1) == 1).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_game_is_the_same_with_players_in_the_place_of_seats(seed):
    game = TicTacToe()
    env, params, key = ShuffledSeats(game), game.default_params, jax.random.key(seed)
    obs, state = env.reset_stacked(key, params)
    inner_obs, inner = game.reset_env(key, params)
    seats = [game.agents[seat] for seat in np.asarray(state.seats)]
    for move in (4, 0, 2, 6, 3, 5, 8):
        for player, seat in enumerate(seats):
            np.testing.assert_array_equal(obs[player], inner_obs[seat])
            acting, mask = env.acting_agents(state, params), env.action_mask(state, params)
            assert acting[player] == game.acting_agents(inner, params)[seat]
            np.testing.assert_array_equal(mask[player], game.action_mask(inner, params)[seat])
        raw = raw_step(env, key, state, jnp.array([move, move]), params)
        expected = raw_step(game, key, inner, {"x": jnp.int32(move), "o": jnp.int32(move)}, params)
        obs, state, inner_obs, inner = raw.obs, raw.state, expected.obs, expected.state
        order = state.seats
        for name in ("reward", "terminated", "truncated", "active"):
            np.testing.assert_array_equal(getattr(raw, name), getattr(expected, name)[order])
        assert raw.episode_done == expected.episode_done


def test_the_seeds_above_are_of_both_orders():
    env = ShuffledSeats(TicTacToe())
    states = [env.reset_stacked(jax.random.key(seed), None)[1] for seed in range(4)]
    assert {tuple(state.seats.tolist()) for state in states} == {(0, 1), (1, 0)}


def test_the_learning_player_has_a_policy_of_its_own():
    env = ShuffledSeats(Crowd(3))
    assert env.agents == ("player_0", "player_1", "player_2")
    assert env.default_policies == {"main": ("player_0",), "opponent": ("player_1", "player_2")}


class Alone(StackedEnvironment):
    agents = ("only",)


test_seats_that_cannot_be_exchanged_are_refused = refused_by(
    lambda game: ShuffledSeats(game),
    [
        (Recall(), "must be an environment of several agents"),
        (Alone(), "must be an environment of several agents"),
        (Leavers(), "observation_space of 'short' is Discrete.* and that of 'wide' Box"),
        ("pgx:go_9x9", "'pgx:go_9x9' must be an environment of several agents"),
    ],
)
