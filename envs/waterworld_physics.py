"""Physics and rules of waterworld, each a function: thrust, contacts, catches, sensors, rewards.

Lengths are in pixels, of which the pool is SIZE wide; times are in seconds. The components of
vectors are the first axis, [2, ...], so that the innermost loop of a compiled program runs over
bodies or sensors. Numbers and quirks are those of PettingZoo 1.24.3 with pymunk 6.2.0.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Key

SIZE = 750.0  # px
# px from a wall's face to its middle line; bodies beyond the line are pushed out of the pool
WALL_DEPTH = 100.0
SOLID_RADIUS = 75.0  # px of an obstacle for collisions, independent of `obstacle_radius`
WALL_ELASTICITY, OBSTACLE_ELASTICITY = 0.999, 1.0
SLOP = 0.1  # px of overlap that are not corrected
# The share of a deeper overlap that remains after a second: 0.9 in f32, to the power of 60.
LEFT_PER_SECOND = 0.0017970074436457143
# At most, per respawn and obstacle; with the default parameters 8 % of draws of food are rejected.
REDRAWS = 64
LANES = 8  # sensors are computed in multiples of this, so that a CPU uses whole vectors
TINY = 1e-30


class Contact(NamedTuple):
    """Contacts of N bodies with an obstacle, or with one wall along each axis.

    `normal` is f32[2, N]. `gap` is f32[1, N] for an obstacle; for walls the axes are independent,
    and `gap` is f32[2, N].
    """

    gap: jax.Array  # px between body and obstacle or wall, negative where they overlap
    normal: jax.Array  # the direction from the body into the obstacle or the wall
    elasticity: float

    def along(self, vectors: jax.Array) -> jax.Array:
        """The component of f32[2, N] towards the obstacle or wall; of the shape of `gap`."""
        parts = vectors * self.normal
        return parts if self.gap.shape[0] == 2 else (parts[0] + parts[1])[None]


class Places(NamedTuple):
    """Places of bodies that respawn."""

    position: jax.Array  # f32[2, N] px
    velocity: jax.Array  # f32[2, N] px/s


def thrust(velocity: jax.Array, action: jax.Array, max_accel, max_speed, thrust_penalty) -> tuple:
    """(velocity f32[2, P] after the push, penalty f32[P]).

    The push is a jump of the velocity: action * max_accel * SIZE px/s, no longer than max_accel *
    SIZE. The velocity is clipped in each component. The penalty is proportional to the length of
    the push.

    Args:
        action: f32[P, 2] in [-1, 1].
        max_speed: px/s.
    """
    push = jnp.clip(action.T, -1.0, 1.0) * max_accel
    length = jnp.sqrt(push[0] ** 2 + push[1] ** 2)
    shrink = jnp.where(length > max_accel, max_accel / jnp.maximum(length, TINY), 1.0)
    velocity = jnp.clip(velocity + push * shrink[None] * SIZE, -max_speed, max_speed)
    return velocity, thrust_penalty * jnp.minimum(length, max_accel)


def integrate(position: jax.Array, velocity: jax.Array, correction: jax.Array, dt) -> jax.Array:
    """f32[2, N]: the positions after dt seconds; `correction` acts in this step only."""
    return position + (velocity + correction) * dt


def contacts(position: jax.Array, radius: jax.Array, obstacles: jax.Array) -> list[Contact]:
    """Contacts of f32[2, N] with the walls at 0, those at SIZE, then each obstacle of f32[2, K]."""
    found = []
    for middle in (-WALL_DEPTH, SIZE + WALL_DEPTH):
        away = middle - position
        normal = jnp.where(away < 0, -1.0, 1.0)
        found.append(Contact(jnp.abs(away) - WALL_DEPTH - radius[None], normal, WALL_ELASTICITY))
    for obstacle in obstacles.T:
        away = obstacle[:, None] - position
        distance = jnp.sqrt(away[0] ** 2 + away[1] ** 2)
        # A body at the centre is pushed along x.
        towards = away / jnp.maximum(distance, TINY)[None]
        normal = jnp.where(distance[None] > 0, towards, np.float32([[1], [0]]))
        found.append(Contact((distance - radius - SOLID_RADIUS)[None], normal, OBSTACLE_ELASTICITY))
    return found


def bounce(
    velocity: jax.Array, touched: list[Contact], shift: jax.Array, dt
) -> tuple[jax.Array, jax.Array]:
    """(velocity, correction), f32[2, N] each, of bodies that bounce off what they overlap.

    Each contact acts separately, which is exact for a single contact and for two walls. `shift`
    f32[2, N] is the distance by which a respawn moved a body after its contacts were found: the old
    normals act on its new velocity.
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
    """bool[P, N]: whether f32[2, P] and f32[2, N] are nearer than `reach` f32[N]."""
    x, y = position[:, None, :] - pursuers[:, :, None]
    # The root is not needed to compare: but XLA computes a root once, and squares again for every
    # result that reads them.
    return jnp.sqrt(x**2 + y**2) < reach[None]


