"""Panels of a page: which lines they have, in which colours, and at which points."""

import numpy as np

from jaxrl.replay.curve_panels import MAX_POINTS, run_panels, setting_panels
from jaxrl.run.logging.curves import Curves
from jaxrl.run.logging.figures import SMOOTHED_FROM
from jaxrl.run.logging.panels import Panel

KL = Panel("kl", "KL", target=0.01)


def curves_of(values, panels=(), **env_runners):
    """Curves of a policy `p` whose metric `kl` has these values at the steps 1, 2, ..."""
    curves = Curves(panels)
    for step, value in enumerate(values, start=1):
        learners = {"p": {"kl": value}}
        result = {"num_env_steps_sampled_lifetime": step, "learners": learners}
        curves.add([{**result, "env_runners": dict(env_runners)}])
    return curves


def test_the_return_of_one_agent_is_a_line_and_evaluations_are_dots():
    curves = curves_of([1.0], episode_return_mean=3.0, agent_episode_returns_mean={"a": 3.0})
    evaluated = {"env_runners": {"episode_return_mean": 5.0}}
    curves.add([{"num_env_steps_sampled_lifetime": 2, "evaluation": evaluated}])
    (panel,) = run_panels(curves, ())
    returns, evaluation = panel["lines"]
    assert returns == {"name": "return", "role": "ink", "xs": [1.0], "ys": [3.0]}
    assert (evaluation["style"], evaluation["xs"], evaluation["ys"]) == ("dots", [2.0], [5.0])


def test_agents_have_the_colours_that_they_have_in_the_episode():
    returns = {"a": 1.0, "b": 2.0}
    (panel,) = run_panels(curves_of([1.0], agent_episode_returns_mean=returns), ())
    assert [(line["name"], line["role"]) for line in panel["lines"]] == [
        ("a", "agent0"),
        ("b", "agent1"),
    ]


def test_a_target_is_a_dashed_line_over_all_steps():
    (panel,) = run_panels(curves_of([0.5, 0.25], [KL]), [KL])
    values, target = panel["lines"]
    assert values["ys"] == [0.5, 0.25] and "smooth" not in values
    assert (target["xs"], target["ys"], target["style"]) == ([1.0, 2.0], [0.01, 0.01], "dashes")
    assert not panel["log"]


def test_a_metric_that_spans_decades_is_drawn_on_a_logarithmic_scale():
    (panel,) = run_panels(curves_of([100.0, 1.0], [KL]), [KL])
    assert panel["log"]
    linear = KL._replace(linear=True)
    (panel,) = run_panels(curves_of([100.0, 1.0], [linear]), [linear])
    assert not panel["log"]


def test_a_long_noisy_line_comes_with_its_moving_average():
    (panel,) = run_panels(curves_of([1.0, 2.0] * (SMOOTHED_FROM // 2), [KL]), [KL])
    line = panel["lines"][0]
    assert set(line["ys"]) == {1.0, 2.0}
    inner = line["smooth"][5:-5]
    assert max(inner) - min(inner) < 0.5 and 1.3 < np.mean(inner) < 1.7


def test_a_long_run_is_sent_as_some_hundred_points_with_the_first_and_the_last():
    (panel,) = run_panels(curves_of(np.arange(1500.0), [KL]), [KL])
    line = panel["lines"][0]
    assert len(line["xs"]) == MAX_POINTS
    assert (line["xs"][0], line["xs"][-1], line["ys"][-1]) == (1.0, 1500.0, 1499.0)


def seed(*values):
    """The series of a seed whose score has these values at the steps 0, 1, ..."""
    return {"score": (np.arange(len(values), dtype=float), np.array(values, float))}


def test_the_seeds_of_a_setting_are_their_mean_between_the_least_and_the_greatest():
    groups = {"lr=1": [seed(0, 1), seed(0, 3), seed(0, 8)], "lr=2": [seed(5, 5)]}
    (panel,) = setting_panels(groups, (), "score", "return")
    several, alone = panel["lines"]
    assert panel["note"] == "interquartile mean and range of seeds"
    assert (several["low"][-1], several["ys"][-1], several["high"][-1]) == (1.0, 4.0, 8.0)
    assert (alone["name"], alone["ys"], "low" in alone) == ("lr=2", [5.0, 5.0], False)
    assert several["role"] != alone["role"]


def test_a_metric_of_several_policies_is_their_mean():
    steps = np.array([1.0, 2.0])
    series = {"kl/p": (steps, np.array([1.0, 1.0])), "kl/q": (steps, np.array([3.0, 5.0]))}
    (panel,) = setting_panels({"all": [series]}, [KL], "score", "return")
    assert panel["title"] == "KL" and panel["lines"][0]["ys"] == [2.0, 3.0]
