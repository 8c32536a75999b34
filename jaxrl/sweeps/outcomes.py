"""Outcomes of a sweep's trials: how each ended, with its last result, its score and its curve."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.displays import Display
from jaxrl.core.errors import AnswersOtherWords
from jaxrl.core.plan import Line
from jaxrl.run.results import Result, flatten, lookup
from jaxrl.sweeps.trials import Trial

# A trial is dropped by halving.
TERMINATED, STOPPED, DIVERGED, DROPPED = "terminated", "stopped", "diverged", "dropped"
MOST_POINTS = 500  # of a trial's curve in a sweep's files
Curve = tuple[list[int], list[float]]  # environment steps and scores, NaN where there is none
MAX, MIN = "max", "min"  # modes: whether the highest or the lowest score is the best


@dataclass(repr=False)
class TrialResult(AnswersOtherWords):
    """The result of one trial of a sweep."""

    trial: Trial
    status: str
    result: Result | None  # its last result tree; None if not even one update was finite
    score: float | None
    curve: Curve = field(default_factory=lambda: ([], []))
    folder: Path | None = None  # a run's folder: `load_policy` and `--resume` take it
    reason: str = ""  # why it diverged

    def __repr__(self) -> str:
        settings = shown(self.trial.settings) or f"seed={self.trial.config.seed}"
        score = "no score" if self.score is None else f"score {self.score:.4g}"
        return f"<TrialResult {settings}: {self.status}, {self.iterations} iterations, {score}>"

    def _repr_html_(self) -> str:
        lines: list[Line] = [*self.trial.settings.items(), ("seed", self.trial.config.seed)]
        lines += [("status", f"{self.status} {self.reason}".strip()), ("score", short(self.score))]
        if self.folder is not None:
            lines.append(("folder", self.folder))
        folded = None
        if self.result is not None:
            folded = Display("its last result", list(flatten(self.result)))
        return Display(f"Trial {self.trial.name}", lines, folded=folded).html

    @property
    def iterations(self) -> int:
        return self.result["training_iteration"] if self.result else 0


def last_score(scores: Sequence[float]) -> float | None:
    """The last score that is a number, if there is one."""
    return next((score for score in reversed(scores) if not math.isnan(score)), None)


def thinned(curve: Curve) -> Curve:
    """At most `MOST_POINTS` points of a curve: of a longer one every k-th score, and its last."""
    steps, scores = curve
    if len(steps) <= MOST_POINTS:
        return curve
    scored = [i for i, score in enumerate(scores) if not math.isnan(score)]
    every = max(1, math.ceil(len(scored) / MOST_POINTS))
    index = scored[::-every][::-1]
    return [steps[i] for i in index], [scores[i] for i in index]


def merit(score: float | None, mode: str) -> float:
    """A score by a mode as a number that is the higher the better; without a score the worst."""
    if score is None:
        return -math.inf
    return score if mode == MAX else -score


def value_of(outcome: TrialResult, metric: str) -> float | None:
    """The value at a path of a trial's last result; None where there is no number, or NaN."""
    value = lookup(outcome.result, metric) if outcome.result else None
    is_number = isinstance(value, int | float | np.number) and not math.isnan(value)
    return float(value) if is_number else None


def shown(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={short(value)}" for name, value in settings.items())


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
