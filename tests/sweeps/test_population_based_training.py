"""Population-based training's two steps as functions, on numbers that can be checked by hand."""

import numpy as np
import pytest

from jaxrl import PopulationBasedTraining, UsageError, choice, loguniform, randint, uniform
from jaxrl.sweeps.lineage import Lineage, Stretch, Takeover
from jaxrl.sweeps.population_based_training import exploit, explore
from jaxrl.sweeps.space import grid_search

SOUND = [False] * 8


def generator(seed=0):
    return np.random.default_rng(seed)


def optimised(copies):
    """The best score of Jaderberg et al. 2017, figure 2, after 200 steps of four members.

    Maximise Q = 1.2 - x[0]^2 - x[1]^2 by gradients of 1.2 - h[0] x[0]^2 - h[1] x[1]^2, of which
    each member begins with one term alone, one of them a little slower: nobody copies an equal.
    """
    weights = np.full((4, 2), 0.9)
    settings = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 0.9}] * 2
    draws = {"h0": uniform(0, 1), "h1": uniform(0, 1)}
    pbt = PopulationBasedTraining(perturbation_interval=5, hyperparam_mutations=draws)
    random = generator()
    for step in range(1, 201):
        rates = np.array([[numbers["h0"], numbers["h1"]] for numbers in settings])
        weights = weights - 0.02 * 2 * rates * weights
        if copies and pbt.rounds.is_due(step):
            scores = (1.2 - np.sum(weights**2, axis=1)).tolist()
            for member, source in exploit(scores, [False] * 4, 0.25, random).items():
                weights[member] = weights[source]
                settings[member] = explore(settings[source], pbt, random)
    return max(1.2 - np.sum(weights**2, axis=1))


def test_the_papers_toy_is_solved_by_copies_alone():
    assert optimised(copies=False) < 1.2 - 0.9**2 + 1e-4  # one weight never moves
    assert optimised(copies=True) > 1.19


def test_the_worst_quarter_copies_the_best_quarter():
    scores = [5.0, 1.0, 7.0, 3.0, 8.0, 2.0, 6.0, 4.0]
    found = [exploit(scores, SOUND, 0.25, generator(seed)) for seed in range(20)]
    assert all(set(sources) == {1, 5} for sources in found)
    assert {source for sources in found for source in sources.values()} == {2, 4}


def test_a_diverged_member_is_always_replaced_and_never_copied():
    scores = [5.0, 1.0, 7.0, 3.0, 8.0, 2.0, None, 9.0]
    lost = [False] * 6 + [True, True]
    for seed in range(20):
        sources = exploit(scores, lost, 0.25, generator(seed))
        assert set(sources) == {6, 7}  # they are the worst quarter
        assert set(sources.values()) <= {2, 4}
    assert set(exploit(scores, [True] * 7 + [False], 0.25, generator()).values()) == {7}
    assert exploit(scores, [True] * 8, 0.25, generator()) == {}
    assert set(exploit([None] * 4, [True, False, False, False], 0.25, generator())) == {0}


def test_a_member_copies_strictly_better_ones_alone():
    assert exploit([500.0] * 8, SOUND, 0.25, generator()) == {}
    scores = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert set(exploit(scores, SOUND, 0.25, generator())) == {0}
    scores = [1.0, 2.0, 2.0, 3.0]  # half of them copy: 1 may not copy 2
    found = [exploit(scores, [False] * 4, 0.5, generator(seed)) for seed in range(20)]
    assert all(set(sources) == {0, 1} and sources[1] == 3 for sources in found)
    assert {sources[0] for sources in found} == {2, 3}
    lost = [True] + [False] * 7  # what diverged is replaced whatever the others have
    assert set(exploit([None] + [500.0] * 7, lost, 0.25, generator())) == {0}


def test_members_without_a_score_stay():
    assert exploit([None] * 8, SOUND, 0.25, generator()) == {}
    assert set(exploit([None, 1.0, 2.0, None], [False] * 4, 0.25, generator())) == {1}


def explored(value, kind, **settings):
    """What 50 copies have of one number."""
    pbt = PopulationBasedTraining(hyperparam_mutations={"x": kind}, **settings)
    return [explore({"x": value}, pbt, generator(seed))["x"] for seed in range(50)]


