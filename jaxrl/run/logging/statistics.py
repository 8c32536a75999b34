"""Statistics over several seeds: median, interquartile mean, and its uncertainty.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice": the
interquartile mean (IQM) is the mean of the middle half of all runs, its interval a percentile
bootstrap that resamples runs within each task (stratified); the probability of improvement is
that of a run of one setting to score higher than a run of another.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES, CURVE_RESAMPLES = 2000, 500
CONFIDENCE = 0.95
BOUNDS = (2.5, 97.5)  # percentiles
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
    scores, generator = _by_task(scores), np.random.default_rng(seed)
    again = statistic(_drawn_anew(scores, resamples, generator))
    return _within(float(statistic(scores)), again, confidence)


def probability_of_improvement(
    scores: Sequence | np.ndarray,
    over: Sequence | np.ndarray,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """The probability that a run of `scores` is higher than one of `over`, the mean over tasks.

    Equal scores count half: of one task it is the Mann-Whitney statistic as a share of all pairs.

    Args:
        scores: f64[R] of one task's runs, or f64[R, K] of K tasks, R runs of each.
        over: f64[N] or f64[N, K], those that are to be improved upon.
    """
    first, second, generator = _by_task(scores), _by_task(over), np.random.default_rng(seed)
    again = _share_higher(
        _drawn_anew(first, resamples, generator), _drawn_anew(second, resamples, generator)
    )
    return _within(float(_share_higher(first, second)), again, confidence)


def _share_higher(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The share of pairs in which the first is higher: f64[..., R, K], f64[..., N, K]; f64[...]."""
    first, second = first[..., :, None, :], second[..., None, :, :]
    return ((first > second) + 0.5 * (first == second)).mean(axis=(-3, -2, -1))


def _by_task(scores: Sequence | np.ndarray) -> np.ndarray:
    """Scores as f64[R, K]."""
    scores = np.asarray(scores, np.float64)
    return scores[:, None] if scores.ndim == 1 else scores


def _drawn_anew(scores: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """Runs of f64[R, K], drawn with replacement within each task: f64[resamples, R, K]."""
    num_runs, num_tasks = scores.shape
    drawn = generator.integers(num_runs, size=(resamples, num_runs, num_tasks))
    return scores[drawn, np.arange(num_tasks)]


def _within(value: float, again: np.ndarray, confidence: float) -> Estimate:
    """A value with the percentile interval of what its resamples gave, f64[resamples]."""
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(again, [tail, 100 - tail])
    return Estimate(value, float(low), float(high))


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


def spread_along(values: np.ndarray, *, interval: bool) -> np.ndarray:
    """f64[3, P]: low, the interquartile mean, high of runs along a curve, f64[R, P].

    NaN stands where a run has no value yet, and in the results where none has a finite one.

    Args:
        interval: the bounds are the bootstrap interval, in place of the range of the runs.
    """
    present, generator = np.isfinite(values), np.random.default_rng(0)
    found = np.full((3, values.shape[1]), np.nan)
    for pattern in np.unique(present[:, present.any(axis=0)], axis=1).T:
        places = (present == pattern[:, None]).all(axis=0)
        runs = values[pattern][:, places]
        bounds = runs.min(axis=0), runs.max(axis=0)
        if interval:
            drawn = generator.integers(len(runs), size=(CURVE_RESAMPLES, len(runs)))
            bounds = np.percentile(_iqm_of_runs(runs[drawn]), BOUNDS, axis=0)
        found[:, places] = bounds[0], _iqm_of_runs(runs), bounds[1]
    return found


def _iqm_of_runs(values: np.ndarray) -> np.ndarray:
    """f64[..., R, P] as f64[..., P]."""
    return iqm(np.moveaxis(values, -2, -1)[..., None])
