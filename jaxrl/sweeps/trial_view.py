"""A trial as host hooks see it in a sweep and in Ray Tune, where no trial has its own trainer."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.task_settings import refuse_what_the_host_does
from jaxrl.core.errors import UsageError, unknown_result
from jaxrl.rollout.episode_callbacks import has_hook, resolve_callbacks
from jaxrl.rollout.hook_contract import (
    CREATED,
    CUSTOM_EVALUATION,
    EPISODE_HOOKS,
    TRACED_HOOKS,
    class_name,
)
from jaxrl.run.callbacks import LOGS, Callbacks, Training
from jaxrl.run.inference.weights import PolicyAccess
from jaxrl.run.results import Lifetime, Result
from jaxrl.run.settings import RunSettings
from jaxrl.sweeps.metric_readers import EVALUATION
from jaxrl.sweeps.trials import Trial


class NoTrainer(UsageError, AttributeError):
    """A hook asked for something that a trainer has and a trial of a sweep has not."""


class TrialView(PolicyAccess):
    """One trial as a `Training`, with `trial`: its number, and the settings that it differs by.

    What a trainer has besides is refused when it is used.
    """

    def __init__(self, trial: Trial, algorithm: Algorithm, settings: RunSettings):
        self.trial = trial
        self.config = trial.config
        self.algorithm = algorithm
        self.settings = settings
        self.hypers, self.env_params = trial.numbers
        self.run_dir: Path | None = None
        self.lifetime = Lifetime()
        self.last_result: Result | None = None
        self._read_runner: Callable[[], RunnerState] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Hooks may keep values here, but not replace one that a trainer would train with."""
        if name in READ_ONLY and name in vars(self):
            raise NoTrainer(_unset(name))
        super().__setattr__(name, value)

    def train_as(self, trial: Trial) -> None:
        """The trial has other settings from now on."""
        hypers, env_params = trial.numbers
        vars(self).update(trial=trial, config=trial.config, hypers=hypers, env_params=env_params)

    @property
    def runner(self) -> RunnerState:
        """The trial's state after the last computed iteration, while its hooks are called."""
        if self._read_runner is None:
            raise UsageError(
                "runner: a trial's state can be read only while one of its hooks is called"
            )
        return self._read_runner()

    @contextmanager
    def showing(self, read_runner: Callable[[], RunnerState] | None) -> Iterator[None]:
        """A context in which hooks may read the trial's state."""
        self._read_runner = read_runner
        try:
            yield
        finally:
            self._read_runner = None

    def set_weights(self, weights: Any) -> None:
        """Refused: the trials of a sweep are trained in one program."""
        raise NoTrainer(_missing("set_weights"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NoTrainer(_missing(name))


OF_A_TRAINER = {  # hooks that a sweep would never call, and why
    CREATED: "the environments of a sweep are compiled, and none of them is an object",
    CUSTOM_EVALUATION: "trials of a sweep are evaluated by whole episodes",
}


def check_callbacks(config: AlgorithmConfig, never: Iterable[str] = ()) -> None:
    """Refuses callbacks with host hooks that are never called, before anything is compiled.

    Args:
        config: whose callbacks and `env_task_fn` these are.
        never: hooks that would never be called.

    Raises:
        UsageError: a hook is one of `never`, or takes an episode as an object.
    """
    refuse_what_the_host_does(config, "trials are trained together, in one program")
    for callback in resolve_callbacks(config.callbacks):
        name = type(callback).__qualname__
        for hook in EPISODE_HOOKS:
            if has_hook(callback, hook, Callbacks):
                traced = hook if hook in TRACED_HOOKS else "on_episode_start"
                arguments = ", ".join(("self", *TRACED_HOOKS[traced].usual))
                raise UsageError(
                    f"callbacks {name}: {hook}(*, episode) needs a Trainer, which samples episodes;"
                    f" the trials of a sweep have none: write {traced}({arguments}), which is "
                    "traced into their program"
                )
        for hook, why in OF_A_TRAINER.items():
            if has_hook(callback, hook, Callbacks):
                raise UsageError(f"callbacks {name}: {hook} needs a Trainer; {why}")
        for hook in never:
            if has_hook(callback, hook, Callbacks):
                raise UsageError(
                    f"callbacks {name}: {hook} is never called here, where trials are not evaluated"
                )


def refuse_numbers_of_the_host(
    config: AlgorithmConfig, paths: Mapping[str, str], names: Collection[str]
) -> None:
    """Refuses numbers that host hooks may add to results: the program compares trials before that.

    Args:
        paths: {a number that trials are compared or stopped by: what it is for}.
        names: of the numbers that the program knows.
    """
    unknown = [path for path in paths if not str(path).startswith(EVALUATION) and path not in names]
    if not unknown:
        return
    for callback in resolve_callbacks(config.callbacks):
        for hook in filter(lambda hook: has_hook(callback, hook, Callbacks), LOGS):
            raise UsageError(
                f"{unknown_result(paths[unknown[0]], unknown[0], names)}; if {hook} of callbacks "
                f"{class_name(callback)} gives it: trials are compared in their program, before "
                f"the host adds to results; log it in a traced hook, such as "
                f"on_episode_end(self, data, episode, metrics_logger)"
            )


READ_ONLY = frozenset(("config", "settings", "algorithm", "hypers", "env_params"))
READABLE = tuple(
    name for name in (*Training.__annotations__, *vars(Training)) if not name.startswith("_")
)


def _missing(name: str) -> str:
    return (
        f"uses trainer.{name}, which a trial of a sweep does not have; "
        f"it has trial, {', '.join(READABLE)}"
    )


def _unset(name: str) -> str:
    return (
        f"sets trainer.{name}, which the trials of a sweep cannot change while they train in "
        "one program"
    )
