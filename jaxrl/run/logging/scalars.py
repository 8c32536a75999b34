"""Scalars and histograms for dashboards: which results are shown, and under which names."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.rollout.episode_stats import HISTOGRAM_BINS
from jaxrl.run.logging.text_logs import leaves
from jaxrl.run.results import Result, flatten

NO_CURVE = ("pid", "timestamp")  # numbers that say nothing as a curve
EPISODES_ONE_BY_ONE = (
    *("hist_stats/episode_reward", "hist_stats/episode_lengths"),
    "evaluation/env_runners/hist_stats/episode_reward",
    "evaluation/env_runners/hist_stats/episode_lengths",
)
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
        # Else a list of a hook's own, or no step was counted.
        if counts and _is_finite(low) and _is_finite(high):
            width = (high - low) / len(counts)
            histograms[stem] = (
                [*(low + width * i for i in range(len(counts))), high],
                counts,
            )
            del values[f"{stem}/min"], values[f"{stem}/max"]  # the histogram shows them
    for path in EPISODES_ONE_BY_ONE:
        if numbers := [value for value in values.get(path) or () if _is_finite(value)]:
            counts, edges = np.histogram(numbers, HISTOGRAM_BINS)
            histograms[path] = (edges.tolist(), counts.tolist())
    scalars = {
        path: float(value)
        for path, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and path not in NO_CURVE
    }
    return scalars, histograms


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
