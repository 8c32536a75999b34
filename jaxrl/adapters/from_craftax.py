"""Craftax and Craftax-Classic, survival games (https://github.com/MichaelTMatthews/Craftax, 1.6).

`make("craftax:Craftax-Classic-Symbolic-v1")` makes one; arguments are the fields of its parameters.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.adapters import wrapping
from jaxrl.core.fields import field_values
from jaxrl.core.spaces import Box, Discrete, Space
from jaxrl.core.types import PyTree

with wrapping.imported("craftax", "craftax"):
    from craftax.craftax_env import make_craftax_env_from_name

NAMES = (
    *("Craftax-Symbolic-v1", "Craftax-Pixels-v1"),
    *("Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1"),
)


@wrapping.constructors("craftax", lambda: NAMES)
def constructor(name: str) -> wrapping.Maker:
    """The constructor of Craftax's environment `name`."""
    params = make_craftax_env_from_name(name, auto_reset=False).default_params
    defaults = field_values(params)
    del defaults["fractal_noise_angles"]  # tuples of angles
    return wrapping.Maker(_named, defaults)


def _named(name: str, **args: Any) -> "Craftax":
    env = make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(**args)
    return Craftax(env, params, f"craftax:{name}", args)


def adapt(name: str | None, make: Any, env: Any) -> "Craftax":
    """A user's environment of Craftax, `env`, which `make` is or has made."""
    args = wrapping.made_by(make)
    return Craftax(env, env.default_params, name or type(env).__name__, args)


class Craftax(wrapping.WrappedEnvironment):
    """A game of Craftax. Its state is the library's `EnvState`.

    An episode's metrics are its achievements, 1 where it has one.
    """

    def __init__(self, env: Any, params: PyTree, name: str, args: Mapping[str, Any]):
        super().__init__(name, args, params.max_timesteps)
        params = params.replace(max_timesteps=wrapping.NO_LIMIT)  # the clock is ours
        self._env, self._params = env, params
        bases = [base.__module__ for base in type(env).__mro__]
        self._classic = any(".craftax_classic" in module for module in bases)
        # Compiled as parts, each is traced once, and not for every place that calls it.
        self._reset = jax.jit(lambda key: env.reset_env(key, params))
        self._step = jax.jit(lambda *stepped: env.step_env(*stepped, params))

    def observation_space(self, params: PyTree = None) -> Space:
        space = self._env.observation_space(self._params)
        return Box(space.low, space.high, space.shape)

    def action_space(self, params: PyTree = None) -> Space:
        return Discrete(self._env.num_actions)

    def reset_inner(self, key):
        obs, state = self._reset(key)
        return obs, _with_raw_key(state)

    def step_inner(self, key, inner, action):
        obs, state, reward, terminated, _ = self._step(key, inner, action)
        new = state.achievements & ~inner.achievements
        metrics = {f"achievements/{name}": new[at] for name, at in self._achievements.items()}
        return obs, _with_raw_key(state), reward, terminated, {"metrics": metrics}

    def render(self, state, params) -> jax.Array:
        return self._picture_of(state.inner).astype(jnp.uint8)

    @property
    def _constants(self) -> Any:
        if self._classic:
            from craftax.craftax_classic import constants
        else:
            from craftax.craftax import constants
        return constants

    @cached_property
    def _achievements(self) -> dict[str, int]:
        return {entry.name.lower(): entry.value for entry in self._constants.Achievement}

    @cached_property
    def _picture_of(self) -> Callable[[PyTree], jax.Array]:
        if self._classic:
            from craftax.craftax_classic.renderer import make_craftax_pixel_renderer
        else:
            from craftax.craftax.renderer import make_craftax_pixel_renderer
        with jax.ensure_compile_time_eval():  # it loads textures, which stay
            return make_craftax_pixel_renderer(self._constants.BLOCK_PIXEL_SIZE_IMG)


def _with_raw_key(state: PyTree) -> PyTree:
    """The state with its key as numbers, u32[2], so that any kind of key may be played with."""
    return state.replace(state_rng=jax.random.key_data(state.state_rng))
