"""The network that remembers visited cells: its carry, its parts by hand, what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.envs.arena import MultiAgentArena, unpack
from jaxrl.models.cell_memory import cell_memory, relative_place, surroundings

FOUR_ACTIONS = Discrete(4)


def test_the_carry_holds_the_cells_that_the_arena_counts_as_visited():
    arena = MultiAgentArena(height=3, width=4)
    params = arena.default_params
    model = cell_memory(arena.observation_space(), FOUR_ACTIONS, height=3, width=4)
    obs, state = arena.reset_stacked(jax.random.key(0), params)
    weights = model.init(jax.random.key(1), obs[:1], model.initial_carry((1,)))

    def step(memory, key):
        obs, state, carry = memory
        *_, carry = model.apply(weights, obs[:1], carry)
        counted, remembered = unpack(state.visited, 12), carry["visited"][0] == 1
        keys = jax.random.split(key)
        action = jax.random.randint(keys[0], (2,), 0, 4)
        obs, state, *_ = arena.step_stacked(keys[1], state, action, params)
        return (obs, state, carry), (counted, remembered)

    start = obs, state, model.initial_carry((1,))
    (*_, carry), (counted, remembered) = jax.lax.scan(
        step, start, jax.random.split(jax.random.key(2), 60)
    )
    # A collision in the cell of the start leaves agent1 there, and the arena does not count it.
    np.testing.assert_array_equal(counted[:, 1:], remembered[:, 1:])
    assert carry["time"] == 60 and counted[-1].sum() > 6


def test_an_agent_sees_the_board_around_itself_and_nothing_beyond_the_walls():
    board = jnp.arange(1.0, 13.0)[None]  # 3 rows of 4
    corner = surroundings(board, jnp.array([0]), 3, 4).reshape(7, 7)
    np.testing.assert_array_equal(corner[:3], 0)
    np.testing.assert_array_equal(corner[:, :3], 0)
    whole = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [0, 0, 0, 0]]
    np.testing.assert_array_equal(corner[3:, 3:], whole)


def test_the_way_to_the_other_has_one_number_wherever_it_begins():
    cell, other = jnp.divmod(jnp.arange(144), 12)
    number = np.asarray(relative_place(cell, other, 3, 4))
    ways = np.stack([other // 4 - cell // 4, other % 4 - cell % 4], axis=1)
    assert len(np.unique(number)) == len(np.unique(ways, axis=0)) == 5 * 7
    assert len({(*way, n) for way, n in zip(ways.tolist(), number.tolist(), strict=True)}) == 35


@pytest.mark.parametrize(
    "spaces, grid, said",
    [
        ((Box(0, 1, (2,)), FOUR_ACTIONS), {}, "observations of two cells"),
        ((MultiDiscrete((9, 9)), Box(0, 1, ())), {}, "Discrete actions"),
        ((MultiDiscrete((12, 12)), FOUR_ACTIONS), {}, "3 rows of 3 are not the 12"),
        ((MultiDiscrete((12, 12)), FOUR_ACTIONS), {"height": 5}, "5 rows of 2 are not the 12"),
    ],
)
def test_what_it_cannot_read_is_refused_in_one_line(spaces, grid, said):
    with pytest.raises(UsageError) as error:
        cell_memory(*spaces, **grid)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_it_is_named_in_settings():
    model = "jaxrl.models.cell_memory:cell_memory(height=3, width=4)"
    per_policy = {"pol1": {"model": model, "max_seq_len": 1}}
    arena = {"height": 3, "width": 4}
    config = PPOConfig(env="arena", env_args=arena, per_policy=per_policy)
    carry = config.build().policy_specs[0].model.initial_carry((5,))
    assert carry["visited"].shape == (5, 12)
