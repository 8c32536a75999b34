"""Random network distillation (Burda et al. 2018): a model that explores what it has not seen.

    python examples/random_network_distillation.py

A predictor network learns the outputs of a target network that is random and never learns. Where
they differ the state is new, so the error is an intrinsic reward. It solves MountainCar, whose
reward says nothing before the car has reached the hill's top: it ends at a return between -110,
which counts as solved, and -98, the best. `python benchmarks/exploration.py` compares it with PPO
alone.

Unlike the paper's agent it has a single value, of extrinsic and intrinsic rewards together, both of
which end with the episode.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import jaxrl


class MLP(nn.Module):
    num_outputs: int
    hiddens: tuple[int, ...] = (64, 64)
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x):
        for size in self.hiddens:
            x = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        last = nn.initializers.orthogonal(self.output_scale)
        return nn.Dense(self.num_outputs, kernel_init=last)(x)


class RND(nn.Module):
    """A policy over integer actions, its value, and the novelty of what it sees."""

    action_space: Any
    num_features: int = 32

    def setup(self):
        self.policy = MLP(self.action_space.n, output_scale=0.01)
        self.value = MLP(1)
        self.target = MLP(self.num_features)
        self.predictor = MLP(self.num_features)

    def __call__(self, obs):
        if self.is_initializing():
            self.novelty(obs)
        return self.policy(obs), self.value(obs)

    def novelty(self, obs):
        target = jax.lax.stop_gradient(self.target(obs))
        return jnp.mean((self.predictor(obs) - target) ** 2, axis=-1)

    def intrinsic_reward(self, params, trajectory):
        return self.apply(params, trajectory.next_obs, method="novelty")

    def loss(self, params, batch):
        errors = self.apply(params, batch.next_obs, method="novelty")
        weight = batch.weight / jnp.maximum(batch.weight.sum(), 1.0)
        return jnp.sum(weight * errors), {}


def mountain_car(total_env_steps: int = 1_000_000, **changes) -> jaxrl.PPOConfig:
    """The car's settings. `center_values` leaves all exploration to the novelty.

    The learning rate is ten times the usual one: with 1e-3 the return stays at about -111. The
    bonus ends in the middle of training.
    """
    settings = {
        "model": RND,
        "observation_filter": "MeanStdFilter",  # the novelty is that of filtered observations
        "normalize_intrinsic_rewards": True,
        "intrinsic_reward_coeff": [[0, 5.0], [total_env_steps // 2, 0.0]],
        "center_values": True,
        "lr": [[0, 1e-2], [total_env_steps, 1e-5]],
        "total_env_steps": total_env_steps,
    }
    return jaxrl.PPOConfig.fast("gymnax:MountainCar-v0", **{**settings, **changes})


if __name__ == "__main__":
    with jaxrl.Trainer(mountain_car()) as trainer:
        trainer.fit()
