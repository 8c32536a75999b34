"""CartPole-v1: keep a pole upright on a cart pushed left or right (Barto et al. 1983).

    action        0 pushes the cart to the left, 1 to the right
    observation   cart position, m; its velocity, m/s; pole angle from upright, rad; its velocity,
                  rad/s
    reward        1.0 on every step, including the one in which the pole falls
    end           terminated beyond `x_threshold` or `theta_threshold`; truncated after
                  `max_steps_in_episode` steps

The physics, its parameters and its Euler integration are those of Gymnasium's CartPole-v1.

Version 1.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.drawing import Circles, Drawing, Lines, Rectangles
from jaxrl.core.env import Environment
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Key
from jaxrl.envs.drawing import canvas, coverage, finish, from_segment, grid, paint

UNBOUNDED = float(np.finfo(np.float32).max)

PICTURE_HEIGHT, PICTURE_WIDTH = 200, 300  # pixels
TRACK_LEVEL = 150  # pixels from the top
MARGIN = 1.25  # the picture shows this many times the track between the thresholds
# Colours: red, green, blue.
SKY, GROUND = (250, 250, 247), (232, 231, 224)
TRACK, LIMIT = (120, 124, 128), (205, 92, 80)
CART, POLE, AXLE = (44, 62, 92), (224, 146, 46), (250, 250, 247)


class State(struct.PyTreeNode):
    # One array for the motion: it is the observation, and a scan carries one array faster than
    # four.
    motion: jax.Array  # f32[4]    x, m; x_dot, m/s; theta, rad from upright; theta_dot, rad/s
    time: jax.Array  # i32[]    steps since the reset


class Params(struct.PyTreeNode):
    """Parameters of the physics and the task; every leaf may be traced and vmapped."""

    gravity: float = 9.8  # m/s^2
    cart_mass: float = 1.0  # kg
    pole_mass: float = 0.1  # kg
    pole_half_length: float = 0.5  # m
    force: float = 10.0  # N, of a push
    time_step: float = 0.02  # s
    x_threshold: float = 2.4  # m, beyond it the episode terminates
    theta_threshold: float = math.radians(12)  # rad, beyond it the episode terminates
    start_range: float = 0.05  # every entry of the initial motion is uniform in +-start_range
    max_steps_in_episode: int = 500  # the time limit: truncates, never terminates


@dataclass(frozen=True)
class CartPole(Environment):
    # As in Gymnasium: the reward is -1 in the step in which the pole falls, and 0 in all others.
    sutton_barto_reward: bool = False

    action_names = ("left", "right")

    def __post_init__(self):
        if not isinstance(self.sutton_barto_reward, bool):
            raise UsageError(
                "cartpole: sutton_barto_reward must be True or False, "
                f"not {brief(self.sutton_barto_reward)}"
            )

    @property
    def default_params(self) -> Params:
        return Params()

    def check_params(self, params: Params) -> None:
        """Raises UsageError for numbers with which there is no pole to balance."""
        above = ("cart_mass", "pole_half_length", "time_step", "x_threshold", "theta_threshold")
        for names, least, allowed in (
            (above, 1e-30, "above 0"),
            (("pole_mass", "start_range"), 0.0, "at least 0"),
            (("max_steps_in_episode",), 1, "at least 1"),
        ):
            for name in names:
                value = getattr(params, name)
                if not value >= least:
                    raise UsageError(f"cartpole: {name} must be {allowed}, not {brief(value)}")

    @property
    def tuned(self) -> dict[str, Any]:
        """Settings for a return of 475 within 100,000 steps that stays there (5 seeds)."""
        return {
            "num_envs": 16,
            "rollout_length": 128,
            "minibatch_size": 256,
            "num_epochs": 4,
            "lr": [[0, 3e-3], [500_000, 1e-4]],
            "lambda_": 0.98,
            "vf_loss_coeff": 0.5,
            "value_clip": None,
            "grad_clip": 0.5,
            "fcnet_hiddens": (64, 64),
            "total_env_steps": 500_000,
        }

    def observation_space(self, params: Params | None = None) -> Box:
        """Twice the thresholds, to include the last observation; velocities are unbounded."""
        params = self.default_params if params is None else params
        x, theta = _number(2 * params.x_threshold), _number(2 * params.theta_threshold)
        high = (x, UNBOUNDED, theta, UNBOUNDED)
        return Box(tuple(-bound for bound in high), high)

    def action_space(self, params: Params | None = None) -> Discrete:
        return Discrete(2)

    def reset_env(self, key: Key, params: Params) -> tuple[jax.Array, State]:
        motion = params.start_range * jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        return motion, State(motion=motion, time=jnp.zeros((), jnp.int32))

    def step_env(self, key: Key, state: State, action: jax.Array, params: Params) -> tuple:
        force = jnp.where(action == 1, params.force, -params.force)
        motion = integrate(state.motion, force, params)
        state = State(motion=motion, time=state.time + 1)
        fallen = has_fallen(motion, params)
        reward = -fallen.astype(jnp.float32) if self.sutton_barto_reward else jnp.ones(())
        return motion, state, reward, fallen, {}

    def render(self, state: State, params: Params) -> jax.Array:
        """u8[200, 300, 3]: the cart on its track, the pole, red posts at the thresholds of x."""
        metre = PICTURE_WIDTH / (2 * MARGIN * params.x_threshold)  # pixels
        position, _, theta, _ = state.motion
        cart_x, middle = PICTURE_WIDTH / 2 + position * metre, PICTURE_WIDTH / 2
        axle = (cart_x, TRACK_LEVEL - 28.0)
        length = 2 * params.pole_half_length * metre
        tip = (axle[0] + length * jnp.sin(theta), axle[1] - length * jnp.cos(theta))
        posts = [middle - params.x_threshold * metre, middle + params.x_threshold * metre]

        picture = canvas(PICTURE_HEIGHT, PICTURE_WIDTH, SKY)
        y, x = grid(PICTURE_HEIGHT, PICTURE_WIDTH)
        for start, end, radius, colour in (
            ((0.0, TRACK_LEVEL + 100.0), (PICTURE_WIDTH, TRACK_LEVEL + 100.0), 100.0, GROUND),
            ((0.0, TRACK_LEVEL), (PICTURE_WIDTH, TRACK_LEVEL), 1.0, TRACK),
            *(((post, TRACK_LEVEL - 8.0), (post, TRACK_LEVEL + 8.0), 1.5, LIMIT) for post in posts),
            ((cart_x - 14, TRACK_LEVEL - 5.0), (cart_x - 14, TRACK_LEVEL - 5.0), 5.0, TRACK),
            ((cart_x + 14, TRACK_LEVEL - 5.0), (cart_x + 14, TRACK_LEVEL - 5.0), 5.0, TRACK),
            ((cart_x - 18, TRACK_LEVEL - 18.0), (cart_x + 18, TRACK_LEVEL - 18.0), 9.0, CART),
            (axle, tip, 4.0, POLE),
            (axle, axle, 2.0, AXLE),
        ):
            picture = paint(picture, colour, coverage(from_segment(y, x, start, end, radius)))
        return finish(picture)

    def draw(self, state: State, params: Params) -> Drawing:
        """The cart on its track in metres, the pole, red posts at the thresholds of x."""
        x, _, theta, _ = state.motion
        length, limit = 2 * params.pole_half_length, params.x_threshold
        axle, edge = 0.46, MARGIN * limit
        tip = x + length * jnp.sin(theta), axle + length * jnp.cos(theta)
        return Drawing(
            bounds=(-edge, -0.5, edge, axle + length + 0.3),
            shapes=(
                Rectangles(center=[(0.0, -0.5)], size=[(4 * edge, 1.0)], color="ground"),
                Lines(start=[(-2 * edge, 0.0)], end=[(2 * edge, 0.0)], color="line"),
                Lines(
                    start=[(-limit, -0.16), (limit, -0.16)],
                    end=[(-limit, 0.16), (limit, 0.16)],
                    width=0.05,
                    color="bad",
                ),
                Circles(center=[(x - 0.22, 0.1), (x + 0.22, 0.1)], radius=0.1, color="muted"),
                Rectangles(center=[(x, 0.3)], size=(0.74, 0.32), corner=0.06, color="agent0"),
                Lines(start=[(x, axle)], end=[tip], width=0.11, color="agent1"),
                Circles(center=[(x, axle)], radius=0.04, color="ink"),
            ),
        )


def integrate(motion: jax.Array, force: jax.Array, params: Params) -> jax.Array:
    """The motion f32[4] after an explicit Euler step: positions move by the old velocities."""
    _, x_dot, _, theta_dot = motion
    x_acceleration, theta_acceleration = accelerations(motion, force, params)
    rates = jnp.stack([x_dot, x_acceleration, theta_dot, theta_acceleration])
    return motion + params.time_step * rates


def accelerations(
    motion: jax.Array, force: jax.Array, params: Params
) -> tuple[jax.Array, jax.Array]:
    """Accelerations of the cart, m/s^2, and of the pole's angle, rad/s^2, under `force` in N.

        push    = (F + m l theta_dot^2 sin theta) / M
        theta'' = (g sin theta - cos theta push) / (l (4/3 - m cos^2 theta / M))
        x''     = push - m l theta'' cos theta / M

    with m the mass of the pole, M that of pole and cart, l half the pole's length (Florian 2007,
    eqs. 23 and 24).
    """
    _, _, theta, theta_dot = motion
    # Without the barrier XLA on the CPU computes these again for each of the two results.
    sin, cos = jax.lax.optimization_barrier(jnp.stack([jnp.sin(theta), jnp.cos(theta)]))
    total_mass = params.cart_mass + params.pole_mass
    moment = params.pole_mass * params.pole_half_length
    push = (force + moment * theta_dot**2 * sin) / total_mass
    inertia = params.pole_half_length * (4 / 3 - params.pole_mass * cos**2 / total_mass)
    theta_acceleration = (params.gravity * sin - cos * push) / inertia
    return push - moment * theta_acceleration * cos / total_mass, theta_acceleration


def has_fallen(motion: jax.Array, params: Params) -> jax.Array:
    """bool[]: the cart or the pole is beyond its threshold."""
    x, _, theta, _ = motion
    return (jnp.abs(x) > params.x_threshold) | (jnp.abs(theta) > params.theta_threshold)


def _number(bound) -> float:
    """A bound as a float; UNBOUNDED for traced or stacked params, which have no single value."""
    return UNBOUNDED if isinstance(bound, jax.core.Tracer) or np.ndim(bound) else float(bound)
