"""Rules of pursuit, each a function; `jaxrl.envs.pursuit` describes them."""

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.types import Key

NUM_ACTIONS, STAY = 5, 4
# The share of cells that bodies fill until no more fit, when placed at random without neighbours
# (random sequential adsorption, grids of this size).
JAMMING_DENSITY = 0.38
TAKEN = np.uint32(2**32 - 1)  # after every cell in the order of a placement


class Grid(Protocol):
    """The settings of the environment that the rules read."""

    x_size: int
    y_size: int
    n_pursuers: int
    n_evaders: int
    obs_range: int
    surround: bool
    shared_reward: bool | float


class State(struct.PyTreeNode):
    pursuers: jax.Array  # i32[2, n]    x, y
    evaders: jax.Array  # i32[2, m]    x, y; caught evaders stay where they were caught
    alive: jax.Array  # bool[m]    not caught yet
    time: jax.Array  # i32[]    steps since the reset


class Params(struct.PyTreeNode):
    """Parameters of the task; every leaf may be traced and vmapped."""

    max_cycles: int = 500  # the time limit: truncates, never terminates
    n_catch: int = 2  # pursuers that catch an evader in their cell, if `surround` is off
    tag_reward: float = 0.01  # for each evader beside a pursuer, in each step
    catch_reward: float = 5.0
    urgency_reward: float = -0.1  # in each step
    constraint_window: float = 1.0  # share of each side of the grid in which bodies start


def building(x_size: int, y_size: int) -> np.ndarray:
    """bool[x_size, y_size]: the cells of the building, a rectangle in the middle."""
    x, y = (np.arange(size) / size for size in (x_size, y_size))
    return ((x > 0.3) & (x < 1 - 0.3))[:, None] & ((y > 0.2) & (y < 1 - 0.2))[None]


def room(x_size: int, y_size: int, width: int, height: int) -> int:
    """The number of bodies that fit into a width x height window of the grid, on average.

    A start also works in a window with less room than the average: see `place`.
    """
    free = np.cumsum(np.cumsum(~building(x_size, y_size), axis=0), axis=1)
    free = np.pad(free, ((1, 0), (1, 0)))
    below = free[width:, height:] - free[:-width, height:]
    within = below - free[width:, :-height] + free[:-width, :-height]
    return int(within.mean() * JAMMING_DENSITY)


def is_solid(x: jax.Array, y: jax.Array, grid: Grid) -> jax.Array:
    """bool, of the shape of x and y: whether the cells are in the building or off the grid.

    Compares with the sides of the rectangle, which on the CPU is much faster than a lookup.
    """
    solid = building(grid.x_size, grid.y_size)
    outside = (x < 0) | (x >= grid.x_size) | (y < 0) | (y >= grid.y_size)
    if not solid.any():
        return outside
    (x_low, y_low), (x_high, y_high) = np.argwhere(solid)[[0, -1]].tolist()
    return outside | ((x >= x_low) & (x <= x_high) & (y >= y_low) & (y <= y_high))


def starts(key: Key, window: jax.Array, grid: Grid) -> jax.Array:
    """bool[x_size, y_size]: the free cells of a random rectangle; `window`: its share of a side."""
    low = jax.random.uniform(key, (2,)) * (1 - window)
    sizes = np.float32([grid.x_size, grid.y_size])
    first, end = (sizes * low).astype(jnp.int32), (sizes * (low + window)).astype(jnp.int32)
    x, y = np.arange(grid.x_size), np.arange(grid.y_size)
    is_x = (x >= first[0]) & (x < end[0])
    is_y = (y >= first[1]) & (y < end[1])
    return is_x[:, None] & is_y[None] & ~building(grid.x_size, grid.y_size)


