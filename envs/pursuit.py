"""Pursuit: pursuers on a grid surround randomly walking evaders (Gupta et al. 2017).

The grid has x_size x y_size cells (x, y) and a rectangular building in the middle. Any number of
bodies may share a cell. Each step, in this order:

    move      0 x - 1, 1 x + 1, 2 y + 1, 3 y - 1, 4 stay; at the border of the grid or the building
              a body stays where it is
    tag       pursuer i of n, counted from 0: tag_reward / n * (i T(old cell) + (n - i) T(new
              cell)), with T the number of evaders in the cell's four neighbours; a neighbour beyond
              the border is the cell itself
    catch     surround: an evader is caught if all its free neighbours hold a pursuer, and each
              pursuer there gets catch_reward, once for any number of evaders; otherwise: an evader
              is caught by n_catch pursuers in its cell, who get the reward
    evaders   caught evaders vanish, the others move: a random one of the five actions, or that of
              `evader_controller`
    reward    tag + catch + urgency_reward; shared_reward is the share of the mean over all
              pursuers in it, the rest is the pursuer's
    end       truncated after `max_cycles` steps; terminated before if no evader is left

An observation is obs_range x obs_range cells around a pursuer, indexed by y, then x, then channel:
solid (building or outside), pursuers (itself included), evaders. An even obs_range shows one row
and column less and pads them as solid.

The rules are those of PettingZoo's `pursuit_v4`. As there, nothing terminates in the step of the
time limit, even if the last evader was caught. Start cells are drawn as there: one body after the
other, uniformly among the cells that are neither building nor next to or on another body of its
kind. Where the reference would search forever because no such cell is left, the body joins the
first of its kind. Controllers are Python objects there and functions here.

Version 4, of PettingZoo 1.24.3.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.drawing import NUM_AGENT_COLORS, Circles, Drawing, Lines, Rectangles, Text
from jaxrl.core.env import StackedEnvironment
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.frozen import freeze
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import AgentId, Key, PolicyId
from jaxrl.envs.drawing import (
    Colour,
    canvas,
    coverage,
    finish,
    from_point,
    from_square,
    grid,
    paint,
)
from jaxrl.envs.pursuit_rules import (
    NUM_ACTIONS,
    STAY,
    Params,
    State,
    building,
    catch,
    move,
    observe,
    place,
    reach,
    reward,
    room,
    starts,
    tag,
    wander,
)

MOST = 2**12  # cells along a side, or bodies
PICTURE_SIZE = 480  # pixels along the picture's longer side, approximately
# Colours: red, green, blue.
FREE, SEEN = (249, 249, 246), (150, 188, 232)
SOLID, LINES = (72, 78, 90), (214, 216, 214)
PURSUER, EVADER, OUTLINE, DOTS = (25, 98, 170), (238, 124, 34), (32, 36, 44), (255, 255, 255)


@dataclass(frozen=True)
class Pursuit(StackedEnvironment):
    x_size: int = 16
    y_size: int = 16
    n_evaders: int = 30
    n_pursuers: int = 8
    obs_range: int = 7
    shared_reward: bool | float = True  # the share of the mean reward: True is 1, False is 0
    freeze_evaders: bool = False
    surround: bool = True
    # (key, state with the pursuers moved, this object) -> actions i32[n_evaders]; also moves frozen
    # evaders
    evader_controller: Callable[[Key, State, "Pursuit"], jax.Array] | None = None
    # Arguments of the reference that must be None: policies act, and `render` draws.
    pursuer_controller: InitVar[None] = None
    render_mode: InitVar[None] = None

    action_names = ("left", "right", "down", "up", "stay")

    def __post_init__(self, pursuer_controller: None, render_mode: None):
        self._require("pursuer_controller", pursuer_controller is None, "None", pursuer_controller)
        self._require("render_mode", render_mode is None, "None", render_mode)
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, freeze(getattr(self, field.name)))
        # In a grid that is one cell wide the reference counts neighbours that do not exist.
        minima = {"x_size": 2, "y_size": 2, "n_evaders": 1, "n_pursuers": 1, "obs_range": 1}
        for name, least in minima.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            is_held = whole and least <= value <= MOST
            self._require(
                name, is_held, f"an integer of at least {least} and at most {MOST}", value
            )
        for name in ("freeze_evaders", "surround"):
            value = getattr(self, name)
            self._require(name, isinstance(value, bool), "True or False", value)
        share, controller = self.shared_reward, self.evader_controller
        is_share = isinstance(share, bool | int | float) and 0 <= share <= 1
        allowed = "True, False, or a share between 0 and 1"
        self._require("shared_reward", is_share, allowed, share)
        is_function = controller is None or callable(controller)
        self._require("evader_controller", is_function, "a function or None", controller)
        self._check_room(self.x_size, self.y_size)

    def check_params(self, params: Params) -> None:
        """Raises UsageError for parameters with which no episode can start or last a step."""
        for name in ("max_cycles", "n_catch"):
            value = getattr(params, name)
            self._require(name, value >= 1, "at least 1", value)
        if not self.surround and params.n_catch > self.n_pursuers:
            raise UsageError(
                f"pursuit with n_catch={params.n_catch} and n_pursuers={self.n_pursuers}: "
                "nothing could be caught"
            )
        window = params.constraint_window
        width, height = int(self.x_size * window + 1e-9), int(self.y_size * window + 1e-9)
        if not 0 < window <= 1 or min(width, height) < 1:
            raise UsageError(
                f"pursuit with constraint_window={window}: it must be at most 1 and leave at least "
                f"one cell of each side of x_size={self.x_size} by y_size={self.y_size}"
            )
        self._check_room(width, height)

    @staticmethod
    def _require(name: str, holds: bool, allowed: str, value: Any) -> None:
        if not holds:
            raise UsageError(f"pursuit with {name}={brief(value)}: it must be {allowed}")

    def _check_room(self, width: int, height: int) -> None:
        """Requires room for each kind of body in the average window of that size."""
        most = room(self.x_size, self.y_size, width, height)
        for name in ("n_evaders", "n_pursuers"):
            if getattr(self, name) > most:
                cells = f"{width} x {height} of the {self.x_size} x {self.y_size} cells"
                raise UsageError(
                    f"pursuit with {name}={getattr(self, name)}: a start in {cells} "
                    f"has room for no more than some {most}, none beside another"
                )

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return tuple(f"pursuer_{i}" for i in range(self.n_pursuers))

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def tuned(self) -> dict[str, Any]:
        """Settings that catch nearly all evaders after 1.6 million steps.

        A rollout is a whole episode. All environments start together, so a shorter rollout would
        hold either only the crowded beginnings or only the empty ends of episodes. The network
        matters most: what it learns for one direction it knows for all four.
        """
        return {
            "num_envs": 16,
            "rollout_length": 500,
            "minibatch_size": 8000,
            "num_epochs": 4,
            "lr": [[0, 1e-3], [1_600_000, 0.0]],
            "gamma": 0.95,
            "lambda_": 0.95,
            "clip_param": 0.2,
            "use_kl_loss": False,
            "vf_clip_param": None,
            "vf_loss_coeff": 0.5,
            "entropy_coeff": [[0, 0.02], [1_200_000, 0.0]],
            "model": "jaxrl.envs.networks.rotation_network:RotationNetwork",
            "fcnet_hiddens": (64, 64),  # of networks that are chosen in place of that model
            "total_env_steps": 1_600_000,
        }

    @property
    def default_policies(self) -> dict[PolicyId, tuple[AgentId, ...]]:
        return {"pursuer": self.agents}

    def observation_space(self, agent: AgentId | None = None, params: Params | None = None) -> Box:
        return Box(0, max(self.n_pursuers, self.n_evaders), (self.obs_range, self.obs_range, 3))

    def action_space(self, agent: AgentId | None = None, params: Params | None = None) -> Discrete:
        return Discrete(NUM_ACTIONS)

    def global_state_space(self, params: Params | None = None) -> Box:
        return Box(0, 1, (2 * self.n_pursuers + 3 * self.n_evaders + 1,))

    def global_state(self, state: State, params: Params) -> jax.Array:
        """Places as shares of the grid, who is not caught (others are at 0), and the time."""
        size = np.array([[self.x_size], [self.y_size]], np.float32)
        evaders = jnp.where(state.alive[None], state.evaders / size, 0.0)
        places = (state.pursuers / size).reshape(-1), evaders.reshape(-1)
        time = jnp.asarray(state.time / params.max_cycles, jnp.float32)
        return jnp.concatenate([*places, state.alive.astype(jnp.float32), time[None]])

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return state.time >= params.max_cycles

    def reset_stacked(self, key: Key, params: Params) -> tuple[jax.Array, State]:
        window_key, pursuer_key, evader_key = jax.random.split(key, 3)
        legal = starts(window_key, params.constraint_window, self)
        state = State(
            pursuers=place(pursuer_key, self.n_pursuers, legal),
            evaders=place(evader_key, self.n_evaders, legal),
            alive=jnp.ones(self.n_evaders, bool),
            time=jnp.zeros((), jnp.int32),
        )
        return observe(state.pursuers, state.evaders, state.alive, self), state

    def step_stacked(self, key: Key, state: State, action: jax.Array, params: Params) -> tuple:
        if self.evader_controller is not None:
            moved = state.replace(pursuers=move(state.pursuers, action, self))
            evader_action = self.evader_controller(key, moved, self)
        elif self.freeze_evaders:
            evader_action = jnp.full(self.n_evaders, STAY, jnp.int32)
        else:
            evader_action = wander(key, self.n_evaders)
        return self.step_with(state, action, evader_action, params)

    def step_with(
        self, state: State, action: jax.Array, evader_action: jax.Array, params: Params
    ) -> tuple:
        """`step_stacked` with the evaders' actions given: all rules, without randomness."""
        pursuers = move(state.pursuers, action, self)
        evaders = move(state.evaders, evader_action, self)
        tags = tag(state.pursuers, pursuers, state.evaders, state.alive, self)
        caught, credit = catch(pursuers, state.evaders, state.alive, params.n_catch, self)
        rewards = reward(tags, credit, params, self)
        # Without the barrier XLA on the CPU computes these again for every result that reads them.
        pursuers, evaders, caught = jax.lax.optimization_barrier((pursuers, evaders, caught))
        alive = state.alive & ~caught
        state = State(
            pursuers=pursuers,
            evaders=jnp.where(caught[None], state.evaders, evaders),
            alive=alive,
            time=state.time + 1,
        )
        all_caught = ~jnp.any(alive) & ~self.is_truncated(state, params)
        terminated = jnp.broadcast_to(all_caught, self.n_pursuers)
        info = {"metrics": {"catches": jnp.sum(caught, dtype=jnp.float32)}}
        obs = observe(pursuers, state.evaders, alive, self)
        return obs, state, rewards, terminated, info

    @property
    def legend(self) -> dict[str, Colour]:
        """The colours in a picture."""
        return {"pursuer": PURSUER, "evader": EVADER, "what pursuers see": SEEN}

    def render(self, state: State, params: Params) -> jax.Array:
        """u8[y_size * side + 1, x_size * side + 1, 3]: pursuers blue squares, evaders orange discs.

        The cells that pursuers see are tinted; dots show the number of bodies in a cell.
        """
        # pixels of a cell, one of them the grid line
        side = max(PICTURE_SIZE // max(self.x_size, self.y_size), 4)
        cells = np.indices((self.x_size, self.y_size), np.int32).reshape(2, 1, -1)
        apart = jnp.abs(cells - state.pursuers[:, :, None])  # [2, n, cells]
        num_views = jnp.sum(jnp.all(apart <= reach(self), axis=0), axis=0)
        pursuers = jnp.sum(jnp.all(apart == 0, axis=0), axis=0)
        is_here = jnp.all(cells == state.evaders[:, :, None], axis=0)
        evaders = jnp.sum(is_here & state.alive[:, None], axis=0)

        def pixels(tiles):
            """The whole picture from a tile [side, side] or a number for each cell."""
            tiles = tiles.reshape(self.x_size, self.y_size, *(tiles.shape[1:] or (1, 1)))
            tiles = jnp.broadcast_to(tiles, (self.x_size, self.y_size, side, side))
            tiles = tiles.transpose(1, 2, 0, 3).reshape(self.y_size * side, self.x_size * side)
            return jnp.pad(tiles, ((0, 1), (0, 1)))

        y, x = grid(self.y_size * side + 1, self.x_size * side + 1)
        picture = paint(canvas(*y.shape, FREE), SEEN, 1 - 0.7 ** pixels(num_views))
        picture = paint(picture, LINES, jnp.asarray((y % side < 1) | (x % side < 1), jnp.float32))
        solid = np.float32(building(self.x_size, self.y_size).reshape(-1))
        picture = paint(picture, SOLID, pixels(solid))
        y, x = (away - 0.5 * side - 0.5 for away in grid(side, side))  # from the middle of a cell
        for count, colour, distance, radius in (
            (pursuers, PURSUER, from_square, 0.4),
            (evaders, EVADER, from_point, 0.27),
        ):
            here, outside = (count > 0)[:, None, None], distance(y, x, radius * side)[None]
            outline = here * coverage(outside - max(0.04 * side, 0.5))
            picture = paint(picture, OUTLINE, pixels(outline))
            picture = paint(picture, colour, pixels(here * coverage(outside)))
            tiles = dots(y, x, 0.65 * radius * side, 0.06 * side)
            picture = paint(picture, DOTS, pixels(tiles[jnp.minimum(count, 6)]))
        return finish(picture)

    def draw(self, state: State, params: Params) -> Drawing:
        """Pursuers as squares, evaders as discs, numbers where several pursuers share a cell."""
        width, height = self.x_size, self.y_size
        solid = np.argwhere(building(width, height))
        corners = np.float32([solid.min(0), solid.max(0) + 1] if len(solid) else np.zeros((2, 2)))
        pursuers, evaders = state.pursuers.T + 0.5, state.evaders.T + 0.5
        columns, rows = np.arange(width + 1.0), np.arange(height + 1.0)
        lines = lambda row, column: np.float32(
            [*((x, row) for x in columns), *((column, y) for y in rows)]
        )
        together = jnp.all(pursuers[:, None] == pursuers[None], axis=-1)  # [n, n]
        is_first = ~jnp.any(jnp.tril(together, -1), axis=1)
        colors = tuple(f"agent{i % NUM_AGENT_COLORS}" for i in range(self.n_pursuers))
        middle = np.float32([[width / 2, height / 2]])
        views = Rectangles(center=pursuers, size=2.0 * reach(self) + 1, color=colors, opacity=0.07)
        return Drawing(
            bounds=(0.0, float(height), float(width), 0.0),
            shapes=(
                Rectangles(center=middle, size=(float(width), float(height)), color="ground"),
                views,
                Lines(start=lines(0.0, 0.0), end=lines(height, width), color="line"),
                Rectangles(
                    center=corners.mean(0)[None], size=corners[1] - corners[0], color="wall"
                ),
                Rectangles(center=pursuers, size=0.74, corner=0.16, color=colors),
                Circles(center=evaders, radius=0.24, color="body", visible=state.alive),
                Text(
                    position=pursuers,
                    size=0.4,
                    words=("", "", *map(str, range(2, self.n_pursuers + 1))),
                    word_index=jnp.sum(together, axis=1),
                    visible=is_first,
                ),
            ),
        )


def dots(y: np.ndarray, x: np.ndarray, ring: float, radius: float) -> jax.Array:
    """f32[7, side, side]: the coverage by 0, 0, 2, 3, ... 6 dots in a ring; one body has no dot."""
    tiles = [jnp.zeros(y.shape)] * 2
    for number in range(2, 7):
        angles = 2 * np.pi / number * np.arange(number, dtype=np.float32)[:, None, None]
        away = from_point(y[None] + ring * np.cos(angles), x[None] + ring * np.sin(angles), radius)
        tiles.append(coverage(jnp.min(away, axis=0)))
    return jnp.stack(tiles)
