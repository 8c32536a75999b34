"""Changes of `PPOConfig.fast` for other libraries' environments, by name."""

import pytest

from jaxrl import PPOConfig, make
from jaxrl.adapters.fast import CHANGES
from jaxrl.algorithms.ppo.fast import TOTAL_ENV_STEPS

PLAIN = PPOConfig.fast("gymnax:Catch-bsuite")


@pytest.fixture(params=CHANGES)
def name(request):
    """The name of an environment whose library is there."""
    library, _, _ = request.param.partition(":")
    pytest.importorskip(library, reason=f"{library} is not installed")
    return request.param


def test_fast_has_the_changes_of_an_environment_that_is_made_by_its_name(name):
    config = PPOConfig.fast(name)
    assert make(name)[0].fast_changes == dict(CHANGES[name])
    for setting, value in CHANGES[name].items():
        assert getattr(config, setting) == value
    assert any(getattr(PLAIN, setting) != value for setting, value in CHANGES[name].items())
    if "lr" not in CHANGES[name]:
        assert config.lr[-1][0] == CHANGES[name].get("total_env_steps", TOTAL_ENV_STEPS)
    assert PPOConfig.tuned(name) == config


def test_what_the_user_gives_wins_over_them(name):
    given = {"num_epochs": 3, "gamma": 0.5, "total_env_steps": 50_000}
    config = PPOConfig.fast(name, **given)
    assert {setting: getattr(config, setting) for setting in given} == given
    if isinstance(config.lr, tuple):
        assert config.lr[-1][0] == 50_000


def test_a_name_without_changes_has_none():
    assert make("gymnax:Catch-bsuite")[0].fast_changes == {}
