"""Waterworld: pursuers catch food and avoid poison and obstacles, which they sense along rays.

    action        f32[2] in [-1, 1], clipped: a push along x and y, at most of length 1
    observation   f32[8 n + 2], n sensors each: distance of the nearest obstacle, of the wall, of
                  food, its speed, of poison, its speed, of another pursuer, its speed; then
                  whether food, and whether poison, is touched. f32[5 n + 2] without the speeds.
                  Distances in units of the range, 1 if nothing is sensed
    food          caught when n_coop pursuers touch it: pays at the catch, and again when the touch
                  ends and the food respawns
    poison        costs at each touch, and respawns at once
    reward        food_reward, encounter_reward for each food that is touched, poison_reward,
                  thrust_penalty times the push; local_ratio is the share of the pursuer's reward,
                  the rest is the mean over all pursuers
    end           only by the time limit, after `max_cycles` steps
    metrics       food_caught: catches, counted for each pursuer that is paid; poison_touched

The rules, with their quirks, are those of PettingZoo's waterworld_v4 on pymunk 6.2.0; see
`waterworld_physics`. There are three differences:

    - Simultaneous touches of the same food come in the agents' order; in pymunk the order is
      arbitrary.
    - A contact's remembered impulse, and the lever arm of a body that respawns while it touches
      something, are left out. They change a body in about 3 of 12,000 steps.
    - A body that touches an obstacle and a wall, or two obstacles, bounces off each separately.
      This never happens at the default place, and in a tenth of the steps with two obstacles beside
      walls.

Version 4, of PettingZoo 1.24.3.
"""

import dataclasses
import itertools
import math
from dataclasses import InitVar, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.drawing import NUM_AGENT_COLORS, Circles, Drawing, Rectangles
from jaxrl.core.env import StackedEnvironment
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.frozen import freeze
from jaxrl.core.spaces import Box
from jaxrl.core.types import AgentId, Key
from jaxrl.envs import waterworld_physics
from jaxrl.envs.drawing import Colour
from jaxrl.envs.waterworld_physics import SIZE, TINY, Places
from jaxrl.envs.waterworld_picture import FOOD, OBSTACLE, POISON, PURSUERS, picture, ray_lengths
from jaxrl.envs.waterworld_settings import (
    FOOD_SIZE,
    POISON_SIZE,
    Params,
    check_numbers,
    check_places,
    freeze_points,
    single_precision,
)

# The bound of an observation: the speed of two bodies that meet along a diagonal.
MOST = 2**16  # bodies or sensors of a kind
BOUND = float(np.float32(math.sqrt(2)))


class State(struct.PyTreeNode):
    """N bodies, always in the order pursuers, evaders (the food), poisons."""

    position: jax.Array  # f32[2, N]    px
    velocity: jax.Array  # f32[2, N]    px/s
    # f32[2, N]    px/s, added to the velocity in the next step only: undoes an overlap
    correction: jax.Array
    # i32[N]    touches of food that count towards a catch; negative after catches by several
    counter: jax.Array
    touched: jax.Array  # bool[P, N]    pursuer and food, or poison, overlapped in the last step
    poisoned: jax.Array  # i32[P]    poisons that the pursuer began to touch in the last step
    obstacles: jax.Array  # f32[2, K]    px
    time: jax.Array  # i32[]    steps since the reset


