"""Log of a run as a page follows it: each look reads the lines that are new."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl.replay.curve_panels import finite
from jaxrl.run.health import HealthMonitor
from jaxrl.run.logging.curves import Curves
from jaxrl.run.logging.history import History
from jaxrl.run.logging.panels import Panel
from jaxrl.run.logging.result_rows import read_result
from jaxrl.run.results import ENV_STEPS, Result, lookup
from jaxrl.run.storage import own_files

SCORE = "score"  # the series of a sweep's metric
NOT_NUMBERS = (TypeError, ValueError, AttributeError, KeyError)  # what a strange result raises


class LiveLog:
    """The contents of `metrics.jsonl` so far.

    Attributes:
        curves: of all results.
        scores: the history of the metric, if there is one.
        last: the newest result; None before the first.
        warnings: of the health monitor, the oldest first.
        num_damaged: lines that hold no result, and results that are no numbers.
    """

    def __init__(
        self,
        path: Path,
        panels: Sequence[Panel],
        *,
        metric: str | None = None,
        make_monitor: Callable[[], HealthMonitor] | None = None,
    ):
        self.path, self._panels, self._metric = path, panels, metric
        self._make_monitor = make_monitor
        self._begin()

    def _begin(self) -> None:
        """Forgets what was read: the next look begins at the start of the log."""
        self.curves, self.scores = Curves(self._panels), History()
        self.last: Result | None = None
        self.warnings: list[str] = []
        self.num_damaged = self._position = 0
        self._monitor = None
        if self._make_monitor is not None:
            self._monitor = self._make_monitor()

    def read(self) -> None:
        """Adds the lines that are new; a log that was cut back is read from its start."""
        try:
            with open(self.path, "rb", opener=own_files.only_files) as file:
                size = file.seek(0, 2)
                if size < self._position:
                    self._begin()
                file.seek(self._position)
                new = file.read(size - self._position)
        except OSError:  # before the first iteration, or removed meanwhile
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._position += len(whole)
        lines = whole.split(b"\n")[:-1]
        results = list(filter(None, map(read_result, lines)))
        self.num_damaged += len(lines) - len(results) + self.curves.add(results)
        for result in results:
            self._look(result)
        if results:
            self.last = results[-1]

    def _look(self, result: Result) -> None:
        score = finite(lookup(result, self._metric)) if self._metric else None
        if score is not None:
            self.scores.add(result.get(ENV_STEPS, 0), {SCORE: score})
        if self._monitor is not None:
            with contextlib.suppress(*NOT_NUMBERS):  # counted as damaged
                self.warnings += self._monitor.look([result])

    def is_done(self) -> bool:
        return bool(self.last and self.last.get("done"))
