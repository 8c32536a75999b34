"""The environment of an RLlib configuration, as it is called here, and what rules know of it."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxrl.core.env import MultiAgentEnvironment, lift
from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.foreign_names import library_file
from jaxrl.core.registry import (
    GYMNASIUM_NAME,
    is_maker,
    make_with,
    names,
)
from jaxrl.core.spaces import Box
from jaxrl.core.types import AgentId, PyTree
from jaxrl.rllib.rows import Row, changes, given_of, harmless, taken

TIME_LIMITS = ("max_steps_in_episode", "max_cycles")  # what environments call theirs
ENV_KEYS = ("env", "env_config", "horizon", "max_episode_steps")


class Context(NamedTuple):
    """The context of rules, besides the values that they read."""

    env: MultiAgentEnvironment
    env_params: PyTree
    is_multi_agent: bool
    new_stack: bool  # whether RLlib would train with RLModules and Learners

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return self.env.agents

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """The image shape of the first agent's observations; None if they are no images."""
        space = self.env.observation_space(self.agents[0], self.env_params)
        return space.shape if isinstance(space, Box) and len(space.shape) == 3 else None


def read_environment(
    values: Mapping[str, Any], settings_beside: Mapping[str, Any], *, new_stack: bool
) -> tuple[Context, list[Row]]:
    """The environment, and the rows of what names it.

    Args:
        values: RLlib's, by path.
        settings_beside: those that win over the configuration: `env`, `env_args`.
    """
    rows = []
    env, args = settings_beside.get("env"), {}
    is_given = env is not None
    if not is_given:
        env, args = _named(values.get("env"))
        rows.append(taken(given_of(values, "env"), env=env, **({"env_args": args} if args else {})))
    elif "env" in values:
        rows.append(harmless(given_of(values, "env"), "another one is given beside it"))
    if is_given and not isinstance(env, str):
        made, params = make_with(env, {})
        rest = given_of(values, *ENV_KEYS[1:])
        rows += [harmless(rest, "the environment is given made")] if rest else []
    else:
        for row in _arguments(env, values):
            rows.append(row)
            args |= row.settings.get("env_args", {})
        made, params = make_with(env, {**args, **dict(settings_beside.get("env_args") or {})})
    lifted = lift(made)
    return Context(lifted, params, lifted is made, new_stack), rows


def _named(env: Any) -> tuple[Any, dict[str, Any]]:
    """The name here of RLlib's environment, and its arguments.

    A class is itself, whatever it is called: its name says nothing of its rules.
    """
    if env is None:
        raise UsageError(f"the configuration names no environment: env=NAME gives it {_known()}")
    if not isinstance(env, str):
        return _of_class(env), {}
    if env in (environments := library_file("RLlib")["environments"]):
        return environments[env]["env"], dict(environments[env].get("env_args", {}))
    if env in names() or (":" in env and not env.startswith("<")):
        return env, {}
    if env.lower() in names():
        return env.lower(), {}
    if GYMNASIUM_NAME.fullmatch(env):
        return f"gym:{env}", {}
    raise UsageError(
        f"env={brief(env)} has no counterpart here: env=NAME gives a compiled one {_known()}; "
        "docs/environments.md says how to write one"
    )


def _of_class(env: Any) -> Any:
    """A class that makes environments, as "module:Class" if that leads to it."""
    if not is_maker(env):
        raise UsageError(
            f"env={brief(env)} is no environment that can be read: env=NAME gives one {_known()}"
        )
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if found is env and module != "__main__" else env


def _known() -> str:
    return f"(--env NAME; known: {', '.join(names())}, LIBRARY:NAME, module:Class)"


def _arguments(env: Any, values: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of the arguments and the time limit that the environment takes."""
    config = values.get("env_config") or {}
    if not isinstance(config, Mapping):
        raise UsageError(f"env_config={brief(config)} must be a mapping")
    args = {}
    for name, value in config.items():
        if (reason := _refusal(env, {**args, name: value})) is None:
            args[name] = value
        else:
            yield changes({f"env_config/{name}": value}, reason)
    if args:
        yield taken({"env_config": args}, env_args=args)
    limits = {key: values[key] for key in ENV_KEYS[2:] if values.get(key) is not None}
    for key, limit in limits.items():
        reasons = {name: _refusal(env, {**args, name: limit}) for name in TIME_LIMITS}
        fitting = [name for name, reason in reasons.items() if reason is None]
        if fitting:
            yield taken({key: limit}, env_args={fitting[0]: limit})
        else:
            yield changes({key: limit}, f"environment {env!r} takes no time limit")


def _refusal(env: Any, args: Mapping[str, Any]) -> str | None:
    """The reason why an environment does not take these arguments; None if it does."""
    try:
        make_with(env, dict(args))
    except UsageError as error:
        return one_line(error)
    return None
