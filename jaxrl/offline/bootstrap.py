"""Bootstrap intervals over episodes: BCa and percentile, widened for few episodes.

Every estimate is a sum of K ratios of sums over n independent episodes,

    T = sum over k of (sum over i of N[i, k]) / (sum over i of D[i, k])

A resample draws n episodes with replacement, so episode i counts c_i times in both sums.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

INTERVALS = ("bca", "percentile")
NUMBERS_AT_ONCE = 2**21  # of the resamples' counts
NORMAL = NormalDist()


class Sums(NamedTuple):
    """The sums over episodes from which an estimator makes its estimate."""

    numerators: np.ndarray  # f64[n, K]
    denominators: np.ndarray  # f64[n, K]

    def estimate(self) -> float:
        """The sum of the ratios."""
        return float(np.sum(self.numerators.sum(axis=0) / self.denominators.sum(axis=0)))

    def influences(self) -> np.ndarray:
        """The derivative of the estimate by each episode's share of the data, f64[n]."""
        total = self.denominators.sum(axis=0)
        ratios = self.numerators.sum(axis=0) / total
        return len(self.numerators) * np.sum(
            (self.numerators - ratios * self.denominators) / total, axis=1
        )


def resample(
    estimators: dict[str, Sums], *, resamples: int = 2000, seed: int = 0
) -> dict[str, np.ndarray]:
    """The estimates of the same resamples, f64[resamples] each."""
    generator = np.random.default_rng(seed)
    number = len(next(iter(estimators.values())).numerators)
    at_once = max(1, NUMBERS_AT_ONCE // number)
    found = {name: [] for name in estimators}
    for begin in range(0, resamples, at_once):
        size = min(at_once, resamples - begin)
        counts = generator.multinomial(number, np.full(number, 1 / number), size).astype(float)
        for name, sums in estimators.items():
            ratios = (counts @ sums.numerators) / (counts @ sums.denominators)
            found[name].append(ratios.sum(axis=1))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def bootstrap_interval(
    sums: Sums, resampled: np.ndarray, *, level: float = 0.95, kind: str = "bca"
) -> tuple[float, float]:
    """The bounds of a two-sided interval.

        BCa (Efron 1987, eq. 6.8):  Phi(z0 + (z0 + z) / (1 - a (z0 + z)))  of the resamples

    z0 is how far their median is from the estimate, and a a sixth of the skewness of the
    influences. With few episodes z is that of Student's t instead of the normal distribution, times
    sqrt(n / (n - 1)) (Hesterberg 2015): resamples of n episodes vary too little.
    """
    from scipy.special import stdtrit  # JAX needs scipy as well; imported when it is used

    number, estimate = len(sums.numerators), sums.estimate()
    z = stdtrit(number - 1, (1 + level) / 2) * np.sqrt(number / (number - 1))
    z0 = acceleration = 0.0
    if kind == "bca":
        below = np.mean(resampled < estimate) + 0.5 * np.mean(resampled == estimate)
        margin = 0.5 / len(resampled)
        z0 = NORMAL.inv_cdf(float(np.clip(below, margin, 1 - margin)))
        influences = sums.influences()
        spread = np.sum(influences**2)
        acceleration = np.sum(influences**3) / (6 * spread**1.5) if spread > 0 else 0.0
    shares = []
    for side in (-z, z):
        slope = max(1 - acceleration * (z0 + side), 1e-3)
        shares.append(NORMAL.cdf(z0 + (z0 + side) / slope))
    low, high = np.quantile(resampled, shares)
    return float(low), float(high)
