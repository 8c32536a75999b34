"""What a sweep tries, against combinations counted by hand and the bounds that were asked for."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl import (
    UsageError,
    choice,
    grid_search,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from jaxrl.sweeps.space import from_json, settings_of, to_json


def test_grids_are_combined_the_last_one_fastest():
    found = settings_of(
        {"lr": [1e-3, 1e-2], "gamma": 0.9, "clip_param": grid_search([0.1, 0.2, 0.3])}
    )
    assert found == [
        {"lr": lr, "gamma": 0.9, "clip_param": clip}
        for lr in (1e-3, 1e-2)
        for clip in (0.1, 0.2, 0.3)
    ]


def test_a_tuple_is_one_value_and_a_list_of_tuples_a_grid():
    assert settings_of({"fcnet_hiddens": (64, 64)}) == [{"fcnet_hiddens": (64, 64)}]
    assert len(settings_of({"fcnet_hiddens": [(64, 64), (32,)]})) == 2


def test_an_empty_space_is_one_trial_as_configured():
    assert settings_of({}) == [{}]


def test_every_sample_repeats_the_grid_with_new_draws():
    found = settings_of({"lr": loguniform(1e-5, 1e-2), "gamma": [0.9, 0.99]}, num_samples=3)
    assert [settings["gamma"] for settings in found] == [0.9, 0.99] * 3
    assert len({settings["lr"] for settings in found}) == 6


def test_ranges_and_numpys_arrays_are_grids_of_pythons_numbers():
    space = {"num_epochs": range(1, 3), "lr": np.array([1e-3, 1e-2]), "gamma": np.float64(0.9)}
    found = settings_of(space)
    assert found[0] == {"num_epochs": 1, "lr": 1e-3, "gamma": 0.9}
    assert len(found) == 4
    assert {type(value) for settings in found for value in settings.values()} == {int, float}
    assert settings_of({"num_epochs": randint(np.int64(3), 4.0)}) == [{"num_epochs": 3}]


@given(st.floats(1e-8, 1.0), st.floats(1.5, 1e6), st.integers(0, 2**32 - 1))
def test_draws_lie_within_their_bounds(low, factor, seed):
    high = low * factor
    space = {
        "a": uniform(low, high),
        "b": loguniform(low, high),
        "c": randint(3, 9),
        "d": choice(["x", "y"]),
    }
    for found in settings_of(space, 4, seed):
        assert low <= found["a"] <= high
        assert low * (1 - 1e-9) <= found["b"] <= high * (1 + 1e-9)
        assert found["c"] in range(3, 9)
        assert found["d"] in ("x", "y")


def test_loguniform_draws_as_often_below_the_geometric_mean_as_above():
    found = settings_of({"lr": loguniform(1e-6, 1e-2)}, 2000)
    share = sum(settings["lr"] < 1e-4 for settings in found) / len(found)
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / 2000)


def test_quniform_draws_multiples_the_ends_half_as_often():
    found = [settings["gamma"] for settings in settings_of({"gamma": quniform(0, 1, 0.25)}, 4000)]
    counts = np.unique(found, return_counts=True)
    np.testing.assert_array_equal(counts[0], [0, 0.25, 0.5, 0.75, 1])  # both bounds included
    np.testing.assert_allclose(counts[1] / 4000, [1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8], atol=0.03)
    assert max(settings["x"] for settings in settings_of({"x": quniform(0.1, 0.3, 0.1)}, 50)) == 0.3


def test_lograndint_is_the_floor_of_loguniform():
    found = [settings["n"] for settings in settings_of({"n": lograndint(1, 8)}, 4000)]
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == [1, 2, 3, 4, 5, 6, 7] and type(found[0]) is int
    shares = [math.log((n + 1) / n) / math.log(8) for n in range(1, 8)]
    np.testing.assert_allclose(counts / 4000, shares, atol=0.03)
    assert shares[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("draw", [quniform(0, 1, 0.25), lograndint(1, 8)])
def test_a_draw_is_read_back_from_its_file(draw):
    again = from_json(json.loads(json.dumps(to_json(draw))))
    assert (again.kind, again.arguments) == (draw.kind, draw.arguments)


def test_the_same_seed_draws_the_same():
    space = {"lr": loguniform(1e-5, 1e-2), "gamma": uniform(0.9, 1.0)}
    assert settings_of(space, 5, 3) == settings_of(space, 5, 3) != settings_of(space, 5, 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: grid_search([]), "a grid without values"),
        (lambda: settings_of({"lr": []}), "a grid without values"),
        (lambda: choice([]), "a choice without values"),
        (lambda: uniform(2, 1), "low < high"),
        (lambda: loguniform(0, 1), "0 < low < high"),
        (lambda: loguniform("a", 1), "finite numbers"),
        (lambda: settings_of({}, 0), "num_samples=0"),
        (
            lambda: settings_of({"lr": [1e-3, 1e-2]}, 3),
            "num_samples=3 has nothing to draw.*seeds=3",
        ),
        (lambda: settings_of({"lr": [1e-3, 1e-2, 1e-3]}), "lr: a grid has 0.001 twice"),
        (lambda: settings_of([1e-3]), "space must be a mapping"),
        (lambda: grid_search(3e-4), "a grid takes a list of values, not 0.0003"),
        (lambda: choice("relu"), "a choice takes a list of values, not 'relu'"),
        (lambda: randint(1.5, 3), r"randint\(1.5, 3\): both bounds must be integers"),
        (lambda: randint(1, 3.5), "both bounds must be integers"),
        (lambda: lograndint(1, 3.5), r"lograndint\(1, 3.5\): both .* loguniform\(...\) draws"),
        (lambda: lograndint(0, 3), r"lograndint\(0, 3\) needs 0 < low < high"),
        (lambda: quniform(0, 1, 0.3), r"quniform\(0, 1, 0.3\): both bounds .* multiples of 0.3"),
        (lambda: quniform(0, 1, 0), "quniform q=0 must be a number > 0"),
    ],
)
def test_what_cannot_be_tried_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()
