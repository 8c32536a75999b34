"""Separate runs: the trials of a sweep one after the other, for environments outside JAX.

No program can hold such an environment, and so none trains several trials: each has a `Trainer` of
its own. In a resumed sweep the trial that was broken off goes on from its last checkpoint.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl.algorithms.base import HeadlineMetric
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.plan import laid_out
from jaxrl.run.health import Diverged
from jaxrl.run.logging.console import Progress, device_name, duration
from jaxrl.run.results import ITERATIONS, Result, lookup
from jaxrl.run.signals import StopSignal
from jaxrl.run.stopping import LIFETIME_STEPS, LIMITS, all_met, check_stop, last_iteration
from jaxrl.run.trainer import Trainer
from jaxrl.sweeps.metric_readers import check_metric
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.outcomes import DIVERGED, STOPPED, TERMINATED, TrialResult, shown
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.sweep_folder import SweepFolder
from jaxrl.sweeps.trials import Trial, held_outside


class SeparateRuns:
    """A sweep's trials, from the plan to their outcomes, one after the other.

    Raises:
        UsageError: an option that compares or joins trials while they train, or a metric or a
            criterion that no result has; nothing is compiled yet.
    """

    def __init__(self, trials: Sequence[Trial], order: SweepOptions, progress: Progress):
        self.trials, self.order, self.progress = list(trials), order, progress
        self.interrupt = StopSignal(progress.say)
        self.sweep = Sweep([], order.metric, None)
        self.criteria = {path: least for path, least in order.stop.items() if path not in LIMITS}
        self.env_name = held_outside(trial.config for trial in trials)
        for name, value, none in (
            ("halving", order.halving, None),
            ("scheduler", order.scheduler, None),
            ("batch_size", order.batch_size, "auto"),
        ):
            if value != none:
                raise UsageError(
                    f"{name}={brief(value)} needs trials that train together: those over "
                    f"{self.env_name} are separate runs, one after the other"
                )
        self._check_results()

    def run(self, store: SweepFolder) -> Sweep:
        self.sweep.folder = store.path
        self.sweep.outcomes = store.outcomes(self.trials)
        finished = {outcome.trial.number for outcome in self.sweep.outcomes}
        left = [trial for trial in self.trials if trial.number not in finished]
        self.progress.say(self.plan(left))
        began = time.perf_counter()
        try:
            with self.interrupt.listening(), self.progress:
                for trial in left:
                    if not self.interrupt.heard:
                        self._train(trial, store)
        finally:
            store.close()
            self.sweep.whole_seconds = time.perf_counter() - began
        return self.sweep

    def plan(self, left: Sequence[Trial]) -> str:
        """The plan of the runs, in a few lines."""
        steps = sum(trial.config.total_env_steps for trial in left)
        number = f"{len(left):,} of {len(self.trials):,} trials as separate runs"
        return laid_out(
            [
                ("sweep", f"{number}, {steps:,} environment steps"),
                ("environment", f"{self.env_name}, outside JAX"),
                ("device", device_name()),
                ("folder", self.sweep.folder),
            ]
        )

    def _check_results(self) -> None:
        """Refuses criteria and a metric that the first trial's results do not have."""
        check_stop(self.order.stop, None)
        settings = self.order.trial_settings
        with Trainer(self.trials[0].config, **self._arguments(None)) as trainer:
            if any(map(trainer.callbacks.has, ("on_train_result", "on_evaluate_end"))):
                return  # they may add what they like
            names = trainer.result_names()
        check_stop(self.criteria, names)
        check_metric(self.order.metric, names, evaluated=settings.evaluation_interval is not None)

    def _arguments(self, folder: Any) -> dict[str, Any]:
        """The arguments of a trial's trainer."""
        names = ("loggers", "devices", *self.order.run_settings)
        settings = {name: getattr(self.order.trial_settings, name) for name in names}
        return {**settings, "pictures": False, "run_dir": folder, "quiet": True}

    def _trainer(self, trial: Trial, store: SweepFolder) -> Trainer:
        """A trial's, which goes on where its folder says, if there is one."""
        folder = None if store.path is None else store.folder_of(trial)
        arguments = self._arguments(folder)
        if folder is None or not folder.exists():
            return Trainer(trial.config, **arguments)
        arguments["run_dir"] = "same"
        return Trainer.from_checkpoint(folder, config=trial.config, **arguments)

    def _train(self, trial: Trial, store: SweepFolder) -> None:
        """Trains a trial to its end, unless the user stops it, and notes what came of it."""
        reason = ""
        with self._trainer(trial, store) as trainer:
            trainer.trial, trainer.interrupt = trial, self.interrupt
            last = self._last(trainer)
            trainer.progress = _TrialProgress(self.progress, self._place(trial, last))
            before = trainer.lifetime.time_total_s
            try:
                if not _is_done(trainer.last_result):
                    trainer.fit({**self.criteria, ITERATIONS: last})
            except Diverged as error:
                reason = str(error)
            results = trainer.results()
            self.sweep.seconds += trainer.lifetime.time_total_s - before
            self.sweep.compile_seconds += trainer.compile_seconds
        if not reason and not _is_done(trainer.last_result):
            return
        status = DIVERGED if reason else self._status(trainer.last_result, last)
        outcome = TrialResult(trial, status, trainer.last_result, None, reason=reason)
        outcome.curve = self._curve(results)
        scores = (score for score in reversed(outcome.curve[1]) if not math.isnan(score))
        outcome.score = next(scores, None)
        store.add_line(outcome)
        self.sweep.outcomes.append(outcome)
        self.progress.say(_summary(outcome))

    def _last(self, trainer: Trainer) -> int:
        """The iteration that a trial ends with, at the latest."""
        limit = last_iteration(self.order.stop, trainer.algorithm.num_env_steps)
        return int(min(limit, trainer.config.num_updates))

    def _status(self, result: Result, last: int) -> str:
        reached = all_met(self.criteria, result) or result[ITERATIONS] < last
        return STOPPED if reached else TERMINATED

    def _curve(self, results: Sequence[Result]) -> tuple[list[int], list[float]]:
        """(environment steps, scores) of each iteration; NaN where it has no score."""
        found = [lookup(result, self.order.metric) for result in results]
        scores = [math.nan if score is None else float(score) for score in found]
        return [result[LIFETIME_STEPS[0]] for result in results], scores

    def _place(self, trial: Trial, last: int) -> Callable[[Result], str]:
        """A function that says where the sweep stands, by the trial's newest result."""
        over = f"{len(self.sweep.outcomes):,} of {len(self.trials):,} finished"

        def place(result: Result) -> str:
            score = lookup(result, self.order.metric)
            scored = "" if score is None else f"  {self.order.metric.split('/')[-1]} {score:.2f}"
            speed = f"{lookup(result, 'perf/env_steps_per_s'):,.0f} steps/s"
            at = f"iteration {result[ITERATIONS]:,} of {last:,}"
            return f"{over}  trial {trial.name}  {at}{scored}  {speed}"

        return place


