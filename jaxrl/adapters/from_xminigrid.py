"""Grid worlds of XLand-MiniGrid (https://github.com/dunnolab/xland-minigrid, 0.9).

`make("xminigrid:MiniGrid-DoorKey-8x8")` makes one; arguments are the fields of its parameters.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.adapters.wrapping import (
    TRUNCATES,
    WrappedEnvironment,
    constructor_with,
    import_error,
    raw_key,
    require_known,
)
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Dict, Discrete, Space
from jaxrl.core.types import PyTree

try:
    import xminigrid
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES
    from xminigrid.types import StepType
except ImportError as error:
    raise import_error("xminigrid", "xminigrid", error) from error

LARGEST_CODE = max(NUM_TILES, NUM_COLORS) - 1


def constructor(name: str) -> Any:
    """The constructor of XLand-MiniGrid's environment `name`."""
    require_known("xminigrid", name, xminigrid.registered_environments())
    _, params = xminigrid.make(name)
    given = {
        field.name: getattr(params, field.name)
        for field in dataclasses.fields(params)
        if not field.metadata.get("pytree_node", True)  # not a ruleset, which is arrays
    }
    return constructor_with(lambda **args: XLandMiniGrid(name, **args), given)


class XLandMiniGrid(WrappedEnvironment):
    """A grid world of XLand-MiniGrid. Its state is the library's `TimeStep`."""

    def __init__(self, name: str, time_limit: str = TRUNCATES, **args: Any):
        self._env, self._params = xminigrid.make(name, **args)
        if not isinstance(self._params.max_steps, int):
            raise UsageError(f"environment xminigrid:{name}: max_steps must be an integer")
        super().__init__(f"xminigrid:{name}", args, self._params.max_steps, time_limit)

    def observation_space(self, params: PyTree = None) -> Space:
        shape = self._env.observation_shape(self._params)
        if isinstance(shape, dict):
            return Dict({part: Box(0, LARGEST_CODE, of, "uint8") for part, of in shape.items()})
        return Box(0, LARGEST_CODE, shape, "uint8")

    def action_space(self, params: PyTree = None) -> Space:
        return Discrete(self._env.num_actions(self._params))

    def reset_inner(self, key):
        timestep = self._env.reset(self._params, raw_key(key))
        return timestep.observation, timestep

    def step_inner(self, key, inner, action):
        timestep = self._env.step(self._params, inner, action)
        # The last step by the clock has a discount of 1, and the goal one of 0.
        terminated = (timestep.step_type == StepType.LAST) & (timestep.discount == 0)
        return timestep.observation, timestep, jnp.float32(timestep.reward), terminated, {}

    def render(self, state, params) -> jax.Array:
        return self.picture(lambda timestep: self._env.render(self._params, timestep), state.inner)
