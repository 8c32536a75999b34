"""Grid worlds of Navix, MiniGrid's in JAX (https://github.com/epignatelli/navix, 0.7).

`make("navix:Navix-Empty-5x5-v0")` makes one. The argument `observation` is the name of one of the
functions of `navix.observations`.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxrl.adapters import wrapping
from jaxrl.core.spaces import Box, Discrete, Space
from jaxrl.core.types import PyTree

with wrapping.imported("navix", "navix"):
    import navix

WALL, PLAYER, OUTSIDE = -1, 10, 100  # codes that the library's spaces leave out
BOUNDS = {
    "symbolic": (0, PLAYER),
    "symbolic_first_person": (0, PLAYER),
    "categorical": (WALL, PLAYER),
    "categorical_first_person": (WALL, OUTSIDE),
    "rgb": (0, 255),
    "rgb_first_person": (0, 255),
}
MAX_STEPS = 100  # the library's default


@wrapping.constructors("navix", lambda: navix.registry())
def constructor(name: str) -> wrapping.Maker:
    """The constructor of Navix's environment `name`."""
    defaults = {"observation": "symbolic", "max_steps": MAX_STEPS}
    return wrapping.Maker(_named, defaults, {"observation": BOUNDS})


def _named(name: str, **args: Any) -> "Navix":
    function = getattr(navix.observations, args.get("observation", "symbolic"))
    limit = args.get("max_steps", MAX_STEPS)
    env = navix.make(name, max_steps=limit, observation_fn=function)
    return Navix(env, f"navix:{name}", args)


def adapt(name: str | None, make: Any, env: Any) -> "Navix":
    """A user's environment of Navix, `env`, which `make` is or has made."""
    return Navix(env, wrapping.name_of(name, env), wrapping.made_by(make))


class Navix(wrapping.WrappedEnvironment):
    """A grid world of Navix. Its state is the library's `Timestep`."""

    def __init__(self, env: Any, name: str, args: Mapping[str, Any]):
        super().__init__(name, args, int(env.max_steps))
        self._env = env

    def observation_space(self, params: PyTree = None) -> Space:
        shown = getattr(self._env.observation_fn, "__name__", "")
        if getattr(navix.observations, shown, None) is not self._env.observation_fn:
            return self.computed_observation_space()
        space = self._env.observation_space
        return Box(*BOUNDS[shown], space.shape, jnp.dtype(space.dtype).name)

    def action_space(self, params: PyTree = None) -> Space:
        return Discrete(len(self._env.action_set))

    def reset_inner(self, key):
        timestep = self._env.reset(wrapping.raw_key(key))
        return timestep.observation, timestep

    def step_inner(self, key, inner, action):
        timestep = self._env._step(inner, action)  # `step` would reset by itself
        return timestep.observation, timestep, timestep.reward, timestep.is_termination(), {}

    def render(self, state, params):
        return navix.observations.rgb(state.inner.state)
