"""Contents of a sweep's page: the table of trials, curves by setting, the best trial's episode."""

import itertools
import operator
import statistics
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, one_line
from jaxrl.replay.curve_panels import role_of, setting_panels
from jaxrl.replay.live_episodes import LiveEpisodes, columns_for, has_checkpoint
from jaxrl.replay.live_log import SCORE, LiveLog
from jaxrl.replay.live_run import silence
from jaxrl.replay.page import Column, replay_data
from jaxrl.run.logging.comparison import grouped, label_of, varied_settings
from jaxrl.run.logging.curves import source_line
from jaxrl.run.logging.history import Series
from jaxrl.run.logging.panels import Panel, panels_of
from jaxrl.run.results import ENV_STEPS, ITERATIONS, Result, lookup
from jaxrl.run.storage import run_folder, runs
from jaxrl.run.storage.runs import METRICS, RESULTS, TRIALS
from jaxrl.sweeps.outcomes import DIVERGED
from jaxrl.sweeps.saved_sweep import called_damaged, read_plan, read_results
from jaxrl.sweeps.trial_table import PENDING, RUNNING

MOST_SETTINGS = 8  # whose curves are drawn, the best ones
MOST_DIVERGED = 3  # trials whose reasons are warnings
AS_CONFIGURED = "as configured"


class TrialState(NamedTuple):
    """A trial and how far it has come."""

    number: int
    settings: Mapping[str, Any]
    seed: int
    status: str
    reason: str
    result: Result | None
    score: float | None
    series: Mapping[str, Series]
    folder: Path | None  # None: it did not begin yet


