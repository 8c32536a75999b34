"""The numbers of PPO as arrays: everything that may change without compiling anything anew."""

import jax
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