def place(key: Key, number: int, legal: jax.Array) -> jax.Array:
    """i32[2, number]: x and y of bodies in `legal` cells, none beside another.

    Each body's cell is uniform among those still open. The cells are put in a random order, and
    each body takes the first open cell, which gives the same distribution, since closed cells stay
    closed. The order is the high bits of a word whose low bits are the cell.
    """
    x, y = np.indices(legal.shape, np.int32).reshape(2, -1)
    low_bits = np.uint32(2 ** (x.size - 1).bit_length() - 1)
    order = jax.random.bits(key, x.shape) >> 1 & ~low_bits | np.arange(x.size, dtype=np.uint32)
    order = jnp.where(legal.reshape(-1), order, TAKEN)
    first = jnp.min(order)

    def take(order, _):
        earliest = jnp.min(order)
        cell = (jnp.where(earliest == TAKEN, first, earliest) & low_bits).astype(jnp.int32)
        here = jnp.stack(jnp.divmod(cell, legal.shape[1]))
        near = jnp.abs(x - here[0]) + jnp.abs(y - here[1]) <= 1
        return jnp.where(near, TAKEN, order), here

    return jax.lax.scan(take, order, length=number)[1].T


def wander(key: Key, number: int) -> jax.Array:
    """i32[number]: random actions, each of the five equally likely up to 2^-15.

    Each random word gives six actions, since hashing words is the main cost: 29 bits are a
    fraction; five times the fraction has an action as its integer part and the next fraction as the
    rest.
    """
    fraction, actions = jax.random.bits(key, (-(-number // 6),)) >> 3, []
    for _ in range(6):
        fraction = (fraction & np.uint32(2**29 - 1)) * NUM_ACTIONS
        actions.append(fraction >> 29)
    return jnp.concatenate(actions)[:number].astype(jnp.int32)


def move(positions: jax.Array, action: jax.Array, grid: Grid) -> jax.Array:
    """i32[2, k]: the positions after the actions."""
    left, right, up, down = ((action == number).astype(jnp.int32) for number in (0, 1, 2, 3))
    x, y = positions[0] + right - left, positions[1] + up - down
    return jnp.where(is_solid(x, y, grid)[None], positions, jnp.stack([x, y]))


def numbered(positions: jax.Array, grid: Grid) -> jax.Array:
    """[k]: a number per cell, x * stride + y; within a window two numbers differ by the offset.

    16 bits where they suffice, since the processor compares twice as many at once.
    """
    numbers = positions[0] * stride(grid) + positions[1]
    return numbers.astype(jnp.int16 if nowhere(grid) < 2**15 else jnp.int32)


def stride(grid: Grid) -> int:
    return grid.y_size + grid.obs_range


def nowhere(grid: Grid) -> int:
    """The number of a cell that no pursuer is near."""
    return (grid.x_size + grid.obs_range) * stride(grid)


def reach(grid: Grid) -> int:
    """The number of cells that a pursuer sees to each side."""
    return (grid.obs_range - 1) // 2


def apart(pursuers: jax.Array, evaders: jax.Array, alive: jax.Array, grid: Grid) -> jax.Array:
    """[n, m]: evaders' minus pursuers' cell numbers; far away for evaders that are caught."""
    evaders = jnp.where(alive, numbered(evaders, grid), nowhere(grid))
    return evaders[None] - numbered(pursuers, grid)[:, None]


def is_beside(offset: jax.Array, grid: Grid) -> jax.Array:
    return (jnp.abs(offset) == 1) | (jnp.abs(offset) == stride(grid))


def tag(
    old: jax.Array, new: jax.Array, evaders: jax.Array, alive: jax.Array, grid: Grid
) -> jax.Array:
    """f32[n]: evaders beside pursuer i (from 0), averaged over the moves of the n pursuers.

        (i T(old) + (n - i) T(new)) / n

    T(cell) counts the evaders in its 4 neighbours, each clipped to the grid.
    """

    def beside(pursuers):
        offset = apart(pursuers, evaders, alive, grid)
        x, y = pursuers
        borders = x == 0, x == grid.x_size - 1, y == 0, y == grid.y_size - 1
        walls = sum(border.astype(jnp.int32) for border in borders)
        here = jnp.sum(offset == 0, axis=1, dtype=jnp.int32)
        return jnp.sum(is_beside(offset, grid), axis=1, dtype=jnp.int32) + walls * here

    late = np.arange(grid.n_pursuers, dtype=np.int32)
    total = late * beside(old) + (grid.n_pursuers - late) * beside(new)
    return total.astype(jnp.float32) / grid.n_pursuers


def catch(pursuers, evaders, alive, n_catch, grid: Grid) -> tuple[jax.Array, jax.Array]:
    """(caught bool[m], credit bool[n]): the evaders caught, and the pursuers that caught them."""
    offset = apart(pursuers, evaders, alive, grid)
    if not grid.surround:
        here = offset == 0
        caught = (jnp.sum(here, axis=0, dtype=jnp.int32) >= n_catch) & alive
        return caught, jnp.any(here & caught[None], axis=1)
    x, y = evaders
    sides = ((1, 0, -1), (stride(grid), -1, 0), (-1, 0, 1), (-stride(grid), 1, 0))
    closed = []
    for difference, dx, dy in sides:
        is_pursuer = jnp.any(offset == difference, axis=0)
        closed.append(is_pursuer | is_solid(x + dx, y + dy, grid))
    caught = closed[0] & closed[1] & closed[2] & closed[3] & alive
    return caught, jnp.any(is_beside(offset, grid) & caught[None], axis=1)


def reward(tags: jax.Array, credit: jax.Array, params: Params, grid: Grid) -> jax.Array:
    """f32[n]."""
    credit = credit.astype(jnp.float32)
    rewards = params.tag_reward * tags + params.catch_reward * credit + params.urgency_reward
    if grid.shared_reward is True:
        return jnp.broadcast_to(jnp.mean(rewards), rewards.shape)
    if grid.shared_reward is False:
        return rewards
    return (1 - grid.shared_reward) * rewards + grid.shared_reward * jnp.mean(rewards)


def observe(pursuers: jax.Array, evaders: jax.Array, alive: jax.Array, grid: Grid) -> jax.Array:
    """f32[n, obs_range, obs_range, 3]: by pursuer, y, x and channel (solid, pursuers, evaders).

    First computes a word per visible cell, with a bit field for each channel, then the channels.
    """
    widths = 1, grid.n_pursuers.bit_length(), grid.n_evaders.bit_length()
    dtype = np.dtype("int16" if sum(widths) < 16 else "int32")
    shifts = np.cumsum((0, *widths[:2])).astype(dtype)
    masks = (2 ** np.asarray(widths) - 1).astype(dtype)
    weights = np.repeat(1 << shifts[1:], (grid.n_pursuers, grid.n_evaders))
    side = 2 * reach(grid) + 1
    y, x = np.indices((side, side), np.int32).reshape(2, -1) - reach(grid)
    here = numbered(pursuers, grid)
    there = jnp.where(alive, numbered(evaders, grid), nowhere(grid)).astype(here.dtype)
    sight = pursuers.astype(here.dtype)[:, :, None] + np.stack([x, y])[:, None].astype(here.dtype)
    words = is_solid(*sight, grid).astype(dtype)
    words = count(words, jnp.concatenate([here, there]), weights, numbered(sight, grid))
    words = words.reshape(grid.n_pursuers, side, side, 1)
    view = ((words >> shifts[None, None, None]) & masks[None, None, None]).astype(jnp.float32)
    missing = grid.obs_range - side  # an even window pads its last row and column as solid
    if missing:
        edge = np.zeros((1, grid.obs_range, grid.obs_range, 3), np.float32)
        edge[:, -1, :, 0] = edge[:, :, -1, 0] = 1
        view = jnp.pad(view, ((0, 0), (0, missing), (0, missing), (0, 0))) + edge
    return view


def count(words: jax.Array, bodies: jax.Array, weights: np.ndarray, cells: jax.Array) -> jax.Array:
    """`words` [n, cells] plus the sum of weights[k] over the bodies with bodies[k] == cells.

    Compares all bodies with all cells, which on the CPU is much faster than a scatter and a gather.
    The Python loop over bodies keeps the cells innermost, in vectors. The scan around it, with at
    least two blocks, prevents XLA from fusing it into the loop that unpacks the words, where it
    would run once per channel and without vectors.
    """
    num_blocks = max(2, -(-weights.size // 20))
    size = -(-weights.size // num_blocks)
    spare = num_blocks * size - weights.size
    # A weight of 0 does not count.
    weights = np.pad(weights, (0, spare)).reshape(num_blocks, size)
    blocks = jnp.pad(bodies, (0, spare)).reshape(num_blocks, size)

    def add(words, block):
        bodies, weights = block
        return sum((jnp.where(cells == bodies[k], weights[k], 0) for k in range(size)), words), None

    return jax.lax.scan(add, words, (blocks, weights))[0]
