"""Reports of trials: each a member of the loop with hooks of its own, as a run has them."""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.play.evaluate import Evaluation
from jaxrl.rollout.episode_callbacks import resolve_callbacks
from jaxrl.run.callbacks import HostCallbacks
from jaxrl.run.devices.compiled import CAPACITY
from jaxrl.run.devices.mesh import on_first_device
from jaxrl.run.every import Every
from jaxrl.run.health import first_bad, undeclared_wait
from jaxrl.run.hooks import Chunk, Evaluating, Hook, states_of
from jaxrl.run.logging.loggers import Logs, RunStart
from jaxrl.run.processes import SingleProcess
from jaxrl.run.results import (
    ITERATIONS,
    Lifetime,
    Result,
    Snapshot,
    iteration_results,
    result_names,
)
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage.config_file import config_facts
from jaxrl.sweeps.sweep_folder import keep_trial
from jaxrl.sweeps.trial_view import NoTrainer, TrialView
from jaxrl.sweeps.trials import Trial
from jaxrl.sweeps.vmapped import Numbers, Seen, State, VmappedTrials, done_members

# Trials of several programs train side by side; their callbacks are called one at a time.
_calling = threading.Lock()


class TrialCallbacks(HostCallbacks):
    """The callbacks of a trial, which can read its state only while they are called."""

    read_runner: Callable[[], RunnerState] | None = None  # gives the state at hand

    def call(self, hook: str, value: Any = None) -> None:
        try:
            with _calling, self.trainer.showing(self.read_runner):
                super().call(hook, value)
        except NoTrainer as error:
            raise NoTrainer(f"{hook} of callbacks {error}") from error


class UndeclaredWaits(Hook):
    """Refuses an environment whose agents wait without declaring it."""

    def __init__(self, view: TrialView):
        self.view = view

    def keep(self, results: list[Result]) -> int:
        if found := undeclared_wait(results):
            iteration = results[found[0]][ITERATIONS]
            raise UsageError(f"trial {self.view.trial.name}, iteration {iteration}: {found[1]}")
        return len(results)


class TrialLogs(Hook):
    """The logs in a trial's folder, which begin with its first results; none without a folder."""

    is_record = True

    def __init__(self, settings: RunSettings, say: Callable[[str], None]):
        self.settings, self.say = settings, say
        self._logs: Logs | None = None

    def open(self, view: TrialView, rows: Metrics) -> None:
        """Begins the logs, if the trial has a folder.

        Args:
            rows: the trial's metrics, [CAPACITY, ...].
        """
        if self._logs is not None or view.run_dir is None or not self.settings.loggers:
            return
        facts = config_facts(view.config, view.config.setup().policies)
        evaluated = self.settings.evaluation_interval is not None
        names = tuple(result_names(view.algorithm, rows, evaluated=evaluated))
        done, steps = view.lifetime.training_iteration, view.lifetime.num_env_steps
        run = RunStart(view.run_dir, facts["config"], done, steps, names, self.say)
        self._logs = Logs(self.settings.loggers, run)

    @property
    def are_open(self) -> bool:
        return self._logs is not None

    def after(self, chunk: Chunk) -> None:
        if self._logs is not None:
            self._logs.write(chunk.results)

    def flush(self) -> None:
        """Hands everything logged so far to the operating system."""
        if self._logs is not None:
            self._logs.flush()

    def close(self) -> None:
        if self._logs is not None:
            self._logs.close()


class TrialCheckpoints(Hook):
    """A trial's checkpoints before its end, every so many iterations; none without a folder."""

    is_record = True

    def __init__(self, reporter: "Reporter", settings: RunSettings):
        self.reporter, self.settings = reporter, settings
        self.every = Every(settings.checkpoint_frequency)

    def after(self, chunk: Chunk) -> None:
        reporter, folder = self.reporter, self.reporter.view.run_dir
        result = chunk.results[-1]
        # The sweep itself writes the last one.
        is_over = result["done"] or reporter.is_last(result)
        if folder is None or is_over or not self.every.is_due(result[ITERATIONS]):
            return
        reporter.logs.flush()
        run = reporter.trial, reporter.algorithm, self.settings
        written = keep_trial(folder, *run, chunk.now())
        reporter.callbacks.call("on_checkpoint", written)


