"""Robots of MuJoCo Playground (https://playground.mujoco.org, 0.2): `make("playground:PointMass")`.

Arguments are the entries of the library's configuration, nested ones joined by two underscores.
Physics is MJX's in JAX unless `impl="warp"` is asked for, the library's default.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxrl.adapters import wrapping
from jaxrl.adapters.wrapping_bodies import WithBodies
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree

with wrapping.imported("mujoco_playground", "playground"):
    from mujoco_playground import dm_control_suite, registry
    from mujoco_playground._src.mjx_env import MENAGERIE_PATH

PHYSICS = ("jax", "warp")
TIME_LIMIT = 1000  # steps, where a configuration has none
LEFT_OUT = (
    "action_repeat",  # the library leaves it to training
    *("vision", "vision_config"),  # pictures are drawn on a GPU, for all environments at once
)


@wrapping.constructors("playground", lambda: registry.ALL_ENVS)
def constructor(name: str) -> wrapping.Maker:
    """The constructor of MuJoCo Playground's environment `name`."""
    config = registry.get_default_config(name)
    defaults = dict(_entries(config))
    if "impl" in defaults:
        defaults["impl"] = PHYSICS[0]
    return wrapping.Maker(_named, defaults, {"impl": PHYSICS})


def _named(name: str, **args: Any) -> "Playground":
    config = registry.get_default_config(name)
    if "impl" in config:
        config.impl = args.get("impl", PHYSICS[0])
    if name not in dm_control_suite.ALL_ENVS and not MENAGERIE_PATH.exists():
        raise UsageError(
            f"environment playground:{name} needs models of robots, which the library "
            'downloads once: python -c "from mujoco_playground._src import mjx_env; '
            'mjx_env.ensure_menagerie_exists()"'
        )
    overrides = {argument.replace("__", "."): value for argument, value in args.items()}
    env = registry.load(name, config, overrides)
    return Playground(env, f"playground:{name}", args, config.episode_length)


def adapt(name: str | None, make: Any, env: Any) -> "Playground":
    """A user's environment of MuJoCo Playground, `env`, which `make` is or has made."""
    name, config = wrapping.name_of(name, env.unwrapped), getattr(env.unwrapped, "_config", {})
    env, limit = wrapping.without_training(env, config.get("episode_length", TIME_LIMIT))
    return Playground(env, name, wrapping.made_by(make), limit)


class Playground(WithBodies, wrapping.PhysicsEnvironment):
    """An environment of MuJoCo Playground. Its state is the library's `State`."""

    def __init__(self, env: Any, name: str, args: Mapping[str, Any], limit: int):
        super().__init__(env, name, args, limit)
        self.draw_by(env.unwrapped.mj_model)

    def poses(self, inner: PyTree) -> tuple[jax.Array, jax.Array]:
        return inner.data.xpos, inner.data.xquat


def _entries(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """(argument, value) of each entry of a nested configuration."""
    for name, value in config.items():
        if name in LEFT_OUT:
            continue
        if isinstance(value, Mapping) or hasattr(value, "items"):
            yield from _entries(value, f"{within}{name}__")
        else:
            yield f"{within}{name}", value
