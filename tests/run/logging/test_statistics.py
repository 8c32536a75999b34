"""Interquartile means and their intervals, against SciPy, counting, and rliable's numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, trim_mean

from jaxrl.run.logging import statistics
from jaxrl.run.logging.statistics import (
    INTERVAL,
    RANGE,
    estimate,
    iqm,
    median,
    probability_of_improvement,
    spread,
    spread_along,
)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 3))
def test_the_interquartile_mean_is_scipys_mean_trimmed_by_a_quarter(values, tasks):
    scores = np.resize(values, (max(1, len(values) // tasks), tasks))
    np.testing.assert_allclose(
        iqm(scores), trim_mean(scores, 0.25, axis=None), rtol=1e-9, atol=1e-9
    )


def test_eight_runs_by_hand():
    scores = np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [800.0]])
    assert iqm(scores) == (3 + 4 + 5 + 6) / 4
    assert median(scores) == 4.5


def test_the_median_of_several_tasks_is_that_of_their_means():
    assert median(np.array([[1.0, 10.0, 100.0], [3.0, 30.0, 300.0]])) == 20.0


@pytest.mark.parametrize("interval", [False, True])
def test_each_point_of_a_curve_has_the_spread_of_the_runs_with_a_value(interval, monkeypatch):
    monkeypatch.setattr(statistics, "CURVE_RESAMPLES", 5000)
    values = np.random.default_rng(3).normal(size=(9, 3))
    values[:3, 0] = np.nan
    low, mean, high = spread_along(values, interval=interval)
    for place in range(3):
        runs = values[np.isfinite(values[:, place]), place]
        assert mean[place] == pytest.approx(iqm(runs[:, None]))
        if interval:
            bounds = estimate(runs, resamples=5000)[1:]
            np.testing.assert_allclose((low[place], high[place]), bounds, atol=0.1)
        else:
            assert (low[place], high[place]) == (runs.min(), runs.max())


@pytest.mark.parametrize("interval", [False, True])
def test_a_point_of_a_curve_where_no_run_is_finite_has_no_spread(interval):
    values = np.array([[np.inf, 2.0], [np.nan, 2.0]])
    assert np.isnan(spread_along(values, interval=interval)[:, 0]).all()
    assert spread_along(values, interval=interval)[:, 1].tolist() == [2.0, 2.0, 2.0]
    assert np.isnan(spread_along(values[:, :1], interval=interval)).all()


def test_runs_that_agree_leave_no_doubt():
    assert estimate([5.0] * 4) == (5.0, 5.0, 5.0)


def test_the_interval_is_that_of_the_mean_where_nothing_is_trimmed():
    """Of three runs nothing is left out.

    One resample of 27 draws the least run thrice, and one the greatest: 3.7 % lie at either end, so
    the 95 % interval reaches from one to the other, and the 90 % interval does not.
    """
    runs = np.array([0.0, 3.0, 9.0])
    assert estimate(runs, resamples=100_000) == (4.0, 0.0, 9.0)
    # Next come three resamples with a mean of 1 (0, 0, 3), and three with one of 7 (9, 9, 3).
    assert estimate(runs, resamples=100_000, confidence=0.9) == (4.0, 1.0, 7.0)


def test_resamples_stay_within_their_task():
    """Two tasks of constant scores.

    Drawn anew within a task nothing changes, across tasks everything would.
    """
    assert estimate(np.array([[0.0, 10.0]] * 4)) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("statistic", [iqm, median])
def test_the_same_seed_gives_the_same_interval(statistic):
    runs = np.random.default_rng(0).normal(size=(10, 3))
    assert estimate(runs, statistic, seed=1) == estimate(runs, statistic, seed=1)


# rliable 1.2.0's aggregate_iqm and aggregate_median of these scores (10 runs of 3 tasks), and its
# intervals from 20,000 stratified bootstrap resamples, `get_interval_estimates`.
SCORES = np.array(
    [
        *(
            [83.4, 166.9, 357.3],
            [87.3, 155.4, 419.1],
            [90.3, 181.5, 323.2],
            [12.0, 125.4, 393.9],
            [80.2, 118.4, 393.2],
        ),
        *(
            [41.3, 141.3, 454.4],
            [76.3, 187.5, 388.3],
            [18.0, 191.3, 590.6],
            [27.4, 226.4, 435.6],
            [134.3, 146.9, 356.9],
        ),
    ]
)
RLIABLE = {
    "iqm": (SCORES, iqm, 186.89375, (173.449375, 203.069375)),
    "median": (SCORES, median, 164.1, (144.99975, 183.97025)),
    "iqm of one task": (SCORES[:, :1], iqm, 65.98333333, (34.99791667, 90.16666667)),
}


@pytest.mark.parametrize(
    ("scores", "statistic", "value", "interval"), RLIABLE.values(), ids=RLIABLE
)
def test_rliables_own_numbers_come_out(scores, statistic, value, interval):
    found = estimate(scores, statistic, resamples=20_000)
    assert found.value == pytest.approx(value, abs=1e-6)
    # Two bootstraps of 20,000 resamples differ by some hundredths of the interval's width.
    assert (found.low, found.high) == pytest.approx(
        interval, abs=0.03 * (interval[1] - interval[0])
    )


def test_the_probability_of_improvement_of_several_tasks_is_rliables():
    found = probability_of_improvement(SCORES[5:], SCORES[:5])
    assert found.value == pytest.approx(0.6133333333, abs=1e-9)
    assert found.low < found.value < found.high


@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=7),
    st.lists(st.integers(-4, 4), min_size=1, max_size=7),
)
def test_the_probability_of_improvement_is_the_mann_whitney_share(first, second):
    expected = mannwhitneyu(first, second).statistic / (len(first) * len(second))
    found = probability_of_improvement(first, second, resamples=50)
    assert found.value == pytest.approx(expected)
    assert 0 <= found.low <= found.high <= 1


def test_settings_that_always_win_improve_for_sure():
    assert probability_of_improvement([3.0, 4.0], [1.0, 2.0]) == (1.0, 1.0, 1.0)


def test_fewer_than_eight_runs_have_a_range_and_eight_an_interval():
    few = [3.0, 1.0, 8.0, 2.0, 9.0, 4.0, 5.0]
    assert spread(few, median) == ((4.0, 1.0, 9.0), RANGE)
    assert spread(few) == ((iqm(np.array(few)[:, None]), 1.0, 9.0), RANGE)
    eight = [*few, 7.0]
    assert spread(eight) == (estimate(eight), INTERVAL)
