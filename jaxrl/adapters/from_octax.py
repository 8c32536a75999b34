"""CHIP-8 games of Octax, an emulator in JAX (https://github.com/riiswa/octax, 0.1).

`make("octax:brix")` makes one, `make("octax:cavern3")` a level of one. An observation is the screen
in the last frames, bool[32, 64, frame_skip].
"""

import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.adapters import wrapping
from jaxrl.core.spaces import Discrete, Space
from jaxrl.core.types import PyTree

with wrapping.imported("octax", "octax"):
    from octax import environments

ARGUMENTS = {
    "max_num_steps_per_episodes": 4500,
    "instruction_frequency": 700,
    "fps": 60,
    "frame_skip": 4,
}
SCALE = 8  # pixels of a picture for one of the screen


def _names() -> list[str]:
    """The library's games; of those that consist of levels, the levels."""
    roms = Path(environments.get_rom_path("Pong (1 player).ch8")).parent
    files = sorted(path.stem for path in roms.glob("*.ch8"))
    names = []
    for module in pkgutil.iter_modules(environments.__path__):
        level = re.compile(rf"{module.name}\d+")
        levels = [file for file in files if level.fullmatch(file)]
        names.extend(levels or [module.name])
    return names


@wrapping.constructors("octax", _names)
def constructor(name: str) -> wrapping.Maker:
    """The constructor of Octax's game `name`."""
    return wrapping.Maker(_named, ARGUMENTS)


def _named(name: str, **args: Any) -> "Octax":
    env, _ = environments.create_environment(name, **args)
    return Octax(env, f"octax:{name}", args)


def adapt(name: str | None, make: Any, env: Any) -> "Octax":
    """A user's environment of Octax, `env`, which `make` is or has made."""
    return Octax(env, wrapping.name_of(name, env), wrapping.made_by(make))


class Octax(wrapping.WrappedEnvironment):
    """A game of Octax. Its state is the library's `OctaxEnvState`."""

    def __init__(self, env: Any, name: str, args: Mapping[str, Any]):
        super().__init__(name, args, int(env.max_num_steps_per_episodes))
        self._env = env

    def observation_space(self, params: PyTree = None) -> Space:
        return self.computed_observation_space()

    def action_space(self, params: PyTree = None) -> Space:
        return Discrete(self._env.num_actions)

    def reset_inner(self, key):
        state, screens, _ = self._env.reset(wrapping.raw_key(key))
        return _image(screens), state

    def step_inner(self, key, inner, action):
        state, screens, reward, terminated, _, _ = self._env.step(inner, action)
        reward, terminated = jnp.float32(reward), jnp.bool_(terminated)
        return _image(screens), state, reward, terminated, {}

    def render(self, state, params):
        pixels = jnp.where(state.inner.display.T, jnp.uint8(255), jnp.uint8(0))
        large = pixels.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
        return jnp.stack([large] * 3, axis=-1)


def _image(screens: jax.Array) -> jax.Array:
    """bool[32, 64, F] of bool[F, 64, 32]: rows, columns, the frames as channels."""
    return jnp.transpose(jnp.asarray(screens, bool), (2, 1, 0))
