"""MultiAgentArena: agent1 explores a grid, agent2 hunts it.

On a grid of height x width cells, numbered row by row, agent1 starts in the first cell and agent2
in the last. Each step a fair coin decides who moves first; the second mover sees the first one's
new position.

    action        0 up, 1 right, 2 down, 3 left
    observation   the agent's cell, the other's cell
    collision     the target is the other's cell: the mover stays where it is
    new field     agent1 moved into, or stayed at a wall in, a cell that it had not visited; at
                  first none is visited
    reward        (agent1, agent2): collision by either -1.0, +1.0;  else new field +1.0, -0.1;
                  else -0.5, -0.1
    end           only by the time limit, after `max_steps_in_episode` steps

Version 1.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.drawing import Circles, Drawing, Rectangles
from jaxrl.core.env import StackedEnvironment
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.frozen import freeze
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.core.types import AgentId, Key, PolicyId
from jaxrl.envs.drawing import Colour, coverage, finish, from_point, from_square, grid, paint

MOST_CELLS = 2**15  # along a side
PICTURE_SIZE = 300  # pixels along the picture's longer side, approximately
EMPTY, VISITED, LINES = (250, 250, 247), (190, 218, 243), (206, 208, 206)  # red, green, blue
EXPLORER, HUNTER, OUTLINE = (25, 98, 170), (226, 88, 34), (32, 36, 44)


class State(struct.PyTreeNode):
    positions: jax.Array  # i32[2]    the cells of agent1 and agent2, never the same one
    # u32[ceil(height * width / 32)]    bit c % 32 of word c // 32: agent1 has visited cell c
    visited: jax.Array
    time: jax.Array  # i32[]    steps since the reset


class Params(struct.PyTreeNode):
    """Parameters of the task; every leaf may be traced and vmapped."""

    max_steps_in_episode: int = 100  # the time limit: truncates, never terminates


@dataclass(frozen=True)
class MultiAgentArena(StackedEnvironment):
    height: int = 10  # rows
    width: int = 10  # columns

    agents = ("agent1", "agent2")
    action_names = ("up", "right", "down", "left")

    def __post_init__(self):
        for name in ("height", "width"):
            object.__setattr__(self, name, freeze(getattr(self, name)))
        whole = all(type(size) is int for size in (self.height, self.width))
        sizes = (self.height, self.width)
        if not whole or min(sizes) < 1 or max(sizes) > MOST_CELLS or self.num_cells < 2:
            raise UsageError(
                f"arena with height={brief(self.height)} and width={brief(self.width)}: both must "
                "be integers of at least 1, and two agents need at least 2 cells"
            )

    @property
    def num_cells(self) -> int:
        return self.height * self.width

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def tuned(self) -> dict[str, Any]:
        """Settings for an explorer that evades its hunter, and a hunter that catches others.

        The networks matter most: pol1's remembers which cells are visited, pol2's knows the way to
        agent1.
        """
        grid, networks = f"height={self.height}, width={self.width}", "jaxrl.envs.networks"
        explorer = {"model": f"{networks}.cell_memory:CellMemory({grid})", "max_seq_len": 1}
        hunter = {"model": f"{networks}.cell_pair:CellPair({grid})", "gamma": 0.9}
        return {
            "num_envs": 256,
            "rollout_length": 25,
            "minibatch_size": 1280,
            "num_epochs": 4,
            "lr": [[0, 2e-3], [2_000_000, 5e-4]],
            "lambda_": 0.95,
            "fcnet_hiddens": (64, 64),
            "per_policy": {
                "pol1": {**explorer, "entropy_coeff": 0.01},
                "pol2": {**hunter, "entropy_coeff": 0.05},
            },
            "total_env_steps": 2_000_000,
        }

    @property
    def default_policies(self) -> dict[PolicyId, tuple[AgentId, ...]]:
        return {"pol1": ("agent1",), "pol2": ("agent2",)}

    def observation_space(
        self, agent: AgentId | None = None, params: Params | None = None
    ) -> MultiDiscrete:
        return MultiDiscrete((self.num_cells, self.num_cells))

    def action_space(self, agent: AgentId | None = None, params: Params | None = None) -> Discrete:
        return Discrete(4)

    def global_state_space(self, params: Params | None = None) -> Dict:
        return Dict(
            {
                "positions": MultiDiscrete((self.num_cells, self.num_cells)),
                "visited": Box(0, 1, (self.num_cells,)),
                "time": Box(0, 1, ()),
            }
        )

    def global_state(self, state: State, params: Params) -> dict[str, jax.Array]:
        """Both cells, the cells that agent1 has visited, the share of the episode that is over."""
        return {
            "positions": state.positions,
            "visited": unpack(state.visited, self.num_cells).astype(jnp.float32),
            "time": jnp.asarray(state.time / params.max_steps_in_episode, jnp.float32),
        }

    def reset_stacked(self, key: Key, params: Params) -> tuple[jax.Array, State]:
        state = State(
            positions=jnp.array([0, self.num_cells - 1], jnp.int32),
            visited=jnp.zeros(-(-self.num_cells // 32), jnp.uint32),
            time=jnp.zeros((), jnp.int32),
        )
        return observe(state.positions), state

    def step_stacked(self, key: Key, state: State, action: jax.Array, params: Params) -> tuple:
        return self.step_in_order(state, action, agent2_first=toss(key))

    def step_in_order(self, state: State, action: jax.Array, agent2_first: jax.Array) -> tuple:
        """`step_stacked` after the toss: all rules, without randomness."""
        targets = aim(state.positions, action, self.height, self.width)
        moved = move(state.positions, targets, agent2_first)
        # Without the barrier XLA on the CPU computes the moves again for every result that reads
        # them.
        positions, collided = jax.lax.optimization_barrier(moved)
        visited, new_field = visit(state.visited, positions[0], ~collided[0])
        rewards, metrics = reward(collided[0] | collided[1], new_field)
        state = State(positions=positions, visited=visited, time=state.time + 1)
        return observe(positions), state, rewards, jnp.zeros(2, bool), {"metrics": metrics}

    @property
    def agent_colors(self) -> dict[AgentId, Colour]:
        """The colours of `render`, for the captions of a picture."""
        return {"agent1": EXPLORER, "agent2": HUNTER}

    def render(self, state: State, params: Params) -> jax.Array:
        """u8[height * side + 1, width * side + 1, 3]: agent1 a blue disc, agent2 a red square.

        Visited cells are tinted.
        """
        # pixels of a cell, one of them the grid line
        side = max(PICTURE_SIZE // max(self.height, self.width), 4)
        is_visited = unpack(state.visited, self.num_cells).reshape(self.height, self.width)
        ground = jnp.where(is_visited[:, :, None], np.float32(VISITED), np.float32(EMPTY))
        picture = jnp.repeat(jnp.repeat(ground, side, axis=0), side, axis=1)
        picture = jnp.pad(picture, ((0, 1), (0, 1), (0, 0)))
        y, x = grid(*picture.shape[:2])
        picture = paint(picture, LINES, jnp.asarray((y % side < 1) | (x % side < 1), jnp.float32))
        for agent, colour, distance in ((0, EXPLORER, from_point), (1, HUNTER, from_square)):
            row, column = jnp.divmod(state.positions[agent], self.width)
            centre_y, centre_x = (row + 0.5) * side, (column + 0.5) * side
            outside = distance(y - centre_y - 0.5, x - centre_x - 0.5, 0.34 * side)
            picture = paint(picture, OUTLINE, coverage(outside - max(0.04 * side, 0.5)))
            picture = paint(picture, colour, coverage(outside))
        return finish(picture)

    def draw(self, state: State, params: Params) -> Drawing:
        """The cells, those that agent1 visited tinted; agent1 a disc, agent2 a square."""
        rows, columns = np.divmod(np.arange(self.num_cells), self.width)
        cells = np.float32(np.stack([columns, rows], axis=1) + 0.5)
        row, column = jnp.divmod(state.positions, self.width)
        places = jnp.stack([column, row], axis=1) + 0.5
        return Drawing(
            bounds=(-0.1, self.height + 0.1, self.width + 0.1, -0.1),
            shapes=(
                Rectangles(
                    center=cells,
                    size=0.94,
                    corner=0.08,
                    color=("ground", "trail"),
                    color_index=unpack(state.visited, self.num_cells),
                ),
                Circles(center=places[:1], radius=0.34, color="agent0"),
                Rectangles(center=places[1:], size=0.62, corner=0.14, color="agent1"),
            ),
        )


def toss(key: Key) -> jax.Array:
    """bool[]: a fair coin; True sends agent2 first."""
    return jax.random.bits(key) >> 31 == 1


def aim(positions: jax.Array, action: jax.Array, height: int, width: int) -> jax.Array:
    """i32[2]: the cells that the actions lead to; at a wall, the agent's current cell.

    Neither a cell beyond the wall nor the agent's current cell can be the other's. So clipping
    here, before `move` checks for collisions, changes nothing.
    """
    column = jax.lax.rem(positions, np.int32(width))  # the same type under x64, too
    up = (action == 0) & (positions >= width)
    right = (action == 1) & (column < width - 1)
    down = (action == 2) & (positions < (height - 1) * width)
    left = (action == 3) & (column > 0)
    up, right, down, left = (way.astype(jnp.int32) for way in (up, right, down, left))
    return positions + (down - up) * width + (right - left)


def move(
    positions: jax.Array, targets: jax.Array, agent2_first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both moves, the second after the first: (positions i32[2], collided bool[2])."""
    (here1, here2), (target1, target2) = positions, targets
    # The cell that each agent reaches if it moves first.
    ahead1 = jnp.where(target1 == here2, here1, target1)
    ahead2 = jnp.where(target2 == here1, here2, target2)
    collided1 = target1 == jnp.where(agent2_first, ahead2, here2)
    collided2 = target2 == jnp.where(agent2_first, here1, ahead1)
    reached1 = jnp.where(collided1, here1, target1)
    reached2 = jnp.where(collided2, here2, target2)
    return jnp.stack([reached1, reached2]), jnp.stack([collided1, collided2])


