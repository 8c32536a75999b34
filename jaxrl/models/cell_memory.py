"""A network that remembers which cells of a grid its agent has visited.

A map is a memory that need not be learned (a spatial memory as in Neural Map, Parisotto and
Salakhutdinov 2018, but written by a rule): the carry holds the cells where the agent has been, and
the network reads it. No gradient passes through the carry, so `max_seq_len=1` loses nothing and
trains as fast as a network without memory.

    per_policy={"pol1": {"model": "jaxrl.models.cell_memory:cell_memory", "max_seq_len": 1}}
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Discrete, MultiDiscrete, Space
from jaxrl.core.types import PyTree

UNITS = 64  # of each hidden layer
REACH = 3  # cells to each side that the network sees around the agent


def cell_memory(
    observation_space: Space,
    action_space: Space,
    height: int | None = None,
    width: int | None = None,
) -> "CellMemory":
    """The network for observations of (the agent's cell, the other's cell), numbered row by row.

    Args:
        height, width: of the grid; None: it is square.

    Raises:
        UsageError: other observations or actions, or a grid of another number of cells.
    """
    sizes = observation_space.nvec if isinstance(observation_space, MultiDiscrete) else ()
    if len(sizes) != 2 or sizes[0] != sizes[1] or not isinstance(action_space, Discrete):
        raise UsageError(
            "cell_memory needs observations of two cells, MultiDiscrete((n, n)), and Discrete "
            f"actions, not {observation_space} and {action_space}"
        )
    num_cells = int(sizes[0])
    side = math.isqrt(num_cells)
    height, width = (
        height or (num_cells // width if width else side),
        width or (num_cells // height if height else side),
    )
    if height * width != num_cells:
        raise UsageError(
            f"cell_memory: {height} rows of {width} are not the {num_cells} cells that are "
            "observed; height and width have to be given where the grid is not square"
        )
    return CellMemory(height, width, action_space.n)


class CellMemory(nn.Module):
    """Policy and value, two layers each, of both cells, the visited cells and the time.

    The carry is {"visited": f32[..., cells], "time": f32[...]}. A cell counts as visited once it is
    observed after the first step, as the arena counts: the cell of the start is not.
    """

    height: int
    width: int
    num_actions: int

    @property
    def num_cells(self) -> int:
        return self.height * self.width

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        return {
            "visited": jnp.zeros((*batch_shape, self.num_cells)),
            "time": jnp.zeros(batch_shape),
        }

    @nn.compact
    def __call__(self, obs: jax.Array, carry: PyTree) -> tuple[jax.Array, jax.Array, PyTree]:
        cell, other, time = obs[..., 0], obs[..., 1], carry["time"]
        here = jax.nn.one_hot(cell, self.num_cells) * (time > 0)[..., None]
        visited = jnp.maximum(carry["visited"], here)
        share = time[..., None] / self.num_cells
        near = surroundings(1.0 - visited, cell, self.height, self.width)
        numbers = jnp.concatenate([visited, near, share], axis=-1)
        relative = relative_place(cell, other, self.height, self.width)

        def network(num_outputs: int, scale: float) -> jax.Array:
            hidden = nn.Dense(UNITS)(numbers)
            hidden += nn.Embed(self.num_cells, UNITS)(cell)
            hidden += nn.Embed(self.num_cells, UNITS)(other)
            hidden += nn.Embed((2 * self.height - 1) * (2 * self.width - 1), UNITS)(relative)
            hidden = nn.relu(nn.Dense(UNITS)(nn.relu(hidden)))
            return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(scale))(hidden)

        logits, value = network(self.num_actions, 0.01), network(1, 1.0)[..., 0]
        return logits, value, {"visited": visited, "time": time + 1.0}


def surroundings(board: jax.Array, cell: jax.Array, height: int, width: int) -> jax.Array:
    """The square of `board` f32[..., cells] around `cell` i32[...], 0 beyond the walls."""
    beyond = jnp.zeros((*cell.shape, 1))
    places = jnp.asarray(squares(height, width))[cell]
    return jnp.take_along_axis(jnp.concatenate([board, beyond], axis=-1), places, axis=-1)


def squares(height: int, width: int) -> np.ndarray:
    """i32[cells, places]: the cells of the square around each cell; beyond the walls, `cells`."""
    cells = np.pad(np.arange(height * width).reshape(height, width), REACH, constant_values=-1)
    cells[cells < 0] = height * width
    sides = 2 * REACH + 1, 2 * REACH + 1
    windows = np.lib.stride_tricks.sliding_window_view(cells, sides)
    return windows.reshape(height * width, -1).astype(np.int32)


def relative_place(cell: jax.Array, other: jax.Array, height: int, width: int) -> jax.Array:
    """The number of the way from `cell` to `other`, among all ways of the grid."""
    down = other // width - cell // width + height - 1
    right = other % width - cell % width + width - 1
    return down * (2 * width - 1) + right
