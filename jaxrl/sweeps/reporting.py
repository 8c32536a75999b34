"""Reports of a trial: results counted, passed to its hooks, evaluated, and written to its logs."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.play.evaluate import Evaluation
from jaxrl.rollout.episode_callbacks import resolve_callbacks
from jaxrl.run.callbacks import HostCallbacks
from jaxrl.run.devices.mesh import on_first_device
from jaxrl.run.health import first_bad, undeclared_wait
from jaxrl.run.logging.loggers import Logs, RunStart
from jaxrl.run.results import ITERATIONS, Lifetime, Result, iteration_results, result_names
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage.config_file import config_facts
from jaxrl.sweeps.trial_view import TrialView
from jaxrl.sweeps.trials import Trial
from jaxrl.sweeps.vmapped import Numbers, Seen, State, VmappedTrials

# Trials of several programs train side by side; their hooks are called one at a time.
_telling = threading.Lock()


class Reporter:
    """One trial's results, from its first iteration to its end.

    Args:
        last: the iterations that the trial has at most.
        settings: the evaluations and the logs that are wanted.
        say: is called with one line when a log fails.
    """

    def __init__(
        self,
        trial: Trial,
        algorithm: Algorithm,
        last: int,
        settings: RunSettings,
        say: Callable[[str], None] = print,
    ):
        self.trial = trial
        self.algorithm = algorithm
        self.last = last
        self.settings = settings
        self.say = say
        self.view = TrialView(trial, algorithm, settings)
        self.callbacks = HostCallbacks(self.view, resolve_callbacks(trial.config.callbacks))
        self.evaluation = Evaluation(trial.config, algorithm, settings, say)
        self.evaluation.check()
        self.ended = False  # by a hook
        self.bad = ""  # the number that the trial has diverged by
        self._results: list[Result] = []  # of the chunk at hand
        self._logs: Logs | None = None

    @property
    def lifetime(self) -> Lifetime:
        return self.view.lifetime

    @property
    def last_result(self) -> Result | None:
        return self.view.last_result

    @property
    def may_end(self) -> bool:
        """True if a hook may end the trial."""
        return self.callbacks.has("on_train_result")

    def open(self, folder: Path | None) -> None:
        """The trial's folder, if it has one: its logs begin there with the first results."""
        self.view.run_dir = folder

    def _open_logs(self, rows: Metrics) -> None:
        if self._logs is not None or self.view.run_dir is None or not self.settings.loggers:
            return
        facts = config_facts(self.trial.config, self.trial.config.setup().policies)
        evaluated = self.settings.evaluation_interval is not None
        names = tuple(result_names(self.algorithm, rows, evaluated=evaluated))
        done, steps = self.lifetime.training_iteration, self.lifetime.num_env_steps
        run = RunStart(self.view.run_dir, facts["config"], done, steps, names, self.say)
        self._logs = Logs(self.settings.loggers, run)

    def take_over(self, source: "Reporter", trial: Trial) -> None:
        """The trial is a copy of another one from now on: with its counts, by its own settings."""
        self.trial, self.bad = trial, ""
        self.view.train_as(trial)
        self.view.lifetime = Lifetime(**dataclasses.asdict(source.lifetime))

    def take_back(
        self, trial: Trial, lifetime: Lifetime, result: Result | None, callbacks: list[Any]
    ) -> None:
        """Resumes where a saved trial was."""
        self.trial = trial
        self.view.train_as(trial)
        self.view.lifetime, self.view.last_result = lifetime, result
        self.callbacks.restore(callbacks)

    def compute(self, rows: Metrics, count: int, seconds: float) -> None:
        """Result trees of a chunk: of all its updates, or of the last if only that is seen.

        Args:
            rows: the trial's metrics, [CAPACITY, ...].
            count: how many of them were filled.
            seconds: that these took.
        """
        self._open_logs(rows)
        seen_by_nobody = self._logs is None and not self.may_end
        first = max(0, count - 1) if seen_by_nobody else 0
        before = dataclasses.replace(
            self.lifetime,
            training_iteration=self.lifetime.training_iteration + first,
            num_env_steps=self.lifetime.num_env_steps + first * self.algorithm.num_env_steps,
            num_episodes=self.lifetime.num_episodes
            + int(rows.episodes.iteration.count[:first].sum()),
            time_total_s=self.lifetime.time_total_s + seconds * first / max(1, count),
        )
        rows = jax.tree.map(lambda leaf: leaf[first:count], rows)
        left = count - first
        self._results = []
        if count:
            self._results = iteration_results(
                self.algorithm, rows, left, seconds * left / count, before
            )
        self._reach()

    def note_bad(self, rows: Metrics, index: int) -> None:
        """Notes the bad number of the update at `index` of `rows`, [CAPACITY, ...]."""
        row = jax.tree.map(lambda leaf: leaf[index : index + 1], rows)
        lifetime = dataclasses.replace(self.lifetime)
        results = iteration_results(self.algorithm, row, 1, 1.0, lifetime)
        found = first_bad(results, self.algorithm.root_cause_metrics)
        self.bad = found[1] if found else ""

    def evaluate(self, read_runner: Callable[[], RunnerState], *, at_the_end: bool) -> None:
        """Adds an evaluation of the present state to the last result, if one is due and missing."""
        last = self._results[-1] if self._results else {"evaluation": None}
        if "evaluation" in last:
            return
        if not self.settings.evaluations.is_due(last[ITERATIONS], at_the_end=at_the_end):
            return
        began = time.perf_counter()
        last["evaluation"] = self.evaluation(read_runner(), self.view.env_params)
        self.call("on_evaluate_end", last["evaluation"], read_runner)
        last["timers"]["evaluation"] = time.perf_counter() - began

    def check_waits(self) -> None:
        """Refuses an environment whose agents wait without declaring it."""
        if found := undeclared_wait(self._results):
            iteration = self._results[found[0]][ITERATIONS]
            raise UsageError(f"trial {self.trial.name}, iteration {iteration}: {found[1]}")

    def tell(self, read_runner: Callable[[], RunnerState], *, at_the_end: bool) -> int:
        """Passes each result to the hooks; returns how many count, fewer if a hook ended the trial.

        Args:
            at_the_end: whether the trial ends with the last of these.
        """
        for i, result in enumerate(self._results, start=1):
            self.call("on_train_result", result, read_runner)
            self.ended = bool(result["done"])
            result["done"] = self.ended or (at_the_end and i == len(self._results))
            if self.ended:
                self._results = self._results[:i]
                self._reach()
                break
        return len(self._results)

    def _reach(self) -> None:
        """The trial's last result, which hooks see also while they receive earlier ones."""
        if self._results:
            self.view.last_result = self._results[-1]
            self.view.lifetime = Lifetime.after(self._results[-1])

    def write(self) -> None:
        """Logs the chunk's results."""
        if self._logs is not None:
            self._logs.write(self._results)
        self._results = []

    def flush(self) -> None:
        """Hands everything logged so far to the operating system."""
        if self._logs is not None:
            self._logs.flush()

    def close(self, read_runner: Callable[[], RunnerState] | None = None) -> None:
        """The trial is finished: tells its hooks, and ends its logs."""
        self.call("on_train_end", self.last_result, read_runner)
        self.close_logs()

    def close_logs(self) -> None:
        if self._logs is not None:
            self._logs.close()

    def call(
        self, hook: str, value: Any, read_runner: Callable[[], RunnerState] | None = None
    ) -> None:
        """Calls a hook of all callbacks."""
        with _telling, self.view.showing(read_runner):
            self.callbacks.call(hook, value)


