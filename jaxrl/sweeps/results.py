"""Results of a sweep: each trial's, the best one, and statistics over the seeds of a setting."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.displays import Display
from jaxrl.core.errors import AnswersOtherWords, UsageError, require, unknown_result
from jaxrl.core.plan import Line
from jaxrl.run.logging.console import duration
from jaxrl.run.logging.figures import inline
from jaxrl.run.logging.run_results import dataframe_of
from jaxrl.run.results import flatten
from jaxrl.sweeps import lineage_plots, plots
from jaxrl.sweeps.lineage import Lineage, Stretch
from jaxrl.sweeps.outcomes import TrialResult, short, shown, value_of
from jaxrl.sweeps.statistics import Estimate, median, spread

MOST_DISPLAYED = 50  # trials in a notebook


@dataclass(repr=False)
class Sweep(AnswersOtherWords):
    """The results of a sweep: tables, statistics over seeds, the best setting.

    Attributes:
        outcomes: by trial, those that are finished.
        metric: the path in the result tree that ranks them; the higher the better.
    """

    outcomes: list[TrialResult]
    metric: str
    folder: Path | None
    seconds: float = 0.0  # of training, added up over what trained side by side
    compile_seconds: float = 0.0
    whole_seconds: float = 0.0  # by the clock, compilation included
    programs: int = 0
    lineage: Lineage | None = None  # who copied whom; None without population-based training

    def __repr__(self) -> str:
        scored = [outcome for outcome in self.outcomes if outcome.score is not None]
        best = max(scored, key=lambda outcome: outcome.score, default=None)
        found = "" if best is None else f", the best {best!r}"
        where = "" if self.folder is None else f", {self.folder}"
        return f"<Sweep of {len(self.outcomes)} trials by {self.metric}{found}{where}>"

    def best_trial(self, metric: str | None = None) -> TrialResult:
        """The trial with the highest value of `metric`, a path in the result tree (the sweep's).

        One seed's luck: `best_setting` ranks settings by all of their seeds.
        """
        metric = metric or self.metric
        scored = [outcome for outcome in self.outcomes if value_of(outcome, metric) is not None]
        if scored:
            return max(scored, key=lambda outcome: value_of(outcome, metric))
        paths = set()
        for outcome in self.outcomes:
            paths |= dict(flatten(outcome.result or {})).keys()
        if paths and metric not in paths:
            raise unknown_result("metric", metric, sorted(paths))
        raise UsageError(f"no trial has a {metric} yet")

    def lineage_of(self, outcome: TrialResult) -> list[Stretch]:
        """The numbers that a trial's final policy was trained with, the first ones first.

        In population-based training it may begin with another trial, whose policy was copied.
        """
        if self.lineage is None:
            settings = outcome.trial.settings
            return [Stretch(0, outcome.iterations, outcome.trial.number, settings)]
        return self.lineage.of(outcome.trial.number, outcome.iterations)

    def best_lineage(self) -> list[Stretch]:
        """The lineage of the best trial of a population; empty where no trial has a score."""
        if self.lineage is None or all(outcome.score is None for outcome in self.outcomes):
            return []
        return self.lineage_of(self.best_trial())

    def best_setting(self, metric: str | None = None) -> tuple[dict[str, Any], list[TrialResult]]:
        """(settings, the results of its seeds) with the highest median of `metric` over the seeds.

        A seed without a value, since it diverged before an episode ended, counts as the worst. The
        best trial is mostly the luckiest of all, and more so the more there are: this is the
        setting to train with again.
        """
        metric = metric or self.metric
        self.best_trial(metric)  # refuses a metric that no trial has
        return max(self.by_settings(), key=lambda pair: _median_over_all(pair[1], metric))

    def by_settings(self) -> list[tuple[dict[str, Any], list[TrialResult]]]:
        """(settings, the outcomes of its seeds), in the order of the plan."""
        groups: dict[str, tuple[dict[str, Any], list[TrialResult]]] = {}
        for outcome in self.outcomes:
            settings, number = outcome.trial.settings, outcome.trial.number
            # Members of a population that end with equal numbers came there on other ways.
            name = repr(settings if self.lineage is None else (settings, number))
            groups.setdefault(name, (settings, []))[1].append(outcome)
        return list(groups.values())

    def statistics(self) -> list["SettingStatistics"]:
        """Statistics over each setting's seeds, of their last scores, in the order of the plan."""
        return [_statistics_of(settings, seeds) for settings, seeds in self.by_settings()]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each trial: settings, seed, status, score, folder and last result by path."""
        rows = []
        for outcome in self.outcomes:
            row = {"trial": outcome.trial.name, **outcome.trial.settings}
            row |= {"seed": outcome.trial.config.seed, "status": outcome.status}
            row |= {"reason": outcome.reason, "score": outcome.score}
            row["folder"] = None if outcome.folder is None else str(outcome.folder)
            rows.append(row | dict(flatten(outcome.result or {})))
        return rows

    def dataframe(self) -> Any:
        """`rows` as a pandas DataFrame.

        Raises:
            UsageError: pandas is not installed.
        """
        return dataframe_of(self.rows(), "rows()")

    def plot(self) -> Any:
        """The matplotlib figure of the sweep's `curves.png`; notebooks show it.

        Raises:
            UsageError: matplotlib is not installed, or no trial has a score.
        """
        require("matplotlib", "plot()")
        drawn = plots.figure(self.by_settings(), self.metric)
        if drawn is None:
            raise UsageError(f"plot(): no trial has a {self.metric} yet")
        return inline(drawn)

    def plot_lineage(self) -> Any:
        """The matplotlib figure of a population's `lineage.png`; notebooks show it.

        Raises:
            UsageError: matplotlib is not installed, or this is no population-based training.
        """
        require("matplotlib", "plot_lineage()")
        drawn = lineage_plots.figure(self.lineage, self.outcomes, self.best_lineage())
        if drawn is None:
            raise UsageError("plot_lineage(): there is no finished population-based training")
        return inline(drawn)

    def table(self, most: int = 20) -> str:
        """Trials as Ray Tune shows them, the best `most` first."""
        rows = self._table_rows()
        shown_rows = aligned(rows[: most + 1])
        if len(self.outcomes) <= most:
            return shown_rows
        return f"{shown_rows}\n... and {len(self.outcomes) - most} more: results.jsonl has them"

    def _table_rows(self) -> list[list[str]]:
        """The titles of the table's columns, then a row for each trial, the best first."""
        settings = [outcome.trial.settings for outcome in self.outcomes]
        names = list(dict.fromkeys(itertools.chain.from_iterable(settings)))
        titles = ["trial", *names, "seed", "status", "iterations", "steps"]
        titles += [self.metric.split("/")[-1], "time"]
        return [titles, *(_row(outcome, names) for outcome in sorted(self.outcomes, key=_rank))]

    def _repr_html_(self) -> str:
        lines: list[Line] = [("ranked by", self.metric)]
        if self.folder is not None:
            lines.append(("folder", self.folder))
        rows = self._table_rows()
        if len(self.outcomes) > MOST_DISPLAYED:
            more = len(self.outcomes) - MOST_DISPLAYED
            lines.append(("shown", f"the best {MOST_DISPLAYED}; rows() has the other {more:,}"))
        folded = None
        if statistics := self.statistics_table():
            folded = Display("the seeds of each setting", [(None, statistics)])
        title = f"Sweep of {len(self.outcomes)} trials"
        return Display(title, lines, rows[: MOST_DISPLAYED + 1], folded).html

    def statistics_table(self) -> str:
        """The statistics over the seeds of each setting; empty where there is one of each."""
        found = [row for row in self.statistics() if row.seeds > 1]
        if not found:
            return ""
        rows = [["settings", "seeds", "failed", "median", "interquartile mean", "from ... to"]]
        for row in found:
            name = shown(row.settings) or "as configured"
            rows.append([name, str(row.seeds), str(row.failed), *_shown_estimates(row)])
        if any(row.failed for row in found):
            note = "failed: seeds that ended before any episode did; the numbers are of the others"
            return f"{aligned(rows)}\n{note}"
        return aligned([[*row[:2], *row[3:]] for row in rows])


class SettingStatistics(NamedTuple):
    """The seeds of one setting, by their last scores."""

    settings: dict[str, Any]
    seeds: int  # all of them
    failed: int  # those without a score: they diverged, or ended, before any episode did
    median: Estimate | None  # of those with a score; None if there are none
    iqm: Estimate | None
    bounds: str  # what low and high are: "range" below eight scores, else "95 % interval"


def _statistics_of(settings: dict[str, Any], outcomes: list[TrialResult]) -> SettingStatistics:
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    failed = len(outcomes) - len(scores)
    if not scores:
        return SettingStatistics(settings, len(outcomes), failed, None, None, "")
    (middle, bounds), (mean, _) = spread(scores, median), spread(scores)
    return SettingStatistics(settings, len(outcomes), failed, middle, mean, bounds)


def _shown_estimates(row: SettingStatistics) -> list[str]:
    """[median, interquartile mean, its bounds] as text."""
    if row.median is None or row.iqm is None:
        return ["", "", ""]
    bounds = f"{row.iqm.low:.2f} ... {row.iqm.high:.2f} ({row.bounds})"
    return [f"{row.median.value:.2f}", f"{row.iqm.value:.2f}", bounds]


def _median_over_all(outcomes: list[TrialResult], metric: str) -> float:
    values = [value_of(outcome, metric) for outcome in outcomes]
    return float(np.median([-math.inf if value is None else value for value in values]))


def _rank(outcome: TrialResult) -> tuple[bool, float]:
    """The key that sorts the best score first, and trials without one last."""
    return outcome.score is None, -(outcome.score or 0.0)


def aligned(rows: list[list[str]]) -> str:
    """Columns of text, numbers or not, two blanks apart."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _row(outcome: TrialResult, names: list[str]) -> list[str]:
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