class Reporter:
    """One trial in the loop, from its first iteration to its end.

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
        self.view = TrialView(trial, algorithm, settings)
        found = resolve_callbacks(trial.config.callbacks)
        self.callbacks = TrialCallbacks(self.view, found, self.is_last)
        self.evaluation = Evaluation(trial.config, algorithm, settings, say)
        self.evaluation.check()
        self.logs = TrialLogs(settings, say)
        evaluating = Evaluating(settings.evaluations, self._evaluate, self.is_last)
        self.hooks = [UndeclaredWaits(self.view), evaluating, self.callbacks, self.logs]
        self.hooks.append(TrialCheckpoints(self, settings))
        self.processes = SingleProcess()
        self.most_seconds = math.inf  # of training; the chunk that reaches it is the last
        self.bad = ""  # the number that the trial has diverged by
        self._end: int | None = None  # the iteration that its program has ended it with
        self._has_begun = False

    @property
    def lifetime(self) -> Lifetime:
        return self.view.lifetime

    @property
    def last_result(self) -> Result | None:
        return self.view.last_result

    @last_result.setter
    def last_result(self, result: Result) -> None:
        self.view.last_result = result

    @property
    def ended(self) -> bool:
        """True if a callback has ended it, or its time is up."""
        return self.callbacks.have_ended or self.is_late

    @property
    def is_late(self) -> bool:
        """True if it has trained for as long as it may."""
        return self.lifetime.time_total_s >= self.most_seconds

    @property
    def may_end(self) -> bool:
        """True if a hook may end the trial before its program does."""
        return any(hook.adds_to_each for hook in self.hooks)

    def begin(self) -> None:
        """The trial is about to train, in `view.run_dir` if it has a folder: tells its callbacks.

        They hear of it once.
        """
        if not self._has_begun:
            self._has_begun = True
            self.callbacks.call("on_algorithm_init")

    def take_over(self, source: "Reporter", trial: Trial) -> None:
        """The trial is a copy of another one from now on: with its counts, by its own settings."""
        self.trial, self.bad = trial, ""
        self.view.train_as(trial)
        self.view.lifetime = Lifetime(**dataclasses.asdict(source.lifetime))

    def facts(self) -> dict[str, Any]:
        """The facts that a saved trial has beside its arrays."""
        return {
            "lifetime": dataclasses.asdict(self.lifetime),
            "result": self.last_result,
            "callbacks": self.callbacks.state(),
            "ended": self.ended,
            "bad": self.bad,
        }

    def take_back(self, trial: Trial, facts: Mapping[str, Any]) -> None:
        """Resumes where a saved trial was, as `facts` gave it."""
        self.trial, self.bad = trial, facts["bad"]
        self.view.train_as(trial)
        self.view.lifetime, self.view.last_result = Lifetime(**facts["lifetime"]), facts["result"]
        self.begin()
        self.callbacks.restore(facts["callbacks"])
        self.callbacks.have_ended = facts["ended"]
        self.callbacks.call("on_checkpoint_loaded")

    def chunk(
        self, rows: Metrics, count: int, seconds: float, read_runner: Callable[[], RunnerState]
    ) -> Chunk:
        """A chunk with results of all its updates, or of the last if only that is looked at.

        Args:
            rows: the trial's metrics, [CAPACITY, ...].
            count: how many of them were filled.
            seconds: that these took.
            read_runner: gives the trial's present state.
        """
        self.logs.open(self.view, rows)
        unread = not (self.logs.are_open or self.may_end)
        first = max(0, count - 1) if unread else 0
        before = dataclasses.replace(
            self.lifetime,
            training_iteration=self.lifetime.training_iteration + first,
            num_env_steps=self.lifetime.num_env_steps + first * self.algorithm.num_env_steps,
            num_episodes=self.lifetime.num_episodes
            + int(rows.episodes.iteration.count[:first].sum()),
            time_total_s=self.lifetime.time_total_s + seconds * first / max(1, count),
        )
        rows, left, results = jax.tree.map(lambda leaf: leaf[first:count], rows), count - first, []
        if count:
            share = seconds * left / count
            results = iteration_results(self.algorithm, rows, left, share, before)
        for result in results:
            result["trial_id"] = self.trial.name
        self.callbacks.read_runner = read_runner
        return Chunk(results, count, lambda: self.snapshot(read_runner()))

    def note_bad(self, rows: Metrics, index: int) -> None:
        """Notes the bad number of the update at `index` of `rows`, [CAPACITY, ...]."""
        row = jax.tree.map(lambda leaf: leaf[index : index + 1], rows)
        lifetime = dataclasses.replace(self.lifetime)
        results = iteration_results(self.algorithm, row, 1, 1.0, lifetime)
        found = first_bad(results, self.algorithm.root_cause_metrics)
        self.bad = found[1] if found else ""

    def settle(self, result: Result, *, is_stopped: bool) -> None:
        """Takes the result that the trial's state has led to, for its callbacks.

        Args:
            is_stopped: whether it has met a criterion, or has diverged.
        """
        self.view.last_result = result
        self.view.lifetime = Lifetime.after(result, self.view.lifetime)
        is_over = is_stopped or self.is_late or result[ITERATIONS] >= self.last
        self._end = result[ITERATIONS] if is_over else None

    def snapshot(self, runner: RunnerState) -> Snapshot:
        """The contents of the trial's checkpoint."""
        numbers, hooks = self.trial.numbers, states_of(self.hooks)
        return Snapshot(runner, *numbers, self.lifetime, self.last_result, hooks)

    def is_last(self, result: Result) -> bool:
        return result[ITERATIONS] == self._end

    def _evaluate(self) -> Result:
        self.callbacks.call("on_evaluate_start")
        evaluation = self.evaluation(self.callbacks.read_runner(), self.view.env_params)
        self.callbacks.call("on_evaluate_end", evaluation)
        return evaluation

    @contextlib.contextmanager
    def showing(self, runner: RunnerState) -> Iterator[None]:
        """A context in which callbacks can read a state between two chunks."""
        self.callbacks.read_runner = lambda: runner
        try:
            yield
        finally:
            self.callbacks.read_runner = None

    def close(self) -> None:
        """The trial is finished: tells its callbacks, and ends its logs."""
        self.callbacks.call("on_train_end", self.last_result)
        self.logs.close()


