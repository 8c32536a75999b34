"""Scalars, histograms and pictures for dashboards: which results are shown, under which names."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.core.pictures import is_picture, picture
from jaxrl.rollout.episode_stats import HISTOGRAM_BINS
from jaxrl.run.logging.text_logs import leaves
from jaxrl.run.results import Result, flatten

NO_CURVE = ("pid", "timestamp")  # numbers that say nothing as a curve
MOMENT = 0.1  # seconds of training between two results that charts show


class Downsampler:
    """Selects the results to show: one per `MOMENT` of training, and each with an evaluation."""

    def __init__(self):
        self._next, self._held = -math.inf, None

    def due(self, results: list[Result]) -> list[Result]:
        shown = []
        for result in results:
            now = result.get("time_total_s", math.inf)
            if now >= self._next or "evaluation" in result:
                shown.append(result)
                self._next, self._held = now + MOMENT, None
            else:
                self._held = result
        return shown

    def held(self) -> list[Result]:
        """The latest result, if it was not shown."""
        held, self._held = self._held, None
        return [] if held is None else [held]


def charts(result: Result) -> tuple[dict[str, float], dict[str, tuple[list[float], list[int]]]]:
    """({path: number}, {path: (edges, counts)}): the curves and the histograms of a result."""
    values = leaves(result)
    histograms = {}
    for stem in [
        path.removesuffix("/counts") for path, value in values.items() if isinstance(value, list)
    ]:
        counts, low, high = (values.get(f"{stem}/{part}") for part in ("counts", "min", "max"))
        if counts and _is_finite(low) and _is_finite(high):
            width = (high - low) / len(counts)
            histograms[stem] = (
                [*(low + width * i for i in range(len(counts))), high],
                counts,
            )
            del values[f"{stem}/min"], values[f"{stem}/max"]  # the histogram shows them
    for path, value in values.items():
        # Episodes one by one, and series of hooks; counts without bounds are of no step.
        is_series = isinstance(value, list) and not path.endswith("/counts")
        if is_series and (numbers := list(filter(_is_finite, value))):
            counts, edges = np.histogram(numbers, HISTOGRAM_BINS)
            histograms[path] = (edges.tolist(), counts.tolist())
    scalars = {
        path: float(value)
        for path, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and path not in NO_CURVE
    }
    return scalars, histograms


def pictures(result: Result) -> dict[str, np.ndarray]:
    """{path: u8[H, W, C]}: the pictures of a result, those of a series by their numbers."""
    found = {}
    for path, value in flatten(result):
        several = enumerate(value) if isinstance(value, list) else ()
        for name, part in [(path, value), *((f"{path}/{i}", part) for i, part in several)]:
            if is_picture(part):
                found[name] = picture(name, part)
    return found


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting under one name, as a number or a text."""
    return {
        name: value
        if isinstance(value, bool | int | float | str)
        else getattr(value, "__qualname__", str(value))
        for name, value in flatten(config)
    }


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
