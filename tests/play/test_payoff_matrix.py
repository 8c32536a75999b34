"""Tests of Elo ratings: the maximum of the likelihood, and what is left where games are missing."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from jaxrl.play.payoff_matrix import SCALE, PayoffMatrix, log_strengths


def test_elo_is_400_for_odds_of_ten():
    many = 10**9
    matrix = PayoffMatrix(("new", "old"), ("old",), [[10 / 11], [0.5]], many)
    assert matrix.elo == {"old": 0.0, "new": pytest.approx(400, abs=0.01)}
    three = PayoffMatrix(("b", "c"), ("a", "b"), [[10 / 11, 0.5], [100 / 101, 10 / 11]], many)
    assert three.elo == pytest.approx({"a": 0.0, "b": 400.0, "c": 800.0}, abs=0.1)


def ladder(size, episodes):
    """Players who win every game against all before them."""
    names = [f"player {i}" for i in range(size)]
    rates = np.where(np.eye(size, dtype=bool), 0.5, np.tri(size))
    return PayoffMatrix(names, names, rates, episodes)


def test_two_players_who_always_win_and_lose_are_as_far_apart_as_half_a_draw_says():
    # Each pair of (row, column) and (column, row) has n games and one draw more.
    elo = ladder(2, episodes=1000).elo
    assert elo == {"player 0": 0.0, "player 1": pytest.approx(400 * np.log10(1000.5 / 0.5))}


@pytest.mark.parametrize(("size", "episodes"), [(3, 1), (11, 1000), (30, 10), (8, 10**7)])
def test_ratings_of_strong_players_are_the_very_maximum_of_the_likelihood(size, episodes):
    matrix = ladder(size, episodes)
    rates = matrix.win_rate * episodes + 0.5
    points = rates + (episodes + 1 - rates).T
    np.fill_diagonal(points, 0)
    strengths = np.array(list(matrix.elo.values())) / SCALE
    chances = 1 / (1 + np.exp(strengths - strengths[:, None]))
    # At the maximum everybody has as many points as his rating promises.
    promised = ((points + points.T) * chances).sum(axis=1)
    np.testing.assert_allclose(promised, points.sum(axis=1), rtol=1e-9)
    assert (np.diff(strengths) > 0).all()


@settings(max_examples=20)
@given(st.lists(st.integers(0, 20), min_size=6, max_size=6))
def test_no_other_ratings_are_likelier(wins):
    pairs, points = list(itertools.combinations(range(4), 2)), np.zeros((4, 4))
    for (i, j), won in zip(pairs, wins, strict=True):
        points[i, j], points[j, i] = won + 0.5, 20.5 - won

    def cost(strengths):
        apart = np.append(0.0, strengths)
        return (points * np.logaddexp(0, apart - apart[:, None])).sum()

    found = log_strengths(points)
    best = minimize(cost, np.zeros(3), method="BFGS")
    assert cost(found[1:]) <= best.fun + 1e-9
    np.testing.assert_allclose(found[1:], best.x, atol=1e-3)


def test_who_has_played_nobody_has_rating_0():
    assert PayoffMatrix(("a",), ("a",), [[0.5]], 10).elo == {"a": 0.0}
    assert PayoffMatrix((), (), np.zeros((0, 0)), 10).elo == {}
    assert PayoffMatrix(("b",), ("a",), [[1.0]], 0).elo == {"a": 0.0, "b": 0.0}


def test_a_pair_without_a_win_rate_does_not_count():
    alone = PayoffMatrix(("b",), ("a",), [[0.75]], 10).elo
    matrix = PayoffMatrix(("b", "c"), ("a",), [[0.75], [np.nan]], 10)
    assert matrix.elo == {**alone, "c": 0.0}


def test_groups_that_never_met_are_rated_among_themselves():
    rates = [[0.75, np.nan], [np.nan, 0.75]]
    elo = PayoffMatrix(("b", "d"), ("a", "c"), rates, 10).elo
    assert elo["a"] == elo["c"] == 0.0
    assert elo["b"] == elo["d"] == pytest.approx(400 * np.log10(8 / 3))