class TrialLoop:
    """The program of several trials, and where they stand.

    Args:
        reporters: of the members; those beyond them only fill the program up.
        stop_asked: returns whether training is to stop before the next chunk.
    """

    capacity = CAPACITY

    def __init__(
        self,
        program: VmappedTrials,
        state: State,
        numbers: Numbers,
        reporters: Sequence[Reporter],
        stop_asked: Callable[[], bool] = lambda: False,
    ):
        self.program, self.state, self.members = program, state, reporters
        self.numbers = numbers  # with the last updates of trials that a callback ended
        self.stop_asked = stop_asked
        self.last_rows: Seen | None = None  # of the last chunk
        self.moved = np.zeros(len(numbers.last), np.int64)  # updates of each member in it
        self.seconds = 0.0  # that it took
        self._before: State | None = None  # the state that the last chunk began with
        self._count = 0  # updates that it was asked for

    @property
    def iteration(self) -> int:
        return int(np.max(self.state.runner.num_updates))

    @property
    def iterations_left(self) -> int:
        left = np.asarray(self.numbers.last) - np.asarray(self.state.runner.num_updates)
        return int(np.max(left, initial=0, where=~done_members(self.state, self.numbers)))

    @property
    def seconds_per_update(self) -> float | None:
        return None if self.last_rows is None else self.seconds / max(1, self.moved.max())

    def compute(self, count: int) -> list[Chunk]:
        updates = np.array(self.state.runner.num_updates)
        may_end = any(reporter.may_end for reporter in self.members)
        self._before = _copied(self.state) if may_end else None
        self._count, began = count, time.perf_counter()
        self.state, self.last_rows = self.program.chunk(self.state, self.numbers, count)
        self.seconds = time.perf_counter() - began
        self.moved = np.array(self.state.runner.num_updates) - updates
        shown = on_first_device(self.last_rows.metrics), self.state.diverged
        metrics, diverged = jax.tree.map(np.asarray, shown)
        chunks = []
        for i, reporter in enumerate(self.members):
            rows = jax.tree.map(lambda leaf, i=i: leaf[:, i], metrics)
            moved, share = int(self.moved[i]), self.moved[i] / max(1, self.moved.max())
            reader = lambda i=i: _member(on_first_device(self.state.runner), np.int32(i))
            chunks.append(reporter.chunk(rows, moved, self.seconds * float(share), reader))
            if diverged[i] and not reporter.bad:
                reporter.note_bad(rows, moved)
        return chunks

    def settle(self, chunks: Sequence[Chunk]) -> None:
        counts = np.array([chunk.count for chunk in chunks])
        cut = np.flatnonzero(counts < self.moved[: len(counts)])
        if len(cut):
            last, updates = np.array(self.numbers.last), np.array(self._before.runner.num_updates)
            last[cut] = updates[cut] + counts[cut]
            numbers, self.state = self.numbers.replace(last=last), None  # which leaves its memory
            before = _copied(self._before)  # once more: `look` may let still fewer count
            self.state, self.last_rows = self.program.chunk(before, numbers, self._count)
            self.moved[cut] = counts[cut]
        is_stopped = np.asarray(self.state.met) | np.asarray(self.state.diverged)
        for i, (reporter, chunk) in enumerate(zip(self.members, chunks, strict=True)):
            if chunk.results:
                reporter.settle(chunk.results[-1], is_stopped=bool(is_stopped[i]))

    def conclude(self, chunks: Sequence[Chunk]) -> None:
        last, updates = np.array(self.numbers.last), np.array(self.state.runner.num_updates)
        for i, (reporter, chunk) in enumerate(zip(self.members, chunks, strict=True)):
            reporter.callbacks.read_runner = None
            if chunk.results and reporter.ended:
                last[i] = updates[i]
        self.numbers, self._before = self.numbers.replace(last=last), None


# Programs of whole trees: array by array, each shape would compile one.
@jax.jit
def _copied(state: State) -> State:
    return jax.tree.map(jnp.copy, state)


@jax.jit
def _member(runner: RunnerState, member: jax.Array) -> RunnerState:
    return jax.tree.map(lambda leaf: leaf[member], runner)
