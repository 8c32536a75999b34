"""The arena against its rules in plain Python (`tests/oracles/arena.py`), step by step."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.core.errors import UsageError
from jaxrl.envs.arena import MultiAgentArena, Params, State, aim, move, reward, toss, unpack, visit
from tests.oracles.arena import PlainArena

UP, RIGHT, DOWN, LEFT = range(4)
AGENTS = ("agent1", "agent2")
KEY = jax.random.key(0)
ARENA, PARAMS = MultiAgentArena(), Params()


def state_of(env, cell1, cell2, visited=(), time=0):
    """A state with the agents in these (row, column) cells."""
    number = lambda cell: cell[0] * env.width + cell[1]
    words = np.zeros(-(-env.height * env.width // 32), np.uint32)
    for cell in visited:
        words[number(cell) // 32] |= np.uint32(1 << number(cell) % 32)
    positions = jnp.array([number(cell1), number(cell2)], jnp.int32)
    return State(positions=positions, visited=jnp.array(words), time=jnp.int32(time))


def visited_cells(env, words):
    """The set of (row, column) in the packed words, by NumPy's own unpacking."""
    bits = np.unpackbits(np.asarray(words).astype("<u4").view(np.uint8), bitorder="little")
    assert bits[env.height * env.width :].sum() == 0
    return {divmod(int(cell), env.width) for cell in np.flatnonzero(bits)}


@functools.cache
def stepper(env):
    return jax.jit(env.step_in_order)


def played(env, state, action1, action2, first):
    """One step: (cell1, cell2, visited, rewards, metrics) as plain values."""
    _, state, rewards, _, info = stepper(env)(
        state, np.array([action1, action2]), np.array(first == 2)
    )
    cells = [divmod(int(cell), env.width) for cell in state.positions]
    metrics = {name: float(value) for name, value in info["metrics"].items()}
    return (
        *cells,
        visited_cells(env, state.visited),
        [round(float(value), 6) for value in rewards],
        metrics,
    )


def hunting_play(plain, num_steps, seed):
    """Random actions and orders, [(action1, action2, first, reset before)].

    Half of agent2's actions are towards agent1.
    """
    random = np.random.default_rng(seed)
    over = False
    for _ in range(num_steps):
        reset, over = over, False
        if reset:
            plain.reset()
        (row1, column1), (row2, column2) = plain.positions["agent1"], plain.positions["agent2"]
        towards = (
            (DOWN if row1 > row2 else UP)
            if row1 != row2
            else (RIGHT if column1 > column2 else LEFT)
        )
        action1, action2, first = random.integers(4), random.integers(4), random.integers(1, 3)
        action2 = towards if random.random() < 0.5 else action2
        result = plain.step(int(action1), int(action2), int(first))
        over = result[-1]
        yield (action1, action2, first, reset), result, dict(plain.positions), set(plain.visited)


@pytest.mark.parametrize("height, width", [(10, 10), (6, 8), (1, 7), (3, 3), (5, 13), (2, 1)])
def test_every_transition_of_long_play_agrees_with_the_rules_in_plain_python(height, width):
    env, params = MultiAgentArena(height, width), Params(max_steps_in_episode=70)
    rows = list(hunting_play(PlainArena(height, width, 70), num_steps=1500, seed=height * width))
    inputs = jnp.array([row[0] for row in rows])

    def body(state, row):
        fresh = env.reset_stacked(KEY, params)[1]
        state = jax.tree.map(functools.partial(jnp.where, row[3] == 1), fresh, state)
        obs, state, rewards, terminated, info = env.step_in_order(state, row[:2], row[2] == 2)
        return state, (
            obs,
            state,
            rewards,
            terminated,
            info["metrics"],
            env.is_truncated(state, params),
        )

    played = jax.jit(lambda: jax.lax.scan(body, env.reset_stacked(KEY, params)[1], inputs)[1])()
    obs, states, rewards, terminated, metrics, truncated = jax.tree.map(np.asarray, played)
    assert not terminated.any()
    events = {"new_field": 0, "collision": 0, "both": 0}
    for t, (_, (plain_obs, plain_rewards, happened, over), positions, visited) in enumerate(rows):
        assert obs[t].tolist() == [list(plain_obs[agent]) for agent in AGENTS], t
        assert [divmod(int(cell), width) for cell in states.positions[t]] == [
            positions[agent] for agent in AGENTS
        ], t
        assert visited_cells(env, states.visited[t]) == visited, t
        np.testing.assert_allclose(
            rewards[t], [plain_rewards[agent] for agent in AGENTS], rtol=1e-6
        )
        assert metrics["new_fields_discovered"][t] == (plain_rewards["agent1"] == 1.0), t
        assert metrics["num_collisions"][t] == (plain_rewards["agent2"] == 1.0), t
        assert truncated[t] == over, t
        for name, count in {**happened, "both": all(happened.values())}.items():
            events[name] += count
    assert (
        events["collision"] > 50 and events["new_field"] > 20 and events["both"] > 0
    )  # the play was worth watching


