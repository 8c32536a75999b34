"""Which trials a sweep has and which share a program, counted by hand."""

import numpy as np
import pytest

from jaxrl import PPOConfig, UsageError
from jaxrl.core import registry
from jaxrl.sweeps.trials import (
    Trial,
    applied,
    groups_of,
    programs_of_equal_environments,
    trials_of,
    unreached,
)
from tests.core.environments import Corridor

ARENA = PPOConfig(env="arena", num_envs=4, rollout_length=8, minibatch_size=16, total_env_steps=64)


def plan(settings, seeds=1, config=ARENA):
    return groups_of(trials_of(config, settings, seeds))


def test_numbers_share_a_program_and_sizes_do_not():
    settings = [{"lr": lr, "minibatch_size": size} for lr in (1e-3, 1e-2) for size in (8, 16)]
    groups = plan(settings, seeds=3)
    assert [len(group.trials) for group in groups] == [6, 6]
    assert [{trial.config.minibatch_size for trial in group.trials} for group in groups] == [
        {8},
        {16},
    ]


@pytest.mark.long
def test_an_environment_with_arrays_among_its_numbers_is_swept_too():
    """Acrobot's torques are an array, which has no hash."""
    acrobot = ARENA.replace(env="gymnax:Acrobot-v1")
    (group,) = plan([{"lr": lr} for lr in (1e-3, 1e-2)], config=acrobot)
    assert group.shapes is group.shapes and group.shapes.metrics


class Unequal(Corridor):
    __eq__, __hash__ = object.__eq__, object.__hash__


SIZES = [{"minibatch_size": size} for size in (8, 16)]


@pytest.mark.parametrize(
    ("make_env", "num_programs"),
    [(Corridor, 2), (Unequal, 2), (lambda: Corridor(), 2), (lambda: Unequal(), 6)],
    ids=["equal", "unequal", "equal by a function", "unequal by a function"],
)
def test_trials_share_a_program_where_one_object_is_made_for_all(
    monkeypatch, make_env, num_programs
):
    monkeypatch.setitem(registry._registered, "made", make_env)
    groups = plan(SIZES, seeds=3, config=ARENA.replace(env="made"))
    assert len(groups) == num_programs
    assert programs_of_equal_environments(groups) == 2


def test_a_policy_is_named_before_the_setting():
    config = applied(ARENA, {"pol1.lr": 1e-3, "lr": 1e-4})
    assert (config.for_policy("pol1").lr, config.for_policy("pol2").lr) == (1e-3, 1e-4)


def test_a_swept_mapping_keeps_what_a_setting_beside_it_does_not_name():
    arguments = {"env_args": {"width": 5}, "env_args.height": 4}
    assert dict(applied(ARENA, arguments).env_args) == {"width": 5, "height": 4}
    rates = {"per_policy": {"pol1": {"gamma": 0.5}}, "pol1.lr": 1e-3}
    policy = applied(ARENA, rates).for_policy("pol1")
    assert (policy.gamma, policy.lr) == (0.5, 1e-3)
    for wrong in ({"env_args": 5}, {"per_policy": 5}, {"per_policy": {"pol1": 5}}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))}.* must be"):
            applied(ARENA, {**wrong, "env_args.height": 4, "pol1.lr": 1e-3})


OWN_RATES = {"pol1": {"lr": 1e-3}, "pol2": {"lr": 2e-3}}


def test_a_setting_that_every_trained_policy_has_of_its_own_is_refused_by_the_names_that_work():
    both = ARENA.replace(per_policy=OWN_RATES)
    with pytest.raises(
        UsageError, match=r"lr changes nothing: .* pol1 and pol2 .*: pol1\.lr, pol2\.lr"
    ):
        trials_of(both, [{"lr": 1e-4}], 1)
    with pytest.raises(UsageError, match=r"lr changes nothing: .*pol1\.lr"):
        trials_of(
            ARENA.replace(per_policy=OWN_RATES, policies_to_train=["pol1"]), [{"lr": 1e-4}], 1
        )
    assert applied(both, {"pol1.lr": 1e-4}).for_policy("pol1").lr == 1e-4
    assert trials_of(both, [{"gamma": 0.9}], 1)


