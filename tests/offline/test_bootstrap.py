"""Bootstrap intervals: ratios of sums, beside Student's interval and by their derivatives."""

import numpy as np
import pytest
from scipy import stats

from jaxrl.offline.bootstrap import Sums, bootstrap_interval, resample


def mean_of(values):
    return Sums(np.array(values)[:, None], np.ones((len(values), 1)))


def interval_of(sums, **options):
    resampled = resample({"x": sums}, resamples=4000)["x"]
    return bootstrap_interval(sums, resampled, **options)


@pytest.mark.parametrize(("kind", "number"), [("percentile", 8), ("percentile", 200), ("bca", 200)])
def test_a_mean_of_normal_numbers_has_students_interval(kind, number):
    values = np.random.default_rng(1).normal(5.0, 2.0, number)
    low, high = stats.t.interval(0.95, number - 1, values.mean(), stats.sem(values))
    found = interval_of(mean_of(values), kind=kind)
    np.testing.assert_allclose(found, (low, high), atol=0.12 * (high - low))


def test_the_interval_of_a_skewed_mean_reaches_further_to_the_long_tail():
    values = np.random.default_rng(0).lognormal(0.0, 1.0, 50)
    mean = values.mean()
    for kind, ratio in (("percentile", 1.0), ("bca", 1.3)):
        low, high = interval_of(mean_of(values), kind=kind)
        assert (high - mean) / (mean - low) > ratio


def test_equal_episodes_have_an_interval_of_one_point():
    assert interval_of(mean_of([3.0] * 5)) == (3.0, 3.0)


def test_influences_are_the_derivative_by_an_episodes_share():
    generator = np.random.default_rng(2)
    sums = Sums(generator.normal(size=(6, 3)), generator.uniform(0.5, 2.0, (6, 3)))

    def estimate(shares):
        return np.sum((shares @ sums.numerators) / (shares @ sums.denominators))

    assert estimate(np.full(6, 1 / 6)) == pytest.approx(sums.estimate())
    for i in range(6):
        # The share of episode i grows by h, that of the others shrinks.
        h = 1e-6
        moved = (1 - h) * np.full(6, 1 / 6)
        moved[i] += h
        derivative = (estimate(moved) - sums.estimate()) / h
        assert sums.influences()[i] == pytest.approx(derivative, rel=1e-4)


def test_estimators_see_the_same_resamples_whatever_their_number():
    sums = {name: mean_of(np.arange(5.0)) for name in ("a", "b")}
    drawn = resample(sums, resamples=300)
    np.testing.assert_array_equal(drawn["a"], drawn["b"])
    assert drawn["a"].shape == (300,) and drawn["a"].std() > 0


def test_intervals_of_a_weighted_mean_hold_the_true_value_as_often_as_they_say():
    """300 data sets of 20 episodes; weights of mean 1 that grow with the value."""
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(300):
        x = generator.normal(size=20)
        weights = np.exp(0.5 * x - 0.125)  # of N(1/2, 1) over N(0, 1): the mean is 1/2
        sums = Sums((weights * x)[:, None], weights[:, None])
        low, high = bootstrap_interval(sums, resample({"x": sums}, resamples=500)["x"])
        held += low < 0.5 < high
    assert 0.9 < held / 300 < 0.985
