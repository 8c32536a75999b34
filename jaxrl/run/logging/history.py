"""History of a run's values or results, in bounded memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_POINTS = 2000  # kept of a run, however long it is

Series = tuple[np.ndarray, np.ndarray]  # steps f64[P], values f64[P]


class Thinned:
    """Anything against environment steps: `MAX_POINTS` evenly spaced entries, and the newest."""

    def __init__(self):
        self._points: list[tuple[float, Any]] = []
        self._newest: tuple[float, Any] | None = None
        self._stride, self._count = 1, 0

    @property
    def is_due(self) -> bool:
        """True if the next entry is among those kept."""
        return self._count % self._stride == 0

    def skip(self) -> None:
        """Instead of adding an entry that is not due, where making it costs time."""
        self._count += 1

    def take_back(self) -> None:
        """The last one skipped was not to be: it comes with `add` after all."""
        self._count -= 1

    def add(self, step: float, entry: Any) -> None:
        # A run that resumed from an earlier checkpoint.
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._newest = (step, entry)
        if self.is_due:
            self._points.append(self._newest)
            if len(self._points) >= MAX_POINTS:
                del self._points[1::2]
                self._stride *= 2
        self._count += 1

    def points(self) -> list[tuple[float, Any]]:
        """(step, entry) of all that are kept, in order."""
        points = list(self._points)
        if self._newest is not None and (not points or self._newest[0] > points[-1][0]):
            points.append(self._newest)
        return points


class History(Thinned):
    """Named values against environment steps."""

    def __init__(self):
        super().__init__()
        self._columns: dict[str, int] = {}

    def add(self, step: float, values: Mapping[str, float]) -> None:
        for name in values:
            self._columns.setdefault(name, len(self._columns))
        row = np.full(len(self._columns), np.nan, np.float32)
        for name, value in values.items():
            row[self._columns[name]] = value
        super().add(step, row)

    def series(self) -> dict[str, Series]:
        """Each name's points, without those at which it had no finite value."""
        points = self.points()
        steps = np.array([step for step, _ in points], np.float64)
        table = np.full((len(points), len(self._columns)), np.nan)
        for row, (_, values) in zip(table, points, strict=True):
            row[: len(values)] = values
        return {
            name: (steps[is_finite], table[is_finite, column])
            for name, column in self._columns.items()
            for is_finite in [np.isfinite(table[:, column])]
        }
