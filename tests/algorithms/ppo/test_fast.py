"""`PPOConfig.fast`: settings that follow the environment's spaces and the sizes that are given."""

from types import MappingProxyType

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.ppo.fast import (
    FIRST_LR,
    LARGE_IMAGE_FILTERS,
    LAST_LR,
    NUM_MINIBATCHES,
    SMALL_IMAGE_SETTINGS,
)
from jaxrl.cli.train import parse
from jaxrl.core.spaces import Box
from tests.core.environments import Corridor, Signposted, Trio
from tests.messages import refused_by
from tests.probes import Leavers, Target

BREAKOUT, PENDULUM = "gymnax:Breakout-MinAtar", "gymnax:Pendulum-v1"


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, (64, 32, 2048)),
        ({"num_envs": 16}, (16, 128, 2048)),
        ({"num_envs": 1}, (1, 128, 128)),
        ({"num_envs": 4096}, (4096, 16, 65_536)),
        ({"rollout_length": 8}, (256, 8, 2048)),
        ({"train_batch_size": 3200}, (100, 32, 3200)),
        ({"num_envs": 10, "rollout_length": 20}, (10, 20, 200)),
    ],
)
def test_sizes_that_are_not_given_follow_those_that_are(given, sizes):
    config = jaxrl.PPOConfig.fast("cartpole", **given)
    assert (config.num_envs, config.rollout_length, config.train_batch_size) == sizes
    assert config.minibatch_size == sizes[2] // NUM_MINIBATCHES


def test_the_learning_rate_falls_over_the_steps_that_are_asked_for_and_never_to_zero():
    config = jaxrl.PPOConfig.fast("cartpole", total_env_steps=300_000)
    assert config.lr[0][0] == 0
    assert config.lr[-1] == (300_000, LAST_LR)
    assert LAST_LR > 0  # a run that is resumed for more steps goes on learning


def test_settings_that_are_given_win():
    config = jaxrl.PPOConfig.fast("cartpole", lr=3e-4, minibatch_size=64, observation_filter=None)
    assert (config.lr, config.minibatch_size, config.observation_filter) == (3e-4, 64, None)


@pytest.mark.parametrize(
    ("env", "observation_filter", "conv_filters", "free_log_std"),
    [
        ("cartpole", "MeanStdFilter", None, False),
        ("arena", None, None, False),  # two cells, looked up
        (BREAKOUT, None, None, False),
        (PENDULUM, "MeanStdFilter", None, True),
        (Signposted(), None, None, False),
    ],
)
def test_spaces_decide_how_a_policy_reads_and_acts(
    env, observation_filter, conv_filters, free_log_std
):
    config = jaxrl.PPOConfig.fast(env)
    found = config.observation_filter, config.conv_filters, config.free_log_std
    assert found == (observation_filter, conv_filters, free_log_std)


def test_small_images_are_learned_at_a_higher_rate_from_larger_batches():
    config = jaxrl.PPOConfig.fast(BREAKOUT, total_env_steps=300_000)
    assert (config.num_envs, config.rollout_length, config.minibatch_size) == (64, 128, 1024)
    assert config.lr == ((0, 5e-3), (300_000, LAST_LR))
    assert {name: getattr(config, name) for name in SMALL_IMAGE_SETTINGS} == SMALL_IMAGE_SETTINGS


@pytest.mark.parametrize("by_policy", [False, True])
def test_settings_that_are_given_win_over_those_of_small_images(by_policy):
    given = {"fcnet_activation": "tanh", "lr": 3e-4, "entropy_coeff": 0.0, "kl_coeff": 0.1}
    changes = {"per_policy": {"default_policy": given}} if by_policy else given
    config = jaxrl.PPOConfig.fast(BREAKOUT, **changes).for_policy("default_policy")
    assert {name: getattr(config, name) for name in given} == given


OWN_NETWORK = {"model": "some.module:Network"}


