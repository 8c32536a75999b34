"""Host curricula: `env_task_fn` chooses the environment's numbers between chunks of training."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.task_settings import ENV_TASK_FN
from jaxrl.core.errors import UsageError, brief, reason_of, unknown_name
from jaxrl.core.fields import as_number
from jaxrl.core.outside_env import is_outside
from jaxrl.core.tasks import check_task
from jaxrl.core.trust import load, parse_name
from jaxrl.core.types import PyTree
from jaxrl.run.every import Every
from jaxrl.run.hooks import Chunk, Hook
from jaxrl.run.results import ITERATIONS, Result
from jaxrl.run.storage.dtypes import typed_like

WHAT = "env_task_fn"
PATH = "env_runners/task/"
OF_PARAMS = (("result", "task"),)
OF_COPIES = (("result", "env", "env_context"), *OF_PARAMS)


class EnvTasks(Hook):
    """The tasks that a run's `env_task_fn` says, one after the other.

    Raises:
        UsageError: `env_task_fn` is no function of (result, task), or `params` are empty.
    """

    def __init__(self, trainer: Any, env: Any):
        config = trainer.config
        self.function = task_function(config.env_task_fn)
        if not jax.tree.leaves(env.default_params):
            raise UsageError(
                f"{WHAT}: environment {env.name} has no params that a task could change"
            )
        self.every = Every(config.env_task_interval)
        self.trainer, self.env = trainer, env

    def after(self, chunk: Chunk) -> None:
        """Sets the environment's numbers for the next iterations."""
        trainer, result = self.trainer, chunk.results[-1]
        if not self.every.is_due(result[ITERATIONS]):
            return
        values = trainer.processes.broadcast(lambda: self.next_values(result, trainer.env_params))
        if values is not None:
            trainer.env_params = jax.tree.unflatten(jax.tree.structure(trainer.env_params), values)

    def result_names(self) -> list[str]:
        """The paths of the numbers that it adds to results."""
        return [PATH + name for name in _scalars(self.trainer.env_params)]

    def keep(self, results: list[Result]) -> int:
        """Adds the numbers that the iterations were played with; what is drawn stays as it is."""
        for result in results:
            played = result["env_runners"]
            played["task"] = {**_scalars(self.trainer.env_params), **played.get("task", {})}
        return len(results)

    def next_values(self, result: Result, params: PyTree) -> list[Any] | None:
        """The leaves of the next params, as JSON holds them; None: they stay as they are.

        Raises:
            UsageError: the function raised an exception, or what it returned is no task.
        """
        try:
            task = self.function(result, params)
        except Exception as error:
            name = getattr(self.function, "__qualname__", type(self.function).__name__)
            raise UsageError(
                f"{WHAT}: {name} failed after iteration {result[ITERATIONS]:,}: {reason_of(error)}"
            ) from error
        if task is None:
            return None
        if isinstance(task, Mapping) and not isinstance(params, Mapping):
            fields = [field.name for field in dataclasses.fields(params)]
            for name in task:
                if name not in fields:
                    raise unknown_name("field", name, fields, f"in what {WHAT} returned")
            task = dataclasses.replace(params, **task)
        after = typed_like(params, task, f"{WHAT}: params")
        check_task(self.env, jax.tree.map(as_number, after))
        return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(after)]


def tasks_of(trainer: Any, env: Any) -> Hook:
    """The curriculum of `env_task_fn`: of an environment's numbers, or of its copies in Python.

    Raises:
        UsageError: `env_task_fn` is no function of its arguments, or there are no tasks to set.
    """
    if not is_outside(env):
        return EnvTasks(trainer, env)
    if not env.has_tasks:
        raise UsageError(
            f"{WHAT}: environment {env.name} has no set_task(task), which would change its task; "
            "without it its reset() may choose one"
        )
    from jaxrl.outside.env_calls import CopyTasks

    function = task_function(trainer.config.env_task_fn, OF_COPIES)
    return CopyTasks(trainer, function, takes_env=_takes(function, OF_COPIES[0]))


def task_function(
    setting: Any, forms: tuple[tuple[str, ...], ...] = OF_PARAMS
) -> Callable[..., Any]:
    """The function of `env_task_fn` that a setting is, or names.

    Args:
        forms: the arguments of which it must take one kind or another.

    Raises:
        UsageError: it is none, cannot be loaded, or takes other arguments.
    """
    named = parse_name(setting) if isinstance(setting, str) else None
    function = setting if named is None or named.arguments else load(ENV_TASK_FN, named)
    if not ENV_TASK_FN.fits(function):
        raise UsageError(
            f"{WHAT}={brief(setting)} must be {ENV_TASK_FN.allowed}, or module:function"
        )
    if not any(_takes(function, form) for form in forms):
        needed = " or ".join(f"({', '.join(form)})" for form in forms)
        raise UsageError(f"{WHAT} must take {needed}, not {inspect.signature(function)}")
    return function


def _takes(function: Callable[..., Any], form: tuple[str, ...]) -> bool:
    try:
        inspect.signature(function).bind(*form)
    except ValueError:  # a built-in without a signature
        return True
    except TypeError:
        return False
    return True


def _scalars(params: PyTree) -> dict[str, float]:
    """{path: number} of the leaves that are one number."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): float(leaf)
        for path, leaf in jax.tree.leaves_with_path(params)
        if np.shape(leaf) == () and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }
