"""The arena's networks, with memory and without: the carry, parts by hand, what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.envs.arena import MultiAgentArena, unpack
from jaxrl.envs.networks.cell_memory import CellMemory, relative_place, surroundings
from jaxrl.envs.networks.cell_pair import CellPair
from tests.messages import refused_by

FOUR_ACTIONS = Discrete(4)


@pytest.mark.long
def test_the_carry_holds_the_cells_that_the_arena_counts_as_visited():
    arena = MultiAgentArena(height=3, width=4)
    params = arena.default_params
    model = CellMemory(arena.observation_space(), FOUR_ACTIONS, height=3, width=4)
    obs, state = jax.jit(arena.reset_stacked)(jax.random.key(0), params)
    weights = jax.jit(model.init)(jax.random.key(1), obs[:1], model.initial_carry((1,)))

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


@pytest.mark.long
def test_the_network_without_memory_reads_the_way_to_the_other_wherever_it_begins():
    model = CellPair(MultiDiscrete((12, 12)), FOUR_ACTIONS, height=3, width=4)
    pairs = jnp.array([[0, 1], [5, 6], [0, 4], [4, 8]])  # twice to the right, twice down
    weights = jax.jit(model.init)(jax.random.key(0), pairs)["params"]
    layers = weights["layers"]
    of_ways = layers["first"]["kernel"].at[:24].set(0)  # the rows of 12 cells, twice
    without_cells = {**layers, "first": {**layers["first"], "kernel": of_ways}}
    for output in model.apply({"params": {"layers": without_cells}}, pairs):
        np.testing.assert_array_equal(output[0], output[1])
        np.testing.assert_array_equal(output[2], output[3])
        assert not np.allclose(output[0], output[2])
    logits, values = model.apply({"params": weights}, pairs)
    assert logits.shape == (4, 4) and values.shape == (4,)
    assert not np.allclose(logits[0], logits[1]) and not np.allclose(values[2], values[3])


test_what_they_cannot_read_is_refused_in_one_line = refused_by(
    lambda spaces, grid, network=CellMemory: network(*spaces, *grid),
    [
        ((Box(0, 1, (2,)), FOUR_ACTIONS), (3, 3), "two cells, MultiDiscrete(nvec=(9, 9))"),
        ((MultiDiscrete((9, 9)), Box(0, 1, ())), (3, 3), "Discrete actions"),
        ((MultiDiscrete((12, 12)), FOUR_ACTIONS), (3, 3), "CellMemory(height=3, width=3) needs"),
        ((Box(0, 1, (2,)), FOUR_ACTIONS), (3, 4), CellPair, "CellPair(height=3, width=4) needs"),
    ],
    literal=True,
)


@pytest.mark.parametrize("grid", [(3, 4), (2, 2), (1, 2)])
def test_the_arenas_tuned_settings_name_both_for_their_own_grid(grid):
    height, width = grid
    config = PPOConfig.tuned("arena", {"height": height, "width": width})
    explorer, hunter = config.build().policy_specs
    assert explorer.model.initial_carry((5,))["visited"].shape == (5, height * width)
    assert explorer.max_seq_len == 1 and not hunter.has_memory
    hunters_grid = hunter.model.inner.height, hunter.model.inner.width
    assert hunters_grid == grid


@pytest.mark.slow
@pytest.mark.long
def test_a_run_of_it_loads_without_trust_and_remembers_until_it_is_reset(tmp_path):
    sizes = {"num_envs": 4, "rollout_length": 16, "minibatch_size": 32, "total_env_steps": 64}
    config = PPOConfig.tuned("arena", {"height": 3, "width": 4}, **sizes)
    with Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer:
        trainer.fit()
    policy = load_policy(tmp_path / "run", "pol1")
    first, second = [5, 11], [6, 11]
    values = []
    for begins in (True, True, False):
        policy.act(first, begins=begins)
        values.append(float(policy.value(second)))
    assert values[0] == values[1] != values[2]  # two steps before it, not one
    policy.reset()
    policy.act(first)
    assert float(policy.value(second)) == values[0]
    again = Trainer.from_checkpoint(tmp_path / "run", run_dir=None, quiet=True)
    assert again.config == config
    again.stop()
