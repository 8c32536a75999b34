"""The curves' history stays bounded, ordered and complete.

The picture never breaks on what a run may lack.
"""

import json
import math

import matplotlib.image
import numpy as np
import pytest

from jaxrl.algorithms.ppo.ppo import HEADLINE_METRICS
from jaxrl.core.errors import UsageError
from jaxrl.run.logging.history import MAX_POINTS
from jaxrl.run.logging.plots import (
    MAX_LINES,
    Curves,
    compared,
    figure,
    panel_facts,
    panels_of,
    short,
    smooth,
    source_line,
    spans_decades,
)
from jaxrl.run.logging.text_logs import dumped


def result(
    iteration, *, agents=("a",), returns=True, evaluated=False, vf_loss=1.0, policies=("p",)
):
    by_agent = {agent: float(iteration) for agent in agents}
    returned = (
        {"episode_return_mean": sum(by_agent.values()), "agent_episode_returns_mean": by_agent}
        if returns
        else {}
    )
    learner = {"mean_kl_loss": 0.01, "entropy": 1.0 / iteration, "vf_loss": vf_loss}
    tree = {
        "num_env_steps_sampled_lifetime": 100 * iteration,
        "env_runners": {**returned, "num_episodes": 3},
        "learners": {
            **dict.fromkeys(policies, learner),
            "__all_modules__": {"num_module_steps_trained": 5},
        },
    }
    if evaluated:
        tree["evaluation"] = {"env_runners": {"episode_return_mean": -5.0}}
    return tree


PANELS = panels_of({"panels": panel_facts(HEADLINE_METRICS), "config": {"kl_target": 0.01}})


def filled(count, chunk=7, **kwargs):
    curves = Curves(PANELS)
    results = [result(i, **kwargs) for i in range(1, count + 1)]
    for begin in range(0, count, chunk):
        curves.add(results[begin : begin + chunk])
    return curves


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


@pytest.mark.parametrize(
    "curves",
    [
        Curves(PANELS),
        filled(1),
        filled(1, returns=False),
        filled(2, vf_loss=math.nan),
        filled(
            80,
            agents=[f"agent{i}" for i in range(2)],
            policies=["p", "a policy of a very long name, longer yet"],
        ),
        filled(
            80,
            agents=[f"agent{i}" for i in range(32)],
            policies=[f"p{i}" for i in range(32)],
            evaluated=True,
        ),
    ],
    ids=["nothing", "one point", "no return", "no value loss", "two", "many"],
)
def test_a_picture_comes_of_any_run_and_nothing_else_is_left_beside_it(curves, tmp_path):
    curves.draw(tmp_path / "curves.png", title="probe")
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]
    assert matplotlib.image.imread(tmp_path / "curves.png").shape[:2] == (800, 1200)


def drawn(curves, panels=PANELS):
    return figure(curves.series(), panels, "probe").axes


