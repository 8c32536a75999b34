"""A configuration as people see it: what differs from the defaults comes first."""

from xml.etree import ElementTree

import pytest

from jaxrl import BCConfig, PPOConfig
from jaxrl.core.settings_display import changed_settings, settings_display
from tests.algorithms.reinforce import ReinforceConfig


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        (PPOConfig(), {}),
        (PPOConfig(env="arena"), {"env": "arena"}),
        (PPOConfig(env="arena", lr=5e-5, gamma=0.9), {"env": "arena", "gamma": 0.9}),
        (
            PPOConfig(env="arena", env_args={"height": 6}, per_policy={"pol1": {"lr": 1e-3}}),
            {"env": "arena", "env_args": {"height": 6}, "per_policy": {"pol1": {"lr": 1e-3}}},
        ),
        (
            PPOConfig(num_envs=80),
            {"num_envs": 80, "rollout_length": 50},  # so that the batch stays 4000
        ),
        (BCConfig(env="arena", input="data"), {"env": "arena", "input": ("data",)}),
        (ReinforceConfig(env="arena", lr=0.5), {"env": "arena", "lr": 0.5}),
    ],
)
def test_the_changed_settings_are_those_that_differ_from_the_classs_defaults(config, changed):
    assert changed_settings(config) == changed


@pytest.mark.parametrize(
    "config",
    [PPOConfig(), PPOConfig.tuned("arena"), PPOConfig.fast("cartpole"), BCConfig(input="data")],
    ids=["defaults", "tuned", "fast", "offline"],
)
def test_a_configuration_prints_the_call_that_makes_it_again(config):
    assert eval(repr(config), {"PPOConfig": PPOConfig, "BCConfig": BCConfig}) == config
    assert "\n" not in repr(config)


def test_a_configuration_prints_the_settings_that_differ_alone():
    shown = repr(PPOConfig(env="arena", lr=1e-3))
    assert shown == "PPOConfig(env='arena', lr=0.001)"


def test_a_notebook_shows_what_differs_and_folds_the_defaults():
    element = ElementTree.fromstring(PPOConfig(env="arena", lr=1e-3)._repr_html_())
    assert element.find("strong").text == "PPOConfig of arena"
    first, folded = element.find("table"), element.find("details")
    assert ["".join(row.itertext()) for row in first] == ["env'arena'", "lr0.001"]
    names = [row[0].text for row in folded.iter("tr")]
    assert {"gamma", "seed", "clip_param"} <= set(names) and not {"env", "lr"} & set(names)
    settings = PPOConfig().to_dict()
    assert len(names) + 2 == len(settings)
    assert folded.find("summary").text == f"{len(names)} settings have their defaults"
    assert settings_display(PPOConfig()).title == "PPOConfig of no environment"
