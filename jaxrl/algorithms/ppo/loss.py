"""PPO's loss of a minibatch, and its gradient."""

import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.ppo.batch import Batch
from jaxrl.algorithms.ppo.hypers import Hypers
from jaxrl.algorithms.ppo.metrics import Coefficients, Terms
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.losses import clip_fraction, clipped_surrogate, value_clip_fraction, value_loss

CACHED_ROWS = 1024  # whose activations, of layers 64 wide, a core's cache of 1 MiB holds

Sums = tuple[
    jax.Array, dict[str, jax.Array]
]  # f32[len(Terms)], and the model's own, weighted by their rows


def gradient(
    policy_spec: PolicySpec,
    value_clip: str | None,
    params: PyTree,
    rows: Batch,
    carry: PyTree,
    hypers: Hypers,
    coefficients: Coefficients,
    parts: int = 1,
) -> tuple[PyTree, Sums]:
    """The gradient of `ppo_loss` and its sums, a part of the rows after the other."""
    one_part = jax.grad(functools.partial(ppo_loss, policy_spec, value_clip), has_aux=True)
    if parts == 1:
        return one_part(params, rows, carry, hypers, coefficients)

    def add(sums, part):
        return jax.tree.map(
            jnp.add, sums, one_part(params, part, carry, hypers, coefficients)
        ), None

    rows = jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), rows)
    first = jax.tree.map(lambda leaf: leaf[0], rows)
    shapes = jax.eval_shape(one_part, params, first, carry, hypers, coefficients)
    nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.scan(add, nothing, rows)[0]


def ppo_loss(
    policy_spec: PolicySpec,
    value_clip: str | None,
    params: PyTree,
    rows: Batch,
    carry: PyTree,
    hypers: Hypers,
    coefficients: Coefficients,
) -> tuple[jax.Array, Sums]:
    """The loss of some rows, to be divided by their weight, and its sums over the active ones.

    sum(w l),    l = surrogate + vf_loss_coeff vf_loss - entropy_coeff H + kl_coeff KL(old || new) + the model's loss

    Args:
        carry: of a model with memory, into the first step of each sequence, [B, ...].
    """
    distribution, value = policy_spec.evaluate_actions(
        params, rows.obs, rows.action_mask, carry, rows.begins, rows.waited
    )
    log_prob = distribution.log_prob(rows.action)
    surrogate = clipped_surrogate(
        log_prob, rows.log_prob, rows.advantage, hypers.clip_param, hypers.dual_clip
    )
    value_terms = (value, rows.value, rows.target, hypers.vf_clip_param, value_clip)
    vf_loss = value_loss(*value_terms)
    entropy, kl = distribution.entropy(), rows.distribution.kl(distribution)
    loss = (
        surrogate
        + hypers.vf_loss_coeff * vf_loss
        - coefficients.entropy * entropy
        + coefficients.kl * kl
    )
    error = rows.target - value
    terms = Terms(
        policy_loss=surrogate,
        vf_loss=vf_loss,
        vf_loss_unclipped=error**2,
        error=error,
        entropy=entropy,
        mean_kl_loss=kl,
        clip_fraction=clip_fraction(log_prob, rows.log_prob, hypers.clip_param),
        vf_clip_fraction=value_clip_fraction(*value_terms),
        weight=jnp.ones_like(loss),
    )
    stacked = jax.lax.stop_gradient(jnp.stack(terms)).reshape(len(terms), -1)
    sums = jnp.matmul(
        stacked, rows.weight.reshape(-1), precision="highest"
    )  # costs less than a sum for each
    weighted, own = jnp.sum(rows.weight * loss), {}
    if hasattr(policy_spec.model, "loss"):
        weight = jnp.sum(rows.weight)
        added, own = policy_spec.model.loss(params, rows)
        weighted = weighted + weight * added
        own = jax.tree.map(
            lambda value: jax.lax.stop_gradient(weight * value), {**own, "model_loss": added}
        )
    return weighted, (sums, own)


def num_microbatches(num_rows: int, axis_name: str | None) -> int:
    """Into how many parts to cut a minibatch: where every core is a device, so that a part fits the core's cache.

    One device for all cores spreads large products over them, and an accelerator wants them as
    large as they are.
    """
    if axis_name is None or jax.default_backend() != "cpu":
        return 1
    least = max(1, num_rows // CACHED_ROWS)
    return next((parts for parts in range(least, 2 * least) if num_rows % parts == 0), 1)