@pytest.mark.parametrize("given", [OWN_NETWORK, {"per_policy": {"default_policy": OWN_NETWORK}}])
def test_a_network_of_ones_own_gets_no_settings_of_the_built_in_ones(given):
    config = jaxrl.PPOConfig.fast(BREAKOUT, **given)
    assert config.conv_filters is None
    assert config.lr[0] == (0, FIRST_LR)
    assert config.train_batch_size == 2048


class Sights(Trio):
    """`early` looks at a picture, the others at a number each."""

    def observation_space(self, agent, params=None):
        return (
            Box(0, 255, (84, 84, 4), "uint8")
            if agent == "early"
            else super().observation_space(agent, params)
        )

    def observe(self, time):
        return {**super().observe(time), "early": jnp.zeros((84, 84, 4), jnp.uint8)}


PER_AGENT = {"policies": "per-agent"}
BY_SPACES = {
    "early": {"conv_filters": LARGE_IMAGE_FILTERS},
    "left": {"observation_filter": "MeanStdFilter", "free_log_std": True},
    "right": {"observation_filter": "MeanStdFilter", "free_log_std": True},
}


def test_where_spaces_differ_they_decide_by_policy():
    assert jaxrl.PPOConfig.fast(Sights(), **PER_AGENT).to_dict()["per_policy"] == BY_SPACES


def test_a_setting_that_is_given_for_all_policies_wins_over_what_the_spaces_decide_for_each():
    config = jaxrl.PPOConfig.fast(Sights(), observation_filter=None, **PER_AGENT)
    assert [config.for_policy(name).observation_filter for name in BY_SPACES] == [None] * 3
    assert config.for_policy("left").free_log_std
    config = jaxrl.PPOConfig.fast(Sights(), conv_filters=[[8, 4, 2]], **PER_AGENT)
    assert config.for_policy("early").conv_filters == ((8, 4, 2),)


def test_no_filter_is_chosen_where_a_centralised_critic_sees_more_than_numbers():
    given = {"policies_to_train": ("wide",), "policies": "per-agent"}
    filters = {
        source: jaxrl.PPOConfig.fast(Leavers(), critic_observation=source, **given)
        .for_policy("wide")
        .observation_filter
        for source in ("own", "all-agents")
    }
    assert filters == {"own": "MeanStdFilter", "all-agents": None}
    words = "--env tests.probes:Leavers --policies per-agent --critic-observation all-agents"
    parse(words.split()).config.build()


def test_settings_that_are_given_by_policy_are_added_to_what_the_spaces_decide():
    given = {"left": {"lr": 1e-3, "observation_filter": None}}
    by_policy = jaxrl.PPOConfig.fast(Sights(), per_policy=given, **PER_AGENT).to_dict()[
        "per_policy"
    ]
    left = {"observation_filter": None, "free_log_std": True, "lr": 1e-3}
    assert by_policy == {**BY_SPACES, "left": left}


@pytest.mark.parametrize(
    "given",
    [
        {"action_distribution": "beta"},
        {"per_policy": {"default_policy": {"action_distribution": "beta"}}},
    ],
)
def test_a_beta_distribution_gets_no_log_std(given):
    config = jaxrl.PPOConfig.fast(PENDULUM, **given).for_policy("default_policy")
    assert (config.action_distribution, config.free_log_std) == ("beta", False)
    assert config.build().policy_specs


class Reach(Target):
    """An environment that wants other settings than `fast` has."""

    fast_changes = MappingProxyType(
        {
            "total_env_steps": 1_000_000,
            "num_envs": 32,
            "minibatch_size": 64,
            "lr": ((0, 3e-4), (500_000, 2e-4), (1_000_000, 1e-5)),
            "log_std_init": -1.0,
        }
    )


