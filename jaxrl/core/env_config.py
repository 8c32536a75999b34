"""Constructors of environments that take all settings in one argument `config`, as RLlib's do.

Worker processes use this module, so it must not import JAX.
"""

import copy
import inspect
from typing import Any

from jaxrl.core.python_kinds import RLLIB, kind_of

CONFIG_NAMES = ("config", "env_config", "env_context", "ctx", "cfg")


class EnvConfig(dict):
    """The arguments of an environment as RLlib gives them, with what it tells of the worker."""

    worker_index = vector_index = num_workers = 0
    remote = recreated_worker = False


def copied(value: Any) -> Any:
    """Dicts and lists anew, at any depth, and all else as it is: data, locks, connections."""
    if not isinstance(value, dict | list):
        return value
    made = copy.copy(value)
    for place, part in value.items() if isinstance(value, dict) else enumerate(value):
        made[place] = copied(part)
    return made


def config_of(args: dict[str, Any]) -> EnvConfig:
    """All arguments in one mapping, a copy: some constructors take their settings out of it."""
    return EnvConfig(copied(args))


class ConfiguredMaker:
    """A maker of environments that passes all settings in one argument, as RLlib does."""

    def __init__(self, make: Any, name: str):
        self._make, self._name, self.__name__ = make, name, getattr(make, "__name__", name)

    def __call__(self, **args: Any) -> Any:
        if self._name in args:
            return self._make(**copied(args))
        if args or kind_of(self._make) == RLLIB or _takes_a_dict(self._make, self._name):
            return self._make(**{self._name: config_of(args)})
        return self._make()


def by_keywords(make: Any) -> Any:
    """A class or function that makes an environment, called with keywords, whatever it takes."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return make
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind not in starred]
    if len(names) != 1 or names[0] not in CONFIG_NAMES:
        return make
    is_of_python = kind_of(make) is not None or _is_needed(make, names[0])
    return ConfiguredMaker(make, names[0]) if is_of_python else make


def _is_needed(make: Any, name: str) -> bool:
    parameter = inspect.signature(make).parameters[name]
    return parameter.default is parameter.empty


def _takes_a_dict(make: Any, name: str) -> bool:
    """Returns whether it would take an empty config, which RLlib passes: needed, or `name=None`."""
    parameter = inspect.signature(make).parameters[name]
    is_untyped = parameter.annotation is parameter.empty  # not None for an object of some class
    return _is_needed(make, name) or (parameter.default is None and is_untyped)
