"""Statistics over several seeds: median, interquartile mean, and its uncertainty.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice": the
interquartile mean (IQM) is the mean of the middle half of all runs, its interval a percentile
bootstrap that draws runs anew within each task (stratified).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST = 8  # runs that a bootstrap interval needs: of fewer it is far too narrow
RANGE, INTERVAL = "range", "95 % interval"


class Estimate(NamedTuple):
    value: float
    low: float  # of the interval, or the least of the runs
    high: float


def iqm(scores: np.ndarray) -> np.ndarray:
    """The mean of the middle half of f64[..., R, K], runs and tasks together; f64[...].

    As scipy's `trim_mean(0.25)`: a quarter of the values, rounded down, is left out at either end.
    """
    flat = np.sort(np.asarray(scores, np.float64).reshape(*np.shape(scores)[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return flat[..., cut : flat.shape[-1] - cut].mean(axis=-1)


def median(scores: np.ndarray) -> np.ndarray:
    """The median over tasks of the mean over runs, f64[..., R, K]; of one task, over its runs."""
    scores = np.asarray(scores, np.float64)
    if scores.shape[-1] == 1:
        return np.median(scores[..., 0], axis=-1)
    return np.median(scores.mean(axis=-2), axis=-1)


def estimate(
    scores: Sequence | np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray] = iqm,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """A statistic with its stratified bootstrap interval.

    Args:
        scores: f64[R] of one task's runs, or f64[R, K] of K tasks, R runs of each.
    """
    scores = np.asarray(scores, np.float64)
    scores = scores[:, None] if scores.ndim == 1 else scores
    num_runs, num_tasks = scores.shape
    generator = np.random.default_rng(seed)
    drawn = generator.integers(num_runs, size=(resamples, num_runs, num_tasks))
    again = statistic(scores[drawn, np.arange(num_tasks)])
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(again, [tail, 100 - tail])
    return Estimate(float(statistic(scores)), float(low), float(high))


def spread(
    scores: Sequence[float], statistic: Callable[[np.ndarray], np.ndarray] = iqm
) -> tuple[Estimate, str]:
    """(a statistic of one task's runs, what its bounds are).

    From eight runs on the bounds are the 95 % bootstrap interval. Of fewer they are the range of
    the runs: resamples of three or four runs repeat these few, and an interval made of them covers
    the truth much less often than it says.
    """
    if len(scores) >= FEWEST:
        return estimate(scores, statistic), INTERVAL
    runs = np.asarray(scores, np.float64)[:, None]
    return Estimate(float(statistic(runs)), float(runs.min()), float(runs.max())), RANGE