def test_an_environments_changes_count_as_given_and_its_schedules_follow_the_steps():
    config = jaxrl.PPOConfig.fast(Reach())
    assert (config.num_envs, config.rollout_length) == (32, 64)  # a batch of 2048, as ever
    assert config.minibatch_size == 64
    assert (config.free_log_std, config.log_std_init) == (True, -1.0)
    assert config.lr == ((0, 3e-4), (500_000, 2e-4), (1_000_000, 1e-5))
    shorter = jaxrl.PPOConfig.fast(Reach(), total_env_steps=100_000)
    assert shorter.lr == ((0, 3e-4), (50_000, 2e-4), (100_000, 1e-5))
    assert jaxrl.PPOConfig.fast(Reach(), total_env_steps=np.int64(100_000)).lr == shorter.lr
    assert jaxrl.PPOConfig.fast(Reach(), lr=1e-3).lr == 1e-3


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"num_envs": 2048}, (2048, 16, 1024)),
        ({"num_envs": 8, "rollout_length": 4}, (8, 4, 1)),
        ({"train_batch_size": 4096}, (64, 64, 128)),
        ({"num_envs": 16, "minibatch_size": 100}, (16, 128, 100)),
    ],
)
def test_an_environments_sizes_give_way_and_its_number_of_minibatches_stays(given, sizes):
    config = jaxrl.PPOConfig.fast(Reach(), **given)
    assert (config.num_envs, config.rollout_length, config.minibatch_size) == sizes


@pytest.mark.parametrize(
    "given",
    [
        {"action_distribution": "beta"},
        {"per_policy": {"default_policy": {"action_distribution": "beta"}}},
        {"per_policy": {"default_policy": {"free_log_std": False}}},
        {"free_log_std": False},
    ],
)
def test_an_environments_first_log_std_goes_with_a_log_std_of_its_own(given):
    config = jaxrl.PPOConfig.fast(Reach(), **given).for_policy("default_policy")
    assert config.log_std_init == 0
    assert config.build().policy_specs


def test_of_two_policies_the_gaussian_alone_has_the_first_log_std():
    class Both(Sights):
        fast_changes = MappingProxyType({"log_std_init": -1.0})

    given = {"left": {"action_distribution": "beta"}}
    config = jaxrl.PPOConfig.fast(Both(), per_policy=given, **PER_AGENT)
    found = {policy: config.for_policy(policy).log_std_init for policy in ("left", "right")}
    assert found == {"left": 0, "right": -1}


def test_the_command_line_fits_the_fast_settings_to_its_distribution_and_policies():
    order = parse(
        [
            "--env",
            PENDULUM,
            "--action-distribution",
            "beta",
            "--per-policy",
            "default_policy.lr=1e-3",
        ]
    )
    assert (order.config.action_distribution, order.config.free_log_std) == ("beta", False)
    assert order.config.for_policy("default_policy").lr == 1e-3


def test_rllibs_nested_model_is_no_network_of_ones_own():
    config = jaxrl.PPOConfig.fast(BREAKOUT, model={"fcnet_hiddens": [32]})
    assert (config.fcnet_activation, config.fcnet_hiddens) == ("relu", (32,))


def test_more_environments_than_the_usual_steps_train_one_batch():
    config = jaxrl.PPOConfig.fast("cartpole", num_envs=65_536)
    assert config.total_env_steps == config.train_batch_size == 65_536 * 16
    assert config.lr[-1] == (65_536 * 16, LAST_LR)


test_values_that_cannot_be_are_refused_by_name = refused_by(
    lambda given: jaxrl.PPOConfig.fast("cartpole", **given),
    [
        ({"num_envs": "64"}, "num_envs='64' must be an integer"),
        ({"total_env_steps": "64"}, "total_env_steps='64' must be an integer"),
        ({"per_policy": 3}, "per_policy=3 must be a mapping"),
        ({"per_policy": {"pol1": 3}}, r"per_policy\['pol1'\]=3 must be a mapping"),
    ],
)


@pytest.mark.parametrize("env", ["cartpole", "arena", "waterworld", "pursuit"])
def test_the_plan_of_tuned_settings_points_nowhere_else(env):
    assert "PPOConfig.fast" not in jaxrl.PPOConfig.tuned(env).describe()
    assert "PPOConfig.fast" not in jaxrl.PPOConfig.fast(env).describe()


