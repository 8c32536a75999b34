"""Pictures of MuJoCo's bodies, computed in JAX: neither OpenGL nor a screen is needed.

The camera looks along y and down, without perspective, and follows what can leave its place. Every
shape is convex, so its outline is where the support function of its projection,

    h(w) = radius + sum_i box_i |w . axis_i| + sqrt(sum_i (ellipse_i w . axis_i)^2),

lets a point p be inside: |w . (p - centre)| <= h(w), for directions w around the picture.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree

HEIGHT, WIDTH = 240, 320  # pixels
ELEVATION = math.radians(30)  # of the camera above the horizon
# Where the picture's axes point, and where the camera looks.
RIGHT = (1.0, 0.0, 0.0)
UP = (0.0, math.sin(ELEVATION), math.cos(ELEVATION))
AWAY = (0.0, math.cos(ELEVATION), -math.sin(ELEVATION))
NUM_DIRECTIONS = 16  # of half a turn: round shapes have twice as many sides
MARGIN = 0.65  # half of the picture's height, in sizes of the model
TILES = 6  # of the ground, along the size of the model
LIGHT_TILE, DARK_TILE, SKY = 236.0, 214.0, 248.0
OUTLINE = 0.55  # how dark an outline is
# MuJoCo's numbers of kinds of joints and of shapes.
FREE, SLIDE = 0, 2
PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = 0, 2, 3, 4, 5, 6, 7
MAX_GROUP = 3  # groups from here on are hidden, as in MuJoCo's viewer


class Bodies(NamedTuple):
    """The shapes of a model, without planes, and where to look. G shapes."""

    body: np.ndarray  # i32[G]  what each belongs to; 0 is the world
    position: np.ndarray  # f32[G, 3]  in its body
    rotation: np.ndarray  # f32[G, 4]  quaternion in its body
    radius: np.ndarray  # f32[G]
    box: np.ndarray  # f32[G, 3]
    ellipse: np.ndarray  # f32[G, 3]
    colour: np.ndarray  # f32[G, 3]
    has_ground: bool
    followed: int | None  # body
    home: np.ndarray  # f32[3]  where it begins
    centre: np.ndarray  # f32[3]  of the model
    size: float  # of the model


class WithBodies:
    """An environment whose bodies MuJoCo describes. A subclass gives `poses(inner)`."""

    def draw_by(self, model: Any) -> None:
        """Gives the environment its `render`, by a `mujoco.MjModel`."""
        self._bodies = bodies_of(model)
        self.render = self._render

    def poses(self, inner: PyTree) -> tuple[jax.Array, jax.Array]:
        """(places f32[B, 3], quaternions f32[B, 4]) of the model's bodies, the world first."""
        raise NotImplementedError(f"{type(self).__name__} must define poses(inner)")

    def _render(self, state: PyTree, params: PyTree) -> jax.Array:
        return draw_bodies(self._bodies, *self.poses(state.inner))


def bodies_of(model: Any) -> Bodies:
    """The shapes of a `mujoco.MjModel`."""
    kinds, colours = model.geom_type, model.geom_rgba.copy()
    has_material = model.geom_matid >= 0
    if has_material.any():
        colours[has_material] = model.mat_rgba[model.geom_matid[has_material]]
    drawn = np.isin(kinds, (SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH))
    drawn &= (model.geom_group < MAX_GROUP) & (colours[:, 3] > 0)
    sizes = np.where((kinds == MESH)[:, None], model.geom_aabb[:, 3:], model.geom_size)
    radius, box, ellipse = np.zeros(len(kinds)), np.zeros((len(kinds), 3)), np.zeros_like(sizes)
    is_round = np.isin(kinds, (SPHERE, CAPSULE))
    radius[is_round] = sizes[is_round, 0]
    is_long = np.isin(kinds, (CAPSULE, CYLINDER))
    box[is_long, 2] = sizes[is_long, 1]
    box[np.isin(kinds, (BOX, MESH))] = sizes[np.isin(kinds, (BOX, MESH))]
    ellipse[kinds == CYLINDER, :2] = sizes[kinds == CYLINDER, :1]
    ellipse[kinds == ELLIPSOID] = sizes[kinds == ELLIPSOID]
    places, turns = first_pose(model)
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for shape in np.flatnonzero(drawn):
        body = model.geom_bodyid[shape]
        centre = places[body] + _turned(turns[body], model.geom_pos[shape])
        axes = _turned(_product(turns[body], model.geom_quat[shape]), np.eye(3))
        reach = radius[shape] + np.abs(box[shape]) @ np.abs(axes)
        reach += np.sqrt(ellipse[shape] ** 2 @ axes**2)
        low, high = np.minimum(low, centre - reach), np.maximum(high, centre + reach)
    moves = model.njnt > 0 and (
        model.jnt_type[0] == FREE or (model.jnt_type[0] == SLIDE and not model.jnt_limited[0])
    )
    followed = int(model.jnt_bodyid[0]) if moves else None
    if model.njnt and not moves:  # what hangs on its first joint may swing to the other side
        joint = places[model.jnt_bodyid[0]]
        low, high = np.minimum(low, 2 * joint - high), np.maximum(high, 2 * joint - low)
    of_drawn = lambda values: np.float32(values[drawn])
    return Bodies(
        model.geom_bodyid[drawn],
        position=of_drawn(model.geom_pos),
        rotation=of_drawn(model.geom_quat),
        radius=of_drawn(radius),
        box=of_drawn(box),
        ellipse=of_drawn(ellipse),
        colour=of_drawn(colours[:, :3] * 255),
        has_ground=bool((kinds == PLANE).any()),
        followed=followed,
        home=np.float32(places[followed or 0]),
        centre=np.float32((low + high) / 2),
        size=float((high - low).max()),
    )


