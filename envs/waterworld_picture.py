"""Pictures of waterworld, for `Waterworld.render`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.drawing import canvas, coverage, finish, from_point, grid, paint
from jaxrl.envs.waterworld_physics import SIZE

SIDE = 500  # pixels of the picture
RAY_WIDTH, OUTLINE_WIDTH = 0.4, 1.2  # pixels beyond the thinnest line, and beyond a disc
# Colours: red, green, blue.
WATER, RAY = (229, 242, 248), (126, 172, 204)
OBSTACLE, OUTLINE = (140, 146, 150), (52, 62, 74)
FOOD, POISON = (76, 168, 84), (214, 62, 54)
PURSUERS = ((25, 98, 170), (134, 84, 190), (222, 160, 30), (70, 80, 96))  # repeated in turn


def picture(
    sensed: jax.Array, obstacles: tuple, pursuers: tuple, evaders: tuple, poisons: tuple
) -> jax.Array:
    """u8[SIDE, SIDE, 3]; y points up, as in the reference's pictures.

    Args:
        sensed: f32[P, n] px, lengths of the pursuers' rays, to the centre of the nearest body.
        obstacles, pursuers, evaders, poisons: discs, (centres f32[2, n], radii f32[n]) in px.
    """
    scale = SIZE / SIDE  # px of the pool in a pixel
    y, x = grid(SIDE, SIDE)
    y, x = (SIDE - y) * scale, x * scale
    drawn = canvas(SIDE, SIDE, WATER)
    from_ray = lambda rays: from_rays(y - rays[0][1], x - rays[0][0], rays[1])
    aside = nearest(from_ray, (pursuers[0].T, sensed))
    drawn = paint(drawn, RAY, coverage(aside / scale - RAY_WIDTH))
    kinds = [(obstacles, OBSTACLE), (poisons, POISON), (evaders, FOOD)]
    for i, colour in enumerate(PURSUERS):
        some = slice(i, None, len(PURSUERS))
        kinds.append(((pursuers[0][:, some], pursuers[1][some]), colour))
    from_disc = lambda disc: from_point(y - disc[0][1], x - disc[0][0], disc[1])
    for (centres, radii), colour in kinds:
        if not radii.shape[0]:
            continue
        outside = nearest(from_disc, (centres.T, radii)) / scale
        drawn = paint(drawn, OUTLINE, coverage(outside - OUTLINE_WIDTH))
        drawn = paint(drawn, colour, coverage(outside))
    return finish(drawn)


def nearest(distance: Callable[[Any], jax.Array], shapes: Any) -> jax.Array:
    """f32[H, W]: the smallest `distance` to a shape (leading axis); a loop compiles fast."""
    first = jax.tree.map(lambda leaf: leaf[0], shapes)
    others = jax.tree.map(lambda leaf: leaf[1:], shapes)
    closer = lambda least, shape: (jnp.minimum(least, distance(shape)), None)
    return jax.lax.scan(closer, distance(first), others)[0]


def from_rays(y: jax.Array, x: jax.Array, lengths: jax.Array) -> jax.Array:
    """Distance to the nearest in angle of n rays from the origin, at equal angles, f32[n] long."""
    step = 2 * np.pi / lengths.shape[0]
    ray = jnp.round(jnp.arctan2(y, x) / step)
    angle, away = jnp.arctan2(y, x) - ray * step, jnp.hypot(y, x)
    beyond = away * jnp.cos(angle) - lengths[jnp.mod(ray.astype(jnp.int32), lengths.shape[0])]
    return jnp.where(jnp.cos(angle) < 0, away, jnp.maximum(jnp.abs(away * jnp.sin(angle)), beyond))


def ray_lengths(obs: jax.Array, num_sensors: int) -> jax.Array:
    """f32[P, n]: the smallest distance of each sensor, in units of its range; obs f32[P, ...]."""
    blocks = obs[:, :-2].reshape(obs.shape[0], -1, num_sensors)
    distances = (0, 1, 2, 4, 6) if blocks.shape[1] == 8 else (0, 1, 2, 3, 4)
    # The readings of other pursuers, the last ones, are 0 without other pursuers.
    return jnp.min(blocks[:, distances[: 5 if obs.shape[0] > 1 else 4]], axis=1)