@dataclass(frozen=True)
class Waterworld(StackedEnvironment):
    n_pursuers: int = 2
    n_evaders: int = 5
    n_poisons: int = 10
    n_obstacles: int = 1
    n_sensors: int = 30
    # None: random in each episode
    obstacle_coord: tuple[tuple[float, float], ...] | None = ((0.5, 0.5),)
    speed_features: bool = True
    render_mode: InitVar[None] = None  # of the reference; must be None, since `render` draws

    action_names = ("x", "y")

    def __post_init__(self, render_mode: None):
        if render_mode is not None:
            raise UsageError(f"waterworld: render_mode must be None, not {brief(render_mode)}")
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, freeze(getattr(self, field.name)))
        for name in ("n_pursuers", "n_evaders", "n_poisons", "n_obstacles", "n_sensors"):
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not is_whole or not 1 <= value <= MOST:
                raise UsageError(
                    f"waterworld: {name} must be an integer from 1 to {MOST}, not {brief(value)}"
                )
        if not isinstance(self.speed_features, bool):
            raise UsageError(
                "waterworld: speed_features must be True or False, "
                f"not {brief(self.speed_features)}"
            )
        points = freeze_points(self.obstacle_coord, self.n_obstacles)
        object.__setattr__(self, "obstacle_coord", points)

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return tuple(f"pursuer_{i}" for i in range(self.n_pursuers))

    @property
    def num_bodies(self) -> int:
        return self.n_pursuers + self.n_evaders + self.n_poisons

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def tuned(self) -> dict[str, Any]:
        """Settings for a summed return of some 430 after 2 million steps.

        The network matters most: it has the same weights for each sensor.
        """
        sensors = f"num_sensors={self.n_sensors}, speed_features={self.speed_features}"
        return {
            "num_envs": 16,
            "rollout_length": 500,
            "minibatch_size": 2000,
            "num_epochs": 4,
            "lr": [[0, 1e-3], [2_000_000, 0.0]],
            "gamma": 0.97,
            "lambda_": 0.95,
            "vf_clip_param": None,
            "vf_loss_coeff": 0.5,
            "entropy_coeff": [[0, 0.005], [2_000_000, 0.0]],
            "model": f"jaxrl.envs.networks.ray_network:RayNetwork({sensors})",
            "fcnet_hiddens": (64, 64),  # of networks that are chosen in place of that model
            "total_env_steps": 2_000_000,
        }

    def observation_space(self, agent: AgentId | None = None, params: Params | None = None) -> Box:
        return Box(-BOUND, BOUND, ((8 if self.speed_features else 5) * self.n_sensors + 2,))

    def action_space(self, agent: AgentId | None = None, params: Params | None = None) -> Box:
        return Box(-1.0, 1.0, (2,))

    def global_state_space(self, params: Params | None = None) -> Box:
        size = (5 + self.n_pursuers) * self.num_bodies + 2 * self.n_obstacles + 1
        return Box(-math.inf, math.inf, (size,))

    def global_state(self, state: State, params: Params) -> jax.Array:
        """Places and speeds of all bodies, what touches what, catches under way, and the time."""
        params = single_precision(params)
        top_speed = self.per_body(params.pursuer_speed, params.evader_speed, params.poison_speed)
        parts = (
            state.position / SIZE,
            state.velocity / jnp.maximum(top_speed * SIZE, TINY)[None],
            state.touched,
            state.counter,
            state.obstacles / SIZE,
            state.time / params.max_cycles,
        )
        return jnp.concatenate([jnp.asarray(part, jnp.float32).reshape(-1) for part in parts])

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return state.time >= params.max_cycles

    def check_params(self, params: Params) -> None:
        """Raises UsageError for invalid parameters."""
        check_numbers(params)
        check_places(params, self.obstacle_coord)
        if params.n_coop > self.n_pursuers:
            raise UsageError(
                f"waterworld: n_coop={params.n_coop} is more than n_pursuers={self.n_pursuers}; "
                "nothing could be caught"
            )

    def reset_stacked(self, key: Key, params: Params) -> tuple[jax.Array, State]:
        params = single_precision(params)
        state = self.start(key, params)
        return self.observe(state, params), state

    def start(self, key: Key, params: Params) -> State:
        """A random start: bodies anywhere in the pool, also on obstacles; the pursuers at rest."""
        num_bodies = self.num_bodies
        bits = waterworld_physics.draw_bits(key, num_bodies + self.n_obstacles)
        top_speed = self.per_body(0.0, params.evader_speed, params.poison_speed) * SIZE
        places = waterworld_physics.draw_places(bits[:, :num_bodies], top_speed)
        if self.obstacle_coord is None:
            obstacles = waterworld_physics.to_unit(bits[:2, num_bodies:]) * SIZE
        else:
            obstacles = jnp.asarray(np.float32(self.obstacle_coord).T * np.float32(SIZE))
        return State(
            position=places.position,
            velocity=places.velocity,
            correction=jnp.zeros((2, num_bodies), jnp.float32),
            counter=jnp.zeros(num_bodies, jnp.int32),
            touched=jnp.zeros((self.n_pursuers, num_bodies), bool),
            poisoned=jnp.zeros(self.n_pursuers, jnp.int32),
            obstacles=obstacles,
            time=jnp.zeros((), jnp.int32),
        )

    def step_stacked(self, key: Key, state: State, action: jax.Array, params: Params) -> tuple:
        params = single_precision(params)
        clear = (2 * self.radii(params) + params.obstacle_radius) * SIZE
        speeds = params.pursuer_speed, params.evader_speed, params.poison_speed
        top_speed = self.per_body(*speeds) * SIZE
        bits = waterworld_physics.draw_bits(key, self.num_bodies)
        respawns = waterworld_physics.draw_respawns(bits, state.obstacles, clear, top_speed)
        return self.step_with(state, action, respawns, params)

    def step_with(self, state: State, action: jax.Array, respawns: Places, params: Params) -> tuple:
        """`step_stacked` after the draw of `respawns` [2, N]: all rules, without randomness."""
        params = single_precision(params)
        radius, dt, num_pursuers = (
            self.radii(params) * SIZE,
            1.0 / jnp.float32(params.FPS),
            self.n_pursuers,
        )
        is_food, is_poison = self.kind == 1, self.kind == 2
        driven, drifting = jnp.split(state.velocity, (num_pursuers,), axis=1)
        limits = params.pursuer_max_accel, params.pursuer_speed * SIZE
        pushed, penalty = waterworld_physics.thrust(driven, action, *limits, params.thrust_penalty)
        velocity = jnp.concatenate([pushed, drifting], axis=1)
        reached = waterworld_physics.integrate(state.position, velocity, state.correction, dt)
        # Pursuers do not touch each other.
        reach = jnp.where(is_food | is_poison, radius + params.radius * SIZE, 0.0)
        touched = waterworld_physics.touching(reached[:, :num_pursuers], reached, reach)

        began, ended = touched & ~state.touched, state.touched & ~touched
        food = is_food[None]
        counter, caught, left = waterworld_physics.catch(
            state.counter, began & food, ended & food, params.n_coop
        )
        poisoned = began & is_poison[None]
        respawned = jnp.any(left | poisoned, axis=0)[None]
        position = jnp.where(respawned, respawns.position, reached)
        velocity = jnp.where(respawned, respawns.velocity, velocity)
        contacts = waterworld_physics.contacts(reached, radius, state.obstacles)
        velocity, correction = waterworld_physics.bounce(velocity, contacts, position - reached, dt)
        count = lambda flags: jnp.sum(flags, axis=1, dtype=jnp.int32)
        state = State(
            position=position,
            velocity=velocity,
            correction=correction,
            counter=counter,
            touched=touched,
            poisoned=count(poisoned),
            obstacles=state.obstacles,
            time=state.time + 1,
        )
        behaviour = (
            params.food_reward * jnp.any(caught | left, axis=1).astype(jnp.float32)
            + params.encounter_reward * count(touched & food).astype(jnp.float32)
            + params.poison_reward * state.poisoned.astype(jnp.float32)
        )
        metrics = {
            "food_caught": jnp.sum(caught, dtype=jnp.float32),
            "poison_touched": jnp.sum(state.poisoned.astype(jnp.float32)),
        }
        rewards = waterworld_physics.reward(behaviour, penalty, params.local_ratio)
        obs, terminated = self.observe(state, params), jnp.zeros(num_pursuers, bool)
        return obs, state, rewards, terminated, {"metrics": metrics}

    @property
    def kind(self) -> np.ndarray:
        """i64[N]: 0 for a pursuer, 1 for an evader (food), 2 for a poison."""
        return np.repeat(np.arange(3), (self.n_pursuers, self.n_evaders, self.n_poisons))

    def per_body(self, pursuer, evader, poison) -> jax.Array:
        """f32[N]: for each body the number of its kind."""
        numbers = jnp.where(self.kind == 0, pursuer, jnp.where(self.kind == 1, evader, poison))
        return numbers.astype(jnp.float32)

    def radii(self, params: Params) -> jax.Array:
        """f32[N]: in units of the pool's width."""
        return self.per_body(1.0, FOOD_SIZE, POISON_SIZE) * params.radius

    def observe(self, state: State, params: Params) -> jax.Array:
        """f32[P, observation]."""
        rays = waterworld_physics.directions(self.n_sensors)
        scale = 1.0 / jnp.maximum(params.sensor_range * SIZE, TINY)
        ends = (self.n_pursuers, self.n_pursuers + self.n_evaders)
        me, food, poison = jnp.split(state.position, ends, axis=1)
        my_velocity, food_velocity, poison_velocity = jnp.split(state.velocity, ends, axis=1)
        food_limits = FOOD_SIZE * params.radius, params.evader_speed
        poison_limits = POISON_SIZE * params.radius, params.poison_speed

        def sense(position, velocity, radius, top_speed):
            drift_scale = 1.0 / jnp.maximum((top_speed + params.pursuer_speed) * SIZE, TINY)
            drift = (velocity - my_velocity[:, :, None]) * drift_scale
            offset = (position - me[:, :, None]) * scale
            return waterworld_physics.sense(offset, drift, radius * SIZE * scale, rays)

        still = state.obstacles[:, None]
        obstacle, _ = sense(still, jnp.zeros_like(still), params.obstacle_radius, 0.0)
        readings = [
            (obstacle, waterworld_physics.sense_walls(me, params.sensor_range * SIZE, rays)),
            sense(food[:, None], food_velocity[:, None], *food_limits),
            sense(poison[:, None], poison_velocity[:, None], *poison_limits),
        ]
        if self.n_pursuers == 1:
            readings.append((jnp.zeros_like(obstacle), jnp.zeros_like(obstacle)))
        else:
            others = waterworld_physics.all_but_oneself(me)
            other_velocities = waterworld_physics.all_but_oneself(my_velocity)
            readings.append(sense(others, other_velocities, params.radius, params.pursuer_speed))
        touches_food = jnp.any(state.touched & (self.kind == 1)[None], axis=1)
        flags = jnp.stack([touches_food, state.poisoned > 0], axis=1).astype(jnp.float32)
        sensed = waterworld_physics.lay_out(readings, self.n_sensors, self.speed_features)
        return jnp.concatenate([sensed, flags], axis=1)

    @property
    def agent_colors(self) -> dict[AgentId, Colour]:
        """The colours of `render`, for the captions of a picture."""
        return dict(zip(self.agents, itertools.cycle(PURSUERS), strict=False))

    @property
    def legend(self) -> dict[str, Colour]:
        """The colours of everything else in a picture."""
        obstacle = {"obstacle": OBSTACLE} if self.n_obstacles else {}
        return {"food": FOOD, "poison": POISON, **obstacle}

    def render(self, state: State, params: Params) -> jax.Array:
        """u8[H, W, 3]: pursuers and their rays, food green, poison red, obstacles grey; y is up."""
        lengths = ray_lengths(self.observe(state, params), self.n_sensors)
        sensed = lengths * params.sensor_range * SIZE
        radii = self.radii(params) * SIZE
        of_kind = [self.kind == kind for kind in range(3)]
        discs = [(state.position[:, is_kind], radii[is_kind]) for is_kind in of_kind]
        obstacles = state.obstacles, jnp.full(self.n_obstacles, params.obstacle_radius * SIZE)
        return picture(sensed, obstacles, *discs)

    def draw(self, state: State, params: Params) -> Drawing:
        """The pool in px with everything in it; pale discs show how far pursuers sense."""
        radii, centers = self.radii(params) * SIZE, state.position.T
        colors = tuple(f"agent{i % NUM_AGENT_COLORS}" for i in range(self.n_pursuers))
        middle = np.full((1, 2), SIZE / 2, np.float32)
        bodies = lambda kind, color: Circles(
            center=centers[self.kind == kind], radius=radii[self.kind == kind], color=color
        )
        pursuers = bodies(0, colors)
        return Drawing(
            bounds=(0.0, 0.0, SIZE, SIZE),
            shapes=(
                Rectangles(center=middle, size=SIZE, color="water"),
                pursuers.replace(radius=params.sensor_range * SIZE, opacity=0.12),
                Circles(
                    center=state.obstacles.T, radius=params.obstacle_radius * SIZE, color="wall"
                ),
                bodies(2, "bad"),
                bodies(1, "good"),
                pursuers,
                pursuers.replace(color="ink", line_width=3.0),
            ),
        )