def catch(counter: jax.Array, began: jax.Array, ended: jax.Array, n_coop) -> tuple[jax.Array, ...]:
    """Catches of food: the effect of touches that began or ended in this step, bool[P, F] each.

    All begins come first, pursuer by pursuer, then all ends. A begin increments the food's counter,
    and pays if the counter reaches n_coop. An end decrements it; but if the counter had reached
    n_coop, the end pays, the counter becomes 0 and the food respawns. Pursuers that leave after
    this still decrement the counter, below zero.

    Returns:
        (counter i32[F], caught bool[P, F] begins that pay, left bool[P, F] ends that pay).
    """
    caught, left = [], []
    for begins in began:
        counter = counter + begins.astype(jnp.int32)
        caught.append(begins & (counter >= n_coop))
    for ends in ended:
        pays = ends & (counter >= n_coop)
        counter = jnp.where(pays, 0, counter - ends.astype(jnp.int32))
        left.append(pays)
    return counter, jnp.stack(caught), jnp.stack(left)


def draw_bits(key: Key, number: int) -> jax.Array:
    """u32[3, number]: random bits, two words of the key spread by a hash.

    The hash is pcg3d (Jarzynski & Olano 2020, listing 16). Threefry would cost more than all of the
    physics, for draws that are hardly ever used.
    """
    words = jax.random.bits(key, (2,))
    index = jax.lax.broadcasted_iota(jnp.uint32, (number,), 0)
    words = [jnp.broadcast_to(word, (number,)) for word in (*words, index)]
    x, y, z = (word * np.uint32(1664525) + np.uint32(1013904223) for word in words)
    for shift in (True, False):
        x = x + y * z
        y = y + z * x
        z = z + x * y
        if shift:
            x, y, z = (word ^ word >> 16 for word in (x, y, z))
    return jnp.stack([x, y, z])


def draw_places(bits: jax.Array, max_speed: jax.Array) -> Places:
    """Uniform places in the pool, and velocities of at most max_speed f32[N] in each component.

    bits: u32[3, N].
    """
    position = to_unit(bits[:2]) * SIZE
    halves = (bits[2][None] >> np.uint32([[0], [16]])) & np.uint32(0xFFFF)
    steps = (halves.astype(jnp.int32) * 2 - 0xFFFF).astype(jnp.float32)
    return Places(position, steps * (max_speed / 0xFFFF)[None])


