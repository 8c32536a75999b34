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


class EnvTasks(Hook):
    """The tasks that a run's `env_task_fn` says, one after the other.

    Raises:
        UsageError: `env_task_fn` is no function of (result, task), or `params` are empty.
    """

    def __init__(self, trainer: Any, env: Any):
        config = trainer.config
        self.function = task_function(config.env_task_fn)
        if not jax.tree.leaves(env.default_params):
            instead = "; a Python environment chooses tasks in its reset()" * is_outside(env)
            raise UsageError(
                f"{WHAT}: environment {env.name} has no params that a task could change{instead}"
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


def task_function(setting: Any) -> Callable[[Result, PyTree], Any]:
    """The function from (result, task) to the next task that a setting is, or names.

    Raises:
        UsageError: it is none, cannot be loaded, or takes other arguments.
    """
    named = parse_name(setting) if isinstance(setting, str) else None
    function = setting if named is None or named.arguments else load(ENV_TASK_FN, named)
    if not ENV_TASK_FN.fits(function):
        raise UsageError(
            f"{WHAT}={brief(setting)} must be {ENV_TASK_FN.allowed}, or module:function"
        )
    try:
        inspect.signature(function).bind("result", "task")
    except ValueError:  # a built-in without a signature
        pass
    except TypeError as error:
        raise UsageError(f"{WHAT} must take (result, task): {error}") from None
    return function


def _scalars(params: PyTree) -> dict[str, float]:
    """{path: number} of the leaves that are one number."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): float(leaf)
        for path, leaf in jax.tree.leaves_with_path(params)
        if np.shape(leaf) == () and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }
