"""Results of a sweep: each trial's, the best one, and statistics over the seeds of a setting."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.displays import Display
from jaxrl.core.errors import AnswersOtherWords, UsageError, brief, require, unknown_result
from jaxrl.core.fields import one_of
from jaxrl.core.plan import Line
from jaxrl.run.logging.console import duration
from jaxrl.run.logging.figures import inline
from jaxrl.run.logging.run_results import dataframe_of
from jaxrl.run.logging.statistics import Estimate, median, probability_of_improvement, spread
from jaxrl.run.results import flatten
from jaxrl.sweeps import lineage_plots, plots
from jaxrl.sweeps.lineage import Lineage, Stretch
from jaxrl.sweeps.outcomes import MAX, MIN, TrialResult, merit, short, shown, value_of

MOST_DISPLAYED = 50  # trials in a notebook


@dataclass(repr=False)
class Sweep(AnswersOtherWords):
    """The results of a sweep: tables, statistics over seeds, the best setting.

    Attributes:
        outcomes: by trial, those that are finished.
        metric: the path in the result tree that ranks them.
        mode: "max": the highest metric is the best; "min": the lowest.
    """

    outcomes: list[TrialResult]
    metric: str
    folder: Path | None
    seconds: float = 0.0  # of training, added up over what trained side by side
    compile_seconds: float = 0.0
    whole_seconds: float = 0.0  # by the clock, compilation included
    programs: int = 0
    lineage: Lineage | None = None  # who copied whom; None without population-based training
    mode: str = MAX

    def __repr__(self) -> str:
        scored = [outcome for outcome in self.outcomes if outcome.score is not None]
        best = max(scored, key=self._merit, default=None)
        found = "" if best is None else f", the best {best!r}"
        where = "" if self.folder is None else f", {self.folder}"
        return f"<Sweep of {len(self.outcomes)} trials by {self.metric}{found}{where}>"

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, number: int) -> TrialResult:
        return self.outcomes[number]

    def best_trial(self, metric: str | None = None, mode: str | None = None) -> TrialResult:
        """The trial with the best value of `metric`, a path in the result tree (the sweep's).

        The best is the highest or the lowest by `mode`, "max" or "min" (the sweep's). It is one
        seed's luck: `best_setting` ranks settings by all of their seeds.
        """
        metric, mode = metric or self.metric, mode or self.mode
        one_of(MAX, MIN)("mode", mode)
        scored = [outcome for outcome in self.outcomes if value_of(outcome, metric) is not None]
        if scored:
            return max(scored, key=lambda outcome: merit(value_of(outcome, metric), mode))
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

    def best_setting(
        self, metric: str | None = None, mode: str | None = None
    ) -> tuple[dict[str, Any], list[TrialResult]]:
        """(settings, the results of its seeds) with the best median of `metric` over the seeds.

        A seed without a value, since it diverged before an episode ended, counts as the worst. The
        best trial is mostly the luckiest of all, and more so the more there are: this is the
        setting to train with again.
        """
        return self._best_first(metric or self.metric, mode or self.mode)[0]

    def _best_first(self, metric: str, mode: str) -> list[tuple[dict[str, Any], list[TrialResult]]]:
        """`by_settings`, the best median first."""
        self.best_trial(metric, mode)  # refuses a metric that no trial has
        rank = lambda pair: _median_over_all(pair[1], metric, mode)
        return sorted(self.by_settings(), key=rank, reverse=True)

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

    def probability_of_improvement(
        self, settings: Mapping[str, Any], over: Mapping[str, Any]
    ) -> Estimate:
        """The probability that a seed of one setting does better than one of another.

        Args:
            settings, over: as `by_settings` gives them, such as {"lr": 1e-3}.

        Returns:
            The probability, with its 95 % bootstrap interval. Equal scores count half; a seed
            without a score, since it diverged before an episode ended, counts as the worst.

        Raises:
            UsageError: no trial has these settings.
        """
        return probability_of_improvement(self._merits_of(settings), self._merits_of(over))

    def _merits_of(self, settings: Mapping[str, Any]) -> list[float]:
        """The last scores of the seeds of a setting, the higher the better."""
        for found, outcomes in self.by_settings():
            if found == dict(settings):
                return [merit(value_of(seed, self.metric), self.mode) for seed in outcomes]
        tried = ", ".join(shown(found) or "{}" for found, _ in self.by_settings())
        raise UsageError(f"no trial has the settings {brief(dict(settings))}; tried: {tried}")

    def best_setting_text(self) -> str:
        """The best setting in a line, and how surely it is; empty without several seeds of it."""
        (settings, trials), *others = self._best_first(self.metric, self.mode)
        scores = [outcome.score for outcome in trials if outcome.score is not None]
        if len(trials) < 2 or not settings or not scores:
            return ""
        text = f"{shown(settings)}, median {np.median(scores):.2f} of {len(trials)} seeds"
        if others and self.lineage is None:
            next_best = others[0][0]
            chance = self.probability_of_improvement(settings, next_best).value
            text += f"; a seed of it beats one of {shown(next_best)} with probability {chance:.2f}"
        return text

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
        drawn = plots.figure(self.by_settings(), self.metric, self.mode)
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
        best_first = sorted(self.outcomes, key=self._merit, reverse=True)
        return [titles, *(_row(outcome, names) for outcome in best_first)]

    def _merit(self, outcome: TrialResult) -> float:
        return merit(outcome.score, self.mode)

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


def _median_over_all(outcomes: list[TrialResult], metric: str, mode: str) -> float:
    """The median as a number that is the higher the better."""
    return float(np.median([merit(value_of(outcome, metric), mode) for outcome in outcomes]))


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
