"""Functions of an environment and its context, as worker processes call them.

This module must not import JAX.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.env_config import EnvConfig
from jaxrl.core.errors import NoAttribute, UsageError, explained

EnvFunction = Callable[[Any, EnvConfig], Any]


class OfEnv:
    """A function of an environment alone."""

    def __init__(self, function: Callable[[Any], Any]):
        self._function = function

    def __call__(self, env: Any, context: EnvConfig) -> Any:
        return self._function(env)


class HookCall(NamedTuple):
    """A call of a hook with an environment as it was made.

    Attributes:
        what: the hook and its callback, as messages call them.
        arguments: the names of what it takes in their order, and then by their names.
        keywords: see `arguments`.
        absent: the values of those names that an environment and its context are not.
    """

    what: str
    hook: Callable[..., Any]
    arguments: tuple[str, ...]
    keywords: tuple[str, ...]
    absent: Mapping[str, Any]


class Created:
    """The hook `on_environment_created` of several callbacks."""

    def __init__(self, calls: tuple[HookCall, ...]):
        self._calls = calls

    def __call__(self, env: Any, context: EnvConfig) -> None:
        for call in self._calls:
            values = {**call.absent, "env": env, "env_context": context}
            arguments = [values[name] for name in call.arguments]
            keywords = {name: values[name] for name in call.keywords}
            with explained(call.what):
                try:
                    call.hook(*arguments, **keywords)
                except NoAttribute as error:
                    raise UsageError(f"{call.what}: {error}") from error


class NextTask:
    """Gives an environment the task that a function says for it, as RLlib's `env_task_fn` does.

    Args:
        function: of (result, env, env_context), or else of (result, task); None changes nothing.
        result: without arrays of JAX or classes that import it.
    """

    def __init__(self, function: Callable[..., Any], result: Mapping[str, Any], *, takes_env: bool):
        self._function, self._result, self._takes_env = function, result, takes_env

    def __call__(self, env: Any, context: EnvConfig) -> None:
        settable = with_tasks(env)
        if settable is None:
            raise UsageError("the environment has no set_task(task)")
        present = settable.get_task() if hasattr(settable, "get_task") else None
        arguments = (env, context) if self._takes_env else (present,)
        chosen = self._function(self._result, *arguments)
        if chosen is not None and not are_same(chosen, present):
            settable.set_task(chosen)


def are_same(left: Any, right: Any) -> bool:
    """Returns whether two tasks are equal, in all parts of lists and mappings, also arrays."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            are_same(part, right[name]) for name, part in left.items()
        )
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(are_same(*pair) for pair in pairs)
    if hasattr(left, "__array__") or hasattr(right, "__array__"):
        return np.array_equal(left, right)
    return bool(left == right)


def with_tasks(env: Any) -> Any:
    """The environment, or the innermost one that it wraps, if that has `set_task`; else None."""
    for candidate in (env, getattr(env, "unwrapped", None)):
        if hasattr(candidate, "set_task"):
            return candidate
    return None


def envs_in(env: Any) -> list[Any]:
    """The environments that a `VectorEnv` steps; itself where it does not show them."""
    return getattr(getattr(env, "unwrapped", env), "envs", None) or [env]
