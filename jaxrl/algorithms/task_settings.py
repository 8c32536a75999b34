"""Settings of observations' parts, tasks and opponents: what a policy meets."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxrl.algorithms import validators
from jaxrl.algorithms.opponent_settings import ACT, as_pool, pool_of_words
from jaxrl.core import words
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
ONLY_TRAINING = frozenset(
    ("optimizer", "curriculum", "env_task_fn", "opponents", "exploration_config")
)
# The settings below that no compiled program depends on, at their defaults.
HOST_TASKS = {"env_task_fn": None, "env_task_interval": 1}


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """The settings of `AlgorithmConfig` that change what is observed, tasks and opponents."""

    ignore_observations: Sequence[str] = setting(
        (),
        "parts of Dict or Tuple observations that are left out, by name: mission, or outer/inner",
        validators.part_names,
        read=validators.several,
    )
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
    opponents: Any = setting(
        None,
        "opponents that play for a policy that is not trained, drawn for each episode: a "
        "jaxrl.OpponentPool, or its arguments by name",
        words.any_value(pool_of_words, "ARGUMENT=VALUE"),
        read=as_pool,
        kind=ACT,
    )

    def check_task_interval(self) -> None:
        """Refuses an interval without a function: what only plays a saved run leaves that out."""
        if self.env_task_fn is None and self.env_task_interval != HOST_TASKS["env_task_interval"]:
            raise UsageError(
                f"env_task_interval={self.env_task_interval} changes nothing without an "
                f"env_task_fn to call: leave it at {HOST_TASKS['env_task_interval']}"
            )

    def check_tasks(self, *, plays: bool) -> None:
        """Refuses what changes only how episodes are played, where training plays none."""
        for name in ("curriculum", "env_task_fn", "opponents", "exploration_config"):
            if getattr(self, name) is not None and not plays:
                raise UsageError(
                    f"{name} changes nothing: this algorithm learns from recorded episodes"
                )


def refuse_what_the_host_does(config: TaskSettings, why: str) -> None:
    """Raises UsageError for a host curriculum, or opponents from runs, which a Trainer reads."""
    config.check_task_interval()
    if config.env_task_fn is not None:
        raise UsageError(f"env_task_fn is called by a Trainer alone: {why}")
    runs = () if config.opponents is None else config.opponents.runs
    for name in runs:
        raise UsageError(f"opponents: {name} is a run's policy, which a Trainer alone reads: {why}")
