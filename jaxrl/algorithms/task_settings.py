"""Settings of curricula: what says an environment's numbers while a policy trains."""

import dataclasses
from typing import Any

from jaxrl.core.curriculum import CURRICULUM
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import count, setting
from jaxrl.core.trust import Kind

ENV_TASK_FN = Kind(
    "env_task_fn",
    "jaxrl.env_task_fns",
    "a function from (result, task) to the next task",
    lambda found: callable(found) and not isinstance(found, type),
)
# Settings that only training reads: what plays a saved run leaves them out.
ONLY_TRAINING = frozenset(("optimizer", "curriculum", "env_task_fn"))
# The settings below that no compiled program depends on, at their defaults.
HOST_TASKS = {"env_task_fn": None, "env_task_interval": 1}


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """The settings of `AlgorithmConfig` that change the environment's numbers in training."""

    curriculum: Any = setting(
        None,
        "curriculum within the program, a task for each episode of each environment: module:Class, "
        "or an object such as jaxrl.LevelsBySuccess(levels)",
        kind=CURRICULUM,
    )
    env_task_fn: Any = setting(
        None,
        "curriculum between iterations: module:function or a function, from (result, task) to the "
        "environment's next params, {field: value}, or None for no change",
        kind=ENV_TASK_FN,
    )
    env_task_interval: int = setting(1, "iterations between two calls of env_task_fn", count())

    def check_tasks(self, *, plays: bool) -> None:
        """Refuses a curriculum where training plays no episodes."""
        for name in ("curriculum", "env_task_fn"):
            if getattr(self, name) is not None and not plays:
                raise UsageError(
                    f"{name} changes nothing: this algorithm learns from recorded episodes"
                )


def refuse_env_task_fn(config: TaskSettings, why: str) -> None:
    """Raises UsageError for a host curriculum where nothing would call it."""
    if config.env_task_fn is not None:
        raise UsageError(f"env_task_fn is called by a Trainer alone: {why}")
