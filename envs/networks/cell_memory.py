"""A network that remembers which cells of a grid its agent has visited.

A map is a memory that need not be learned (a spatial memory as in Neural Map, Parisotto and
Salakhutdinov 2018, but written by a rule): the carry holds the cells where the agent has been, and
the network reads it. No gradient passes through the carry, so `max_seq_len=1` loses nothing and
trains as fast as a network without memory.

    model = "jaxrl.envs.networks.cell_memory:CellMemory(height=10, width=10)"
    per_policy={"pol1": {"model": model, "max_seq_len": 1}}
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, Tuple, tree_of
from jaxrl.core.types import Key, PyTree
from jaxrl.models.lookups import read_parts
from jaxrl.models.mlp import dense, draw_layers, input_size, row_like

UNITS = 64  # of each hidden layer
REACH = 3  # cells to each side that the network sees around the agent


class CellMemory(nn.Module):
    """Policy and value, two layers each, of both cells, the visited cells and the time.

    Observations are (the agent's cell, the other's cell), numbered row by row. The carry is
    {"visited": f32[..., cells], "time": f32[...]}. A cell counts as visited once it is observed
    after the first step, as the arena counts: the cell of the start is not.

    height, width: of the grid.

    Raises:
        UsageError: other observations or actions, or a grid of another number of cells.
    """

    observation_space: Space
    action_space: Space
    height: int
    width: int

    def __post_init__(self):
        check_grid(self)
        super().__post_init__()

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
        cell, time = obs[..., 0], carry["time"]
        here = jax.nn.one_hot(cell, self.num_cells)
        here = here * (time > 0)[..., None].astype(here.dtype)
        visited = jnp.maximum(carry["visited"], here)
        share = time[..., None] / self.num_cells
        near = surroundings(1.0 - visited, cell, self.height, self.width)
        numbers = jnp.concatenate([visited, near, share], axis=-1)
        space = Tuple((Box(0, 1, (numbers.shape[-1],)), place_space(self)))
        logits, value = policy_and_value(self, space, (numbers, places(self, obs)))
        return logits, value, {"visited": visited, "time": time + 1.0}


def check_grid(model: nn.Module) -> None:
    """Refuses spaces that are not those of the model's `height` and `width`."""
    grid = f"{type(model).__name__}(height={model.height}, width={model.width})"
    needed = MultiDiscrete((model.height * model.width,) * 2)
    if model.observation_space != needed or not isinstance(model.action_space, Discrete):
        raise UsageError(
            f"{grid} needs observations of two cells, {needed}, and Discrete actions, not "
            f"{model.observation_space} and {model.action_space}"
        )


def place_space(model: nn.Module) -> MultiDiscrete:
    """The space of `places`."""
    cells, ways = model.height * model.width, (2 * model.height - 1) * (2 * model.width - 1)
    return MultiDiscrete((cells, cells, ways))


def places(model: nn.Module, obs: jax.Array) -> jax.Array:
    """i32[..., 3]: both cells, and the number of the way between them.

    Nothing checks that the cells are on the grid.
    """
    way = relative_place(obs[..., 0], obs[..., 1], model.height, model.width)
    return jnp.concatenate([obs, way[..., None]], axis=-1)


def policy_and_value(model: nn.Module, space: Space, inputs: PyTree) -> tuple[jax.Array, jax.Array]:
    """Two hidden layers each: logits f32[..., actions] and a value f32[...].

    Both have half of the first layer's units: one product and one lookup serve them.

    space: of the inputs, numbers and integers.
    """
    layers = model.param("layers", draw, space, model.action_space.n)
    first = layers["first"]
    sums = read_parts(space, first["kernel"], inputs)
    if "bias" in first:
        sums = sums + row_like(first["bias"], sums)
    policy, value = jnp.split(nn.relu(sums), 2, axis=-1)
    return upper_layers(layers["policy"], policy), upper_layers(layers["value"], value)[..., 0]


def draw(key: Key, space: Space, num_actions: int) -> PyTree:
    """{"first": layer, "policy": layers, "value": layers} of {"kernel", "bias"}, in two draws.

    The first layer has a bias where it reads numbers; a table needs none. Sums of the hidden layers
    begin with a variance near that of what they read, those of the first layer with 1 / UNITS for
    each integer.
    """
    parts = jax.tree.leaves(tree_of(space))
    spreads = [(input_size(part), part.size if isinstance(part, Box) else UNITS) for part in parts]
    spreads.append((UNITS, UNITS))  # the hidden layers', beside each other
    spread = np.concatenate([np.full(rows, fan_in**-0.5, np.float32) for rows, fan_in in spreads])
    normal_key, last_key = jax.random.split(key)
    normal = spread[:, None] * jax.random.normal(normal_key, (len(spread), 2 * UNITS))
    first = {"kernel": normal[:-UNITS]}
    if any(isinstance(part, Box) for part in parts):
        first["bias"] = jnp.zeros(2 * UNITS)
    hidden = jnp.split(normal[-UNITS:], 2, axis=1)
    last = draw_layers(last_key, [(UNITS, num_actions), (UNITS, 1)], [0.01, 1.0], "orthogonal")
    policy, value = (
        [{"kernel": kernel, "bias": jnp.zeros(UNITS)}, layer]
        for kernel, layer in zip(hidden, last, strict=True)
    )
    return {"first": first, "policy": policy, "value": value}


def upper_layers(layers: list[dict[str, jax.Array]], hidden: jax.Array) -> jax.Array:
    """The layers above the first one, f32[..., outputs]."""
    hidden_layer, last = layers
    return dense(last, nn.relu(dense(hidden_layer, hidden)))


def surroundings(board: jax.Array, cell: jax.Array, height: int, width: int) -> jax.Array:
    """The square of `board` f32[..., cells] around `cell` i32[...], 0 beyond the walls."""
    beyond = jnp.zeros((*cell.shape, 1))
    around = jnp.asarray(squares(height, width))[cell]
    return jnp.take_along_axis(jnp.concatenate([board, beyond], axis=-1), around, axis=-1)


def squares(height: int, width: int) -> np.ndarray:
    """i32[cells, places]: the cells of the square around each cell; beyond the walls, `cells`."""
    cells = np.pad(np.arange(height * width).reshape(height, width), REACH, constant_values=-1)
    cells[cells < 0] = height * width
    sides = 2 * REACH + 1, 2 * REACH + 1
    windows = np.lib.stride_tricks.sliding_window_view(cells, sides)
    return windows.reshape(height * width, -1).astype(np.int32)


def relative_place(cell: jax.Array, other: jax.Array, height: int, width: int) -> jax.Array:
    """The number of the way from `cell` to `other`, among all ways of the grid."""
    # `//` and `%` of JAX look at signs too, which jax2onnx cannot do for batches of any size.
    row, other_row = (jax.lax.div(place, np.int32(width)) for place in (cell, other))
    down = other_row - row
    right = (other - other_row * width) - (cell - row * width)
    return (down + height - 1) * (2 * width - 1) + right + width - 1