class _TrialProgress(Progress):
    """The progress of a trial's trainer, as a line of the sweep's."""

    def __init__(self, of_sweep: Progress, place: Callable[[Result], str]):
        super().__init__(quiet=True)
        self._of_sweep, self._place = of_sweep, place

    def say(self, text: str, *, even_if_quiet: bool = False) -> None:
        if even_if_quiet or text.startswith("warning: "):
            self._of_sweep.say(text, even_if_quiet=even_if_quiet)

    def show(
        self,
        result: Mapping[str, Any],
        metrics: Sequence[HeadlineMetric],
        seconds_left: float | None,
    ) -> None:
        left = "" if seconds_left is None else f"  {duration(seconds_left)} left of this trial"
        self._of_sweep.show_line(f"{self._place(result)}{left}")


def _is_done(result: Result | None) -> bool:
    return result is not None and bool(result["done"])


def _summary(outcome: TrialResult) -> str:
    """A finished trial in a line."""
    trial = outcome.trial
    settings = " ".join(filter(None, [shown(trial.settings), f"seed={trial.config.seed}"]))
    score = "no score" if outcome.score is None else f"score {outcome.score:.2f}"
    ending = outcome.reason or f"{outcome.iterations:,} iterations, {score}"
    return f"trial {trial.name} ({settings}) {outcome.status}: {ending}"
