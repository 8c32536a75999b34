"""Grid worlds of XLand-MiniGrid (https://github.com/dunnolab/xland-minigrid, 0.9).

`make("xminigrid:MiniGrid-DoorKey-8x8")` makes one; arguments are the fields of its parameters.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.adapters import wrapping
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, Space, box_of
from jaxrl.core.types import PyTree

with wrapping.imported("xminigrid", "xminigrid"):
    import xminigrid
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES
    from xminigrid.types import StepType

AUTO_RESETS = ("GymAutoResetWrapper", "DmEnvAutoResetWrapper")  # what training does itself
LARGEST_CODE = max(NUM_TILES, NUM_COLORS) - 1


@wrapping.constructors("xminigrid", lambda: xminigrid.registered_environments())
def constructor(name: str) -> wrapping.Maker:
    """The constructor of XLand-MiniGrid's environment `name`."""
    _, params = xminigrid.make(name)
    defaults = {}
    for field in dataclasses.fields(params):
        if not field.metadata.get("pytree_node", True):  # not a ruleset, which is arrays
            defaults[field.name] = getattr(params, field.name)
    return wrapping.Maker(_named, defaults, {"render_mode": ("rgb_array",)})


def _named(name: str, **args: Any) -> "XLandMiniGrid":
    env, params = xminigrid.make(name, **args)
    return XLandMiniGrid(env, params, f"xminigrid:{name}", args)


def adapt(name: str | None, make: Any, env: Any) -> "XLandMiniGrid":
    """A user's environment of XLand-MiniGrid, `env`, which `make` is or has made."""
    while type(env).__name__ in AUTO_RESETS:
        env = env._env
    params, inner = env.default_params(), env
    while hasattr(inner, "_env"):
        inner = inner._env
    if type(inner).__module__.startswith("xminigrid."):
        warnings.warn(
            f"{type(inner).__name__} does not hold the parameters that xminigrid.make returns "
            f"beside it: its default ones are used, a world of {params.height} x {params.width}; "
            "env='xminigrid:NAME' has those of the name",
            stacklevel=2,
        )
    return XLandMiniGrid(env, params, wrapping.name_of(name, env), wrapping.made_by(make))


class XLandMiniGrid(wrapping.WrappedEnvironment):
    """A grid world of XLand-MiniGrid. Its state is the library's `TimeStep`."""

    def __init__(self, env: Any, params: PyTree, name: str, args: Mapping[str, Any]):
        if not isinstance(params.max_steps, int):
            raise UsageError(f"environment {name}: max_steps must be an integer")
        super().__init__(name, args, params.max_steps)
        self._env, self._params = env, params

    def observation_space(self, params: PyTree = None) -> Space:
        return self.computed_observation_space(_box)

    def action_space(self, params: PyTree = None) -> Space:
        return Discrete(self._env.num_actions(self._params))

    def reset_inner(self, key):
        timestep = self._env.reset(self._params, wrapping.raw_key(key))
        return timestep.observation, timestep

    def step_inner(self, key, inner, action):
        timestep = self._env.step(self._params, inner, action)
        # The last step by the clock has a discount of 1, and the goal one of 0.
        terminated = (timestep.step_type == StepType.LAST) & (timestep.discount == 0)
        return timestep.observation, timestep, jnp.float32(timestep.reward), terminated, {}

    def render(self, state, params) -> jax.Array:
        return self.picture(lambda timestep: self._env.render(self._params, timestep), state.inner)


def _box(part: jax.ShapeDtypeStruct) -> Box:
    """The space of a part of an observation: codes of tiles, or what a wrapper adds."""
    is_code = part.dtype == jnp.uint8
    return Box(0, LARGEST_CODE, part.shape, "uint8") if is_code else box_of(part)
