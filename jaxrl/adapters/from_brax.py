"""Robots and pendulums of Brax (https://github.com/google/brax, 0.14): `make("brax:ant")`.

Arguments are those of the library's own class; `backend` is one of four kinds of physics. A user's
own environments of Brax come in as objects or classes.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.adapters import wrapping
from jaxrl.adapters.wrapping_bodies import WithBodies
from jaxrl.core.types import PyTree

with wrapping.imported("brax", "brax"):
    from brax import envs

BACKENDS = ("generalized", "mjx", "positional", "spring")
TIME_LIMIT = 1000  # steps, of Brax's own training


@wrapping.constructors("brax", lambda: envs._envs)
def constructor(name: str) -> wrapping.Maker:
    """The constructor of Brax's environment `name`."""
    defaults = wrapping.defaults_of(envs._envs[name])
    if "backend" in defaults:
        defaults["n_frames"] = None  # which the class hands on
    return wrapping.Maker(_named, defaults, {"backend": BACKENDS})


def _named(name: str, **args: Any) -> "Brax":
    return Brax(envs.get_environment(name, **args), f"brax:{name}", args, TIME_LIMIT)


def adapt(name: str | None, make: Any, env: Any) -> "Brax":
    """A user's environment of Brax, `env`, which `make` is or has made."""
    name = wrapping.name_of(name, env.unwrapped)
    env, limit = wrapping.without_training(env, TIME_LIMIT)
    return Brax(env, name, wrapping.made_by(make), limit)


class Brax(WithBodies, wrapping.PhysicsEnvironment):
    """An environment of Brax. Its state is the library's `State`."""

    def __init__(self, env: Any, name: str, args: Mapping[str, Any], limit: int):
        super().__init__(env, name, args, limit)
        system = getattr(env.unwrapped, "sys", None)
        if getattr(system, "mj_model", None) is not None:  # what counts steps for tests has none
            self.draw_by(system.mj_model)

    def poses(self, inner: PyTree) -> tuple[jax.Array, jax.Array]:
        links = inner.pipeline_state.x  # without the world
        world = jnp.zeros((1, 3)), jnp.array([[1.0, 0.0, 0.0, 0.0]])
        return tuple(map(jnp.concatenate, zip(world, (links.pos, links.rot), strict=True)))
