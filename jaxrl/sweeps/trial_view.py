"""A trial as host hooks see it in a sweep and in Ray Tune, where no trial has its own trainer."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.task_settings import refuse_what_the_host_does
from jaxrl.core.errors import UsageError
from jaxrl.rollout.episode_callbacks import (
    EPISODE_HOOK,
    HOST_HOOKS,
    has_hook,
    resolve_callbacks,
)
from jaxrl.run.callbacks import Callbacks
from jaxrl.run.inference.weights import PolicyAccess
from jaxrl.run.results import Lifetime, Result
from jaxrl.run.settings import RunSettings
from jaxrl.run.trainer import Trainer
from jaxrl.sweeps.trials import Trial


class NoTrainer(UsageError, AttributeError):
    """A hook asked for something that a trainer has and a trial of a sweep has not."""


class TrialView(PolicyAccess):
    """One trial in the place of a `Trainer`: to read, and to act with its policies.

    Attributes:
        trial: its number, the settings that it differs by, and its configuration.
        config: the configuration, with the trial's settings and its seed.
        settings: how trials are evaluated and logged.
        run_dir: the trial's folder, or None where nothing is written.
        lifetime, last_result: as of a trainer.
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


def check_hooks(config: AlgorithmConfig, never: Iterable[str] = ()) -> None:
    """Refuses host hooks that cannot work in a sweep, before anything is compiled.

    Args:
        config: whose callbacks and `env_task_fn` these are.
        never: hooks that would never be called.

    Raises:
        UsageError: a hook is one of `never`, or its source uses what only a `Trainer` has.
    """
    refuse_what_the_host_does(config, "trials are trained together, in one program")
    for callback in resolve_callbacks(config.callbacks):
        name = type(callback).__qualname__
        if has_hook(callback, EPISODE_HOOK, Callbacks):
            raise UsageError(
                f"callbacks {name}: {EPISODE_HOOK}(*, episode) needs a Trainer, which samples "
                "episodes; the trials of a sweep have none"
            )
        for hook in (hook for hook in HOST_HOOKS if has_hook(callback, hook, Callbacks)):
            if hook in never:
                raise UsageError(
                    f"callbacks {name}: {hook} is never called here, where trials are not evaluated"
                )
            used, put = _attributes_of_trainer(getattr(callback, hook))
            if missing := sorted(used & ONLY_TRAINER):
                raise UsageError(f"callbacks {name}: {hook} {_missing(missing[0])}")
            if replaced := sorted(put & READ_ONLY):
                raise UsageError(f"callbacks {name}: {hook} {_unset(replaced[0])}")


READ_ONLY = frozenset(("config", "settings", "algorithm", "hypers", "env_params"))
ONLY_TRAINER = frozenset(
    name
    for name in dir(Trainer)
    if not name.startswith("_") and (name not in dir(TrialView) or name == "set_weights")
)


def _missing(name: str) -> str:
    return (
        f"uses trainer.{name}, which a trial of a sweep does not have; "
        "it has trial, config, run_dir, settings, "
        "lifetime, last_result, runner, get_policy, compute_actions and get_weights"
    )


def _unset(name: str) -> str:
    return (
        f"sets trainer.{name}, which the trials of a sweep cannot change while they train in "
        "one program"
    )


def _attributes_of_trainer(hook: Callable) -> tuple[set[str], set[str]]:
    """(read, set): the attributes of its first argument in a hook's source, if there is any."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(hook)))
        parameter = next(iter(inspect.signature(hook).parameters))
    except (OSError, TypeError, ValueError, SyntaxError, StopIteration):
        return set(), set()
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    attributes = [
        node
        for node in attributes
        if isinstance(node.value, ast.Name) and node.value.id == parameter
    ]
    # The file may have changed since it was imported.
    compiled = _names_in(getattr(hook, "__code__", None))
    attributes = [node for node in attributes if node.attr in compiled]
    put = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    return {node.attr for node in attributes} - put, put


def _names_in(code: Any) -> set[str]:
    """The names that compiled code uses, with that of functions within it."""
    inner = [part for part in getattr(code, "co_consts", ()) if hasattr(part, "co_names")]
    return set(getattr(code, "co_names", ())).union(*map(_names_in, inner))