def draw_bodies(bodies: Bodies, places: jax.Array, turns: jax.Array) -> jax.Array:
    """u8[H, W, 3]: the picture of bodies at `places`, f32[B, 3], turned by `turns`, f32[B, 4]."""
    look_at = jnp.asarray(bodies.centre)
    if bodies.followed is not None:
        moved = (places[bodies.followed] - bodies.home) * np.array([1.0, 1.0, 0.0])
        look_at = look_at + moved
    pixel = 2 * MARGIN * bodies.size / HEIGHT
    across = (np.arange(WIDTH) + 0.5 - WIDTH / 2) * pixel  # [W]
    upwards = (HEIGHT / 2 - np.arange(HEIGHT) - 0.5) * pixel  # [H]
    turns_of_shapes = _product(turns[bodies.body], bodies.rotation)
    axes = jax.vmap(_turned, (0, None))(turns_of_shapes, np.eye(3))  # [G, 3 axes, 3]
    centres = places[bodies.body] + jax.vmap(_turned)(turns[bodies.body], bodies.position)
    centres = centres - look_at[None]
    right, up = np.array(RIGHT), np.array(UP)
    sides = jnp.einsum("pc,gac->gap", np.stack([right, up]), axes)  # [G, 3, 2] in the picture
    # From the longest side on, whose edges are straight then.
    lengths = jnp.linalg.norm(sides * bodies.box[..., None], axis=-1)
    longest = jnp.take_along_axis(sides, jnp.argmax(lengths, 1)[:, None, None], 1)[:, 0]
    angles = np.arange(NUM_DIRECTIONS) * np.pi / NUM_DIRECTIONS
    angles = jnp.arctan2(longest[:, 1], longest[:, 0])[:, None] + angles[None]
    directions = jnp.stack([jnp.cos(angles), jnp.sin(angles)], -1)  # [G, K, 2]
    along = jnp.einsum("gkp,gap->gka", directions, sides)  # [G, K, 3]
    reach = bodies.radius[:, None] + jnp.einsum("gka,ga->gk", jnp.abs(along), bodies.box)
    reach += jnp.sqrt(jnp.einsum("gka,ga->gk", along**2, bodies.ellipse**2))

    def add(picture, shape):
        centre, reach, directions, colour = shape
        x, y = across - centre @ right, upwards - centre @ up
        outside = jnp.full((HEIGHT, WIDTH), -jnp.inf)
        for k in range(NUM_DIRECTIONS):
            place = directions[k, 0] * x[None, :] + directions[k, 1] * y[:, None]
            outside = jnp.maximum(outside, jnp.abs(place) - reach[k])
        share = jnp.clip(0.5 - outside / pixel, 0.0, 1.0)[..., None]
        inner = jnp.clip(-0.5 - outside / pixel, 0.0, 1.0)[..., None]
        shown = colour[None, None] * (OUTLINE + (1 - OUTLINE) * inner)
        return picture * (1 - share) + shown * share, None

    far_first = jnp.argsort(-(centres @ np.array(AWAY)))
    shapes = jax.tree.map(
        lambda values: jnp.asarray(values)[far_first], (centres, reach, directions, bodies.colour)
    )
    picture, _ = jax.lax.scan(add, _ground(bodies, look_at, across, upwards), shapes)
    return jnp.round(picture).astype(jnp.uint8)


def _ground(bodies: Bodies, look_at: jax.Array, across: Any, upwards: Any) -> jax.Array:
    """f32[H, W, 3]: tiles of the plane z = 0, by which one sees what moves; or nothing."""
    if not bodies.has_ground:
        return jnp.full((HEIGHT, WIDTH, 3), SKY)
    tile = bodies.size / TILES
    x = look_at[0] + across
    y = look_at[1] + (upwards + look_at[2] * UP[2]) / UP[1]
    is_dark = (jnp.floor(x / tile)[None, :] + jnp.floor(y / tile)[:, None]) % 2 > 0
    return jnp.where(is_dark[..., None], DARK_TILE, LIGHT_TILE) * jnp.ones((1, 1, 3))


def first_pose(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """(places [B, 3], quaternions [B, 4]) of a model's bodies with all joints at their zero."""
    places, turns = np.zeros((model.nbody, 3)), np.zeros((model.nbody, 4))
    turns[0, 0] = 1.0
    for body in range(1, model.nbody):
        parent = model.body_parentid[body]
        places[body] = places[parent] + _turned(turns[parent], model.body_pos[body])
        turns[body] = _product(turns[parent], model.body_quat[body])
    return places, turns


def _turned(quaternion: Any, vector: Any) -> Any:
    """The vector [..., 3] turned by a quaternion (w, x, y, z)."""
    module = jnp if isinstance(quaternion, jax.Array) else np
    w, axis = quaternion[0], quaternion[1:]
    side = 2 * module.cross(module.broadcast_to(axis, vector.shape), vector)
    return vector + w * side + module.cross(module.broadcast_to(axis, vector.shape), side)


def _product(first: Any, second: Any) -> Any:
    """The quaternion of the turn `second` followed by `first`, [..., 4]."""
    module = jnp if isinstance(first, jax.Array) else np
    w, x, y, z = (first[..., i] for i in range(4))
    a, b, c, d = (second[..., i] for i in range(4))
    parts = (
        w * a - x * b - y * c - z * d,
        w * b + x * a + y * d - z * c,
        w * c - x * d + y * a + z * b,
        w * d + x * c - y * b + z * a,
    )
    return module.stack(parts, -1)
