"""Contents of a sweep's page: the table of trials, curves by setting, the best trial's episode."""

import itertools
import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.replay.curve_panels import finite, role_of, setting_panels
from jaxrl.replay.live_episodes import (
    NO_EPISODE,
    LiveEpisodes,
    ShownEpisode,
    columns_for,
    episode_of,
    has_checkpoint,
)
from jaxrl.replay.live_log import SCORE
from jaxrl.replay.live_run import as_report, silence
from jaxrl.replay.live_trials import LiveTrials, TrialState
from jaxrl.replay.page import Column
from jaxrl.run.logging.comparison import grouped, label_of, varied_settings
from jaxrl.run.logging.curves import source_line
from jaxrl.run.results import ENV_STEPS, ITERATIONS
from jaxrl.sweeps.outcomes import DIVERGED, merit
from jaxrl.sweeps.saved_sweep import called_damaged, read_plan

MOST_SETTINGS = 8  # whose curves are drawn, the best ones
MOST_VALUES = 12  # of a setting that are named
MOST_DIVERGED = 3  # trials whose reasons are warnings
AS_CONFIGURED = "as configured"

Groups = dict[str, list[TrialState]]  # {label: the trials of a setting}


class LiveSweep:
    """The present contents of a sweep's folder."""

    def __init__(self, folder: Path, *, trust: bool = False):
        self.folder, self.plan = folder, read_plan(folder)
        self._lock = threading.Lock()
        self._trials = LiveTrials(folder, self.plan)
        self._episodes = LiveEpisodes(trust=trust)

    def status(self, page_episode: int, *, compared: bool = False) -> dict[str, Any]:
        """The contents of the page, as of `LiveRun.status`."""
        return self._status(self._episodes.shown(compared=compared), page_episode)

    def _status(self, shown: ShownEpisode, page_episode: int = 0) -> dict[str, Any]:
        with self._lock, called_damaged(self.folder):
            trials = self._trials.read()
            problem = filter(None, [self._trials.problem])
            groups = self._groups(trials)
            ranked = _ranked(groups, self.plan["mode"])
            roles = {}
            for index, members in enumerate(ranked.values()):
                roles |= {trial.number: role_of(index) for trial in members}
            return {
                "title": f"{self.plan.get('env_name') or self.plan['config'].get('env')}, sweep",
                "note": self._note(trials, ranked, shown),
                "warnings": [*problem, *_diverged(trials), *shown.warnings],
                "plan": _plan_lines(self.plan),
                "source": source_line(self.plan.get("metadata") or {}),
                "curves": self._curves(ranked, len(groups)),
                "trials": _table(trials, roles, self._metric),
                **shown.status(page_episode),
            }

    def play(self) -> None:
        """Plays an episode of the best trial that has a checkpoint."""
        best = self._best()
        if best is not None:
            self._episodes.play(best.folder, f"an episode of trial {best.name}")

    def report(self, checkpoints: Sequence[str | int]) -> tuple[dict[str, Any], list[Column]]:
        """(the contents of a page that stays as it is, the episodes in it)."""
        columns, shown = [], NO_EPISODE
        best = self._best()
        if best is not None:
            columns = columns_for(best.folder, checkpoints, trust=self._episodes.trust)
            shown = episode_of(columns, best.folder, f"episodes of trial {best.name}")
        return as_report(self._status(shown)), columns

    def _best(self) -> TrialState | None:
        """The trial with the best score among those that have a checkpoint."""
        with self._lock, called_damaged(self.folder):
            scored = [trial for trial in self._trials.read() if trial.score is not None]
            rank = lambda trial: merit(trial.score, self.plan["mode"])
            for trial in sorted(scored, key=rank, reverse=True):
                if trial.folder is not None and has_checkpoint(trial.folder):
                    return trial
        return None

    @property
    def _metric(self) -> str:
        return self.plan["metric"].rpartition("/")[2]

    @property
    def _kind(self) -> str:
        """The noun for what is one line of the curves."""
        return "trial" if self._trials.is_population else "setting"

    def _groups(self, trials: Sequence[TrialState]) -> Groups:
        """The trials by setting; a population, whose settings change, has each member alone."""
        if self._trials.is_population:
            return {trial.name: [trial] for trial in trials}
        settings = [trial.settings for trial in trials]
        varied, groups = varied_settings(settings), {}
        for values, members in grouped(settings):
            label = label_of(values, varied) or AS_CONFIGURED
            if label in groups:  # numbers that differ in their fourth digit
                label = f"{label} ({trials[members[0]].name})"
            groups[label] = [trials[i] for i in members]
        return groups

    def _curves(self, ranked: Groups, number: int) -> list[dict[str, Any]]:
        series, note = {}, ""
        for label, members in ranked.items():
            series[label] = [trial.series for trial in members]
        if number > len(ranked) == MOST_SETTINGS:
            note = f"the best {MOST_SETTINGS} of {number} {self._kind}s"
        return setting_panels(series, self._trials.panels, SCORE, self._metric, note)

    def _note(self, trials: Sequence[TrialState], ranked: Groups, shown: ShownEpisode) -> str:
        finished, logs = self._trials.num_finished, self._trials.logs.values()
        parts = [self.folder.name, f"{finished:,} of {len(trials):,} trials finished"]
        for label in itertools.islice(ranked, 1):
            scores = _scores(ranked[label])
            seeds = f", median of {len(scores)} seeds" * (len(scores) > 1)
            parts.append(f"best {self._kind} {label}: {statistics.median(scores):.2f}{seeds}")
        if finished < len(trials):
            silences = [silence(log.path) for log in logs]
            parts.append(min(silences, key=len, default=""))  # empty while one of them grows
        parts += [shown.name, self._episodes.trouble]
        return " · ".join(filter(None, parts))


