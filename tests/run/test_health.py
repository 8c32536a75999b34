"""Health.

Which number is named when training breaks, and that a warning is said once, when it lasts.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl.algorithms.ppo.loss import ROOT_CAUSE_METRICS
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.run.health import (
    NO_EPISODE_ITERATIONS,
    NO_EPISODE_STEPS,
    WARN_AFTER_ITERATIONS,
    HealthMonitor,
    first_bad,
    has_constant_sum,
    outside,
)

GOOD = {
    "total_loss": 0.5,
    "policy_loss": -0.1,
    "vf_loss": 1.0,
    "parameters_finite": 1.0,
    "num_trainable_parameters": 9,
}


def result(**learners):
    return {
        "learners": {
            "pol1": GOOD,
            **learners,
            "__all_modules__": {"num_module_steps_trained": 64.0},
        }
    }


def test_healthy_results_have_no_bad_one():
    assert first_bad([]) is None
    assert (
        first_bad(
            [result(), {"env_runners": {"num_episodes": 0}}, {"learners": {"__all_modules__": {}}}]
        )
        is None
    )


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"total_loss": math.nan}, "total_loss is nan"),
        ({"mine": {"loss": math.nan}}, "mine/loss is nan"),
        ({"total_loss": math.nan, "vf_loss": math.inf}, "vf_loss is inf"),
        (
            {"total_loss": math.nan, "vf_loss": math.nan, "policy_loss": -math.inf},
            "policy_loss is -inf",
        ),
        (
            {"gradients_default_optimizer_global_norm": math.inf},
            "gradients_default_optimizer_global_norm is inf",
        ),
        (
            {"parameters_finite": 0.0},
            "its parameters or its optimiser's state are no longer finite",
        ),
        ({"parameters_finite": 0.0, "entropy": math.nan, "total_loss": math.nan}, "entropy is nan"),
    ],
)
def test_the_first_bad_result_names_the_policy_and_the_most_telling_term(bad, text):
    results = [
        result(),
        result(),
        result(pol2={**GOOD, **bad}),
        result(pol1={**GOOD, "vf_loss": math.nan}),
    ]
    assert first_bad(results, ROOT_CAUSE_METRICS) == (2, f"policy 'pol2': {text}")


def watch(*kinds_by_iteration, num_envs=1):
    """A watch over a configuration that reports these kinds, iteration by iteration."""
    iterations = iter(kinds_by_iteration)
    found = lambda config, result: [(kind, f"{kind}!") for kind in next(iterations)]
    return HealthMonitor(SimpleNamespace(num_envs=num_envs), found)


def test_a_concern_is_said_once_and_only_when_it_lasts():
    enough = WARN_AFTER_ITERATIONS
    watched = watch(*[["kl"]] * (enough - 1), [], *[["kl", "clip"]] * (3 * enough))
    assert watched.look([{}] * (2 * enough - 1)) == []  # interrupted once, then too short again
    assert watched.look([{}]) == ["kl!", "clip!"]
    assert watched.look([{}] * enough) == []


def playing(num_episodes, steps):
    return {"env_runners": {"num_episodes": num_episodes, "num_env_steps_sampled": steps}}


def test_a_long_time_without_the_end_of_an_episode_is_said_once():
    steps = 4 * NO_EPISODE_STEPS // NO_EPISODE_ITERATIONS
    watched = HealthMonitor(SimpleNamespace(num_envs=4))
    assert watched.look([playing(0, steps)] * (NO_EPISODE_ITERATIONS - 1)) == []
    (text,) = watched.look([playing(0, steps)] * NO_EPISODE_ITERATIONS)
    assert (
        "no episode has ended in the last 100 iterations (10,000 steps of each environment)" in text
    )


@pytest.mark.parametrize(
    "results",
    [
        [playing(0, NO_EPISODE_STEPS)]
        * (NO_EPISODE_ITERATIONS - 1),  # many steps in few iterations
        [playing(0, 1)] * (2 * NO_EPISODE_ITERATIONS),  # many iterations of few steps
        [*[playing(0, 1000)] * (NO_EPISODE_ITERATIONS - 1), playing(1, 1000)]
        * 3,  # one ends every now and then
        [{}] * (2 * NO_EPISODE_ITERATIONS),  # nothing is said of episodes
    ],
)
def test_long_episodes_alone_are_no_reason_for_a_warning(results):
    assert HealthMonitor(SimpleNamespace(num_envs=1)).look(results) == []


@pytest.mark.parametrize(
    ("episodes", "text"),
    [
        (
            {"agent_episode_returns_mean": {"a": 1.0, "b": math.nan}},
            "the return of agent 'b' is nan",
        ),
        (
            {"agent_episode_returns_mean": {"a": -1e38, "b": 0.0}},
            r"the return of agent 'a' is -1e+38",
        ),
        (
            {"custom_metrics": {"speed_mean": math.inf, "speed_max": math.inf}},
            "custom_metrics/speed_mean is inf",
        ),
    ],
)
def test_episodes_with_numbers_that_are_none_are_warned_of_once(episodes, text):
    watched = watch([], [], [])
    assert watched.look([{"env_runners": {"agent_episode_returns_mean": {"a": 1e17}}}]) == []
    [warning] = watched.look([{"env_runners": episodes}, {"env_runners": episodes}])
    assert text in warning


def game(first, second, num_episodes=50, least=0.0, most=0.0):
    """The result of an iteration in which two agents had these returns."""
    episodes = {
        "num_episodes": 5,
        "num_env_steps_sampled": 50,
        "episode_return_mean": first + second,
        "episode_return_min": least,
        "episode_return_max": most,
        "agent_episode_returns_mean": {"first": first, "second": second},
    }
    return {"num_episodes_lifetime": num_episodes, "env_runners": episodes, "learners": {}}


@pytest.mark.parametrize(
    ("found", "is_constant"),
    [
        (game(0.5, -0.5), True),
        (game(0.0, 0.0), True),  # a draw
        (game(7.0, 3.0, least=10.0, most=10.0), True),  # they share what there is
        (game(0.5, -0.5, least=-1e-7, most=1e-7), True),  # rounding
        (game(0.5, -0.5, least=-0.1, most=0.1), False),
        (game(5.0, 5.0, least=10.0, most=10.0), False),  # a team, which has a reward in common
    ],
)
def test_returns_that_sum_to_one_number_are_those_of_a_game(found, is_constant):
    assert has_constant_sum(found["env_runners"]) == is_constant


def test_one_agent_plays_no_game_however_constant_its_return_is():
    alone = game(3.0, 0.0, least=3.0, most=3.0)["env_runners"]
    del alone["agent_episode_returns_mean"]["second"]
    assert not has_constant_sum(alone)
    assert not has_constant_sum({})  # before an episode has ended


def test_a_game_without_a_score_that_means_something_is_said_once_when_it_lasts():
    look = HealthMonitor(SimpleNamespace(num_envs=1)).look
    assert look([game(0.1 * i, -0.1 * i) for i in range(WARN_AFTER_ITERATIONS - 1)]) == []
    (line,) = look([game(0.5, -0.5), game(0.2, -0.2)])
    assert "sum to 0.00 in every episode, so there is no best checkpoint" in line
    assert look([game(0.1, -0.1)] * 20) == []
    scored = HealthMonitor(SimpleNamespace(num_envs=1), score="env_runners/opponents/win_rate")
    assert scored.look([game(0.5, -0.5)] * 20) == []


def test_a_team_without_a_reward_so_far_is_told_nothing_of_games():
    assert HealthMonitor(SimpleNamespace(num_envs=1)).look([game(0.0, 0.0)] * 30) == []


def test_a_sum_that_is_another_one_in_each_iteration_is_no_games():
    sums = (game(i + 0.5, -0.5, least=i, most=i) for i in range(3 * WARN_AFTER_ITERATIONS))
    assert HealthMonitor(SimpleNamespace(num_envs=1)).look(list(sums)) == []


def test_parts_of_observations_are_held_against_their_spaces():
    space = Dict({"cell": Discrete(4), "at": MultiDiscrete((2, 3)), "far": Box(-1.0, 1.0, (2,))})
    obs = {
        "cell": np.array([0, 3]),
        "at": np.array([[1, 2], [0, 0]]),
        "far": np.array([[1.00001, 0], [-1, 1]]),
    }
    assert list(outside(space, obs)) == []  # a Box may be left by a rounding
    wrong = {
        "cell": np.array([0, 4]),
        "at": np.array([[1, 3], [0, 0]]),
        "far": np.array([[1.1, 0], [-1, np.nan]]),
    }
    assert [(name, text.partition(",")[0]) for name, text in outside(space, wrong)] == [
        ("at", "observation 'at' is 3"),
        ("cell", "observation 'cell' is 4"),
        ("far", "observation 'far' is 1.1"),
    ]
