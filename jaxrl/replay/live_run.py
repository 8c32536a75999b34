"""Contents of a run's page: its curves, its warnings, its plan, and episodes of its checkpoints."""

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jaxrl.core.errors import one_line
from jaxrl.replay.curve_panels import finite, run_panels
from jaxrl.replay.live_episodes import (
    NO_EPISODE,
    LiveEpisodes,
    ShownEpisode,
    columns_for,
    episode_of,
    has_checkpoint,
)
from jaxrl.replay.live_log import LiveLog
from jaxrl.replay.page import Column
from jaxrl.run.health import HealthMonitor
from jaxrl.run.logging.console import duration
from jaxrl.run.logging.curves import source_line
from jaxrl.run.logging.panels import panels_of
from jaxrl.run.logging.run_results import LOG
from jaxrl.run.results import ENV_STEPS, ITERATIONS, RETURN, lookup
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage import run_folder
from jaxrl.run.storage.config_file import read_config
from jaxrl.run.storage.run_folder import METADATA
from jaxrl.run.storage.runs import CONFIG, METRICS
from jaxrl.sweeps.saved_sweep import called_damaged

SILENT_SECONDS = 60.0  # without a result, from which on the page says how long
Plan = list[tuple[str, str]]


class LiveRun:
    """The present contents of a run's folder."""

    def __init__(self, folder: Path, *, trust: bool = False):
        self.folder, self.facts = folder, run_folder.read(folder)
        self._panels = panels_of(self.facts)
        self._lock = threading.Lock()
        self._log = LiveLog(folder / METRICS, self._panels)
        self._episodes = LiveEpisodes(trust=trust)
        self._plan: Plan | None = None  # None: the configuration was not loaded yet
        self._unchecked = ""  # why no health monitor sees the results
        if not has_checkpoint(folder):
            self._episodes.trouble = "no checkpoint yet"

    def status(self, page_episode: int, *, compared: bool = False) -> dict[str, Any]:
        """The contents of the page.

        Args:
            page_episode: the number of the episode that the page has, which is not sent again.
            compared: ask for an episode of several checkpoints side by side.

        Raises:
            UsageError: the folder is damaged.
        """
        return self._status(self._episodes.shown(compared=compared), page_episode)

    def _status(self, shown: ShownEpisode, page_episode: int = 0) -> dict[str, Any]:
        with self._lock, called_damaged(self.folder, f"{CONFIG} or {METADATA}", kind="run"):
            self._log.read()
            return {
                "title": self.facts.get("env_name", ""),
                "note": self._note(),
                "warnings": self._warnings(shown),
                "plan": self._plan or [],
                "source": source_line(self.facts, self.facts["config"].get("seed")),
                "curves": run_panels(self._log.curves, self._panels),
                **shown.status(page_episode),
            }

    def play(self) -> None:
        """Loads the configuration at first, and plays an episode of each new checkpoint."""
        self._load()
        self._episodes.play(self.folder)

    def report(self, checkpoints: Sequence[str | int]) -> tuple[dict[str, Any], list[Column]]:
        """(the contents of a page that stays as it is, the episodes in it)."""
        self._load()
        columns, shown = [], NO_EPISODE
        if has_checkpoint(self.folder):
            columns = columns_for(self.folder, checkpoints, trust=self._episodes.trust)
            shown = episode_of(columns, self.folder)
        self._episodes.trouble = ""
        return as_report(self._status(shown)), columns

    def _load(self) -> None:
        """Loads the configuration, for the plan and for the health monitor's limits."""
        if self._plan is not None:
            return
        plan, make_monitor = [], None
        try:
            plan, make_monitor = loaded(self.facts, trust=self._episodes.trust)
        except Exception as error:  # code that may not be imported, or an environment's own
            self._unchecked = f"the health monitor did not look: {one_line(error)}"
        with self._lock:
            self._plan = plan
            self._log = LiveLog(self._log.path, self._panels, make_monitor=make_monitor)

    def _warnings(self, shown: ShownEpisode) -> list[str]:
        unchecked = [self._unchecked] * bool(self._unchecked)
        return [*self._log.warnings, *shown.warnings, *unchecked]

    def _note(self) -> str:
        parts, last = [self.folder.name], self._log.last
        if last is not None:
            parts += progress(last, self.facts["config"].get("total_env_steps"))
            if (value := finite(lookup(last, RETURN))) is not None:
                parts.append(f"return {value:.2f}")
        parts.append(self._state())
        if self._log.num_damaged:
            damaged = f"{self._log.num_damaged:,}"
            parts.append(f"damaged lines, or results that are no numbers: {damaged}")
        parts.append(self._episodes.trouble)
        return " · ".join(filter(None, parts))

    def _state(self) -> str:
        loggers = self.facts["run_settings"].get("loggers", LOG)
        if self._log.last is None:
            return "" if LOG in loggers else f"no curves: its loggers are {loggers}"
        if self._log.is_done():
            return "finished"
        return silence(self._log.path)


def loaded(
    facts: Mapping[str, Any], *, trust: bool
) -> tuple[Plan, Callable[[], HealthMonitor] | None]:
    """(the plan that a run's console begins with, what makes its health monitor)."""
    config = read_config(dict(facts), "jaxrl.replay", to_play=True, trust=trust)
    algorithm = config.build()
    plan = [(label or "", str(text)) for label, text in algorithm.describe(config)]
    score = RunSettings(**facts["run_settings"]).score_attribute
    return plan, functools.partial(HealthMonitor, config, algorithm.diagnostics, score)


def as_report(status: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a page that stays as it is, with their time in its note."""
    now = f"as of {datetime.now():%Y-%m-%d %H:%M}"
    return {**status, "note": f"{status['note']} · {now}", "compares": False}


def progress(result: Mapping[str, Any], planned: Any) -> list[str]:
    """The iteration, the steps and the time of a result, in words."""
    steps, parts = result.get(ENV_STEPS, 0), [f"iteration {result.get(ITERATIONS, 0):,}"]
    of_all = ""
    if isinstance(planned, int) and steps < planned:
        of_all = f" of {planned:,}"
    parts[0] += f", {steps:,} steps{of_all}"
    seconds = result.get("time_total_s")
    if isinstance(seconds, int | float) and 0 <= seconds < 1e9:
        parts.append(f"{duration(seconds)} of training")
    return parts


def silence(log: Path) -> str:
    """The time since a log has grown, in words; empty while it grows."""
    try:
        seconds = time.time() - log.stat().st_mtime
    except OSError:
        return ""
    return f"no result for {duration(seconds)}" if seconds > SILENT_SECONDS else ""
