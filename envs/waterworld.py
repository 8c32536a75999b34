"""Waterworld: pursuers swim after food, away from poison, around obstacles, and sense what is near along rays.

    action        f32[2] in [-1, 1], clipped: a push along x and y, at most the unit disc
    observation   f32[8 n + 2], n sensors each: distance of the nearest obstacle, of the wall, of food, its speed, of
                  poison, its speed, of another pursuer, its speed; then whether food, and whether
                  poison, is touched. f32[5 n + 2] without the speeds. Distances in units of the
                  range, 1 if nothing is sensed
    food          caught when n_coop pursuers touch it: pays at the catch, and again when the touch ends and it moves on
    poison        costs at each touch, and moves on at once
    reward        food_reward, encounter_reward for each food that is touched, poison_reward, thrust_penalty times
                  the push; local_ratio of it one's own, the rest everybody's mean
    end           by the clock alone, after `max_cycles` steps
    metrics       food_caught: catches, one for each pursuer that is paid; poison_touched

The rules, their quirks included, are those of PettingZoo's waterworld_v4 on pymunk 6.2.0; see
`waterworld_physics`. Of its engine three things are left out. What it makes of the order of
simultaneous touches of one food is arbitrary; here it is the agents' order. A contact's remembered
impulse, and the lever arm of a body that respawns while it touches something, change a body in
about 3 of 12,000 steps. A body that touches an obstacle and a wall, or two obstacles, at once is
answered by each alone: never so at the default place, in a tenth of the steps with two obstacles
beside walls.

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

from jaxrl.core.env import StackedEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import freeze
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

BOUND = float(
    np.float32(math.sqrt(2))
)  # of an observation: two velocities that meet along a diagonal


class State(struct.PyTreeNode):
    """N bodies, always in the order pursuers, evaders (the food), poisons."""

    position: jax.Array  # f32[2, N]    px
    velocity: jax.Array  # f32[2, N]    px/s
    correction: (
        jax.Array
    )  # f32[2, N]    px/s, added to the velocity in the next step alone: undoes an overlap
    counter: (
        jax.Array
    )  # i32[N]    food's touches that count towards a catch; below zero after catches by several
    touched: jax.Array  # bool[P, N]    pursuer and food, or poison, overlapped in the last step
    poisoned: jax.Array  # i32[P]    poisons whose touch began in the last step
    obstacles: jax.Array  # f32[2, K]    px
    time: jax.Array  # i32[]    steps since the reset


@dataclass(frozen=True)
class Waterworld(StackedEnvironment):
    n_pursuers: int = 2
    n_evaders: int = 5
    n_poisons: int = 10
    n_obstacles: int = 1
    n_sensors: int = 30
    obstacle_coord: tuple[tuple[float, float], ...] | None = (
        (0.5, 0.5),
    )  # None: random in each episode
    speed_features: bool = True
    render_mode: InitVar[None] = (
        None  # the reference's, of which None alone is taken: `render` draws
    )

    def __post_init__(self, render_mode: None):
        if render_mode is not None:
            raise UsageError(f"waterworld: render_mode must be None, not {render_mode!r}")
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, freeze(getattr(self, field.name)))
        for name in ("n_pursuers", "n_evaders", "n_poisons", "n_obstacles", "n_sensors"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(
                    f"waterworld: {name} must be an integer of at least 1, not {value!r}"
                )
        if not isinstance(self.speed_features, bool):
            raise UsageError(
                f"waterworld: speed_features must be True or False, not {self.speed_features!r}"
            )
        object.__setattr__(
            self, "obstacle_coord", freeze_points(self.obstacle_coord, self.n_obstacles)
        )

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
        """A summed return of 100 within some 600,000 steps, and the best it settles at."""
        return {
            "num_envs": 16,
            "rollout_length": 500,
            "minibatch_size": 2000,
            "num_epochs": 4,
            "lr": [[0, 5e-4], [4_000_000, 1e-4]],
            "lambda_": 0.95,
            "vf_clip_param": None,
            "vf_loss_coeff": 0.5,
            "entropy_coeff": 0.005,
            "fcnet_hiddens": (64, 64),
            "total_env_steps": 4_000_000,
        }

    def observation_space(self, agent: AgentId | None = None, params: Params | None = None) -> Box:
        return Box(-BOUND, BOUND, ((8 if self.speed_features else 5) * self.n_sensors + 2,))

    def action_space(self, agent: AgentId | None = None, params: Params | None = None) -> Box:
        return Box(-1.0, 1.0, (2,))

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return state.time >= params.max_cycles

    def check_params(self, params: Params) -> None:
        """Raises UsageError for numbers that make no game."""
        check_numbers(params)
        check_places(params, self.obstacle_coord)
        if params.n_coop > self.n_pursuers:
            raise UsageError(
                f"waterworld: n_coop={params.n_coop} is more than n_pursuers={self.n_pursuers}; nothing could be caught"
            )

    def reset_stacked(self, key: Key, params: Params) -> tuple[jax.Array, State]:
        params = single_precision(params)
        state = self.start(key, params)
        return self.observe(state, params), state

    def start(self, key: Key, params: Params) -> State:
        """Everything anywhere in the pool, walls and obstacles included; the pursuers at rest."""
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
        top_speed = (
            self.per_body(params.pursuer_speed, params.evader_speed, params.poison_speed) * SIZE
        )
        bits = waterworld_physics.draw_bits(key, self.num_bodies)
        respawns = waterworld_physics.draw_respawns(bits, state.obstacles, clear, top_speed)
        return self.step_with(state, action, respawns, params)

    def step_with(self, state: State, action: jax.Array, respawns: Places, params: Params) -> tuple:
        """`step_stacked` after the draw: all of the rules, and nothing random. `respawns` [2, N] count where used."""
        params = single_precision(params)
        radius, dt, num_pursuers = self.radii(params) * SIZE, 1.0 / params.FPS, self.n_pursuers
        is_food, is_poison = self.kind == 1, self.kind == 2
        mine, drifting = jnp.split(state.velocity, (num_pursuers,), axis=1)
        limits = params.pursuer_max_accel, params.pursuer_speed * SIZE
        pushed, penalty = waterworld_physics.thrust(mine, action, *limits, params.thrust_penalty)
        velocity = jnp.concatenate([pushed, drifting], axis=1)
        reached = waterworld_physics.integrate(state.position, velocity, state.correction, dt)
        reach = jnp.where(
            is_food | is_poison, radius + params.radius * SIZE, 0.0
        )  # pursuers touch none of their own
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
            params.food_reward * jnp.any(caught | left, axis=1)
            + params.encounter_reward * count(touched & food)
            + params.poison_reward * state.poisoned
        )
        metrics = {
            "food_caught": jnp.sum(caught, dtype=jnp.float32),
            "poison_touched": jnp.sum(state.poisoned * 1.0),
        }
        rewards = waterworld_physics.reward(behaviour, penalty, params.local_ratio)
        return (
            self.observe(state, params),
            state,
            rewards,
            jnp.zeros(num_pursuers, bool),
            {"metrics": metrics},
        )

    @property
    def kind(self) -> np.ndarray:
        """i64[N]: 0 for a pursuer, 1 for an evader, 2 for a poison."""
        return np.repeat(np.arange(3), (self.n_pursuers, self.n_evaders, self.n_poisons))

    def per_body(self, pursuer, evader, poison) -> jax.Array:
        """f32[N]: one of three numbers for each body."""
        numbers = jnp.where(self.kind == 0, pursuer, jnp.where(self.kind == 1, evader, poison))
        return numbers.astype(jnp.float32)

    def radii(self, params: Params) -> jax.Array:
        """f32[N]: in units of the pool's width."""
        return self.per_body(1.0, FOOD_SIZE, POISON_SIZE) * params.radius

    def observe(self, state: State, params: Params) -> jax.Array:
        """f32[P, observation]."""
        rays = waterworld_physics.directions(self.n_sensors)
        scale = 1.0 / jnp.maximum(params.sensor_range * SIZE, TINY)
        (me, food, poison), (my_velocity, *velocities) = (
            jnp.split(vectors, (self.n_pursuers, self.n_pursuers + self.n_evaders), axis=1)
            for vectors in (state.position, state.velocity)
        )

        def sense(position, velocity, radius, top_speed):
            drift_scale = 1.0 / jnp.maximum((top_speed + params.pursuer_speed) * SIZE, TINY)
            drift = (velocity - my_velocity[:, :, None]) * drift_scale
            return waterworld_physics.sense(
                (position - me[:, :, None]) * scale, drift, radius * SIZE * scale, rays
            )

        still = state.obstacles[:, None]
        obstacle, _ = sense(still, jnp.zeros_like(still), params.obstacle_radius, 0.0)
        readings = [
            (obstacle, waterworld_physics.sense_walls(me, params.sensor_range * SIZE, rays)),
            sense(
                food[:, None],
                velocities[0][:, None],
                FOOD_SIZE * params.radius,
                params.evader_speed,
            ),
            sense(
                poison[:, None],
                velocities[1][:, None],
                POISON_SIZE * params.radius,
                params.poison_speed,
            ),
        ]
        if self.n_pursuers == 1:
            readings.append((jnp.zeros_like(obstacle), jnp.zeros_like(obstacle)))
        else:
            others = (
                waterworld_physics.all_but_oneself(me),
                waterworld_physics.all_but_oneself(my_velocity),
            )
            readings.append(sense(*others, params.radius, params.pursuer_speed))
        flags = jnp.stack(
            [jnp.any(state.touched & (self.kind == 1)[None], axis=1), state.poisoned > 0], axis=1
        )
        return jnp.concatenate(
            [
                waterworld_physics.lay_out(readings, self.n_sensors, self.speed_features),
                flags.astype(jnp.float32),
            ],
            axis=1,
        )

    @property
    def agent_colors(self) -> dict[AgentId, Colour]:
        """As `render` paints them, for the captions of an episode's picture."""
        return dict(zip(self.agents, itertools.cycle(PURSUERS), strict=False))

    @property
    def legend(self) -> dict[str, Colour]:
        """What else a picture shows."""
        return {
            "food": FOOD,
            "poison": POISON,
            **({"obstacle": OBSTACLE} if self.n_obstacles else {}),
        }

    def render(self, state: State, params: Params) -> jax.Array:
        """u8[H, W, 3]: pursuers with their rays, food green, poison red, obstacles grey; y points up."""
        sensed = (
            ray_lengths(self.observe(state, params), self.n_sensors) * params.sensor_range * SIZE
        )
        radii = self.radii(params) * SIZE
        discs = [
            (state.position[:, self.kind == kind], radii[self.kind == kind]) for kind in range(3)
        ]
        obstacles = state.obstacles, jnp.full(self.n_obstacles, params.obstacle_radius * SIZE)
        return picture(sensed, obstacles, *discs)
