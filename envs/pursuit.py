"""Pursuit: pursuers on a grid surround randomly walking evaders (Gupta et al. 2017; PettingZoo's `pursuit_v4`).

Cells (x, y) of an x_size x y_size grid with a rectangular building in the middle; bodies of any
kind may share a cell. Each step, in this order:

    move      0 x - 1, 1 x + 1, 2 y + 1, 3 y - 1, 4 stay; off the grid or into the building a body stays where it is
    tag       pursuer i of n, counted from 0: tag_reward / n * (i T(old cell) + (n - i) T(new cell)), with T the evaders
              in the cell's four neighbours, neighbours beyond the border being the cell itself
    catch     surround: an evader all of whose free neighbours hold a pursuer, and each pursuer there is paid
              catch_reward, once however many evaders it caught; else: an evader with n_catch
              pursuers in its own cell, and they are paid
    evaders   the caught ones vanish, the others move: one of the five actions at random, or `evader_controller`'s
    reward    tag + catch + urgency_reward; shared_reward of it everybody's mean, the rest one's own
    end       the clock truncates after `max_cycles` steps; before that no evader left terminates

An observation is obs_range x obs_range cells around a pursuer, indexed by y, then x, then channel:
solid (building or outside), pursuers (itself included), evaders. An even obs_range shows one row
and column less and pads them as solid.

In the step in which the clock runs out nothing terminates, as in the reference, even if the last
evader was caught. Starts are drawn as the reference draws them: one body after the other, uniformly
among the cells that are neither building nor next to or on another of its kind. Where the reference
would search forever because no such cell is left, the body joins the first of its kind. What needs
Python objects there, a controller, is a function here.

Version 4, of PettingZoo 1.24.3.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import StackedEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import freeze
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

PICTURE_SIZE = 480  # pixels along a picture's longer side, about
FREE, SEEN, SOLID, LINES = (
    (249, 249, 246),
    (150, 188, 232),
    (72, 78, 90),
    (214, 216, 214),
)  # red, green, blue
PURSUER, EVADER, OUTLINE, DOTS = (25, 98, 170), (238, 124, 34), (32, 36, 44), (255, 255, 255)


@dataclass(frozen=True)
class Pursuit(StackedEnvironment):
    x_size: int = 16
    y_size: int = 16
    n_evaders: int = 30
    n_pursuers: int = 8
    obs_range: int = 7
    shared_reward: bool | float = (
        True  # the share of everybody's mean: True is all of it, False nothing
    )
    freeze_evaders: bool = False
    surround: bool = True
    # (key, state with the pursuers moved, this object) -> actions i32[n_evaders]; it decides for
    # frozen ones too
    evader_controller: Callable[[Key, State, "Pursuit"], jax.Array] | None = None
    # The reference's, of which None alone is taken: policies act, and `render` draws.
    pursuer_controller: InitVar[None] = None
    render_mode: InitVar[None] = None

    def __post_init__(self, pursuer_controller: None, render_mode: None):
        for name, value in (
            ("pursuer_controller", pursuer_controller),
            ("render_mode", render_mode),
        ):
            if value is not None:
                raise UsageError(f"pursuit with {name}={value!r}: it must be None")
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, freeze(getattr(self, field.name)))
        # In a grid one cell wide the reference counts neighbours that are not there.
        for name, least in (
            ("x_size", 2),
            ("y_size", 2),
            ("n_evaders", 1),
            ("n_pursuers", 1),
            ("obs_range", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    f"pursuit with {name}={value!r}: it must be an integer of at least {least}"
                )
        for name in ("freeze_evaders", "surround"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(
                    f"pursuit with {name}={getattr(self, name)!r}: it must be True or False"
                )
        if not (
            isinstance(self.shared_reward, bool | int | float) and 0 <= self.shared_reward <= 1
        ):
            raise UsageError(
                f"pursuit with shared_reward={self.shared_reward!r}: it must be True, False, or a share between 0 and 1"
            )
        if not (self.evader_controller is None or callable(self.evader_controller)):
            raise UsageError(
                f"pursuit with evader_controller={self.evader_controller!r}: it must be a function or None"
            )
        self._check_room(self.x_size, self.y_size)

    def check_params(self, params: Params) -> None:
        """Raises UsageError for numbers with which no episode could start, or none would last a step."""
        for name in ("max_cycles", "n_catch"):
            if getattr(params, name) < 1:
                raise UsageError(
                    f"pursuit with {name}={getattr(params, name)}: it must be at least 1"
                )
        if not self.surround and params.n_catch > self.n_pursuers:
            raise UsageError(
                f"pursuit with n_catch={params.n_catch} and n_pursuers={self.n_pursuers}: nothing could be caught"
            )
        window = params.constraint_window
        width, height = (int(size * window + 1e-9) for size in (self.x_size, self.y_size))
        if not 0 < window <= 1 or min(width, height) < 1:
            raise UsageError(
                f"pursuit with constraint_window={window}: it must be at most 1 and leave at least one cell of each "
                f"side of x_size={self.x_size} by y_size={self.y_size}"
            )
        self._check_room(width, height)

    def _check_room(self, width: int, height: int) -> None:
        """In the average window of that size there must be room for each kind of body."""
        most = room(self.x_size, self.y_size, width, height)
        for name in ("n_evaders", "n_pursuers"):
            if getattr(self, name) > most:
                raise UsageError(
                    f"pursuit with {name}={getattr(self, name)}: a start in {width} x {height} of the {self.x_size} x "
                    f"{self.y_size} cells has room for no more than some {most}, none beside another"
                )

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return tuple(f"pursuer_{i}" for i in range(self.n_pursuers))

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def tuned(self) -> dict[str, Any]:
        """Most evaders caught within some 2 million steps.

        A rollout is a whole episode: all environments start together, and a shorter one would show
        the policy either the crowded beginnings alone or the empty ends.
        """
        return {
            "num_envs": 16,
            "rollout_length": 500,
            "minibatch_size": 4000,
            "num_epochs": 4,
            "lr": [[0, 5e-4], [4_000_000, 1e-4]],
            "lambda_": 0.95,
            "vf_clip_param": None,
            "vf_loss_coeff": 0.5,
            "entropy_coeff": 0.01,
            "fcnet_hiddens": (64, 64),
            "total_env_steps": 4_000_000,
        }

    @property
    def default_policies(self) -> dict[PolicyId, tuple[AgentId, ...]]:
        return {"pursuer": self.agents}

    def observation_space(self, agent: AgentId | None = None, params: Params | None = None) -> Box:
        return Box(0, max(self.n_pursuers, self.n_evaders), (self.obs_range, self.obs_range, 3))

    def action_space(self, agent: AgentId | None = None, params: Params | None = None) -> Discrete:
        return Discrete(NUM_ACTIONS)

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
            seen = state.replace(pursuers=move(state.pursuers, action, self))
            evader_action = self.evader_controller(key, seen, self)
        elif self.freeze_evaders:
            evader_action = jnp.full(self.n_evaders, STAY, jnp.int32)
        else:
            evader_action = wander(key, self.n_evaders)
        return self.step_with(state, action, evader_action, params)

    def step_with(
        self, state: State, action: jax.Array, evader_action: jax.Array, params: Params
    ) -> tuple:
        """`step_stacked` once the evaders have decided: all of the rules, and nothing random."""
        pursuers, evaders = (
            move(state.pursuers, action, self),
            move(state.evaders, evader_action, self),
        )
        tags = tag(state.pursuers, pursuers, state.evaders, state.alive, self)
        caught, credit = catch(pursuers, state.evaders, state.alive, params.n_catch, self)
        rewards = reward(tags, credit, params, self)
        # The barrier has all this computed once: XLA on the CPU would repeat it in every result
        # that reads it.
        pursuers, evaders, caught = jax.lax.optimization_barrier((pursuers, evaders, caught))
        alive = state.alive & ~caught
        state = State(
            pursuers=pursuers,
            evaders=jnp.where(caught[None], state.evaders, evaders),
            alive=alive,
            time=state.time + 1,
        )
        terminated = jnp.broadcast_to(
            ~jnp.any(alive) & ~self.is_truncated(state, params), self.n_pursuers
        )
        metrics = {"catches": jnp.sum(caught, dtype=jnp.float32)}
        return (
            observe(pursuers, state.evaders, alive, self),
            state,
            rewards,
            terminated,
            {"metrics": metrics},
        )

    @property
    def legend(self) -> dict[str, Colour]:
        """What a picture shows."""
        return {"pursuer": PURSUER, "evader": EVADER, "what pursuers see": SEEN}

    def render(self, state: State, params: Params) -> jax.Array:
        """u8[y_size * side + 1, x_size * side + 1, 3]: evaders are orange discs, pursuers blue squares, the cells that
        these see tinted; dots say how many share a cell."""
        side = max(
            PICTURE_SIZE // max(self.x_size, self.y_size), 4
        )  # pixels of a cell, one of them the grid line
        cells = np.indices((self.x_size, self.y_size), np.int32).reshape(2, 1, -1)
        apart = jnp.abs(cells - state.pursuers[:, :, None])  # [2, n, cells]
        seen = jnp.sum(jnp.all(apart <= reach(self), axis=0), axis=0)
        pursuers = jnp.sum(jnp.all(apart == 0, axis=0), axis=0)
        evaders = jnp.sum(
            jnp.all(cells == state.evaders[:, :, None], axis=0) & state.alive[:, None], axis=0
        )

        def pixels(tiles):
            """The picture of a tile [side, side] for each cell, or of one number."""
            tiles = tiles.reshape(self.x_size, self.y_size, *(tiles.shape[1:] or (1, 1)))
            tiles = jnp.broadcast_to(tiles, (self.x_size, self.y_size, side, side)).transpose(
                1, 2, 0, 3
            )
            return jnp.pad(tiles.reshape(self.y_size * side, self.x_size * side), ((0, 1), (0, 1)))

        y, x = grid(self.y_size * side + 1, self.x_size * side + 1)
        picture = paint(canvas(*y.shape, FREE), SEEN, 1 - 0.7 ** pixels(seen))
        picture = paint(picture, LINES, jnp.asarray((y % side < 1) | (x % side < 1), jnp.float32))
        picture = paint(
            picture, SOLID, pixels(np.float32(building(self.x_size, self.y_size).reshape(-1)))
        )
        y, x = (away - 0.5 * side - 0.5 for away in grid(side, side))  # from the middle of a cell
        for count, colour, distance, radius in (
            (pursuers, PURSUER, from_square, 0.4),
            (evaders, EVADER, from_point, 0.27),
        ):
            here, outside = (count > 0)[:, None, None], distance(y, x, radius * side)[None]
            picture = paint(
                picture, OUTLINE, pixels(here * coverage(outside - max(0.04 * side, 0.5)))
            )
            picture = paint(picture, colour, pixels(here * coverage(outside)))
            picture = paint(
                picture,
                DOTS,
                pixels(dots(y, x, 0.65 * radius * side, 0.06 * side)[jnp.minimum(count, 6)]),
            )
        return finish(picture)


def dots(y: np.ndarray, x: np.ndarray, ring: float, radius: float) -> jax.Array:
    """f32[7, side, side]: the coverage by 0, 0, 2, 3, ... 6 dots in a ring about the origin; one body needs no dot."""
    tiles = [jnp.zeros(y.shape)] * 2
    for number in range(2, 7):
        angles = 2 * np.pi / number * np.arange(number, dtype=np.float32)[:, None, None]
        away = from_point(y[None] + ring * np.cos(angles), x[None] + ring * np.sin(angles), radius)
        tiles.append(coverage(jnp.min(away, axis=0)))
    return jnp.stack(tiles)
