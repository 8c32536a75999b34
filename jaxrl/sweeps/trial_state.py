"""State of one trial of a sweep between two turns of training, on the host."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.fast_prng import is_key
from jaxrl.run.devices.mesh import on_first_device, on_host, stacked
from jaxrl.run.results import Snapshot, lookup
from jaxrl.sweeps.metric_readers import EVALUATION
from jaxrl.sweeps.outcomes import DIVERGED, DROPPED, STOPPED, TERMINATED, TrialResult, last_score
from jaxrl.sweeps.reporting import Reporter
from jaxrl.sweeps.trials import Trial
from jaxrl.sweeps.vmapped import Numbers, State


@dataclass
class TrialState:
    """One trial's."""

    trial: Trial
    algorithm: Algorithm
    last: int  # updates that it has at most
    reporter: Reporter
    state: State | None = None  # without the axis of members
    scores: list[float] = field(default_factory=list)  # by update

    @property
    def score(self) -> float | None:
        return last_score(self.scores)

    def add_scores(self, scores: list[float], metric: str) -> None:
        """Adds those of the last updates, as the device knows them."""
        if scores and metric.startswith(EVALUATION):
            found = lookup(self.reporter.last_result, metric)
            scores = [*scores[:-1], math.nan if found is None else found]
        self.scores += scores

    @property
    def ended(self) -> bool:
        """True if a hook has ended it, or its time is up."""
        return self.reporter.ended

    def take_over(self, source: "TrialState", trial: Trial) -> None:
        """Makes this trial a copy of `source`, which trains as `trial` says from now on."""
        self.scores += [math.nan] * (len(source.scores) - len(self.scores))  # where it had diverged
        self.trial = trial
        self.reporter.take_over(source.reporter, trial)

    @property
    def updates(self) -> int:
        return int(self.state.runner.num_updates)

    @property
    def status(self) -> str:
        return self.status_at(self.state.diverged, self.state.met, self.updates)

    def status_at(self, diverged: bool, met: bool, updates: int) -> str:
        """The status of the trial if it ended there; "dropped": it could train further."""
        if diverged:
            return DIVERGED
        stopped = met or self.ended
        return STOPPED if stopped else TERMINATED if updates >= self.last else DROPPED

    def conclude(self) -> tuple[TrialResult, Snapshot]:
        """The result of the trial, and the contents of its checkpoint."""
        steps, result = self.algorithm.num_env_steps, self.reporter.last_result
        if result is not None:
            result["done"] = True
        curve = [steps * (i + 1) for i in range(len(self.scores))], self.scores
        outcome = TrialResult(self.trial, self.status, result, self.score, curve)
        return outcome, self.reporter.snapshot(self.state.runner)


def numbers_for(trials: Sequence[Trial], lasts: Sequence[int], goals: Sequence[float]) -> Numbers:
    """The numbers of members [S], each to stop after its own of `lasts`, or at one of the goals."""
    keys = [jax.random.key(trial.config.seed, impl="threefry2x32") for trial in trials]
    hypers, env_params = stacked([trial.numbers for trial in trials])
    goals = tuple(np.full(len(keys), goal, np.float32) for goal in goals)
    return Numbers(stacked(keys), hypers, env_params, np.asarray(lasts, np.int32), goals)


def unstacked(state: State, count: int) -> list[State]:
    """The parts of the first `count` members of a state [S], on the host."""

    def part(leaf, i):
        if not is_key(leaf):
            return leaf[i]
        words = np.asarray(jax.random.key_data(leaf))[i]
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))

    held = jax.tree.map(on_host, on_first_device(state))
    return [jax.tree.map(functools.partial(part, i=i), held) for i in range(count)]
