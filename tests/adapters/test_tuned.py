"""Tuned settings of other libraries' environments, by name."""

import pytest

from jaxrl import PPOConfig, make
from jaxrl.adapters.tuned import TUNED
from jaxrl.core.errors import is_installed

LIBRARIES = {"gymnax": "gymnax", "envpool": "envpool", "playground": "mujoco_playground"}
HERE = [name for name in TUNED if is_installed(LIBRARIES[name.partition(":")[0]])]


def test_every_name_is_of_a_library_that_this_test_knows():
    assert {name.partition(":")[0] for name in TUNED} <= LIBRARIES.keys()


@pytest.mark.parametrize("name", HERE)
def test_an_environment_made_by_its_name_has_its_tuned_settings(name):
    assert make(name)[0].tuned == dict(TUNED[name])
    config = PPOConfig.tuned(name)
    for setting in ("num_envs", "rollout_length", "num_epochs", "total_env_steps"):
        assert getattr(config, setting) == TUNED[name][setting]


@pytest.mark.parametrize("name", TUNED)
def test_a_schedule_ends_where_training_does(name):
    assert TUNED[name]["lr"][-1][0] == TUNED[name]["total_env_steps"]


def test_fewer_steps_shorten_the_schedule():
    config = PPOConfig.tuned("gymnax:Breakout-MinAtar", total_env_steps=1_000_000)
    assert config.lr[-1] == (1_000_000, 1e-4)


def test_a_name_without_tuned_settings_trains_with_fast():
    assert make("gymnax:Catch-bsuite")[0].tuned == {}
    assert PPOConfig.tuned("gymnax:Catch-bsuite") == PPOConfig.fast("gymnax:Catch-bsuite")
