"""Trials of a sweep's folder as a page follows them: finished ones, those in training, the rest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, one_line
from jaxrl.replay.curve_panels import finite
from jaxrl.replay.live_log import SCORE, LiveLog
from jaxrl.run.logging.history import Series
from jaxrl.run.logging.panels import Panel, panels_of
from jaxrl.run.results import Result, lookup
from jaxrl.run.storage import run_folder, runs
from jaxrl.run.storage.runs import METRICS, RESULTS, TRIALS
from jaxrl.sweeps.saved_sweep import read_plan, read_results
from jaxrl.sweeps.trial_table import PENDING, RUNNING


class TrialState(NamedTuple):
    """A trial and how far it has come."""

    number: int
    settings: Mapping[str, Any]
    seed: int
    status: str = PENDING
    reason: str = ""  # why it diverged
    result: Result | None = None  # the newest
    score: float | None = None  # of the newest result, a finite number
    series: Mapping[str, Series] = MappingProxyType({})
    folder: Path | None = None  # None: it did not begin yet

    @property
    def name(self) -> str:
        return f"{self.number:04d}"


class LiveTrials:
    """The trials of the sweep in a folder.

    Attributes:
        panels: of their curves; empty until one has begun.
        logs: of those that have begun, by number.
        num_finished: those in the sweep's results.
        problem: what is wrong with these results; mostly empty.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]):
        self.folder, self.plan, self.problem = folder, dict(plan), ""
        self.panels: tuple[Panel, ...] = ()
        self.logs: dict[int, LiveLog] = {}
        self._rows: dict[int, dict[str, Any]] = {}  # of finished trials
        self._read_at: Any = None  # the time and size of the file that they were read from

    @property
    def is_population(self) -> bool:
        return self.plan["scheduler"] is not None

    @property
    def num_finished(self) -> int:
        return len(self._rows)

    def read(self) -> list[TrialState]:
        """Every trial, after a look at what is new in the files."""
        if self.plan["search"] is not None:  # which proposes trials while it trains
            self.plan["trials"] = read_plan(self.folder)["trials"]
        self._read_results()
        names, trials = runs.trial_names(self.folder), []
        for number, planned in enumerate(self.plan["trials"]):
            folder = None
            if number in names:
                folder = self.folder / TRIALS / names[number]
            if number in self._rows:
                trials.append(self._finished(number, folder))
            else:
                trials.append(self._unfinished(number, planned, folder))
        return trials

    def _finished(self, number: int, folder: Path | None) -> TrialState:
        row, log = self._rows[number], self._log_of(number, folder)
        series = _series_of(log)
        if not series:  # its loggers write no log
            series = {SCORE: _scored(*row["curve"])}
        return TrialState(
            number,
            row["settings"],
            row["seed"],
            status=row["status"],
            reason=str(row.get("reason") or ""),
            result=row["result"],
            score=finite(row["score"]),
            series=series,
            folder=folder,
        )

    def _unfinished(
        self, number: int, planned: Mapping[str, Any], folder: Path | None
    ) -> TrialState:
        settings, seed = planned["settings"], planned["seed"]
        if folder is None:
            return TrialState(number, settings, seed)
        if self.is_population:
            settings = _present_settings(folder, settings)
        log = self._log_of(number, folder)
        last = None if log is None else log.last
        return TrialState(
            number,
            settings,
            seed,
            status=RUNNING,
            result=last,
            score=finite(lookup(last, self.plan["metric"])),
            series=_series_of(log),
            folder=folder,
        )

    def _read_results(self) -> None:
        """The finished trials; read again where the file has changed."""
        try:
            found = (self.folder / RESULTS).stat()
        except OSError:
            return
        if (found.st_mtime_ns, found.st_size) == self._read_at:
            return
        self._read_at, self.problem = (found.st_mtime_ns, found.st_size), ""
        try:
            self._rows = read_results(self.folder, self.plan)
        except UsageError as error:
            self.problem = one_line(error)

    def _log_of(self, number: int, folder: Path | None) -> LiveLog | None:
        """The log of a trial that has begun, read to its end."""
        if folder is None:
            return None
        if not self.logs:
            try:
                self.panels = panels_of(run_folder.read(folder))
            except UsageError:  # it is being made
                return None
        if number not in self.logs:
            path, metric = folder / METRICS, self.plan["metric"]
            self.logs[number] = LiveLog(path, self.panels, metric=metric)
        self.logs[number].read()
        return self.logs[number]


def _series_of(log: LiveLog | None) -> dict[str, Series]:
    return {} if log is None else {**log.curves.series(), **log.scores.series()}


def _scored(steps: Sequence[float], scores: Sequence[float | None]) -> Series:
    """The part of a finished trial's curve that has scores."""
    steps, scores = np.array(steps, np.float64), np.array(scores, np.float64)
    return steps[np.isfinite(scores)], scores[np.isfinite(scores)]


def _present_settings(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a member of a population, which change while it trains."""
    try:
        config = run_folder.read(folder)["config"]
    except UsageError:  # it is being written
        return dict(settings)
    found = dict(settings)
    for name in settings:
        first, dot, rest = name.partition(".")
        place = config
        if first == "env_args":
            place, first = config.get("env_args"), rest
        elif dot:
            place, first = (config.get("per_policy") or {}).get(first), rest
        if isinstance(place, dict) and first in place:
            found[name] = place[first]
    return found