def test_a_setting_that_some_policies_have_of_their_own_is_for_the_others_and_says_so():
    config = ARENA.replace(per_policy={"pol1": {"lr": 1e-3}})
    changed = applied(config, {"lr": 1e-4})
    assert (changed.for_policy("pol1").lr, changed.for_policy("pol2").lr) == (1e-3, 1e-4)
    (warning,) = unreached(config, {"lr": 1e-4})
    assert "lr leaves pol1 as per_policy has it" in warning
    assert unreached(config, {"lr": 1e-4, "pol1.lr": 1e-2}) == unreached(ARENA, {"lr": 1e-4}) == []


def test_numpys_seeds_are_seeds():
    assert [trial.config.seed for trial in trials_of(ARENA, [{}], np.arange(2, 4))] == [2, 3]
    assert len(trials_of(ARENA, [{}], np.int64(3))) == 3


def test_what_a_policy_had_of_its_own_stays():
    config = ARENA.replace(per_policy={"pol1": {"gamma": 0.5}})
    assert applied(config, {"pol1.lr": 1e-3}).for_policy("pol1").gamma == 0.5


def test_numbers_of_the_environment_share_a_program_and_its_shapes_do_not():
    groups = plan([{"env_args.max_steps_in_episode": steps} for steps in (10, 20)])
    assert len(groups) == 1
    assert [int(trial.numbers[1].max_steps_in_episode) for trial in groups[0].trials] == [10, 20]
    assert len(plan([{"env_args.width": width} for width in (5, 6)])) == 2


def test_schedules_of_other_lengths_are_other_programs():
    settings = [{"lr": 1e-3}, {"lr": ((0, 1e-3), (50, 1e-4))}, {"lr": 1e-4}]
    assert [len(group.trials) for group in plan(settings)] == [2, 1]


def test_seeds_count_from_the_configurations_own():
    trials = trials_of(ARENA.replace(seed=5), [{}, {"lr": 1e-3}], 2)
    assert [trial.config.seed for trial in trials] == [5, 6, 5, 6]
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert [trial.config.seed for trial in trials_of(ARENA, [{}], [7, 3])] == [7, 3]


def test_the_hypers_of_a_trial_are_those_of_its_configuration():
    trial = trials_of(ARENA, [{"clip_param": 0.1}], 1)[0]
    assert np.float32(trial.numbers[0]["pol2"].clip_param) == np.float32(0.1)


@pytest.mark.parametrize(
    ("settings", "seeds", "words"),
    [
        ({"lrr": 1e-3}, 1, "unknown setting 'lrr'; did you mean 'lr'"),
        ({"pol3.lr": 1e-3}, 1, "unknown policy 'pol3'; did you mean 'pol1'|did you mean 'pol2'"),
        ({"pol1.learning": 1e-3}, 1, "unknown setting 'learning'"),
        ({"env_args.widht": 3}, 1, "did you mean 'width'"),
        (
            {"minibatch_size": 1000},
            1,
            r"minibatch_size=1000 .*\(in the trial minibatch_size=1000\)",
        ),
        ({}, 0, "seeds=0"),
        ({}, [], "seeds is an empty list"),
        ({}, [1, 1], "hold one twice"),
        ({}, [2**32], "seed 4294967296 must be an integer from 0 to 4294967295"),
        ({}, [-1], "seed -1 must be"),
        ({}, [1.5], "seed 1.5 must be"),
        ({}, "12", "seeds='12' must be a number"),
        ({"seed": 3}, 1, r"seed is not a setting to sweep: give seeds=\[1, 2\]"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(settings, seeds, words):
    with pytest.raises(UsageError, match=words):
        trials_of(ARENA, [settings], seeds)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "0003"),
        ({"lr": 1e-3}, "0003_lr=0.001"),
        ({"pol1.lr": 0.00123456, "minibatch_size": 64}, "0003_pol1.lr=0.001235,minibatch_size=64"),
        ({"fcnet_hiddens": (64, 64)}, "0003_fcnet_hiddens=64-64"),
        ({"model": "../../etc:Net"}, "0003_model=..-..-etc-Net"),
        ({"model": "x" * 300}, f"0003_{'model=' + 'x' * 54}"),
    ],
)
def test_a_trials_folder_is_named_by_its_number_and_its_settings(settings, name):
    assert Trial(3, settings, None).folder_name == name
