"""Atari's games in JAX, of JAXtari (https://github.com/k4ntz/Jaxtari, 0.2).

`make("jaxtari:pong")` makes one. Rules and actions are the library's, and so are `sticky_actions`
and the waiting at the start; a step is `frame_skip` frames, and an observation the last
`frame_stack` steps: numbers of the objects, or with `observation="pixels"` grey images of 84 x 84.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.adapters import wrapping
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Discrete, Space
from jaxrl.core.types import PyTree

with wrapping.imported("jaxtari", "jaxtari"):
    import jaxtari
    from jaxtari import paths
    from jaxtari.wrappers import AtariWrapper, JaxtariWrapper

FRAMES = 108_000  # the time limit of an episode: half an hour of play
ARGUMENTS = {
    **{"observation": "objects", "frame_skip": 4, "frame_stack": 4, "sticky_actions": 0.25},
    **{"full_action_space": False, "noop_max": 30, "max_steps": FRAMES // 4},
}
SIZE = 84  # of an image
GREY = (0.299, 0.587, 0.114)  # what red, green and blue count


class Stacked(struct.PyTreeNode):
    """A state of the library's `AtariWrapper`, and what the last steps showed."""

    atari: PyTree
    shown: jax.Array  # [numbers, F], or u8[84, 84, F]


@wrapping.constructors("jaxtari", lambda: jaxtari.list_available_games())
def constructor(name: str) -> wrapping.Maker:
    """The constructor of JAXtari's game `name`."""
    return wrapping.Maker(_named, ARGUMENTS, {"observation": ("objects", "pixels")})


def _named(name: str, **args: Any) -> "Jaxtari":
    if not paths.ownership_or_alt_markers_present():
        raise UsageError(
            "its sprites are not here: fetch them by python -m jaxtari.install_sprites"
        )
    return Jaxtari(jaxtari.make(name), f"jaxtari:{name}", args)


def adapt(name: str | None, make: Any, env: Any) -> "Jaxtari":
    """A user's game of JAXtari, `env`, which `make` is or has made."""
    while isinstance(env, JaxtariWrapper):
        env = env._env
    return Jaxtari(env, wrapping.name_of(name, env), {}, wrapping.made_by(make))


class Jaxtari(wrapping.WrappedEnvironment):
    """A game of JAXtari.

    Args:
        env: the library's game, without wrappers.
        args: some of `ARGUMENTS`.
        identity: what makes a user's game equal to another one.
    """

    def __init__(self, env: Any, name: str, args: Mapping[str, Any], identity: Mapping = {}):
        chosen = {**ARGUMENTS, **args}
        super().__init__(name, {**args, **identity}, chosen["max_steps"])
        self._skip, self._stack = int(chosen["frame_skip"]), int(chosen["frame_stack"])
        self._is_pixels = chosen["observation"] == "pixels"
        names = ("sticky_actions", "full_action_space", "noop_max")
        rules = {name: chosen[name] for name in names}
        self._env = AtariWrapper(
            env, episodic_life=False, max_frames_per_episode=2**31 - 1, **rules
        )

    def observation_space(self, params: PyTree = None) -> Space:
        return self.computed_observation_space()

    def action_space(self, params: PyTree = None) -> Space:
        return Discrete(self._env.action_space().n)

    def reset_inner(self, key):
        objects, atari = self._env.reset(wrapping.raw_key(key))
        shown = self._shown(objects, atari)
        stacked = Stacked(atari, jnp.stack([shown] * self._stack, axis=-1))
        return stacked.shown, stacked

    def step_inner(self, key, inner, action):
        def frame(atari, _):
            objects, after, reward, ended, _, _ = self._env.step(atari, action)
            after = wrapping.typed_as_before(atari, after)
            return after, (objects, jnp.float32(reward), jnp.bool_(ended))

        atari, frames = jax.lax.scan(frame, inner.atari, length=self._skip)
        objects, rewards, ends = frames
        shown = self._shown(jax.tree.map(lambda leaf: leaf[-1], objects), atari)
        shown = jnp.concatenate([inner.shown[..., 1:], shown[..., None]], axis=-1)
        return shown, Stacked(atari, shown), rewards.sum(), ends.any(), {}

    def _shown(self, objects: PyTree, atari: PyTree) -> jax.Array:
        """f32[numbers] of the objects, or u8[84, 84] of the picture."""
        if not self._is_pixels:
            return jax.flatten_util.ravel_pytree(objects)[0].astype(jnp.float32)
        picture = self._env.render(atari.env_state).astype(jnp.float32) @ jnp.array(GREY)
        return jax.image.resize(picture, (SIZE, SIZE), "bilinear").astype(jnp.uint8)

    def render(self, state, params):
        return self._env.render(state.inner.atari.env_state)