def draw_respawns(
    bits: jax.Array, obstacles: jax.Array, clear: jax.Array, max_speed: jax.Array
) -> Places:
    """Draws places farther than `clear` f32[N] px from the centres of obstacles f32[2, K].

    For each obstacle in turn a place is drawn again while it is too near; earlier obstacles are not
    checked again. A new draw applies a linear congruential generator to the old bits and uses the
    upper bits. After REDRAWS the last draw is used.
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

    # Unrolled, XLA on the CPU would compute the steps again for everything that reads a place.
    def keep_clear(draw, obstacle):
        must_redraw = lambda state: (state[0] < REDRAWS) & jnp.any(too_near(state[1], obstacle))
        next_draw = lambda state: (state[0] + 1, redraw(state[1], obstacle))
        return jax.lax.while_loop(must_redraw, next_draw, (0, draw))[1], None

    position, velocity = draw_places(bits, max_speed)
    ((x, y), _), _ = jax.lax.scan(keep_clear, (tuple(position), tuple(bits[:2])), obstacles.T)
    return Places(jnp.stack([x, y]), velocity)


def to_unit(bits: jax.Array) -> jax.Array:
    """f32 in [0, 1) from the upper 24 of u32 bits."""
    return (bits >> 8).astype(jnp.int32).astype(jnp.float32) * np.float32(2**-24)


def directions(num_sensors: int) -> np.ndarray:
    """f32[2, L]: the directions of the sensors, counter-clockwise from +x.

    L is the smallest multiple of LANES that is at least num_sensors.
    """
    angle = np.arange(-(-num_sensors // LANES) * LANES) * (2 * np.pi / num_sensors)
    return np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)


def sense(
    offset: jax.Array, drift: jax.Array, radius, rays: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """The nearest of n discs along each ray: (distance, speed away from the pursuer) f32[P, L].

        t = ray . offset;    sensed if 0 <= t <= 1 + radius and |offset|^2 - t^2 <= radius^2
        distance = min(t, 1)

    Without a disc they are 1 and 0. The distance is that of the disc's centre along the ray. A disc
    at 1 < t has the same distance as no disc, so its speed is reported only if it is the first of
    the discs.

    Args:
        offset: f32[2, P, n], from a pursuer to a disc, in units of the sensors' range, as is
            `radius`.
        drift: f32[2, P, n], their relative velocity, in units of the largest.
        rays: f32[2, L], from `directions`.
    """
    ray_x, ray_y = rays[0][None], rays[1][None]
    # the smallest t at which a disc is sensed
    nearest = jnp.sqrt(jnp.maximum(offset[0] ** 2 + offset[1] ** 2 - radius**2, 0.0))
    distance = speed = None
    for disc in range(offset.shape[2]):
        x, y = offset[0][:, disc, None], offset[1][:, disc, None]
        drift_x, drift_y = drift[0][:, disc, None], drift[1][:, disc, None]
        least = nearest[:, disc, None]
        t = x * ray_x + y * ray_y
        away = drift_x * ray_x + drift_y * ray_y
        if distance is None:
            sensed = (t >= least) & (t <= 1 + radius)
            distance = jnp.where(sensed, jnp.minimum(t, 1.0), 1.0)
            speed = jnp.where(sensed, away, 0.0)
        else:
            sensed = (t >= least) & (t < distance)
            distance, speed = jnp.where(sensed, t, distance), jnp.where(sensed, away, speed)
    return distance, speed


def sense_walls(position: jax.Array, sensor_range, rays: np.ndarray) -> jax.Array:
    """f32[P, L]: the share of each ray inside the pool; negative for a pursuer beyond a wall."""
    share = jnp.ones((1, 1))
    for axis in (0, 1):
        start, ray = position[axis][:, None], rays[axis][None] * sensor_range
        slanted = jnp.abs(ray) > 1e-8
        end = jnp.clip(start + ray, 0.0, SIZE)
        inside = (end - start) / jnp.where(slanted, ray, 1.0)
        share = jnp.minimum(share, jnp.where(slanted, inside, 1.0))
    return jnp.where(share >= 1 - 1e-4, 1.0, share)


def all_but_oneself(vectors: jax.Array) -> jax.Array:
    """f32[2, P, P - 1]: for each pursuer the vectors of the others, in order; from f32[2, P]."""
    number = vectors.shape[1]
    is_before = np.arange(number - 1)[None] < np.arange(number)[:, None]
    return jnp.where(is_before[None], vectors[:, None, :-1], vectors[:, None, 1:])


def lay_out(
    readings: list[tuple[jax.Array, jax.Array]], num_sensors: int, speed_features: bool
) -> jax.Array:
    """Four pairs of readings f32[P, L] as f32[P, 8 num_sensors]; without speeds 5 num_sensors."""
    # The same type under x64, too.
    readings = jax.tree.map(lambda part: part.astype(jnp.float32), readings)
    # As complex numbers the pairs are computed in one pass; XLA on the CPU would compute two arrays
    # separately.
    packed = jnp.concatenate([jax.lax.complex(first, second) for first, second in readings], axis=1)
    packed = jax.lax.optimization_barrier(packed)
    packed = packed.reshape(packed.shape[0], len(readings), 1, -1)[..., :num_sensors]
    blocks = jnp.concatenate([jnp.real(packed), jnp.imag(packed)], axis=2)
    blocks = jax.lax.optimization_barrier(blocks.reshape(packed.shape[0], -1))
    if speed_features:
        return blocks
    columns = [
        blocks[:, start * num_sensors : (start + 1) * num_sensors] for start in (0, 1, 2, 4, 6)
    ]
    return jnp.concatenate(columns, axis=1)


def reward(behaviour: jax.Array, penalty: jax.Array, local_ratio) -> jax.Array:
    """f32[P]: local_ratio times each pursuer's reward, and the mean for the rest.

    The penalty of the last pursuer counts twice.

    Args:
        behaviour: f32[P], rewards for food and poison.
        penalty: f32[P], for thrust.
    """
    num_pursuers = penalty.shape[0]
    mix = lambda part: local_ratio * part + (1 - local_ratio) * jnp.sum(part) / num_pursuers
    # The reference adds the mixed penalty of the last pursuer to the behaviour before it mixes
    # that.
    is_last = jnp.arange(num_pursuers) == num_pursuers - 1
    return mix(penalty) + mix(behaviour + mix(jnp.where(is_last, penalty, 0.0)))