class LiveSweep:
    """The present contents of a sweep's folder."""

    def __init__(self, folder: Path, *, trust: bool = False):
        self.folder, self.plan = folder, read_plan(folder)
        self._lock = threading.Lock()
        self._panels: tuple[Panel, ...] | None = None  # None: no trial's folder was read yet
        self._logs: dict[int, LiveLog] = {}
        self._rows: dict[int, dict[str, Any]] = {}  # of finished trials, and the stamp of
        self._rows_stamp: Any = None  # the file that they were read from
        self._problem = ""
        self._episodes = LiveEpisodes(trust=trust)
        self._playing = ""  # which trial's episode is shown

    def status(self, known_episode: int, *, compared: bool = False) -> dict[str, Any]:
        """The contents of the page, as of `LiveRun.status`."""
        number, episode = self._episodes.shown(compared=compared)
        with self._lock, called_damaged(self.folder):
            trials = self._trials()
            ranked = self._ranked(trials)
            roles = {}
            for index, members in enumerate(ranked.values()):
                roles |= {trial.number: role_of(index) for trial in members}
            return {
                "title": f"{self.plan.get('env_name') or self._env_name()}, sweep",
                "note": self._note(trials, ranked),
                "warnings": [*filter(None, [self._problem]), *_diverged(trials)],
                "plan": self._plan_lines(),
                "source": source_line(self.plan.get("metadata") or {}),
                "curves": self._curves(ranked, len(self._groups(trials))),
                "trials": self._table(trials, roles),
                "compares": bool(number),
                "number": number,
                "episode": None if number == known_episode else episode,
            }

    def play(self) -> None:
        """Plays an episode of the best trial that has a checkpoint."""
        with self._lock:
            best = self._best(self._trials())
        if best is not None:
            self._episodes.play(best.folder)
            self._playing = f"an episode of trial {best.number:04d}"

    def report(self, checkpoints: Sequence[str | int]) -> tuple[dict[str, Any], list[Column]]:
        """(the contents of a page that stays as it is, the episodes in it)."""
        columns, found = [], {}
        best = self._best(self._trials())
        if best is not None:
            self._playing = f"episodes of trial {best.number:04d}"
            columns = columns_for(best.folder, checkpoints, trust=self._episodes.trust)
            found = {"episode": replay_data(columns, note=best.folder.name)}
        status = self.status(0)
        now = f"as of {datetime.now():%Y-%m-%d %H:%M}"
        return {**status, **found, "note": f"{status['note']} · {now}", "compares": False}, columns

    @property
    def _is_population(self) -> bool:
        return self.plan["scheduler"] is not None

    @property
    def _kind(self) -> str:
        """The noun for what is one line of the curves."""
        return "trial" if self._is_population else "setting"

    def _trials(self) -> list[TrialState]:
        """Every trial; reads what is new in their logs."""
        self._read_results()
        names = runs.trial_names(self.folder)
        return [
            self._trial(number, planned, names.get(number))
            for number, planned in enumerate(self.plan["trials"])
        ]

    def _trial(self, number: int, planned: Mapping[str, Any], name: str | None) -> TrialState:
        folder, row = None, self._rows.get(number)
        if name is not None:
            folder = self.folder / TRIALS / name
        series, last = {}, None
        log = self._log_of(number, folder)
        if log is not None:
            log.read()
            series, last = {**log.curves.series(), **log.scores.series()}, log.last
        settings, seed = planned["settings"], planned["seed"]
        if row is None:
            if self._is_population and folder is not None:
                settings = _present_settings(folder, settings)
            score = lookup(last, self.plan["metric"])
            status = PENDING if folder is None else RUNNING
            state = status, "", last, score if isinstance(score, int | float) else None
            return TrialState(number, settings, seed, *state, series, folder)
        if not series:  # its loggers write no log
            series = {SCORE: _scored(*row["curve"])}
        state = row["status"], row.get("reason", ""), row["result"], row["score"]
        return TrialState(number, row["settings"], seed, *state, series, folder)

    def _read_results(self) -> None:
        """The finished trials; read again where the file has changed."""
        try:
            found = (self.folder / RESULTS).stat()
        except OSError:
            return
        stamp = found.st_mtime_ns, found.st_size
        if stamp == self._rows_stamp:
            return
        self._rows_stamp, self._problem = stamp, ""
        try:
            self._rows = read_results(self.folder, self.plan)
        except UsageError as error:
            self._problem = one_line(error)

    def _log_of(self, number: int, folder: Path | None) -> LiveLog | None:
        if folder is None:
            return None
        if self._panels is None:
            try:
                self._panels = panels_of(run_folder.read(folder))
            except UsageError:  # it is being made
                return None
        if number not in self._logs:
            path, metric = folder / METRICS, self.plan["metric"]
            self._logs[number] = LiveLog(path, self._panels, metric=metric)
        return self._logs[number]

    def _groups(self, trials: Sequence[TrialState]) -> dict[str, list[TrialState]]:
        """{label: the trials of a setting}; of a population, whose settings change, each alone."""
        settings = [trial.settings for trial in trials]
        if self._is_population:
            return {f"{trial.number:04d}": [trial] for trial in trials}
        varied = varied_settings(settings)
        return {
            label_of(values, varied) or AS_CONFIGURED: [trials[i] for i in members]
            for values, members in grouped(settings)
        }

    def _ranked(self, trials: Sequence[TrialState]) -> dict[str, list[TrialState]]:
        """The settings whose curves are drawn, the best median of the last scores first."""
        scored = {}
        for label, members in self._groups(trials).items():
            scores = [trial.score for trial in members if trial.score is not None]
            if scores:
                scored[label] = statistics.median(scores)
        best_first = sorted(scored, key=lambda label: -scored[label])[:MOST_SETTINGS]
        groups = self._groups(trials)
        return {label: groups[label] for label in best_first}

    def _curves(self, ranked: Mapping[str, list[TrialState]], number: int) -> list[dict[str, Any]]:
        groups = {}
        for label, members in ranked.items():
            groups[label] = [trial.series for trial in members]
        title, note = self.plan["metric"].rpartition("/")[2], ""
        if number > len(ranked) == MOST_SETTINGS:
            note = f"the best {MOST_SETTINGS} of {number} {self._kind}s"
        return setting_panels(groups, self._panels or (), SCORE, title, note)

    def _table(self, trials: Sequence[TrialState], roles: Mapping[int, str]) -> dict[str, Any]:
        """The columns, and of each trial its colour, why it failed, and a cell for each column."""
        names = list(varied_settings([trial.settings for trial in trials]))
        metric = self.plan["metric"].rpartition("/")[2]
        rows = []
        for trial in trials:
            settings = [_cell(trial.settings.get(name)) for name in names]
            result = trial.result or {}
            numbers = [result.get(ITERATIONS, 0), result.get(ENV_STEPS, 0), trial.score]
            cells = [f"{trial.number:04d}", *settings, trial.seed, trial.status, *numbers]
            role = roles.get(trial.number)
            rows.append({"role": role, "reason": trial.reason, "cells": cells})
        columns = ["trial", *names, "seed", "status", "iteration", "steps", metric]
        return {"columns": columns, "rows": rows}

    def _note(self, trials: Sequence[TrialState], ranked: Mapping[str, list[TrialState]]) -> str:
        finished = len(self._rows)
        parts = [self.folder.name, f"{finished:,} of {len(trials):,} trials finished"]
        for label in itertools.islice(ranked, 1):
            scores = [trial.score for trial in ranked[label] if trial.score is not None]
            seeds = f", median of {len(scores)} seeds" if len(scores) > 1 else ""
            parts.append(f"best {self._kind} {label}: {statistics.median(scores):.2f}{seeds}")
        if finished < len(trials) and self._logs:
            logs = [silence(log.path) for log in self._logs.values()]
            parts.append(min(logs, key=len))  # empty while one of them grows
        parts += [self._playing, self._episodes.trouble]
        return " · ".join(filter(None, parts))

    def _plan_lines(self) -> list[tuple[str, str]]:
        """The space that the sweep searches, and what each trial is asked for."""
        settings = [trial["settings"] for trial in self.plan["trials"]]
        lines = []
        for name in dict.fromkeys(itertools.chain.from_iterable(settings)):
            values = [trial[name] for trial in settings if name in trial]
            different = list(dict.fromkeys(map(str, map(_cell, values))))
            shown = ", ".join(different[:12]) + ", ..." * (len(different) > 12)
            lines.append((name, shown))
        seeds = dict.fromkeys(trial["seed"] for trial in self.plan["trials"])
        lines += [("seeds", ", ".join(map(str, itertools.islice(seeds, 12))))]
        lines += [("metric", self.plan["metric"])]
        total = self.plan["config"].get("total_env_steps")
        return [*lines, ("steps", f"{total:,} of each trial")] if isinstance(total, int) else lines

    def _env_name(self) -> str:
        return str(self.plan["config"].get("env") or "")

    @staticmethod
    def _best(trials: Sequence[TrialState]) -> TrialState | None:
        """The trial with the highest score among those that have a checkpoint."""
        playable = []
        for trial in trials:
            if trial.folder is not None and trial.score is not None:
                playable.append(trial)
        for trial in sorted(playable, key=operator.attrgetter("score"), reverse=True):
            if has_checkpoint(trial.folder):
                return trial
        return None


def _diverged(trials: Sequence[TrialState]) -> list[str]:
    """The reasons of trials that diverged, of the first ones."""
    found = [trial for trial in trials if trial.status == DIVERGED]
    texts = []
    for trial in found[:MOST_DIVERGED]:
        texts.append(
            f"trial {trial.number:04d} diverged: {trial.reason or 'a number is not finite'}"
        )
    if len(found) > len(texts):
        texts.append(f"{len(found) - len(texts):,} more trials diverged, as their rows say")
    return texts


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


def _scored(steps: Sequence[float], scores: Sequence[float | None]) -> Series:
    """The part of a finished trial's curve that has scores."""
    steps, scores = np.array(steps, np.float64), np.array(scores, np.float64)
    return steps[np.isfinite(scores)], scores[np.isfinite(scores)]


def _cell(value: Any) -> Any:
    """A setting's value as a table shows it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number or value is None else str(value)