@pytest.mark.long
@pytest.mark.parametrize("height, width", [(1, 2), (2, 1), (2, 2), (3, 3), (2, 4)])
def test_every_situation_on_small_grids_agrees_with_the_rules_in_plain_python(height, width):
    cells = list(itertools.product(range(height), range(width)))
    cases = list(
        itertools.product(
            itertools.permutations(cells, 2), range(4), range(4), (1, 2), (False, True)
        )
    )
    plain, expected = PlainArena(height, width), []
    for pair, action1, action2, first, was_visited in cases:
        plain.reset()
        plain.positions = dict(zip(AGENTS, pair, strict=True))
        plain.visited = set(cells) if was_visited else set()
        observations, rewards, _, _ = plain.step(action1, action2, first)
        marked = [cell in plain.visited for cell in cells]
        expected.append(
            (
                [observations[agent] for agent in AGENTS],
                [rewards[agent] for agent in AGENTS],
                marked,
            )
        )

    env = MultiAgentArena(height, width)
    states = [state_of(env, *pair, visited=cells if full else ()) for pair, _, _, _, full in cases]
    actions = jnp.array([case[1:3] for case in cases])
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    step = jax.jit(jax.vmap(env.step_in_order))
    obs, states, rewards, _, _ = step(states, actions, jnp.array([case[3] == 2 for case in cases]))
    marked = jax.vmap(functools.partial(unpack, num_cells=height * width))(states.visited)
    for stacked, plainly in zip((obs, rewards, marked), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(np.float32(stacked), np.float32(plainly), rtol=1e-6)


def test_staying_at_a_wall_counts_as_a_new_field_once():
    env = MultiAgentArena(3, 3)
    state = state_of(env, (0, 0), (2, 2))
    cell1, _, visited, rewards, metrics = played(env, state, UP, UP, first=1)
    assert (cell1, visited, rewards) == ((0, 0), {(0, 0)}, [1.0, -0.1])
    assert metrics == {"new_fields_discovered": 1.0, "num_collisions": 0.0}
    expected = [-0.5, -0.1]
    assert played(env, state_of(env, (0, 0), (2, 2), {(0, 0)}), LEFT, UP, first=1)[3] == expected


def test_the_start_cell_is_new_when_it_is_entered_later():
    env = MultiAgentArena(3, 3)
    assert visited_cells(env, env.reset(KEY)[1].visited) == set()
    cell1, _, visited, rewards, _ = played(
        env, state_of(env, (0, 1), (2, 2), {(0, 1)}), LEFT, UP, first=2
    )
    assert (cell1, visited, rewards) == ((0, 0), {(0, 0), (0, 1)}, [1.0, -0.1])


def test_a_collision_of_agent2_beats_the_new_field_of_agent1_but_leaves_it_visited():
    env = MultiAgentArena(1, 4)  # . 1 . 2 -> agent1 goes right; agent2, second, runs into it
    cell1, cell2, visited, rewards, metrics = played(
        env, state_of(env, (0, 1), (0, 3)), RIGHT, LEFT, first=1
    )
    assert (cell1, cell2, visited, rewards) == ((0, 2), (0, 3), {(0, 2)}, [-1.0, 1.0])
    assert metrics == {"new_fields_discovered": 0.0, "num_collisions": 1.0}


def test_an_agent1_that_collides_visits_nothing():
    env = MultiAgentArena(1, 3)
    cell1, cell2, visited, rewards, _ = played(
        env, state_of(env, (0, 1), (0, 2)), RIGHT, RIGHT, first=1
    )
    assert (cell1, cell2, visited, rewards) == ((0, 1), (0, 2), set(), [-1.0, 1.0])


def test_the_second_mover_sees_the_first_ones_new_position():
    env = MultiAgentArena(2, 2)  # agent2 leaves the cell that agent1 wants
    state = state_of(env, (0, 0), (0, 1))
    assert played(env, state, RIGHT, DOWN, first=2)[:2] == ((0, 1), (1, 1))
    assert played(env, state, RIGHT, DOWN, first=1)[:2] == ((0, 0), (1, 1))
    assert played(env, state, RIGHT, DOWN, first=2)[3] == [1.0, -0.1]
    assert played(env, state, RIGHT, DOWN, first=1)[3] == [-1.0, 1.0]


def test_agents_that_want_each_others_cell_both_stay():
    env = MultiAgentArena(1, 2)
    for first in (1, 2):
        expected = ((0, 0), (0, 1), set(), [-1.0, 1.0])
        assert played(env, state_of(env, (0, 0), (0, 1)), RIGHT, LEFT, first)[:4] == expected


def test_agents_that_want_the_same_cell_leave_it_to_the_first():
    env = MultiAgentArena(1, 3)
    state = state_of(env, (0, 0), (0, 2))
    assert played(env, state, RIGHT, LEFT, first=1)[:3] == ((0, 1), (0, 2), {(0, 1)})
    assert played(env, state, RIGHT, LEFT, first=2)[:3] == ((0, 0), (0, 1), set())


@pytest.mark.parametrize("collision, new_field, expected", [
    (False, False, (-0.5, -0.1)), (False, True, (1.0, -0.1)),
    (True, False, (-1.0, 1.0)), (True, True, (-1.0, 1.0)),
])  # fmt: skip
def test_rewards_by_what_happened(collision, new_field, expected):
    rewards, metrics = reward(jnp.array(collision), jnp.array(new_field))
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)
    assert metrics["num_collisions"] == collision
    assert metrics["new_fields_discovered"] == (new_field and not collision)


