"""The rules of waterworld, one function each: thrust, motion, contacts, events, respawns, sensors, rewards.

Lengths are pixels, the pool is SIZE of them wide; times are seconds. Vectors lie component first,
[2, ...], so that the innermost loop of a compiled program runs over bodies or sensors. Numbers and
quirks are those of PettingZoo 1.24.3 with pymunk 6.2.0.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Key

SIZE = 750.0  # px
WALL_DEPTH = 100.0  # px from a wall's face to its middle line; what gets beyond that is pushed out of the pool
SOLID_RADIUS = (
    75.0  # px of an obstacle for collisions, whatever the radius that sensors and respawns know
)
WALL_ELASTICITY, OBSTACLE_ELASTICITY = 0.999, 1.0
SLOP = 0.1  # px of overlap that are left alone
LEFT_PER_SECOND = (
    0.0017970074436457143  # of a deeper overlap left after a second: 0.9 in f32, to the 60th
)
REDRAWS = 64  # per respawn and obstacle at most; at the defaults food is rejected in 8 % of draws
LANES = 8  # sensors are computed in multiples of this, which a CPU takes in whole vectors
TINY = 1e-30


class Contact(NamedTuple):
    """N bodies and one obstacle, or the two walls that face each other along either axis.

    `gap` f32[1, N] and `normal` f32[2, N] of an obstacle; of walls each axis stands for itself,
    `gap` f32[2, N].
    """

    gap: jax.Array  # px between the two, negative where they overlap
    normal: jax.Array  # the direction from the body into the obstacle or the wall
    elasticity: float

    def along(self, vectors: jax.Array) -> jax.Array:
        """How far f32[2, N] point into it; shaped as `gap`."""
        parts = vectors * self.normal
        return parts if self.gap.shape[0] == 2 else (parts[0] + parts[1])[None]


class Places(NamedTuple):
    """Where bodies go if they respawn."""

    position: jax.Array  # f32[2, N] px
    velocity: jax.Array  # f32[2, N] px/s


def thrust(velocity: jax.Array, action: jax.Array, max_accel, max_speed, thrust_penalty) -> tuple:
    """(velocity f32[2, P] after the push, penalty f32[P]); action f32[P, 2] in [-1, 1], max_speed in px/s.

    The push is a jump of the velocity: action * max_accel * SIZE px/s, no longer than max_accel *
    SIZE. The velocity is clipped in each component. The penalty is in proportion to the length of
    the push.
    """
    push = jnp.clip(action.T, -1.0, 1.0) * max_accel
    length = jnp.sqrt(push[0] ** 2 + push[1] ** 2)
    shrink = jnp.where(length > max_accel, max_accel / jnp.maximum(length, TINY), 1.0)
    velocity = jnp.clip(velocity + push * shrink[None] * SIZE, -max_speed, max_speed)
    return velocity, thrust_penalty * jnp.minimum(length, max_accel)


def integrate(position: jax.Array, velocity: jax.Array, correction: jax.Array, dt) -> jax.Array:
    """f32[2, N]: the positions after dt seconds; the correction acts in this alone and is used up."""
    return position + (velocity + correction) * dt


def contacts(position: jax.Array, radius: jax.Array, obstacles: jax.Array) -> list[Contact]:
    """Contacts of f32[2, N] with the walls at 0, with those at SIZE, then with each of the obstacles f32[2, K]."""
    found = []
    for middle in (-WALL_DEPTH, SIZE + WALL_DEPTH):
        away = middle - position
        normal = jnp.where(away < 0, -1.0, 1.0)
        found.append(Contact(jnp.abs(away) - WALL_DEPTH - radius[None], normal, WALL_ELASTICITY))
    for obstacle in obstacles.T:
        away = obstacle[:, None] - position
        distance = jnp.sqrt(away[0] ** 2 + away[1] ** 2)
        # A body upon the centre is pushed along x.
        normal = jnp.where(
            distance[None] > 0, away / jnp.maximum(distance, TINY)[None], np.float32([[1], [0]])
        )
        found.append(Contact((distance - radius - SOLID_RADIUS)[None], normal, OBSTACLE_ELASTICITY))
    return found


def bounce(
    velocity: jax.Array, touched: list[Contact], shift: jax.Array, dt
) -> tuple[jax.Array, jax.Array]:
    """(velocity, correction), f32[2, N] each, of bodies that push off what they overlap.

    Each contact answers on its own; that is exact for one at a time and for two walls. `shift`
    f32[2, N] is how far a body was moved by a respawn after its contacts were found: the old
    normals answer its new velocity.
    """
    change = correction = jnp.zeros_like(velocity)
    for contact in touched:
        is_touched = contact.gap < 0
        speed = (1 + contact.elasticity) * jnp.maximum(contact.along(velocity), 0.0)
        depth = jnp.maximum(contact.along(shift) - contact.gap - SLOP, 0.0)
        change = change + jnp.where(is_touched, speed, 0.0) * contact.normal
        correction = correction + jnp.where(is_touched, depth, 0.0) * contact.normal
    share = -jnp.expm1(dt * math.log(LEFT_PER_SECOND))
    return velocity - change, correction * -(share / dt)


def touching(pursuers: jax.Array, position: jax.Array, reach: jax.Array) -> jax.Array:
    """bool[P, N]: which of f32[2, P] and f32[2, N] are nearer than `reach` f32[N]."""
    x, y = position[:, None, :] - pursuers[:, :, None]
    # The root is not for the comparison: XLA computes a root once, but squares again in every
    # result that reads them.
    return jnp.sqrt(x**2 + y**2) < reach[None]


def catch(counter: jax.Array, began: jax.Array, ended: jax.Array, n_coop) -> tuple[jax.Array, ...]:
    """What touches that began and ended in this step, bool[P, F] each, do to the foods' counters i32[F].

    All begins come first, pursuer by pursuer, then all ends. A begin counts up, and pays if the
    counter reaches n_coop. An end counts down; if the counter had reached n_coop it pays instead,
    the counter is 0 and the food respawns. The pursuers that leave after that one still count down,
    below zero.

    Returns:
        (counter i32[F], caught bool[P, F] a begin that pays, left bool[P, F] an end that pays).
    """
    caught, left = [], []
    for begins in began:
        counter = counter + begins
        caught.append(begins & (counter >= n_coop))
    for ends in ended:
        pays = ends & (counter >= n_coop)
        counter = jnp.where(pays, 0, counter - ends)
        left.append(pays)
    return counter, jnp.stack(caught), jnp.stack(left)


def draw_bits(key: Key, number: int) -> jax.Array:
    """u32[3, number]: two words of the key's, spread by the hash pcg3d (Jarzynski & Olano 2020, listing 16).

    Threefry alone would cost more than all of the physics, for draws of which hardly any is used.
    """
    words = jax.random.bits(key, (2,))
    index = jax.lax.broadcasted_iota(jnp.uint32, (number,), 0)
    x, y, z = (
        jnp.broadcast_to(word, (number,)) * np.uint32(1664525) + np.uint32(1013904223)
        for word in (*words, index)
    )
    for shift in (True, False):
        x = x + y * z
        y = y + z * x
        z = z + x * y
        if shift:
            x, y, z = (word ^ word >> 16 for word in (x, y, z))
    return jnp.stack([x, y, z])


def draw_places(bits: jax.Array, max_speed: jax.Array) -> Places:
    """Uniform places in the pool and velocities within max_speed f32[N] in each component, from u32[3, N] bits."""
    position = to_unit(bits[:2]) * SIZE
    halves = (bits[2][None] >> np.uint32([[0], [16]])) & np.uint32(0xFFFF)
    return Places(position, (halves.astype(jnp.int32) * 2 - 0xFFFF) * (max_speed / 0xFFFF)[None])


def draw_respawns(
    bits: jax.Array, obstacles: jax.Array, clear: jax.Array, max_speed: jax.Array
) -> Places:
    """As `draw_places`, but farther than `clear` f32[N] px from the centres of obstacles f32[2, K].

    For one obstacle after the other a place is drawn again while it is too near; the earlier ones
    are not looked at again. A new draw takes the old one's bits through a linear congruence, of
    which the upper bits are used. After REDRAWS the last draw stands.
    """

    def too_near(draw, obstacle):
        (x, y), _ = draw
        return (x - obstacle[0]) ** 2 + (y - obstacle[1]) ** 2 <= clear**2

    def redraw(draw, obstacle):
        (x, y), (bits_x, bits_y) = draw
        rejected = too_near(draw, obstacle)
        bits_x = bits_x * np.uint32(1664525) + np.uint32(1013904223)
        bits_y = bits_y * np.uint32(747796405) + np.uint32(2891336453)
        x = jnp.where(rejected, to_unit(bits_x) * SIZE, x)
        y = jnp.where(rejected, to_unit(bits_y) * SIZE, y)
        return (x, y), (bits_x, bits_y)

    # Loops rather than their unrolled steps: XLA on the CPU would compute those again in everything
    # that reads a place.
    def keep_clear(draw, obstacle):
        wanted = lambda state: (state[0] < REDRAWS) & jnp.any(too_near(state[1], obstacle))
        _, draw = jax.lax.while_loop(
            wanted, lambda state: (state[0] + 1, redraw(state[1], obstacle)), (0, draw)
        )
        return draw, None

    position, velocity = draw_places(bits, max_speed)
    ((x, y), _), _ = jax.lax.scan(keep_clear, (tuple(position), tuple(bits[:2])), obstacles.T)
    return Places(jnp.stack([x, y]), velocity)


def to_unit(bits: jax.Array) -> jax.Array:
    """f32 in [0, 1) from the upper 24 of u32 bits."""
    return (bits >> 8).astype(jnp.int32).astype(jnp.float32) * np.float32(2**-24)


def directions(num_sensors: int) -> np.ndarray:
    """f32[2, L]: where the sensors point, counter-clockwise from +x; L >= num_sensors is a whole number of LANES."""
    angle = np.arange(-(-num_sensors // LANES) * LANES) * (2 * np.pi / num_sensors)
    return np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)


def sense(
    offset: jax.Array, drift: jax.Array, radius, rays: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """The nearest of n discs along each ray: (distance, speed away from the sensor), f32[P, L] each; 1 and 0 if none.

        t = ray . offset;  sensed if 0 <= t <= 1 + radius and |offset|^2 - t^2 <= radius^2;  distance = min(t, 1)

    The distance is that of the disc's centre along the ray. A disc at 1 < t is as far as none at
    all, so that its speed is told only if it comes first in the order of discs.

    Args:
        offset: f32[2, P, n], from a pursuer to a disc, in units of the sensors' range, as is
        `radius`.
        drift: f32[2, P, n], their relative velocity, in units of the largest.
        rays: f32[2, L], from `directions`.
    """
    ray_x, ray_y = rays[0][None], rays[1][None]
    nearest = jnp.sqrt(
        jnp.maximum(offset[0] ** 2 + offset[1] ** 2 - radius**2, 0.0)
    )  # the least t that is sensed
    distance = speed = None
    for disc in range(offset.shape[2]):
        x, y, towards_x, towards_y, least = (
            part[:, disc, None] for part in (offset[0], offset[1], drift[0], drift[1], nearest)
        )
        t = x * ray_x + y * ray_y
        away = towards_x * ray_x + towards_y * ray_y
        if distance is None:
            sensed = (t >= least) & (t <= 1 + radius)
            distance, speed = (
                jnp.where(sensed, jnp.minimum(t, 1.0), 1.0),
                jnp.where(sensed, away, 0.0),
            )
        else:
            sensed = (t >= least) & (t < distance)
            distance, speed = jnp.where(sensed, t, distance), jnp.where(sensed, away, speed)
    return distance, speed


def sense_walls(position: jax.Array, sensor_range, rays: np.ndarray) -> jax.Array:
    """f32[P, L]: the share of each ray that lies within the pool; negative for a pursuer beyond a wall."""
    share = jnp.ones((1, 1))
    for axis in (0, 1):
        start, ray = position[axis][:, None], rays[axis][None] * sensor_range
        slanted = jnp.abs(ray) > 1e-8
        end = jnp.clip(start + ray, 0.0, SIZE)
        share = jnp.minimum(
            share, jnp.where(slanted, (end - start) / jnp.where(slanted, ray, 1.0), 1.0)
        )
    return jnp.where(share >= 1 - 1e-4, 1.0, share)


def all_but_oneself(vectors: jax.Array) -> jax.Array:
    """f32[2, P, P - 1]: for each pursuer those of the others, in order; of f32[2, P]."""
    number = vectors.shape[1]
    is_before = np.arange(number - 1)[None] < np.arange(number)[:, None]
    return jnp.where(is_before[None], vectors[:, None, :-1], vectors[:, None, 1:])


def lay_out(
    readings: list[tuple[jax.Array, jax.Array]], num_sensors: int, speed_features: bool
) -> jax.Array:
    """Four pairs of readings f32[P, L] as f32[P, 8 num_sensors], or as f32[P, 5 num_sensors] without the speeds."""
    # As one complex number a pair is computed in one pass; as two arrays XLA on the CPU would
    # compute it twice.
    readings = jax.tree.map(
        lambda part: part.astype(jnp.float32), readings
    )  # of one type under x64, too
    packed = jnp.concatenate([jax.lax.complex(first, second) for first, second in readings], axis=1)
    packed = jax.lax.optimization_barrier(packed)
    packed = packed.reshape(packed.shape[0], len(readings), 1, -1)[..., :num_sensors]
    blocks = jnp.concatenate([jnp.real(packed), jnp.imag(packed)], axis=2).reshape(
        packed.shape[0], -1
    )
    blocks = jax.lax.optimization_barrier(blocks)
    if speed_features:
        return blocks
    kept = [blocks[:, start * num_sensors : (start + 1) * num_sensors] for start in (0, 1, 2, 4, 6)]
    return jnp.concatenate(kept, axis=1)


def reward(behaviour: jax.Array, penalty: jax.Array, local_ratio) -> jax.Array:
    """f32[P]: each pursuer's own part and everybody's mean, mixed by local_ratio; the last one's penalty counts twice.

    Args:
        behaviour: f32[P], of food and poison.
        penalty: f32[P], of thrust.
    """
    num_pursuers = penalty.shape[0]
    mix = lambda own: local_ratio * own + (1 - local_ratio) * jnp.sum(own) / num_pursuers
    # The reference adds the shares of the last pursuer's penalty to the behaviour before it mixes
    # that.
    is_last = jnp.arange(num_pursuers) == num_pursuers - 1
    return mix(penalty) + mix(behaviour + mix(jnp.where(is_last, penalty, 0.0)))