def visit(visited: jax.Array, cell: jax.Array, moved: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(`visited` with `cell` added if agent1 `moved`, whether it is a new field bool[])."""
    place, word = (cell & 31).astype(jnp.uint32), cell >> 5
    words = jnp.arange(visited.shape[0], dtype=jnp.int32)
    bits = jnp.where((words == word) & moved, jnp.uint32(1) << place, jnp.uint32(0))
    return visited | bits, moved & (visited[word] >> place & 1 == 0)


def unpack(visited: jax.Array, num_cells: int) -> jax.Array:
    """bool[num_cells]: whether each cell is visited."""
    bits = visited[:, None] >> np.arange(32, dtype=np.uint32)[None] & 1
    return bits.reshape(-1)[:num_cells] == 1


def reward(collision: jax.Array, new_field: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(rewards f32[2], metrics) of a step; a collision cancels the reward for a new field."""
    new_field = new_field & ~collision
    reward1 = jnp.where(collision, -1.0, jnp.where(new_field, 1.0, -0.5))
    reward2 = jnp.where(collision, 1.0, -0.1)
    metrics = {
        "new_fields_discovered": new_field.astype(jnp.float32),
        "num_collisions": collision.astype(jnp.float32),
    }
    return jnp.stack([reward1, reward2]), metrics


def observe(positions: jax.Array) -> jax.Array:
    """i32[2, 2]: for each agent its cell, then the other's."""
    return jnp.stack([positions, positions[::-1]])
