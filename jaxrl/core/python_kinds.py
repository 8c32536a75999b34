"""Kinds of environments written in Python, told by their methods; no library is imported.

Worker processes use this module, so it must not import JAX.
"""

import copy
import inspect
from typing import Any

GYMNASIUM, VECTOR = "gymnasium.Env", "gymnasium.vector.VectorEnv"
PARALLEL, TURNS = "ParallelEnv", "AECEnv"  # PettingZoo's
RLLIB = "MultiAgentEnv"
BASES = {RLLIB: RLLIB, "ParallelEnv": PARALLEL, "VectorEnv": VECTOR, "Env": GYMNASIUM}
OF_AGENTS = ("possible_agents", "_agent_ids", "observation_spaces")
VECTOR_CLASSES = ("VectorEnv", "VecEnv")  # Gymnasium's, and that of Stable-Baselines3
OF_JAX = ("reset_env", "step_env", "step_batch", "step_stacked")


def kind_of(env: Any) -> str | None:
    """The Python interface of an environment or of a class of environments; None if it has none."""
    if any(hasattr(env, name) for name in OF_JAX):
        return None
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        return None
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        return TURNS
    bases = {base.__name__ for base in (env if isinstance(env, type) else type(env)).__mro__}
    if RLLIB in bases:
        return RLLIB
    if isinstance(env, type):  # whose spaces may be set by its constructor
        return next((kind for name, kind in BASES.items() if name in bases), GYMNASIUM)
    if hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None)):
        return PARALLEL
    if hasattr(env, "single_observation_space") or not bases.isdisjoint(VECTOR_CLASSES):
        return VECTOR
    if any(hasattr(env, name) for name in OF_AGENTS):
        return RLLIB
    return GYMNASIUM if hasattr(env, "observation_space") else None


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
        if not args and kind_of(self._make) != RLLIB and not _is_needed(self._make, self._name):
            return self._make()
        return self._make(**{self._name: config_of(args)})


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