def _scores(trials: Sequence[TrialState]) -> list[float]:
    return [trial.score for trial in trials if trial.score is not None]


def _ranked(groups: Groups, mode: str) -> Groups:
    """The settings whose curves are drawn, the best median of the newest scores first."""
    merits = {}
    for label, members in groups.items():
        if scores := _scores(members):
            merits[label] = merit(statistics.median(scores), mode)
    best_first = sorted(merits, key=merits.__getitem__, reverse=True)[:MOST_SETTINGS]
    return {label: groups[label] for label in best_first}


def _table(trials: Sequence[TrialState], roles: Mapping[int, str], metric: str) -> dict[str, Any]:
    """The columns, and of each trial its colour, why it failed, and a cell for each column."""
    names = list(varied_settings([trial.settings for trial in trials]))
    rows = []
    for trial in trials:
        settings = [_cell(trial.settings.get(name)) for name in names]
        result = trial.result or {}
        counts = [_cell(result.get(name, 0)) for name in (ITERATIONS, ENV_STEPS)]
        cells = [trial.name, *settings, trial.seed, trial.status, *counts, trial.score]
        rows.append({"role": roles.get(trial.number), "reason": trial.reason, "cells": cells})
    return {
        "columns": ["trial", *names, "seed", "status", "iteration", "steps", metric],
        "rows": rows,
    }


def _plan_lines(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The space that a sweep searches, and what each trial is asked for."""
    trials = plan["trials"]
    settings = [trial["settings"] for trial in trials]
    lines = []
    for name in dict.fromkeys(itertools.chain.from_iterable(settings)):
        lines.append((name, _named(trial[name] for trial in settings if name in trial)))
    lines.append(("seeds", _named(trial["seed"] for trial in trials)))
    lines.append(("metric", plan["metric"]))
    total = plan["config"].get("total_env_steps")
    if isinstance(total, int):
        lines.append(("steps", f"{total:,} of each trial"))
    return lines


def _named(values: Iterable[Any]) -> str:
    """The different ones of some values, the first of them."""
    different = list(dict.fromkeys(str(_cell(value)) for value in values))
    return ", ".join(different[:MOST_VALUES]) + ", ..." * (len(different) > MOST_VALUES)


def _diverged(trials: Sequence[TrialState]) -> list[str]:
    """The reasons of trials that diverged, of the first ones."""
    found = [trial for trial in trials if trial.status == DIVERGED]
    texts = []
    for trial in found[:MOST_DIVERGED]:
        reason = trial.reason or "a number is not finite"
        texts.append(f"trial {trial.name} diverged: {reason}")
    if len(found) > len(texts):
        texts.append(f"{len(found) - len(texts):,} more trials diverged, as their rows say")
    return texts


def _cell(value: Any) -> Any:
    """A setting's value as a table shows it: a finite number, None, or a text."""
    is_number = not isinstance(value, bool) and finite(value) is not None
    return value if value is None or is_number else str(value)
