"""A sweep at work: what is left to train, the plan of it, and the outcomes as they come."""

import abc
import time
from collections.abc import Collection, Sequence

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.plan import Line, laid_out
from jaxrl.run.logging.console import Progress
from jaxrl.run.signals import StopSignal
from jaxrl.run.stopping import LIMITS, check_stop, last_iteration
from jaxrl.sweeps.metric_readers import check_metric
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.outcomes import TrialResult
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.sweep_folder import SweepFolder
from jaxrl.sweeps.trials import Trial


class SweepRun(abc.ABC):
    """A sweep's trials, from the plan to their outcomes; its subclasses know how they train."""

    store: SweepFolder  # which `run` is given

    def __init__(self, trials: Sequence[Trial], order: SweepOptions, progress: Progress):
        self.trials, self.order, self.progress = list(trials), order, progress
        self.settings = order.trial_settings
        self.interrupt = StopSignal(progress.say)
        self.sweep = Sweep([], order.metric, None, mode=order.mode)
        check_stop(order.stop, None)
        self.criteria = {path: least for path, least in order.stop.items() if path not in LIMITS}

    def run(self, store: SweepFolder) -> Sweep:
        """Trains what is not finished; returns the sweep with all outcomes so far."""
        self.store, self.sweep.folder = store, store.path
        self.take_over()
        self.progress.say(self.plan())
        began = time.perf_counter()
        try:
            with self.interrupt.listening(), self.progress:
                self.train()
        finally:
            try:
                self.close()
            finally:
                store.close()
                self.sweep.whole_seconds = time.perf_counter() - began
        return self.sweep

    def take_over(self) -> None:
        """Takes over the outcomes of a resumed sweep."""
        self.sweep.outcomes = self.store.outcomes(self.trials)

    def plan(self) -> str:
        """The plan of the sweep, in a few lines."""
        return laid_out([*self.plan_lines(), ("folder", self.sweep.folder)])

    @abc.abstractmethod
    def plan_lines(self) -> list[Line]:
        """The lines of the plan above the folder's."""

    @abc.abstractmethod
    def train(self) -> None:
        """Trains what is left, until the user asks to stop."""

    def close(self) -> None:  # noqa: B027
        """Ends what is still open."""

    def last_of(self, trial: Trial, algorithm: Algorithm) -> int:
        """The iteration that a trial ends with, at the latest."""
        limit = last_iteration(self.order.stop, algorithm.num_env_steps)
        return int(min(limit, trial.config.num_updates))

    def check_names(self, names: Collection[str]) -> None:
        """Checks the metric and the criteria, before anything is compiled.

        Raises:
            UsageError: one is not among the names of a result's numbers.
        """
        evaluated = self.settings.evaluation_interval is not None
        check_metric(self.order.metric, names, evaluated=evaluated)
        check_stop(self.criteria, names)

    def add_outcome(self, outcome: TrialResult) -> None:
        """Writes a finished trial's line; its folder holds its final state already."""
        self.store.add_line(outcome)
        self.sweep.outcomes.append(outcome)

    def finished_text(self, more: int = 0) -> str:
        """A text on how many trials are finished, `more` beside those with an outcome."""
        return f"{len(self.sweep.outcomes) + more:,} of {len(self.trials):,} finished"