@jax.jit
def moved_on_5x13(positions, action, agent2_first):
    return move(positions, aim(positions, action, 5, 13), agent2_first)


jitted_visit = jax.jit(visit)

cell_numbers = st.integers(0, 5 * 13 - 1)
actions = st.integers(0, 3)


@settings(max_examples=60)
@given(
    st.tuples(cell_numbers, cell_numbers).filter(lambda pair: pair[0] != pair[1]),
    st.tuples(actions, actions),
    st.booleans(),
)
def test_agents_swap_with_their_coin_and_never_share_a_cell(pair, pair_of_actions, agent2_first):
    positions, action = jnp.array(pair), jnp.array(pair_of_actions)
    there, collided = moved_on_5x13(positions, action, agent2_first)
    swapped, swapped_collided = moved_on_5x13(positions[::-1], action[::-1], not agent2_first)
    np.testing.assert_array_equal(there, swapped[::-1])
    np.testing.assert_array_equal(collided, swapped_collided[::-1])
    assert there[0] != there[1]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=40))
def test_visited_words_are_a_set_of_cells(entered):
    words, cells = jnp.zeros(4, jnp.uint32), set()
    for cell, moved in entered:
        words, is_new = jitted_visit(words, cell, moved)
        assert bool(is_new) == (moved and cell not in cells)
        cells |= {cell} if moved else set()
    assert set(np.flatnonzero(unpack(words, 100)).tolist()) == cells


def test_the_coin_is_fair_and_comes_from_the_key():
    keys = jax.random.split(KEY, 4000)
    coins = np.asarray(jax.jit(jax.vmap(toss))(keys))
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(keys))
    assert abs(np.corrcoef(coins[1:], coins[:-1])[0, 1]) < 4 / np.sqrt(len(keys))
    # Two agents after the same cell: whoever is first has it, so the step shows the coin.
    env = MultiAgentArena(1, 3)
    state = state_of(env, (0, 0), (0, 2))
    actions = jnp.array([RIGHT, LEFT])
    step = jax.jit(jax.vmap(lambda key: env.step_stacked(key, state, actions, PARAMS)[1].positions))
    expected = np.where(coins[:, None], [[0, 1]], [[1, 2]])
    np.testing.assert_array_equal(step(keys), expected)
    np.testing.assert_array_equal(step(keys), expected)  # the same keys, the same coins


