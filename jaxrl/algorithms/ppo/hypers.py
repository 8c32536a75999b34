"""PPO's settings for one policy: the numbers (traced) and the structure of learning (static)."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.algorithms.on_policy import LearnerSpec
from jaxrl.core.types import PyTree


class Hypers(struct.PyTreeNode):
    """The numbers of one policy, traced: changing one never compiles anything again."""

    # The three schedules: f32[K, 2], knots (environment step, value), linear between them and
    # constant after the last; in what `at` returns f32[], the value.
    lr: jax.Array
    entropy_coeff: jax.Array
    intrinsic_reward_coeff: jax.Array
    gamma: jax.Array  # f32[], as all below
    lambda_: jax.Array
    clip_param: jax.Array
    vf_clip_param: jax.Array  # infinity clips nothing
    vf_loss_coeff: jax.Array
    kl_coeff: jax.Array  # the initial coefficient; in an update the present one
    kl_target: jax.Array
    grad_clip: jax.Array  # infinity clips nothing
    adam_epsilon: jax.Array
    dual_clip: jax.Array  # infinity clips nothing

    def at(self, env_steps: jax.Array) -> "Hypers":
        """The numbers after `env_steps`, f32[], steps of training: schedules become values."""
        value = lambda knots: jnp.interp(env_steps, knots[:, 0], knots[:, 1])
        return jax.tree.map(lambda number: value(number) if number.ndim else number, self)


@dataclass(frozen=True, kw_only=True)
class PPOSpec(LearnerSpec):
    """The static settings of one policy's learning by PPO."""

    blocks: int  # of environments, that a minibatch draws equally from
    minibatch_size: int
    num_epochs: int
    use_kl_loss: bool
    normalize_advantages: str | None  # over the "batch", each "minibatch", or not
    value_clip: str | None
    optimizer: Callable | None  # lr -> optax transformation; None: Adam
    target_kl: float | None = None
    center_values: bool = False
    normalize_intrinsic_rewards: bool = False
    grad_clip_by: str = "global_norm"
    clip_rewards: float | str | None = None  # the bound, or "sign"
    use_critic: bool = True

    @property
    def changes_rewards(self) -> bool:
        return super().changes_rewards or self.clip_rewards is not None

    def no_returns(self, shape: tuple[int, ...]) -> PyTree | None:
        total = super().no_returns(shape)
        if not self.normalize_intrinsic_rewards:
            return total
        return {"total": total, "intrinsic": jnp.zeros(shape)}