@dataclasses.dataclass(frozen=True)
class Turn:
    """A chunk of a batch."""

    state: State
    numbers: Numbers  # with new last updates for trials that a hook ended
    seen: Seen
    moved: np.ndarray  # i64[S]  updates of each member
    seconds: float


def advance(
    members: VmappedTrials,
    state: State,
    numbers: Numbers,
    count: int,
    reporters: Sequence[Reporter],
) -> Turn:
    """At most `count` updates of a batch, reported; members beyond the reporters only fill it up.

    A hook that sets `result["done"]` ends its trial in that very iteration: the chunk is computed
    again with that as the trial's last update, which gives all others the same numbers.
    """
    updates = np.array(state.runner.num_updates)
    before = _copied(state) if any(reporter.may_end for reporter in reporters) else None
    began = time.perf_counter()
    state, seen = members.chunk(state, numbers, count)
    seconds = time.perf_counter() - began
    moved = np.array(state.runner.num_updates) - updates
    metrics, diverged = jax.tree.map(np.asarray, (on_first_device(seen.metrics), state.diverged))
    for i, reporter in enumerate(reporters):
        share = seconds * float(moved[i] / max(1, moved.max()))
        rows = jax.tree.map(lambda leaf, i=i: leaf[:, i], metrics)
        reporter.compute(rows, int(moved[i]), share)
        reporter.check_waits()
        if diverged[i] and not reporter.bad:
            reporter.note_bad(rows, int(moved[i]))
    kept = _tell(state, reporters)
    ended = [i for i, reporter in enumerate(reporters) if reporter.ended and moved[i]]
    if ended:
        last = np.array(numbers.last)
        last[ended] = kept[ended] + updates[ended]
        numbers = numbers.replace(last=last)
    if any(kept[i] < moved[i] for i in ended):
        state, seen = members.chunk(before, numbers, count)
        moved[ended] = kept[ended]
    for i in ended:
        reporters[i].evaluate(_reader(state, i), at_the_end=True)
    for reporter in reporters:
        reporter.write()
    return Turn(state, numbers, seen, moved, seconds)


def _tell(state: State, reporters: Sequence[Reporter]) -> np.ndarray:
    """Evaluates where due and calls the hooks; returns how many updates count, i64[reporters]."""
    updates = np.asarray(state.runner.num_updates)
    over = np.asarray(state.met) | np.asarray(state.diverged)
    kept = []
    for i, reporter in enumerate(reporters):
        ends, read = bool(over[i]) or updates[i] >= reporter.last, _reader(state, i)
        reporter.evaluate(read, at_the_end=ends)
        kept.append(reporter.tell(read, at_the_end=ends))
    return np.array(kept)


def _reader(state: State, member: int) -> Callable[[], RunnerState]:
    """A function that gives a member's own state."""
    return lambda: _member(on_first_device(state.runner), np.int32(member))


# Programs of whole trees: array by array, each shape would compile one.
@jax.jit
def _copied(state: State) -> State:
    return jax.tree.map(jnp.copy, state)


@jax.jit
def _member(runner: RunnerState, member: jax.Array) -> RunnerState:
    return jax.tree.map(lambda leaf: leaf[member], runner)
