"""The picture of a run never breaks on what the run may lack, and shows what its lines are."""

import itertools
import math

import matplotlib.image
import numpy as np
import pytest

from jaxrl.algorithms.ppo.ppo import HEADLINE_METRICS
from jaxrl.core.errors import UsageError
from jaxrl.run.logging.comparison import COLUMN, compared, paper
from jaxrl.run.logging.curves import MAX_LINES, Curves, smooth, source_line
from jaxrl.run.logging.figures import LONGEST_NAME, figure, save_figure, short
from jaxrl.run.logging.panels import panel_facts, panels_of
from jaxrl.run.logging.statistics import estimate
from tests.run.logging.made_results import PANELS, against_opponents, filled, result


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
    save_figure(tmp_path / "curves.png", lambda: figure(curves.series(), PANELS, "probe"))
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
    returns, kl, *_ = drawn(filled(10, evaluated=True), [PANELS[0]._replace(target=None)])
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
    texts = "probe", "seed 3, commit abc1234, 2026-11-22"
    save_figure(tmp_path / f"curves.{ending}", lambda: figure(filled(3).series(), PANELS, *texts))
    assert (tmp_path / f"curves.{ending}").read_bytes().startswith(beginning)


def test_another_ending_is_refused_with_those_that_are_allowed(tmp_path):
    with pytest.raises(UsageError, match=r"curves\.jpg.*must end in one of \.png, \.pdf, \.svg"):
        save_figure(tmp_path / "curves.jpg", lambda: figure(filled(3).series(), PANELS, "probe"))


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


def test_several_runs_are_a_line_each():
    runs = {
        "slow": [filled(5, policies=("p", "q")).series()],
        "fast": [filled(10, evaluated=True).series()],
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


@pytest.mark.parametrize("num_panels", [0, 1, 3])
@pytest.mark.parametrize("number", [3, 9])
def test_legends_of_long_settings_are_whole_and_below_what_is_above_them(number, num_panels):
    runs = [filled(3).series()] * 2
    groups = {f"clip_param=0.{i} lr=0.001→0.0001, 12 seeds": runs for i in range(number)}
    whole = compared(groups, PANELS[:num_panels], "probe", "footer")
    whole.draw_without_rendering()
    title, *_ = whole.texts
    boxes = [axis.get_tightbbox() for axis in whole.axes]
    assert max(box.x1 for box in boxes) <= whole.bbox.x1
    assert max(box.y1 for box in boxes) < title.get_window_extent().y0
    assert not any(box.overlaps(next_box) for box, next_box in itertools.combinations(boxes, 2))
    for axis in whole.axes:
        assert len(labels(axis)) == number
        assert labels(axis)[0].startswith("clip_param=0.0 lr=0.001→0.0001, 12 seeds  ")


def test_a_papers_legend_of_long_settings_is_whole():
    name = "fcnet_hiddens=[256, 256] clip_param=0.02, 10 seeds"
    assert len(name) == LONGEST_NAME
    figure = paper({name: seeds(0, 1), "b": seeds(2)})
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
    assert figure.legends[0].get_texts()[0].get_text() == name


def test_a_papers_figure_is_taller_where_its_legend_has_many_rows():
    heights = []
    for number in (4, 16):
        figure = paper({f"lr=0.001 clip_param=0.{i}, 10 seeds": seeds(i, 2) for i in range(number)})
        figure.draw_without_rendering()
        heights.append(figure.axes[0].get_window_extent().height)
        assert figure.get_figwidth() == COLUMN[0]
    few, many = heights
    assert many >= few > 100  # pixels


@pytest.mark.parametrize("number", [1, 2])
def test_no_line_is_smoothed_beside_a_setting_of_several_seeds(number):
    alone = filled(80).series()
    groups = {"seeds": [filled(80).series()] * number, "alone": [alone]}
    returns, *_ = compared(groups, PANELS, "probe").axes
    (in_paper,) = paper(groups).axes
    pale = 2 - number  # a single run has its values behind its average
    assert len(returns.lines) == len(in_paper.lines) == 2 + 2 * pale
    if not pale:
        np.testing.assert_array_equal(returns.lines[1].get_ydata(), alone["return"][1])


def seeds(*offsets, steps=(0, 100, 200)):
    """Runs whose returns rise by 10 with each point, from an offset of their own."""
    at = np.array(steps, float)
    return [{"return": (at, offset + at / 10)} for offset in offsets]


def test_seeds_of_a_setting_are_their_interquartile_mean_in_a_band_of_their_range():
    both = {"lr=0.1, 4 seeds": seeds(0, 1, 5, 40), "lr=0.01": seeds(40)}
    drawn = compared(both, (), "probe")
    (returns,) = drawn.axes
    assert labels(returns) == ["lr=0.1, 4 seeds  23", "lr=0.01  60"]
    (band,) = returns.collections
    least, greatest = band.get_datalim(returns.transData).intervaly
    assert (least, greatest) == (0, 60)  # of the seeds 0 and 40
    np.testing.assert_allclose(returns.lines[0].get_ydata()[[0, -1]], [3, 23])  # of 1 and 5
    texts = [text.get_text() for text in drawn.texts]
    assert "5 runs, interquartile mean and range of seeds" in texts


def test_of_eight_seeds_the_band_is_the_bootstrap_interval_and_lines_rise_between_points():
    (returns,) = compared({"a": seeds(*range(8, 16))}, (), "probe").axes
    (band,) = returns.collections
    steps, mean = returns.lines[0].get_xdata(), returns.lines[0].get_ydata()
    np.testing.assert_allclose(mean, 11.5 + steps / 10)  # no stairs
    low, high = band.get_datalim(returns.transData).intervaly
    exact = estimate(range(8, 16), resamples=20_000)
    np.testing.assert_allclose([low, high], [exact.low, exact.high + 20], atol=0.5)


def test_a_seed_that_ended_early_keeps_its_last_value_in_the_mean():
    ended_early = {"return": (np.array([0.0, 100.0]), np.array([0.0, 90.0]))}
    (returns,) = compared({"a": [*seeds(0, 2), ended_early]}, (), "probe").axes
    assert returns.lines[0].get_ydata()[-1] == 44  # of 20, 22 and 90


def test_a_papers_figure_is_a_column_wide_with_its_legend_below_and_its_fonts_in_the_file(tmp_path):
    both = {"ours, 2 seeds": seeds(0, 1), "theirs": seeds(3)}
    figure = paper(both)
    figure.draw_without_rendering()
    assert tuple(figure.get_size_inches()) == COLUMN
    (axis,) = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours, 2 seeds", "theirs"]
    assert legend.get_window_extent().y1 <= axis.get_window_extent().y0
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("environment steps", "episode return")
    save_figure(tmp_path / "figure.pdf", lambda: paper(both))
    written = (tmp_path / "figure.pdf").read_bytes()
    assert b"/Subtype /CIDFontType2" in written and b"/Type3" not in written


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
    *_, together = compared(
        {"a": [curves.series()], "b": [filled(5).series()]}, panels, "game"
    ).axes
    assert labels(together) == ["a  0.5"]  # against all; the other run met nobody


@pytest.mark.parametrize(
    ("steps", "text"), [(0, "0"), (1500, "1.5k"), (250_000, "250k"), (2e6, "2M"), (3e9, "3G")]
)
def test_steps_are_short(steps, text):
    assert short(steps) == text