def test_the_plan_of_rllibs_defaults_says_what_they_cost_and_which_call_is_faster():
    # 30 epochs of 134,915 parameters beside 4 epochs of 9,155: (30 * 134915) / (4 * 9155) = 110.5.
    assert (
        "learning takes 111 times the arithmetic of PPOConfig.fast('cartpole')"
        in jaxrl.PPOConfig("cartpole").describe()
    )


def test_the_plan_names_a_call_that_works():
    assert (
        "times the arithmetic of PPOConfig.fast(env), which"
        in jaxrl.PPOConfig(Corridor()).describe()
    )
    plan = jaxrl.PPOConfig("arena", {"width": 9}).describe()
    assert "times the arithmetic of PPOConfig.fast('arena', {'width': 9}), which" in plan


def test_an_environment_without_tuned_settings_starts_from_the_fast_ones():
    assert jaxrl.PPOConfig.tuned(Corridor()) == jaxrl.PPOConfig.fast(Corridor())
    assert jaxrl.PPOConfig(Corridor()).num_epochs == 30  # RLlib's, as ever


def test_the_command_line_fits_the_fast_settings_to_the_sizes_in_its_flags():
    order = parse(
        ["--env", PENDULUM, "--num-envs", "32", "--total-env-steps", "500_000", "--gamma", "0.9"]
    )
    wanted = jaxrl.PPOConfig.fast(PENDULUM, num_envs=32, total_env_steps=500_000).replace(gamma=0.9)
    assert order.config == wanted
    assert order.source.startswith(f"PPOConfig.fast ({PENDULUM} has no tuned ones)")


OF_SMALL_IMAGES = {
    "entropy_coeff": 0.01,
    "lr": ((0, 5e-3), (10_000_000, LAST_LR)),  # Breakout's `fast_changes`
    "minibatch_size": 1024,
    "rollout_length": 128,
    "train_batch_size": 8192,
}


class Flat(nn.Module):
    """A network of a user's for Breakout: one layer from the whole board."""

    @nn.compact
    def __call__(self, obs):
        cells = obs.reshape(*obs.shape[:-3], -1)
        return nn.Dense(3)(cells), nn.Dense(1)(cells)


def compared(config):
    """The line of a plan on the settings by which two networks differ; empty without one."""
    lines = [line for line in config.describe().splitlines() if line.startswith("comparing")]
    return "".join(lines)


@pytest.mark.parametrize("by_policy", [False, True])
def test_the_plan_names_the_settings_that_a_users_network_does_not_share(by_policy):
    given = {"model": Flat()}
    changes = {"per_policy": {"default_policy": given}} if by_policy else given
    config = jaxrl.PPOConfig.fast(BREAKOUT, **changes)
    settings = ", ".join(f"{name}={value!r}" for name, value in OF_SMALL_IMAGES.items())
    assert compared(config) == (
        f"comparing    PPOConfig.fast gives the built-in network {settings}: give your network "
        "the same to compare the two"
    )
    assert compared(jaxrl.PPOConfig.fast(BREAKOUT, **OF_SMALL_IMAGES, **changes)) == ""
    assert "rollout_length=64" in compared(jaxrl.PPOConfig.fast(BREAKOUT, num_envs=128, **changes))


@pytest.mark.parametrize("env", ["cartpole", PENDULUM])
def test_the_plan_is_silent_where_a_users_network_has_the_settings_of_the_built_in_one(env):
    assert compared(jaxrl.PPOConfig.fast(env, model="tests.probes:Curious")) == ""
    assert compared(jaxrl.PPOConfig.fast(BREAKOUT)) == ""


def test_the_settings_that_the_plan_names_are_those_of_the_built_in_network():
    built_in = jaxrl.PPOConfig.fast(BREAKOUT)
    assert {name: getattr(built_in, name) for name in OF_SMALL_IMAGES} == OF_SMALL_IMAGES
