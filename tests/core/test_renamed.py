"""Former names of attributes, methods and functions, which work for one version with a warning."""

import numpy as np
import pytest

from jaxrl import PPOConfig, UsageError
from jaxrl.algorithms.ppo.batch import Batch
from jaxrl.core.env import RawStep
from jaxrl.ops import advantages, collectives
from jaxrl.rollout.episode_callbacks import EpisodeStep
from jaxrl.rollout.rollout import Rollout, Trajectory


@pytest.mark.parametrize(
    ("of", "former", "present"),
    [
        (Trajectory, "ended", "done"),
        (Rollout, "over", "episode_done"),
        (Batch, "begins", "is_first"),
        (EpisodeStep, "over", "episode_done"),
        (RawStep, "over", "episode_done"),
        (RawStep, "world_ended", "all_terminated"),
    ],
)
def test_a_former_attribute_is_the_present_one_and_names_it(of, former, present):
    instance = of.__new__(of, *range(9)) if of is RawStep else of.__new__(of)
    if of is not RawStep:
        object.__setattr__(instance, present, 7)
    with pytest.warns(FutureWarning, match=f"{of.__name__}.{former} is now {present}; the former"):
        value = getattr(instance, former)
    assert value is getattr(instance, present)


@pytest.mark.parametrize("name", ["total", "over_axis"])
def test_functions_of_ops_are_found_where_they_were(name):
    with pytest.warns(FutureWarning, match=f"is now jaxrl.ops.collectives.{name}"):
        assert getattr(advantages, name) is getattr(collectives, name)


def test_a_name_that_never_was_is_unknown_as_ever():
    with pytest.raises(AttributeError, match=r"'jaxrl.ops.advantages' has no attribute 'totals'"):
        _ = advantages.totals


CONFIG = PPOConfig(env="cartpole", num_envs=6, rollout_length=4, minibatch_size=12)


def test_methods_of_a_configuration_call_the_functions_that_replace_them():
    with pytest.warns(FutureWarning, match=r"is now jaxrl.algorithms.sharding.devices_worth_using"):
        assert CONFIG.devices_worth_using(8) == 1
    with (
        pytest.warns(FutureWarning, match="PPOConfig.check_devices"),
        pytest.raises(UsageError, match="devices=5 does not divide"),
    ):
        CONFIG.check_devices(5)
    with pytest.warns(FutureWarning, match="check_sizes"):
        assert CONFIG.check_sizes(CONFIG.build()) is None
    learner = {"vf_clip_fraction": np.float32(0.9), "mean_kl_loss": np.float32(0.0)}
    with pytest.warns(FutureWarning, match=r"is now jaxrl.algorithms.ppo.diagnostics.concerns"):
        ((kind, _),) = CONFIG.concerns({"learners": {"default_policy": learner}})
    assert kind == "vf_clip_param"
