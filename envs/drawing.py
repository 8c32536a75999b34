"""Drawing of shapes with smooth edges, for `render` of the environments. Pixels; y points down."""

import jax
import jax.numpy as jnp
import numpy as np

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255


def canvas(height: int, width: int, colour: Colour) -> jax.Array:
    """f32[height, width, 3] filled with a colour."""
    return jnp.broadcast_to(np.float32(colour), (height, width, 3))


def grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(y, x) of the pixels' centres, f32[height, width] each."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    return y + 0.5, x + 0.5


def from_point(y: jax.Array, x: jax.Array, radius: jax.Array | float) -> jax.Array:
    """Distance to the edge of a disc about the origin, negative inside."""
    return jnp.hypot(y, x) - radius


def from_square(y: jax.Array, x: jax.Array, radius: jax.Array | float) -> jax.Array:
    """Distance to the edge of a square about the origin with round corners, negative inside."""
    corner = 0.25 * radius
    y = jnp.abs(y) - 0.9 * radius + corner
    x = jnp.abs(x) - 0.9 * radius + corner
    outside = jnp.hypot(jnp.maximum(y, 0), jnp.maximum(x, 0))
    return outside + jnp.minimum(jnp.maximum(y, x), 0) - corner


def from_segment(
    y: jax.Array, x: jax.Array, start: tuple, end: tuple, radius: jax.Array | float
) -> jax.Array:
    """Distance to the edge of a line from `start` to `end`, (x, y) each; negative inside.

    radius: half the width of the line.
    """
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    squared = jnp.maximum(along_x**2 + along_y**2, 1e-6)
    share = jnp.clip(((x - start[0]) * along_x + (y - start[1]) * along_y) / squared, 0.0, 1.0)
    return jnp.hypot(x - start[0] - share * along_x, y - start[1] - share * along_y) - radius


def coverage(distance: jax.Array) -> jax.Array:
    """The share of a pixel inside a shape whose edge is `distance` from the pixel's centre."""
    return jnp.clip(0.5 - distance, 0.0, 1.0)


def paint(picture: jax.Array, colour: Colour, share: jax.Array) -> jax.Array:
    """`picture` f32[H, W, 3] under `colour` with the opacity `share`, f32[H, W] in [0, 1]."""
    share = share[:, :, None]
    return picture * (1 - share) + np.float32(colour)[None, None] * share


def finish(picture: jax.Array) -> jax.Array:
    """u8[H, W, 3]."""
    return jnp.round(picture).astype(jnp.uint8)
