"""Environments written for Gym before 0.26: a reset without a seed, four results of a step.

This module must not import JAX.
"""

import inspect
from collections.abc import Mapping
from typing import Any


class OldGymEnv:
    """An environment of the old kind with the methods of a `gymnasium.Env`."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # while it is copied
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Mapping]:
        return first_of(self._env, seed)

    def step(self, action: Any) -> Any:
        """Five results; `info["TimeLimit.truncated"]` says that `done` is the time limit's."""
        results = self._env.step(action)
        if not isinstance(results, tuple | list) or len(results) != 4:
            return results
        obs, reward, done, info = results
        cut = bool(done and (info or {}).get("TimeLimit.truncated", False))
        return obs, reward, done and not cut, cut, info


def takes_seed(env: Any) -> bool:
    """Returns whether `reset` takes a seed."""
    parameters = inspect.signature(env.reset).parameters.values()
    return any(taken.name == "seed" or taken.kind is taken.VAR_KEYWORD for taken in parameters)


def first_of(env: Any, seed: int | None) -> tuple[Any, Any]:
    """(observations, infos) of a reset, with a seed if it takes one."""
    if takes_seed(env):
        first = env.reset(seed=seed)
    else:
        if callable(getattr(env, "seed", None)):
            env.seed(seed)
        first = env.reset()
    if isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], Mapping):
        return first
    return first, {}


def as_gymnasium(env: Any) -> Any:
    """An environment of one agent with the methods of a `gymnasium.Env`."""
    if takes_seed(env):
        return env
    return OldGymEnv(env)
