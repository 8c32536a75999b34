"""The numbers of PPO as arrays: everything that may change without compiling anything anew."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


class Hypers(struct.PyTreeNode):
    """The numbers of one policy, traced: changing one never compiles anything anew."""

    lr: (
        jax.Array
    )  # f32[K, 2]  knots (environment step, value), linear between, constant after the last
    entropy_coeff: jax.Array  # f32[K, 2]
    gamma: jax.Array  # f32[], as all below
    lambda_: jax.Array
    clip_param: jax.Array
    vf_clip_param: jax.Array  # infinity clips nothing
    vf_loss_coeff: jax.Array
    kl_coeff: jax.Array  # the initial coefficient
    kl_target: jax.Array
    grad_clip: jax.Array  # infinity clips nothing
    adam_epsilon: jax.Array
    dual_clip: jax.Array  # infinity clips nothing


def knots_of(value: float | tuple) -> tuple:
    return value if isinstance(value, tuple) else ((0, value),)


def as_hypers(config: Any, num_knots: int) -> Hypers:
    """The numbers of one policy's configuration, schedules padded by their last knot."""

    def as_array(name):
        value = getattr(config, name)
        if name in ("lr", "entropy_coeff"):
            knots = knots_of(value)
            return jnp.asarray(knots + knots[-1:] * (num_knots - len(knots)), jnp.float32)
        return jnp.asarray(jnp.inf if value is None else value, jnp.float32)

    return Hypers(**{name: as_array(name) for name in Hypers.__dataclass_fields__})
