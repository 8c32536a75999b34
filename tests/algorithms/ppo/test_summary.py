"""The summary of a configuration: the objective that it prints is the one that is trained."""

import jax.numpy as jnp
import pytest

from jaxrl import PPOConfig

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
        ({"use_kl_loss": False, "model": WithLoss()}, f"{PLAIN} + the model's loss"),
    ],
)
def test_the_objective_is_printed_as_the_loss_adds_it_up(changes, objective):
    config = PPOConfig("cartpole", clip_param=0.2, vf_loss_coeff=0.5, **changes)
    (line,) = [line for line in config.describe().splitlines() if "loss = " in line]
    assert line.strip() == f"loss = {objective}"
