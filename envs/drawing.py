"""Pictures from shapes with smooth edges: what the environments' `render` paint with. Pixels; y points down."""

import jax
import jax.numpy as jnp
import numpy as np

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255


def canvas(height: int, width: int, colour: Colour) -> jax.Array:
    """f32[height, width, 3] of one colour."""
    return jnp.broadcast_to(np.float32(colour), (height, width, 3))


def grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(y, x) of the pixels' centres, f32[height, width] each."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    return y + 0.5, x + 0.5


def from_point(y: jax.Array, x: jax.Array, radius: jax.Array | float) -> jax.Array:
    """Distance to the edge of a disc about the origin, negative within."""
    return jnp.hypot(y, x) - radius


def from_square(y: jax.Array, x: jax.Array, radius: jax.Array | float) -> jax.Array:
    """Distance to the edge of a square about the origin with rounded corners, negative within."""
    corner = 0.25 * radius
    y, x = (jnp.abs(away) - 0.9 * radius + corner for away in (y, x))
    return (
        jnp.hypot(jnp.maximum(y, 0), jnp.maximum(x, 0)) + jnp.minimum(jnp.maximum(y, x), 0) - corner
    )


def from_segment(
    y: jax.Array, x: jax.Array, start: tuple, end: tuple, radius: jax.Array | float
) -> jax.Array:
    """Distance to the edge of a line of half width `radius` from `start` to `end`, (x, y) each; negative within."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    squared = jnp.maximum(along_x**2 + along_y**2, 1e-6)
    share = jnp.clip(((x - start[0]) * along_x + (y - start[1]) * along_y) / squared, 0.0, 1.0)
    return jnp.hypot(x - start[0] - share * along_x, y - start[1] - share * along_y) - radius


def coverage(distance: jax.Array) -> jax.Array:
    """How much of a pixel lies within a shape whose edge is `distance` away from its centre: in [0, 1]."""
    return jnp.clip(0.5 - distance, 0.0, 1.0)


def paint(picture: jax.Array, colour: Colour, share: jax.Array) -> jax.Array:
    """`picture` f32[H, W, 3] with `colour` laid over it, as densely as `share` f32[H, W] in [0, 1] says."""
    share = share[:, :, None]
    return picture * (1 - share) + np.float32(colour)[None, None] * share


def finish(picture: jax.Array) -> jax.Array:
    """u8[H, W, 3]."""
    return jnp.round(picture).astype(jnp.uint8)
