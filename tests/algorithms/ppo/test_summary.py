"""The summary of a configuration: the objective that it prints is the one that is trained."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, UsageError
from jaxrl.algorithms.config import algorithm_config
from jaxrl.algorithms.ppo import summary
from jaxrl.algorithms.ppo.loss import total_loss
from jaxrl.core.fields import number, setting
from jaxrl.core.spaces import Box
from tests.core.environments import Clock
from tests.probes import OneAgent

PLAIN = "-min(r A, clip(r, 1 +- 0.2) A) + 0.5 min((V - R)^2, 10)"


class WithLoss:
    """A network with a loss of its own."""

    def init(self, key, obs):
        return {"logits": jnp.zeros(2), "value": jnp.zeros(1)}

    def apply(self, params, obs):
        logits = jnp.broadcast_to(params["logits"], (len(obs), 2))
        return logits, jnp.broadcast_to(params["value"], (len(obs),))

    def loss(self, params, batch):
        return jnp.sum(params["value"] ** 2), {}


@pytest.mark.parametrize(
    ("changes", "objective"),
    [
        ({"kl_coeff": 0.0}, PLAIN),
        ({"use_kl_loss": False, "entropy_coeff": 0.01}, f"{PLAIN} - 0.01 H"),
        (
            {"kl_target": 0.02, "entropy_coeff": 0.01, "dual_clip": 3.0},
            f"{PLAIN} + k KL(old || new) - 0.01 H, k from 0.2 towards KL 0.02; dual clip 3",
        ),
        (
            {"use_critic": False, "entropy_coeff": 0.01, "use_kl_loss": False},
            "-min(r A, clip(r, 1 +- 0.2) A) - 0.01 H",
        ),
        ({"use_kl_loss": False, "model": WithLoss()}, f"{PLAIN} + the model's loss"),
    ],
)
def test_the_objective_is_printed_as_the_loss_adds_it_up(changes, objective):
    config = PPOConfig("cartpole", clip_param=0.2, vf_loss_coeff=0.5, **changes)
    (line,) = [line for line in config.describe().splitlines() if "loss = " in line]
    assert line.strip() == f"loss = {objective}"


class Framed(OneAgent):
    """Four frames, one after the other, and one step."""

    observes = Box(0, 255, (4, 84, 84), "uint8")
    acts = Box((0.0, -1.0), (np.inf, 1.0))

    def reset_env(self, key, params):
        return jnp.zeros((4, 84, 84), jnp.uint8), Clock(jnp.int32(0))

    def step_env(self, key, state, action, params):
        return *self.reset_env(key, params), jnp.float32(0), jnp.array(True), {}


def test_a_coefficient_that_is_declared_and_in_the_loss_is_in_the_plan(monkeypatch):
    @algorithm_config
    class Weighted(PPOConfig):
        """PPO with a second weight of the entropy."""

        second_coeff: float = setting(0.25, "weight of the entropy again", number(0), traced=True)

    def loss(terms, hypers, model_loss):
        return total_loss(terms, hypers, model_loss) - hypers.second_coeff * terms.entropy

    monkeypatch.setattr(summary, "total_loss", loss)
    assert " - 0.25 H" in Weighted(env="cartpole").describe()
    assert " H" not in Weighted(env="cartpole", second_coeff=0).describe()


@pytest.mark.parametrize(
    ("term", "written"),
    [
        (lambda terms: terms.weight, " + weight"),
        (lambda terms: terms.entropy**2, "loss = total_loss of jaxrl/algorithms/ppo/loss.py"),
        (lambda terms: jnp.abs(terms.error), "loss = total_loss of jaxrl/algorithms/ppo/loss.py"),
    ],
)
def test_the_plan_writes_a_sum_of_terms_and_names_the_file_of_any_other_loss(
    monkeypatch, term, written
):
    added = lambda terms, hypers, model_loss: total_loss(terms, hypers, model_loss) + term(terms)
    monkeypatch.setattr(summary, "total_loss", added)
    assert written in PPOConfig(env="cartpole").describe()


@pytest.mark.parametrize(
    ("changes", "network"),
    [
        ({}, "16 of 8x8 by 4 relu (channels first: 84 x 84 with 4 channels), then"),
        ({"conv_channels": "last"}, "16 of 8x8 by 4 relu, then"),
        (
            {"per_policy": {"default_policy": {"conv_channels": "first"}}},
            "(channels first: 84 x 84 with 4 channels)",
        ),
    ],
)
def test_the_plan_says_where_images_have_their_channels_first(changes, network):
    config = PPOConfig(env=Framed(), conv_filters=[[16, 8, 4]], fcnet_hiddens=[4], **changes)
    assert network in config.describe()
    channels = 84 if changes.get("conv_channels") == "last" else 4
    assert f"{64 * channels} x 16" in config.networks()


def test_the_plan_says_which_actions_are_stretched_and_which_only_clipped():
    stretched = "[-1, 1] stretched to the bounds where both are finite, and clipped"
    for changes, fitted in (
        ({}, stretched),
        ({"normalize_actions": False}, "clipped to the bounds"),
        ({"normalize_actions": False, "clip_actions": False}, "as they are"),
    ):
        config = PPOConfig(env=Framed(), fcnet_hiddens=[4], **changes)
        assert f"of the network, {fitted}\n" in config.describe()


def test_channels_are_first_or_last():
    with pytest.raises(UsageError, match=r"conv_channels.*'middle'.*first, last"):
        PPOConfig(env="cartpole", conv_channels="middle")