def test_a_number_is_multiplied_by_a_factor_or_drawn_again():
    kept = explored(2.0, uniform(10, 20), resample_probability=0.0)
    assert set(kept) == {2.5, 1.6}
    assert set(explored(100, randint(1, 9), resample_probability=0.0)) == {125, 80}
    drawn = explored(2.0, uniform(10, 20), resample_probability=1.0)
    assert all(10 <= value <= 20 for value in drawn)
    both = explored(2.0, uniform(10, 20))
    assert 0 < sum(value >= 10 for value in both) < 30
    factors = explored(2.0, loguniform(1, 9), perturbation_factors=[3], resample_probability=0)
    assert set(factors) == {6.0}


@pytest.mark.parametrize("kind", [[1, 2, 4, 8], choice([1, 2, 4, 8]), grid_search([1, 2, 4, 8])])
def test_a_value_of_a_list_moves_to_a_neighbour(kind):
    assert set(explored(2, kind, resample_probability=0.0)) == {1, 4}
    assert set(explored(8, kind, resample_probability=0.0)) == {4, 8}  # the end of the list
    assert set(explored(3, kind, resample_probability=0.0)) == {1, 2, 4, 8}  # not on it: drawn
    assert set(explored(2, kind, resample_probability=1.0)) == {1, 2, 4, 8}


def test_rounds_come_at_the_interval_after_the_burn_in():
    pbt = PopulationBasedTraining(perturbation_interval=4, burn_in_period=8)
    assert [i for i in range(1, 17) if pbt.rounds.is_due(i)] == [8, 12, 16]


def test_the_plan_says_if_no_round_comes():
    draws = {"lr": uniform(0, 1)}
    pbt = PopulationBasedTraining(
        perturbation_interval=4, burn_in_period=5, hyperparam_mutations=draws
    )
    assert pbt.describe(8, 9) == (
        "every 4 iterations the worst 2 of 8 copy the best 2, with other lr"
    )
    assert "nobody copies: the first round would follow iteration 8, and there are 8" in (
        pbt.describe(8, 8)
    )


def test_the_settings_are_the_same_after_json():
    kinds = {"lr": loguniform(1e-5, 1e-2), "gamma": [0.9, 0.99], "clip_param": choice([0.1, 0.2])}
    pbt = PopulationBasedTraining(hyperparam_mutations=kinds, perturbation_factors=[1.5, 0.5])
    again = PopulationBasedTraining.from_dict(pbt.to_dict())
    values = {"lr": 1e-3, "gamma": 0.9, "clip_param": 0.2}
    for seed in range(9):
        expected = explore(values, pbt, generator(seed))
        assert explore(values, again, generator(seed)) == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"perturbation_interval": 0}, "perturbation_interval=0 must be an integer of at least 1"),
        ({"quantile_fraction": 0.6}, r"quantile_fraction=0.6 must be a number in \[0, 0.5\]"),
        ({"resample_probability": 2}, "resample_probability=2 must be a number in"),
        ({"perturbation_factors": 1.2}, "perturbation_factors=1.2 must be a list such as"),
        ({"perturbation_factors": [0, 2]}, "perturbation_factors=0 must be a number > 0"),
        ({"hyperparam_mutations": {}}, "must be a mapping such as"),
        ({"hyperparam_mutations": ["lr"]}, "must be a mapping such as"),
        ({"hyperparam_mutations": {"lr": 1e-3}}, "lr=0.001 must be a list of values, or a distrib"),
        ({"hyperparam_mutations": {"lr": lambda: 1e-3}}, "must be a list of values, or a distrib"),
        ({"hyperparam_mutations": {"lr": []}}, "lr: a grid without values"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        PopulationBasedTraining(**settings)


def test_a_lineage_follows_the_copies_back_to_the_beginning():
    lineage = Lineage([{"lr": 1}, {"lr": 2}, {"lr": 3}])
    lineage.takeovers = [
        Takeover(4, source=0, target=2, settings={"lr": 4}),
        Takeover(8, source=2, target=1, settings={"lr": 5}),
        Takeover(12, source=0, target=2, settings={"lr": 6}),
    ]
    assert lineage.of(1, end=16) == [
        Stretch(0, 4, 0, {"lr": 1}),
        Stretch(4, 8, 2, {"lr": 4}),
        Stretch(8, 16, 1, {"lr": 5}),
    ]
    assert lineage.of(0, end=16) == [Stretch(0, 16, 0, {"lr": 1})]
    assert lineage.stretches([16, 16, 16])[-3:] == [
        Stretch(0, 4, 2, {"lr": 3}),
        Stretch(4, 12, 2, {"lr": 4}),
        Stretch(12, 16, 2, {"lr": 6}),
    ]
