"""Robots and pendulums of Brax (https://github.com/google/brax, 0.14): `make("brax:ant")`.

Arguments are those of the library's own class; `backend` is one of four kinds of physics.
"""

import inspect
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.adapters.wrapping import (
    TRUNCATES,
    PhysicsEnvironment,
    constructor_with,
    import_error,
    require_known,
)
from jaxrl.adapters.wrapping_bodies import WithBodies
from jaxrl.core.errors import UsageError, reason_of, unknown_name
from jaxrl.core.types import PyTree

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # JAXopt's, which Brax imports
        from brax import envs
except ImportError as error:
    raise import_error("brax", "brax", error) from error

BACKENDS = ("generalized", "mjx", "positional", "spring")
NO_BODIES = "fast"  # which counts steps, for tests
TIME_LIMIT = 1000  # steps, of Brax's own training


def constructor(name: str) -> Any:
    """The constructor of Brax's environment `name`."""
    require_known("brax", name, envs._envs)
    arguments = inspect.signature(envs._envs[name]).parameters
    given = {each: arguments[each].default for each in arguments if each != "kwargs"}
    if "backend" in given:
        given["n_frames"] = None  # which the class hands on
    return constructor_with(lambda **args: Brax(name, **args), given)


class Brax(WithBodies, PhysicsEnvironment):
    """An environment of Brax. Its state is the library's `State`."""

    def __init__(self, name: str, time_limit: str = TRUNCATES, **args: Any):
        if (backend := args.get("backend", BACKENDS[0])) not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS, f"of environment brax:{name}")
        try:
            env = envs.get_environment(name, **args)
        except Exception as error:
            raise UsageError(f"environment brax:{name}: {reason_of(error)}") from error
        super().__init__(env, f"brax:{name}", args, TIME_LIMIT, time_limit)
        if name != NO_BODIES:
            self.draw_by(env.unwrapped.sys.mj_model)

    def poses(self, inner: PyTree) -> tuple[jax.Array, jax.Array]:
        links = inner.pipeline_state.x  # without the world
        world = jnp.zeros((1, 3)), jnp.array([[1.0, 0.0, 0.0, 0.0]])
        return tuple(map(jnp.concatenate, zip(world, (links.pos, links.rot), strict=True)))
