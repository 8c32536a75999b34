"""The numbers of waterworld, and what they may be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.envs.waterworld_physics import REDRAWS

FOOD_SIZE, POISON_SIZE = 2.0, 0.75  # radii, in those of a pursuer
MISPLACED = 1e-3  # the most respawns that may find no place after their redraws, and then stand too near an obstacle


class Params(struct.PyTreeNode):
    """Numbers of the task; every leaf may be traced and vmapped. Lengths and speeds are shares of the pool's width."""

    n_coop: int = 1  # pursuers that it takes to catch food
    sensor_range: float = 0.2
    radius: float = 0.015  # of a pursuer; food has twice, poison three quarters of it
    obstacle_radius: float = (
        0.1  # as sensed, and kept clear of by respawns; bodies collide at 0.1 whatever this says
    )
    pursuer_max_accel: float = 0.5  # the longest push, a change of velocity in one step, 1/s
    pursuer_speed: float = 0.2  # 1/s, the most in x and in y
    evader_speed: float = 0.1  # 1/s, the most in x and in y
    poison_speed: float = 0.1  # 1/s, the most in x and in y
    poison_reward: float = -1.0
    food_reward: float = 10.0
    encounter_reward: float = 0.01  # per food that is touched, in each step
    thrust_penalty: float = -0.5  # per unit of the push
    local_ratio: float = 1.0  # share of the rewards that is one's own
    max_cycles: int = 500  # the time limit: truncates, never terminates
    FPS: int = 15  # steps in a second


def single_precision(params: Params) -> Params:
    """The numbers as they are, but for arrays of float64, which there are under x64 alone: the state is of float32."""
    is_double = lambda leaf: isinstance(leaf, jax.Array) and leaf.dtype == jnp.float64
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if is_double(leaf) else leaf, params)


def freeze_points(points: Any, number: int) -> tuple[tuple[float, float], ...] | None:
    """obstacle_coord as tuples of numbers."""
    if points is None:
        return None
    try:
        frozen = tuple((float(x), float(y)) for x, y in points)
    except (TypeError, ValueError):
        raise UsageError(
            f"waterworld: obstacle_coord must be a list of (x, y), not {points!r}"
        ) from None
    if len(frozen) != number:
        raise UsageError(
            f"waterworld: obstacle_coord has {len(frozen)} points, but n_obstacles={number}"
        )
    if not all(0 <= value <= 1 for point in frozen for value in point):
        raise UsageError(f"waterworld: obstacle_coord must lie in [0, 1], not {points!r}")
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
                raise UsageError(f"waterworld: {name} must be {allowed}, not {value!r}")


def check_places(params: Params, points: tuple[tuple[float, float], ...] | None) -> None:
    """Raises UsageError where obstacles leave food too little room to respawn in."""
    clear = 2 * FOOD_SIZE * params.radius + params.obstacle_radius
    x, y = np.stack(np.meshgrid(*[(np.arange(100) + 0.5) / 100] * 2)).reshape(2, -1)
    for point in ((0.5, 0.5),) if points is None else points:
        rejected = np.mean(np.hypot(x - point[0], y - point[1]) <= clear)
        if rejected ** (REDRAWS + 1) > MISPLACED:
            raise UsageError(
                f"waterworld: radius={params.radius} and obstacle_radius={params.obstacle_radius} leave food no place: "
                f"4 radius + obstacle_radius = {clear:.3f} around an obstacle is {rejected:.0%} of the pool and may be "
                f"{MISPLACED ** (1 / (REDRAWS + 1)):.0%}"
            )
