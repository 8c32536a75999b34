"""Calls with the copies of a Python environment, wherever they are: by a trainer and its hooks.

A function and its results travel to worker processes and back, so both must be picklable; with
cloudpickle, functions of a script or a notebook are.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.outside_env import is_outside
from jaxrl.outside.program import Copies
from jaxrl.outside.workers.env_functions import Created, EnvFunction, HookCall, NextTask, OfEnv
from jaxrl.rollout.absent_argument import AbsentArgument
from jaxrl.rollout.hook_contract import CREATED, HOST_HOOKS, class_name, split_arguments
from jaxrl.run.every import Every
from jaxrl.run.hooks import Chunk, Hook
from jaxrl.run.results import ITERATIONS


def foreach_env(trainer: Any, function: Callable[[Any], Any]) -> list[Any]:
    """The method `foreach_env` of a trainer.

    Raises:
        UsageError: the trainer has no copies, or a call failed.
    """
    return _results(trainer, "foreach_env", OfEnv(function))


def tell_of_created(trainer: Any, callbacks: tuple[Any, ...]) -> None:
    """Has the callbacks' `on_environment_created` called with each copy that is made.

    Raises:
        UsageError: the trainer has no copies.
    """
    calls = tuple(map(_call_of, callbacks))
    _copies_of(trainer, CREATED).created = Created(calls)


def _call_of(callback: Any) -> HookCall:
    """The call of a callback's hook; what it takes is found here, where JAX is imported anyway."""
    form, hook = HOST_HOOKS[CREATED], getattr(callback, CREATED)
    names = {name: name for name in (*form.usual, *form.also, *form.absent)}
    arguments, keywords = split_arguments(hook, form, names)
    what = f"{CREATED} of callbacks {class_name(callback)}"
    absent = {name: AbsentArgument(name) for name in form.absent}
    return HookCall(what, hook, arguments, tuple(keywords), absent)


class CopyTasks(Hook):
    """The tasks that a run's `env_task_fn` says for the copies of a Python environment.

    Args:
        function: of (result, env, env_context) if it `takes_env`, or else of (result, task).

    Raises:
        UsageError: the copies are in Ray actors.
    """

    def __init__(self, trainer: Any, function: Callable[..., Any], *, takes_env: bool):
        if trainer.settings.num_ray_actors:
            raise UsageError(
                f"env_task_fn: workers={trainer.settings.workers!r}: the copies are in Ray actors, "
                "which take no tasks: workers=8 are processes of this machine, and those do"
            )
        self.trainer, self.function, self.takes_env = trainer, function, takes_env
        self.every = Every(trainer.config.env_task_interval)

    def after(self, chunk: Chunk) -> None:
        """Sets the tasks."""
        result = chunk.results[-1]
        if self.every.is_due(result[ITERATIONS]):
            task = NextTask(self.function, _plain(result), takes_env=self.takes_env)
            _results(self.trainer, f"env_task_fn, after iteration {result[ITERATIONS]:,}", task)

    def result_names(self) -> list[str]:
        """No names: the environments alone know their tasks."""
        return []


def _plain(value: Any) -> Any:
    """A result as dicts and numbers alone: its own classes would import JAX in each worker."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return np.asarray(value) if isinstance(value, jax.Array) else value


def _results(trainer: Any, what: str, function: EnvFunction) -> list[Any]:
    copies = _copies_of(trainer, what)
    try:
        return copies.foreach_env(function, trainer.env_params)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from error


def _copies_of(trainer: Any, what: str) -> Copies:
    copies = getattr(trainer.program, "source", None)
    if isinstance(copies, Copies):
        return copies
    name = trainer.config.env_name
    if trainer.config.is_offline:
        raise UsageError(
            f"{what}: {type(trainer.config).__name__} learns from recorded episodes, and plays none"
        )
    if is_outside(trainer.algorithm.rollout_spec.env):
        raise UsageError(f"{what}: the copies of {name} are those of other programs")
    raise UsageError(
        f"{what}: {name} is compiled, so none of its copies is an object: trainer.env_params "
        "are its numbers; Python environments have copies, such as gym:NAME"
    )
