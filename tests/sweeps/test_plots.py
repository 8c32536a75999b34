"""A sweep's picture: which panels it has, and what stands on their axes.

Drawn from scores made up by hand.
"""

import numpy as np
import pytest

from jaxrl import UsageError
from jaxrl.run.results import RETURN
from jaxrl.sweeps import plots
from jaxrl.sweeps.outcomes import TERMINATED, TrialResult
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.trials import Trial
from tests.programs import SMALL_CARTPOLE

STEPS = [64 * i for i in range(1, 7)]
DRAWN = [3e-4, 1e-5, 1e-2, 2e-3, 7e-5, 4e-4, 6e-3, 5e-4]  # as `loguniform` would


def swept(settings, seeds=1):
    outcomes = []
    for i, changes in enumerate(settings):
        for seed in range(seeds):
            trial = Trial(len(outcomes), changes, SMALL_CARTPOLE.replace(seed=seed))
            curve = STEPS, [np.nan, *(float(10 * i + seed + step) for step in range(5))]
            outcomes.append(TrialResult(trial, TERMINATED, None, curve[1][-1], curve))
    return Sweep(outcomes, RETURN, None)


def panels(settings, seeds=1):
    done = swept(settings, seeds)
    return plots.figure(done.by_settings(), RETURN).axes


def test_a_setting_drawn_at_random_is_an_axis_and_not_a_row_of_categories():
    curves, scatter = panels([{"lr": lr} for lr in DRAWN], seeds=2)
    assert scatter.get_xlabel() == "lr"
    assert scatter.get_xscale() == "log"
    (points,) = scatter.lines
    np.testing.assert_allclose(points.get_xdata(), np.repeat(DRAWN, 2))
    np.testing.assert_allclose(
        points.get_ydata(), [10 * i + seed + 4 for i in range(8) for seed in (0, 1)]
    )
    assert len(curves.lines) == plots.MOST_CURVES
    assert "the best 6 of 8 settings" in curves.get_title(loc="left")


def test_of_many_settings_the_curves_are_of_the_best_by_the_mode():
    groups = swept([{"lr": lr} for lr in DRAWN]).by_settings()
    ends = {}
    for mode in ("max", "min"):
        curves = plots.figure(groups, RETURN, mode).axes[0]
        ends[mode] = [line.get_ydata()[-1] for line in curves.lines]
    assert ends == {"max": [74, 64, 54, 44, 34, 24], "min": [4, 14, 24, 34, 44, 54]}


def test_plot_is_that_figure_and_refuses_a_sweep_without_a_score():
    done = swept([{"lr": 1e-3}, {"lr": 1e-2}])
    titles = [axis.get_title(loc="left") for axis in plots.figure(done.by_settings(), RETURN).axes]
    assert [axis.get_title(loc="left") for axis in done.plot().axes] == titles
    assert done.plot()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=f"no trial has a {RETURN} yet"):
        Sweep([], RETURN, None).plot()


def test_two_settings_drawn_at_random_are_two_axes_and_the_score_a_colour():
    clips = np.linspace(0.1, 0.3, 8)
    _, scatter, *_ = panels(
        [{"lr": lr, "clip_param": float(clip)} for lr, clip in zip(DRAWN, clips, strict=True)]
    )
    assert (scatter.get_xlabel(), scatter.get_ylabel()) == ("lr", "clip_param")
    (points,) = scatter.collections
    np.testing.assert_allclose(sorted(points.get_offsets()[:, 0]), sorted(DRAWN))


def test_a_grid_of_two_settings_is_a_heat_map_with_numbers_in_order():
    settings = [{"lr": lr, "clip_param": clip} for lr in (1e-2, 1e-4, 1e-3) for clip in (0.3, 0.1)]
    _, heat_map = panels(settings)
    assert [label.get_text() for label in heat_map.get_yticklabels()] == ["0.0001", "0.001", "0.01"]
    assert [label.get_text() for label in heat_map.get_xticklabels()] == ["0.1", "0.3"]
    np.testing.assert_allclose(heat_map.images[0].get_array(), [[34, 24], [54, 44], [14, 4]])


def test_a_few_values_of_one_setting_are_curves_alone():
    (curves,) = panels([{"lr": lr, "gamma": 0.9} for lr in (1e-3, 1e-2)], seeds=3)
    assert (
        curves.get_title(loc="left") == "episode_return_mean, interquartile mean and range of seeds"
    )
    labels = [text.get_text() for text in curves.get_legend().get_texts()]
    assert labels == [
        "lr=0.01  15",
        "lr=0.001  5",
    ]  # what was varied, the best first, with its last mean
    (eight,) = panels([{}], seeds=8)
    assert (
        eight.get_title(loc="left")
        == "episode_return_mean, interquartile mean and 95 % interval of seeds"
    )


@pytest.mark.parametrize(
    "settings", [[{"use_gru": True}, {"use_gru": False}], [{"fcnet_hiddens": (8,)}, {}]]
)
def test_settings_that_are_no_numbers_are_drawn(settings, tmp_path):
    plots.draw(tmp_path / "curves.png", swept(settings).by_settings(), RETURN)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_a_sweep_without_a_score_has_no_picture(tmp_path):
    plots.draw(tmp_path / "curves.png", [], RETURN)
    assert not list(tmp_path.iterdir())