def test_random_play_returns_what_it_is_known_to():
    num_episodes = 6000

    def episode(key):
        def body(state, key):
            action_key, step_key = jax.random.split(key)
            action = jax.random.randint(action_key, (2,), 0, 4)
            _, state, rewards, _, _ = ARENA.step_stacked(step_key, state, action, PARAMS)
            return state, rewards

        _, rewards = jax.lax.scan(
            body, ARENA.reset_stacked(key, PARAMS)[1], jax.random.split(key, 100)
        )
        return rewards.sum(0)

    returns = np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(KEY, num_episodes)))
    returns = np.concatenate([returns, returns.sum(1, keepdims=True)], axis=1)
    error = returns.std(0) * np.sqrt(
        1 / num_episodes + 1 / 12_800
    )  # the known means are of 12,800 episodes
    assert (np.abs(returns.mean(0) - [0.5, -9.0, -8.5]) < 3 * error + 0.05).all(), returns.mean(0)


def test_the_clock_truncates_both_agents_at_its_step_and_nothing_terminates():
    params = Params(max_steps_in_episode=7)
    _, state = ARENA.reset(KEY, params)
    step = jax.jit(ARENA.step)
    for count in range(1, 8):
        obs, state, _, terminated, truncated, info = step(
            KEY, state, {"agent1": DOWN, "agent2": UP}, params
        )
        assert {name: bool(flag) for name, flag in truncated.items()} == dict.fromkeys(
            (*AGENTS, "__all__"), count == 7
        )
        assert not any(terminated.values())
    assert [entry.tolist() for entry in info["final_observation"].values()] == [[70, 29], [29, 70]]
    assert [entry.tolist() for entry in obs.values()] == [[0, 99], [99, 0]]
    assert state.time == 0 and visited_cells(ARENA, state.visited) == set()


def test_the_dict_face_says_what_the_stacked_one_does():
    _, state = ARENA.reset(KEY)
    stacked = ARENA.step_stacked(KEY, state, jnp.array([UP, LEFT]), PARAMS)
    obs, _, rewards, _, info = ARENA.step_env(KEY, state, {"agent1": UP, "agent2": LEFT}, PARAMS)
    for i, agent in enumerate(AGENTS):
        np.testing.assert_array_equal(obs[agent], stacked[0][i])
        assert rewards[agent] == stacked[2][i]
        assert ARENA.observation_space(agent).contains(obs[agent])
        assert ARENA.action_space(agent).n == 4
    assert info["metrics"] == stacked[4]["metrics"]


def test_each_agent_has_a_policy_of_its_own():
    assert ARENA.agents == AGENTS
    assert ARENA.default_policies == {"pol1": ("agent1",), "pol2": ("agent2",)}


@pytest.mark.parametrize("height, width", [(0, 5), (5, -1), (1, 1)])
def test_a_grid_without_room_for_two_is_refused_with_both_sizes(height, width):
    with pytest.raises(UsageError, match=f"height={height} and width={width}"):
        MultiAgentArena(height, width)


def test_environments_of_one_size_are_equal_and_hashable():
    assert MultiAgentArena(6, 8) == MultiAgentArena(6, 8) != MultiAgentArena(8, 6)
    assert len({MultiAgentArena(6, 8), MultiAgentArena(6, 8)}) == 1


@pytest.mark.parametrize(
    "height, width, shape", [(10, 10, (301, 301)), (1, 7, (43, 295)), (100, 3, (401, 13))]
)
def test_pictures_fit_any_grid(height, width, shape):
    env = MultiAgentArena(height, width)
    picture = jax.jit(env.render)(env.reset(KEY)[1], PARAMS)
    assert picture.shape == (*shape, 3) and picture.dtype == jnp.uint8


def test_pictures_of_a_batch_show_agents_and_visited_cells():
    states = [
        state_of(ARENA, (2, 3), (7, 8), {(2, 2), (4, 4)}),
        state_of(ARENA, (5, 5), (7, 8), {(2, 2)}),
    ]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    first, second = np.asarray(jax.jit(jax.vmap(ARENA.render, in_axes=(0, None)))(states, PARAMS))
    colour = lambda picture, row, column: tuple(picture[30 * row + 15, 30 * column + 15].tolist())
    explorer = (25, 98, 170)
    hunter = (226, 88, 34)
    visited = (190, 218, 243)
    empty = (250, 250, 247)
    expected = [explorer, hunter, visited, empty]
    assert [colour(first, *cell) for cell in ((2, 3), (7, 8), (4, 4), (5, 5))] == expected
    assert [colour(second, *cell) for cell in ((2, 3), (7, 8), (4, 4), (5, 5))] == [
        empty,
        hunter,
        empty,
        explorer,
    ]


def test_sizes_may_be_numpy_integers():
    assert MultiAgentArena(np.int64(4), np.int32(5)) == MultiAgentArena(4, 5)
    assert type(MultiAgentArena(np.int64(4), 5).height) is int
