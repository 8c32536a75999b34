"""Moments at which the host has work, by iterations and by the clock; chunks that end at them."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.run import every
from jaxrl.run.every import Every, chunk_length


@pytest.mark.parametrize(
    ("moments", "due", "until"),
    [  # after iterations 1 to 8, and from iterations 0 to 7 on
        (Every(), [], [math.inf] * 8),
        (Every(1), [1, 2, 3, 4, 5, 6, 7, 8], [1] * 8),
        (Every(3), [3, 6], [3, 2, 1, 3, 2, 1, 3, 2]),
        (Every(2, first=5), [6, 8], [6, 5, 4, 3, 2, 1, 2, 1]),
        (Every(3, first=3), [3, 6], [3, 2, 1, 3, 2, 1, 3, 2]),
        (Every(20), [], [20, 19, 18, 17, 16, 15, 14, 13]),
        (Every(seconds=0), [1, 2, 3, 4, 5, 6, 7, 8], [math.inf] * 8),
        (Every(seconds=1e9), [], [math.inf] * 8),
        (Every(4, seconds=1e9), [4, 8], [4, 3, 2, 1, 4, 3, 2, 1]),
    ],
)
def test_moments_depend_on_the_iteration_alone(moments, due, until):
    assert [i for i in range(1, 9) if moments.is_due(i)] == due
    assert [moments.until_due(i) for i in range(8)] == until


@given(st.integers(1, 50), st.integers(0, 200), st.integers(0, 300))
def test_the_next_moment_is_the_first_that_is_due(iterations, first, iteration):
    moments = Every(iterations, first=first)
    until = moments.until_due(iteration)
    assert moments.is_due(iteration + until) and until >= 1
    assert not any(moments.is_due(i) for i in range(iteration + 1, iteration + until))


@pytest.mark.parametrize(
    ("interval", "iteration", "at_the_end", "due"),
    [(None, 4, True, False), (4, 4, False, True), (4, 6, False, False), (4, 6, True, True)],
)
def test_the_end_is_a_moment_of_what_comes_by_iterations(interval, iteration, at_the_end, due):
    assert Every(interval).is_due(iteration, at_the_end=at_the_end) == due


def test_seconds_count_from_the_last_restart(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(every.time, "monotonic", lambda: clock.now)
    moments, due = Every(seconds=3.0), []
    for clock.now in range(10):
        if moments.is_due(1):
            due.append(clock.now)
            moments.restart()
    assert due == [3, 6, 9]


@pytest.mark.parametrize(
    ("iteration", "seconds", "most", "length"),
    [
        (0, None, 64, 1),  # the first chunk
        (0, 0.1, 64, 6),  # ten in a second, and a moment after the sixth
        (4, 0.1, 64, 2),
        (6, 0.1, 64, 4),  # to the tenth
        (6, 0.5, 64, 2),
        (6, 9.0, 64, 1),  # longer than a second
        (6, 0.1, 3, 3),
    ],
)
def test_a_chunk_takes_a_second_and_ends_at_the_next_moment(iteration, seconds, most, length):
    moments = Every(6), Every(5, first=10), Every(), Every(seconds=0)
    assert chunk_length(iteration, seconds, most, moments) == length
