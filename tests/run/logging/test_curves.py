"""The curves' history stays bounded, ordered and complete."""

import json
import math

import numpy as np
import pytest

from jaxrl.run.logging.curves import Curves, smooth, spans_decades
from jaxrl.run.logging.history import MAX_POINTS
from jaxrl.run.storage.json_lines import dumped
from tests.run.logging.made_results import PANELS, filled, result


def test_a_short_run_is_kept_whole_and_the_names_are_those_of_agents_and_policies():
    series = filled(5, agents=("a", "b"), policies=("p", "q")).series()
    kinds = ("mean_kl_loss", "entropy", "vf_loss")
    assert set(series) == {
        "return", "agent/a", "agent/b",
        *(f"{kind}/{policy}" for kind in kinds for policy in ("p", "q")),
    }  # fmt: skip
    steps, values = series["return"]
    np.testing.assert_array_equal(steps, [100, 200, 300, 400, 500])
    np.testing.assert_array_equal(values, [2, 4, 6, 8, 10])
    np.testing.assert_allclose(series["entropy/q"][1], 1 / np.arange(1, 6), rtol=1e-6)


def test_a_long_run_is_thinned_in_order_with_its_first_and_its_newest_point():
    curves = filled(10_000)
    steps, values = curves.series()["return"]
    assert MAX_POINTS // 2 <= len(steps) <= MAX_POINTS
    assert (steps[0], steps[-1]) == (100, 1_000_000)
    np.testing.assert_array_equal(values, steps / 100)  # each value is still with its own step
    gaps = np.diff(steps)
    assert np.all(gaps > 0) and len(set(gaps[:-1])) == 1  # evenly, but for the newest
    assert len(curves._training._points) <= MAX_POINTS


def test_the_length_of_the_chunks_changes_no_curve():
    single, chunked = (filled(5_001, chunk=chunk).series()["return"] for chunk in (1, 256))
    np.testing.assert_array_equal(single, chunked)


def test_a_return_that_is_absent_at_first_begins_later_and_what_is_not_finite_is_left_out():
    curves = Curves(PANELS)
    curves.add(
        [
            result(1, returns=False),
            result(2, vf_loss=math.nan),
            result(3, vf_loss=math.inf),
            result(4),
        ]
    )
    series = curves.series()
    np.testing.assert_array_equal(series["return"][0], [200, 300, 400])
    np.testing.assert_array_equal(series["vf_loss/p"][0], [100, 400])


def test_going_on_from_an_earlier_checkpoint_replaces_what_came_after_it():
    curves = filled(10)
    curves.add([result(6, vf_loss=9.0)])
    steps, values = curves.series()["vf_loss/p"]
    np.testing.assert_array_equal(steps, [100, 200, 300, 400, 500, 600])
    assert values[-1] == 9.0


@pytest.mark.parametrize("count", [1, 30, 2 * MAX_POINTS + 3])
def test_refilled_from_the_log_the_curves_are_as_if_nothing_had_happened(tmp_path, count):
    results = [
        result(i, evaluated=i % 10 == 0, vf_loss=math.nan if i == 3 else 1.0)
        for i in range(1, count + 1)
    ]
    lines = "".join(f"{dumped(result)}\n" for result in results)
    (tmp_path / "metrics.jsonl").write_text(lines)
    curves, again = Curves(PANELS), Curves.from_jsonl(tmp_path / "metrics.jsonl", PANELS)
    curves.add(results)
    for _ in range(2):
        series, series_again = curves.series(), again.series()
        assert set(series) == set(series_again)
        for name in series:
            np.testing.assert_array_equal(series[name], series_again[name], err_msg=name)
        for each in (curves, again):  # and both go on alike
            each.add([result(i) for i in range(count + 1, count + 50)])


def test_a_log_whose_last_line_was_cut_off_is_read_up_to_there(tmp_path):
    whole = "".join(json.dumps(result(i)) + "\n" for i in (1, 2))
    (tmp_path / "metrics.jsonl").write_text(whole + json.dumps(result(3))[:40])
    np.testing.assert_array_equal(
        Curves.from_jsonl(tmp_path / "metrics.jsonl", PANELS).series()["return"][0], [100, 200]
    )


def test_without_a_log_there_are_no_curves(tmp_path):
    assert Curves.from_jsonl(tmp_path / "metrics.jsonl", PANELS).series() == {}


def test_smoothing_keeps_a_constant_and_a_line_away_from_the_ends():
    np.testing.assert_allclose(smooth(np.full(100, 3.0)), 3.0)
    np.testing.assert_allclose(smooth(np.arange(100.0))[5:-5], np.arange(100.0)[5:-5])


def test_on_a_logarithmic_scale_a_spike_stays_a_spike():
    values = np.ones(100)
    values[50] = 1e6
    # The window is 5 wide: the geometric mean about the spike is 1e6 ** (1/5), the arithmetic one
    # 2e5.
    np.testing.assert_allclose(smooth(values, logarithmic=True)[48:53], 1e6 ** (1 / 5))
    np.testing.assert_allclose(smooth(values)[48:53], (4 + 1e6) / 5)
    np.testing.assert_allclose(smooth(np.full(100, 3.0), logarithmic=True), 3.0)


def test_a_logarithmic_scale_is_for_values_above_zero_over_decades():
    of = lambda *values: {"p": (np.arange(len(values)), np.array(values))}
    assert spans_decades(of(1.0, 100.0))
    assert (
        not spans_decades(of(1.0, 2.0))
        and not spans_decades(of(0.0, 100.0))
        and not spans_decades({})
    )
