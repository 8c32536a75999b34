"""Pgx's games: the library's own moves, where a player that waits is rewarded for its last one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pgx", reason="the extra pgx is not installed")

import pgx
from pgx.tic_tac_toe import TicTacToe

from jaxrl.adapters.from_pgx import constructor
from jaxrl.core.env import acting_agents, raw_reset, raw_step
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps, legal_action

NAMES = ["connect_four", "go_9x9", "leduc_holdem", "minatar-breakout"]
NUMBERS = np.random.default_rng(0).integers(1000, size=4000, dtype=np.int32)


@pytest.fixture(autouse=True)
def ranks_are_promoted():
    """As Pgx's Go needs."""
    with jax.numpy_rank_promotion("allow"):
        yield


def library_player(name, agents=()):
    """Pgx itself, all players' views and rewards by agent; the player to move takes the action."""
    game = pgx.make(name)

    def by_agent(values):
        return dict(zip(agents, values, strict=True)) if agents else values[0]

    def seen(state):
        views = [game.observe(state, jnp.int32(index)) for index in range(len(agents))]
        return by_agent(views or [state.observation])

    def reset(key):
        state = game.init(jax.random.key_data(key))
        return seen(state), state

    def step(key, state, numbers):
        number = jnp.stack(jax.tree.leaves(numbers))[state.current_player if agents else 0]
        action = legal_action(state.legal_action_mask, number)
        state = game.step(state, action, jax.random.key_data(key))
        ends = (dict.fromkeys([*agents, "__all__"], state.terminated), state.truncated)
        terminated, truncated = ends if agents else (state.terminated, state.truncated)
        return seen(state), state, by_agent(state.rewards), terminated, truncated

    return Player(reset, step)


@pytest.mark.filterwarnings("ignore:.*player_id.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker"])
def test_the_same_keys_and_legal_moves_give_the_librarys_games(name):
    env = constructor(name)()
    numbers = {"player_0": NUMBERS, "player_1": NUMBERS[::-1].copy()}
    player = library_player(name, env.agents)
    assert assert_same_steps(player, adapter_player(env, legal=True), numbers) > 400


def test_games_of_one_player_are_the_librarys_as_well():
    env = constructor("minatar-breakout")()
    player = library_player("minatar-breakout")
    assert assert_same_steps(player, adapter_player(env, legal=True), NUMBERS) > 40


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_holds(name):
    check_env(constructor(name)())


def test_a_loser_that_is_not_to_move_gets_its_loss():
    env, params = make("pgx:tic_tac_toe")
    _, state = raw_reset(env, jax.random.key(0), params)
    first = int(np.argmax(acting_agents(env, state, params)))
    for move, place in enumerate([0, 3, 1, 4, 2]):  # the upper row, before the middle one is full
        np.testing.assert_array_equal(
            acting_agents(env, state, params), np.arange(2) == (first + move) % 2
        )
        mask = env.action_mask(state, params)["player_0"]
        assert mask[place] and mask.sum() == 9 - move
        # The waiting player's action is ignored.
        actions = {agent: jnp.int32(8) for agent in env.agents}
        actions[env.agents[(first + move) % 2]] = jnp.int32(place)
        raw = raw_step(env, jax.random.key(1), state, actions, params)
        state = raw.state
    assert raw.terminated.all() and raw.episode_done and not raw.truncated.any()
    assert raw.reward[first] == 1 and raw.reward[1 - first] == -1


def test_who_begins_is_drawn_and_a_policy_is_shared():
    env, params = make("pgx:tic_tac_toe")
    begins = jax.vmap(lambda key: acting_agents(env, env.reset_env(key, params)[1], params))
    assert 20 < begins(jax.random.split(jax.random.key(0), 100))[:, 0].sum() < 80
    assert env.default_policies == {"default_policy": ("player_0", "player_1")}


def test_a_picture_of_minatar_has_a_colour_where_something_is():
    env, params = make("pgx:minatar-breakout")
    obs, state = env.reset_env(jax.random.key(0), params)
    picture = np.asarray(jax.jit(env.render)(state, params))
    assert picture.shape == (200, 200, 3) and picture.dtype == np.uint8
    np.testing.assert_array_equal(picture[10::20, 10::20].any(-1), np.asarray(obs).any(-1))


def test_a_picture_of_a_board_is_pgxs_own():
    pytest.importorskip("resvg_py", reason="the extra pgx is not installed")
    env, params = make("pgx:tic_tac_toe")
    _, first = raw_reset(env, jax.random.key(0), params)
    centre = dict.fromkeys(env.agents, jnp.int32(4))
    states = jax.tree.map(
        lambda *leaves: jnp.stack(leaves),
        first,
        raw_step(env, jax.random.key(1), first, centre, params).state,
    )
    before, after = np.asarray(jax.jit(jax.vmap(lambda each: env.render(each, params)))(states))
    assert before.shape == (240, 240, 3) and before.dtype == np.uint8
    middle = (slice(95, 145), slice(95, 145))  # of nine places of 60 pixels from 30 on
    assert (before[middle] == 255).all() and (after[middle] < 128).any()
    assert (before != 255).any()  # the lines


def test_arguments_are_those_of_the_games_class():
    env, _ = make("pgx:minatar-breakout", use_minimal_action_set=False)
    assert env.action_space().n == 6
    name = "minatar-breakout"
    assert env == constructor(name)(use_minimal_action_set=False) != constructor(name)()
    env, _ = make("pgx:go_9x9", history_length=1)
    assert env.observation_space("player_0").shape == (9, 9, 3)
    with pytest.raises(UsageError, match="unknown argument 'size' of environment 'pgx:go_9x9'"):
        make("pgx:go_9x9", size=5)
    with pytest.raises(UsageError, match=r"pgx:hex: \{'size': 5\} are refused: TypeError"):
        make("pgx:hex", size=5)  # Pgx 2.6 reshapes 121 cells all the same


def test_unknown_and_refused_names_are_told_in_one_line():
    with pytest.raises(UsageError, match="did you mean 'tic_tac_toe'"):
        make("pgx:tictactoe")
    with pytest.raises(UsageError, match="'bridge_bidding' needs hands that Pgx would have to"):
        make("pgx:bridge_bidding")


class TimedGame(TicTacToe):
    """A user's game, cut after three moves."""

    def _step(self, state, action, key):
        state = super()._step(state, action, key)
        return state.replace(truncated=(state._step_count >= 3) & ~state.terminated)


def test_a_users_game_is_an_object_or_a_class_and_truncates_where_it_says_so():
    for given in (TimedGame(), TimedGame):
        env, params = make(given)
        assert (env.name, env.agents) == ("tic_tac_toe", ("player_0", "player_1"))
    check_env(TimedGame(), steps=16)
    _, state = env.reset_env(jax.random.key(0), params)
    cut = []
    for move in range(3):
        action = dict.fromkeys(env.agents, move)
        _, state, _, terminated, _ = env.step_env(jax.random.key(0), state, action, params)
        cut.append((bool(terminated["__all__"]), bool(env.is_truncated(state, params))))
    assert cut == [(False, False), (False, False), (False, True)]


def test_a_game_of_one_player_is_an_object_too():
    env, params = make(pgx.make("2048"))
    assert env.action_space(params) == make("pgx:2048")[0].action_space(params)