def labels(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_the_lines_are_each_agents_and_their_sum_with_the_newest_value():
    returns, kl, *_ = drawn(filled(10, agents=("a", "b"), policies=("p", "q")))
    assert labels(returns) == ["a  10", "b  10", "sum  20"]
    assert labels(kl) == ["p  0.01", "q  0.01", "target 0.01"]
    np.testing.assert_array_equal(returns.lines[2].get_ydata(), 2 * np.arange(1, 11))


def test_one_agent_has_one_line_and_an_evaluation_is_a_dot():
    returns, kl, *_ = drawn(filled(10, evaluated=True), panels_of({"config": {}}))
    assert labels(returns) == ["return  10", "evaluation"]
    assert labels(kl) == ["p  0.01"]
    assert (
        set(returns.lines[1].get_ydata()) == {-5.0} and returns.lines[1].get_linestyle() == "None"
    )


def test_of_many_agents_only_the_sum_is_drawn_as_the_console_shows_it():
    count = MAX_LINES + 1
    returns, *_ = drawn(filled(10, agents=[f"agent{i}" for i in range(count)]))
    assert labels(returns) == [f"sum of {count} agents  {10 * count}"]
    assert returns.child_axes == []  # no second scale
    np.testing.assert_array_equal(returns.lines[0].get_ydata(), count * np.arange(1, 11))


def test_the_legend_lies_above_the_data():
    for axis in drawn(filled(10, agents=list("abcde"), policies=list("pqrst"))):
        axis.figure.draw_without_rendering()
        assert axis.get_legend().get_window_extent().y0 >= axis.get_window_extent().y1 - 1
        assert axis.get_legend().get_window_extent().x1 <= axis.figure.bbox.x1


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


def test_the_panels_smooth_as_their_scales_are():
    curves = Curves(PANELS)
    curves.add([result(i, vf_loss=1e6 if i == 50 else 1.0 + i % 2) for i in range(1, 101)])
    *_, value_loss = drawn(curves)
    assert value_loss.get_yscale() == "log"
    pale, average = value_loss.lines
    np.testing.assert_allclose(average.get_ydata(), smooth(pale.get_ydata(), logarithmic=True))


@pytest.mark.parametrize(
    ("ending", "beginning"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_ending_of_the_name_gives_the_format(tmp_path, ending, beginning):
    filled(3).draw(
        tmp_path / f"curves.{ending}", title="probe", footer="seed 3, commit abc1234, 2026-11-22"
    )
    assert (tmp_path / f"curves.{ending}").read_bytes().startswith(beginning)


def test_another_ending_is_refused_with_those_that_are_allowed(tmp_path):
    with pytest.raises(UsageError, match=r"curves\.jpg.*must end in one of \.png, \.pdf, \.svg"):
        filled(3).draw(tmp_path / "curves.jpg")


def test_the_figure_says_where_it_comes_from():
    line = source_line({"commit": "0123456789abcdef", "time": "2026-11-22T10:11:12+0000"}, 3)
    assert line == "seed 3, commit 0123456, 2026-11-22"
    assert source_line({}) == ""
    assert line in [
        text.get_text() for text in figure(filled(3).series(), PANELS, "probe", line).texts
    ]


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_an_algorithm_has_as_many_panels_as_headline_metrics(number):
    returns, *others = drawn(filled(10), panels=PANELS[:number])
    assert [axis.get_title(loc="left") for axis in others] == [
        panel.title for panel in PANELS[:number]
    ]
    assert returns.get_title(loc="left") == "return"


def test_runs_from_before_panels_were_stored_have_those_of_ppo():
    assert panels_of({"config": {"kl_target": 0.01}}) == PANELS


def test_several_runs_are_a_line_each():
    runs = {
        "slow": filled(5, policies=("p", "q")).series(),
        "fast": filled(10, evaluated=True).series(),
    }
    returns, kl, entropy, _ = compared(runs, PANELS, "probe").axes
    assert labels(returns) == ["slow  5", "fast  10"]
    assert labels(kl) == ["slow  0.01", "fast  0.01"]
    np.testing.assert_allclose(
        entropy.lines[0].get_ydata(), 1 / np.arange(1, 6), rtol=1e-6
    )  # p and q alike
    assert (
        returns.lines[0].get_color() == entropy.lines[0].get_color() != returns.lines[1].get_color()
    )


def against_opponents(iteration, **fixed):
    """A result against a pool of a copy and of `fixed` members, {name: win rate}."""
    members = {name: {"win_rate": rate, "num_episodes": 8.0} for name, rate in fixed.items()}
    tree = result(iteration)
    tree["env_runners"]["opponents"] = {
        "num_copies": 1,
        "win_rate": 0.5,
        "copy_0": {"win_rate": 0.25, "iteration": 0},
        "unmet": {"num_episodes": 0.0},
        **members,
    }
    return tree


def test_beside_a_pool_the_last_panel_is_the_win_rate_against_all_and_each_that_is_no_copy():
    facts = {"panels": panel_facts(HEADLINE_METRICS, has_opponents=True), "config": {}}
    panels = panels_of(facts)
    assert [panel.name for panel in panels] == ["mean_kl_loss", "entropy", "win_rate"]
    curves = Curves(panels)
    curves.add([against_opponents(i, random=0.75 + i / 100) for i in range(1, 6)])
    *_, rates = drawn(curves, panels)
    assert rates.get_title(loc="left") == "win rate against opponents"
    assert labels(rates) == ["pool  0.5", "random  0.8"]
    np.testing.assert_allclose(rates.lines[1].get_ydata(), [0.76, 0.77, 0.78, 0.79, 0.8])
    *_, together = compared({"a": curves.series(), "b": filled(5).series()}, panels, "game").axes
    assert labels(together) == ["a  0.5"]  # against all; the other run met nobody


def test_a_logarithmic_scale_is_for_values_above_zero_over_decades():
    of = lambda *values: {"p": (np.arange(len(values)), np.array(values))}
    assert spans_decades(of(1.0, 100.0))
    assert (
        not spans_decades(of(1.0, 2.0))
        and not spans_decades(of(0.0, 100.0))
        and not spans_decades({})
    )


@pytest.mark.parametrize(
    ("steps", "text"), [(0, "0"), (1500, "1.5k"), (250_000, "250k"), (2e6, "2M"), (3e9, "3G")]
)
def test_steps_are_short(steps, text):
    assert short(steps) == text
