"""Parameters of waterworld, and their checks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError, brief
from jaxrl.envs.waterworld_physics import REDRAWS

FOOD_SIZE, POISON_SIZE = 2.0, 0.75  # radii, in units of a pursuer's
# The largest share of respawns that may still be too near an obstacle after all redraws.
MAX_MISPLACED = 1e-3


class Params(struct.PyTreeNode):
    """Parameters of the task; every leaf may be traced and vmapped.

    Lengths and speeds are in units of the pool's width.
    """

    n_coop: int = 1  # pursuers needed to catch food
    sensor_range: float = 0.2
    radius: float = 0.015  # of a pursuer; food has 2 times, poison 0.75 times this radius
    obstacle_radius: float = 0.1  # for sensors and respawns; bodies always collide at 0.1
    pursuer_max_accel: float = 0.5  # 1/s, the largest change of velocity in a step
    pursuer_speed: float = 0.2  # 1/s, the maximum in x and in y
    evader_speed: float = 0.1  # 1/s, the maximum in x and in y
    poison_speed: float = 0.1  # 1/s, the maximum in x and in y
    poison_reward: float = -1.0
    food_reward: float = 10.0
    encounter_reward: float = 0.01  # per food that is touched, in each step
    thrust_penalty: float = -0.5  # per unit of the push
    local_ratio: float = 1.0  # the pursuer's share of its reward; the rest is shared by all
    max_cycles: int = 500  # the time limit: truncates, never terminates
    FPS: int = 15  # steps in a second


def single_precision(params: Params) -> Params:
    """The parameters with float64 arrays (possible under x64) as float32, like the state."""
    is_double = lambda leaf: isinstance(leaf, jax.Array) and leaf.dtype == jnp.float64
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if is_double(leaf) else leaf, params)


def freeze_points(points: Any, number: int) -> tuple[tuple[float, float], ...] | None:
    """`obstacle_coord` as tuples of numbers."""
    if points is None:
        return None
    try:
        frozen = tuple((float(x), float(y)) for x, y in points)
    except (TypeError, ValueError):
        raise UsageError(
            f"waterworld: obstacle_coord must be a list of (x, y), not {brief(points)}"
        ) from None
    if len(frozen) != number:
        raise UsageError(
            f"waterworld: obstacle_coord has {len(frozen)} points, but n_obstacles={number}"
        )
    if not all(0 <= value <= 1 for point in frozen for value in point):
        raise UsageError(f"waterworld: obstacle_coord must lie in [0, 1], not {brief(points)}")
    return frozen


def check_numbers(params: Params) -> None:
    """Raises UsageError for a number that is out of its range."""
    speeds = ("pursuer_speed", "evader_speed", "poison_speed")
    for names, holds, allowed in (
        (("radius", "obstacle_radius"), lambda value: value > 0, "above 0"),
        (("sensor_range", "pursuer_max_accel", *speeds), lambda value: value >= 0, "at least 0"),
        (("n_coop", "max_cycles", "FPS"), lambda value: value >= 1, "at least 1"),
        (("local_ratio",), lambda value: 0 <= value <= 1, "between 0 and 1"),
    ):
        for name in names:
            value = getattr(params, name)
            if not holds(value):
                raise UsageError(f"waterworld: {name} must be {allowed}, not {brief(value)}")


def check_places(params: Params, points: tuple[tuple[float, float], ...] | None) -> None:
    """Raises UsageError if obstacles leave food too little room to respawn."""
    clear = 2 * FOOD_SIZE * params.radius + params.obstacle_radius
    x, y = np.stack(np.meshgrid(*[(np.arange(100) + 0.5) / 100] * 2)).reshape(2, -1)
    for point in ((0.5, 0.5),) if points is None else points:
        rejected = np.mean(np.hypot(x - point[0], y - point[1]) <= clear)
        if rejected ** (REDRAWS + 1) > MAX_MISPLACED:
            allowed = MAX_MISPLACED ** (1 / (REDRAWS + 1))
            raise UsageError(
                f"waterworld: radius={params.radius} and obstacle_radius={params.obstacle_radius} "
                f"leave food no place: 4 radius + obstacle_radius = {clear:.3f} around an obstacle "
                f"is {rejected:.0%} of the pool and may be {allowed:.0%}"
            )
