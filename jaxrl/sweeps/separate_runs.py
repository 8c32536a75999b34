"""Separate runs: the trials of a sweep one after the other, for environments outside JAX.

No program can hold such an environment, and so none trains several trials: each has a `Trainer` of
its own. In a resumed sweep the trial that was broken off resumes from its last checkpoint.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from jaxrl.algorithms.base import HeadlineMetric
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.plan import Line
from jaxrl.rollout.episode_callbacks import resolve_callbacks
from jaxrl.run.callbacks import HostCallbacks
from jaxrl.run.health import Diverged
from jaxrl.run.logging.console import Progress, device_name, duration
from jaxrl.run.results import ITERATIONS, Result, lookup
from jaxrl.run.stopping import LIFETIME_STEPS, all_met
from jaxrl.run.trainer import Trainer
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.outcomes import DIVERGED, STOPPED, TERMINATED, TrialResult, last_score, shown
from jaxrl.sweeps.sweep_run import SweepRun
from jaxrl.sweeps.trial_table import RUNNING, TrialRow, rows_of, trial_table
from jaxrl.sweeps.trials import Trial, held_outside


class SeparateRuns(SweepRun):
    """Trials that are trained one after the other, each as a run of its own.

    Raises:
        UsageError: an option that compares or joins trials while they train.
    """

    def __init__(self, trials: Sequence[Trial], order: SweepOptions, progress: Progress):
        super().__init__(trials, order, progress)
        self.env_name = held_outside(trial.config for trial in trials)
        for name, value, none in (
            ("halving", order.halving, None),
            ("scheduler", order.scheduler, None),
            # In a search it says how many are proposed at a time.
            ("batch_size", "auto" if order.search else order.batch_size, "auto"),
        ):
            if value != none:
                raise UsageError(
                    f"{name}={brief(value)} needs trials that train together: those over "
                    f"{self.env_name} are separate runs, one after the other"
                )
        config = trials[0].config
        extended = HostCallbacks(None, resolve_callbacks(config.callbacks)).add_to_results
        if extended:  # by what they like; and they need not hear of a trainer that trains nothing
            config = config.replace(callbacks=None)
        with Trainer(config, **self._arguments(None)) as trainer:
            if not extended:
                self.check_names(trainer.result_names())

    def plan_lines(self) -> list[Line]:
        left = self._left()
        steps = sum(trial.config.total_env_steps for trial in left)
        number = f"{len(left):,} of {len(self.trials):,} trials as separate runs"
        return [
            ("sweep", f"{number}, {steps:,} environment steps"),
            ("environment", f"{self.env_name}, outside JAX"),
            ("device", device_name()),
        ]

    def train(self) -> None:
        for trial in self._left():
            if not self.interrupt.heard:
                self._train(trial)

    def _left(self) -> list[Trial]:
        finished = {outcome.trial.number for outcome in self.sweep.outcomes}
        return [trial for trial in self.trials if trial.number not in finished]

    def _arguments(self, folder: Any) -> dict[str, Any]:
        """The arguments of a trial's trainer."""
        names = ("loggers", "devices", *self.order.run_settings)
        settings = {name: getattr(self.settings, name) for name in names}
        return {**settings, "pictures": False, "run_dir": folder, "quiet": True}

    def _trainer(self, trial: Trial) -> Trainer:
        """The trainer of a trial, which resumes from its folder, if there is one."""
        folder = None if self.store.path is None else self.store.folder_of(trial)
        if folder is None or not folder.exists():
            return Trainer(trial.config, **self._arguments(folder))
        return Trainer.from_checkpoint(folder, config=trial.config, **self._arguments("same"))

    def _train(self, trial: Trial) -> None:
        """Trains a trial to its end, unless the user stops it, and notes what came of it."""
        reason = ""
        with self._trainer(trial) as trainer:
            trainer.trial, trainer.interrupt = trial, self.interrupt
            trainer.session.facts["trial_id"] = trial.name
            last = self.last_of(trial, trainer.algorithm)
            trainer.progress = _TrialProgress(self, trial, last)
            before = trainer.lifetime.time_total_s
            try:
                if not _is_done(trainer.last_result):
                    trainer.fit({**self.criteria, ITERATIONS: last})
            except Diverged as error:
                reason = str(error)
            results, result = trainer.results(), trainer.last_result
            self.sweep.seconds += trainer.lifetime.time_total_s - before
            self.sweep.compile_seconds += trainer.compile_seconds
        if not (reason or _is_done(result)):
            return
        status = TERMINATED
        if reason:
            status = DIVERGED
        elif all_met(self.criteria, result) or result[ITERATIONS] < last:
            status = STOPPED
        curve = self._curve(results)
        outcome = TrialResult(trial, status, result, last_score(curve[1]), curve, reason=reason)
        self.add_outcome(outcome)
        self.progress.say(_summary(outcome))

    def _curve(self, results: Sequence[Result]) -> tuple[list[int], list[float]]:
        """(environment steps, scores) of each iteration; NaN where it has no score."""
        steps, scores = [], []
        for result in results:
            score = lookup(result, self.order.metric)
            steps.append(result[LIFETIME_STEPS[0]])
            scores.append(math.nan if score is None else float(score))
        return steps, scores

    def table(self, trial: Trial, result: Result, height: int) -> Table:
        """The trials for a terminal of so many lines, by the newest result of the one at work."""
        score = lookup(result, self.order.metric)
        row = TrialRow(trial, RUNNING, result[ITERATIONS], score)
        rows = rows_of(self.trials, self.sweep.outcomes, [row], self.order.mode)
        return trial_table(rows, self.order.metric, height)


class _TrialProgress(Progress):
    """The progress of a trial's trainer, as a line of the sweep's below the table of trials."""

    def __init__(self, run: SeparateRuns, trial: Trial, last: int):
        super().__init__(quiet=True)
        self._run, self._trial, self._last = run, trial, last

    def say(self, text: str, *, even_if_quiet: bool = False) -> None:
        if even_if_quiet or text.startswith("warning: "):
            self._run.progress.say(text, even_if_quiet=even_if_quiet)

    def show(
        self,
        result: Mapping[str, Any],
        metrics: Sequence[HeadlineMetric],
        seconds_left: float | None,
    ) -> None:
        metric = self._run.order.metric
        parts = [self._run.finished_text(), f"trial {self._trial.name}"]
        parts.append(f"iteration {result[ITERATIONS]:,} of {self._last:,}")
        if (score := lookup(result, metric)) is not None:
            parts.append(f"{metric.split('/')[-1]} {score:.2f}")
        parts.append(f"{lookup(result, 'perf/env_steps_per_s'):,.0f} steps/s")
        if seconds_left is not None:
            parts.append(f"{duration(seconds_left)} left of this trial")
        table = functools.partial(self._run.table, self._trial, result)
        self._run.progress.show_line("  ".join(parts), table)


def _is_done(result: Result | None) -> bool:
    return result is not None and bool(result["done"])


def _summary(outcome: TrialResult) -> str:
    """A finished trial in a line."""
    trial = outcome.trial
    settings = " ".join(filter(None, [shown(trial.settings), f"seed={trial.config.seed}"]))
    score = "no score" if outcome.score is None else f"score {outcome.score:.2f}"
    ending = outcome.reason or f"{outcome.iterations:,} iterations, {score}"
    return f"trial {trial.name} ({settings}) {outcome.status}: {ending}"
