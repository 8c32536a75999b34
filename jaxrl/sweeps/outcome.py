"""What came of a sweep: each trial's result, the best one, and what the seeds of a setting say together."""

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, unknown_result
from jaxrl.run.console import duration
from jaxrl.run.results import Result, flatten, lookup
from jaxrl.sweeps.plan import Trial
from jaxrl.sweeps.statistics import Estimate, estimate, median

TERMINATED, STOPPED, DIVERGED, DROPPED = "terminated", "stopped", "diverged", "dropped"  # dropped: by halving


@dataclass
class Outcome:
    """One trial's."""

    trial: Trial
    status: str
    result: Result | None  # its last result tree; None if not even one update was finite
    score: float | None
    curve: tuple[list[int], list[float]] = field(default_factory=lambda: ([], []))  # environment steps and scores
    folder: Path | None = None  # a run's folder: `load_policy` and `--resume` take it

    @property
    def iterations(self) -> int:
        return self.result["training_iteration"] if self.result else 0


@dataclass
class Sweep:
    """All of them.

    Attributes:
        outcomes: by trial, those that are over.
        metric: the path in the result tree that ranks them; the higher the better.
    """

    outcomes: list[Outcome]
    metric: str
    folder: Path | None
    seconds: float = 0.0  # of training, added up over what trained side by side
    compile_seconds: float = 0.0
    whole_seconds: float = 0.0  # by the clock, compilation included
    programs: int = 0

    def best_trial(self, metric: str | None = None) -> Outcome:
        """The outcome with the highest value of `metric`, a path in the result tree, by default the sweep's own."""
        metric = metric or self.metric
        scored = [(value_of(outcome, metric), outcome) for outcome in self.outcomes]
        scored = [(value, outcome) for value, outcome in scored if value is not None and not math.isnan(value)]
        if not scored:
            known = sorted({path for one in self.outcomes if one.result for path, _ in flatten(one.result)})
            if known and metric not in known:
                raise unknown_result("metric", metric, known)
            raise UsageError(f"no trial has a {metric} yet")
        return max(scored, key=lambda pair: pair[0])[1]

    def by_settings(self) -> list[tuple[dict[str, Any], list[Outcome]]]:
        """(settings, the outcomes of its seeds), in the order of the plan."""
        groups: dict[str, tuple[dict[str, Any], list[Outcome]]] = {}
        for outcome in self.outcomes:
            groups.setdefault(repr(outcome.trial.settings), (outcome.trial.settings, []))[1].append(outcome)
        return list(groups.values())

    def statistics(self) -> list[tuple[dict[str, Any], int, Estimate, Estimate]]:
        """(settings, seeds, median, interquartile mean) of the last scores, with 95 % bootstrap intervals."""
        rows = []
        for settings, own in self.by_settings():
            scores = [outcome.score for outcome in own if outcome.score is not None]
            if scores:
                rows.append((settings, len(scores), estimate(scores, median), estimate(scores)))
        return rows

    def table(self, most: int = 20) -> str:
        """Trials as Ray Tune shows them, the best `most` first."""
        names = list(dict.fromkeys(name for outcome in self.outcomes for name in outcome.trial.settings))
        titles = ["trial", *names, "seed", "status", "iterations", "steps", self.metric.split("/")[-1], "time"]
        ranked = sorted(self.outcomes, key=lambda outcome: -math.inf if outcome.score is None else -outcome.score)
        ranked.sort(key=lambda outcome: outcome.score is None)
        rows = [_row(outcome, names) for outcome in ranked[:most]]
        more = f"\n... and {len(ranked) - most} more: results.jsonl has them" if len(ranked) > most else ""
        return aligned([titles, *rows]) + more

    def statistics_table(self) -> str:
        """What the seeds of each setting say together; empty where there is one of each."""
        rows = [
            [shown(settings) or "as configured", str(seeds), f"{middle.value:.2f}", interval(mean)]
            for settings, seeds, middle, mean in self.statistics()
            if seeds > 1
        ]
        titles = ["settings", "seeds", "median", "interquartile mean [95 % interval]"]
        return aligned([titles, *rows]) if rows else ""


def value_of(outcome: Outcome, metric: str) -> float | None:
    value = lookup(outcome.result, metric) if outcome.result else None
    return float(value) if isinstance(value, int | float | np.number) else None


def interval(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def shown(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={short(value)}" for name, value in settings.items())


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def aligned(rows: list[list[str]]) -> str:
    """Columns of text, numbers or not, two blanks apart."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _row(outcome: Outcome, names: list[str]) -> list[str]:
    trial, result = outcome.trial, outcome.result
    steps = f"{result['num_env_steps_sampled_lifetime']:,}" if result else "0"
    return [
        trial.name,
        *(short(trial.settings.get(name, "")) for name in names),
        str(trial.config.seed),
        outcome.status,
        f"{outcome.iterations:,}",
        steps,
        "" if outcome.score is None else f"{outcome.score:.2f}",
        duration(result["time_total_s"]) if result else "",
    ]
