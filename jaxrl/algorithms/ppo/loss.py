"""PPO's loss of a minibatch, its gradient, and what an iteration reports of its terms."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.base import HeadlineMetric
from jaxrl.algorithms.ppo.batch import Batch, weighed
from jaxrl.algorithms.ppo.hypers import Hypers, PPOSpec
from jaxrl.core.types import PyTree
from jaxrl.ops.losses import clip_fraction, clipped_surrogate, value_clip_fraction, value_loss

HEADLINE_METRICS = (
    HeadlineMetric(
        "mean_kl_loss", "KL divergence of an update, nats", label="kl", target="kl_target"
    ),
    HeadlineMetric("entropy", "entropy, nats", label="entropy", form=".2f", linear=True),
    HeadlineMetric("vf_loss", "value loss"),
)
ROOT_CAUSE_METRICS = ("policy_loss", "vf_loss", "vf_loss_unclipped", "entropy", "mean_kl_loss")
CACHED_ROWS = 1024  # whose activations, of layers 64 wide, a core's cache of 1 MiB holds


class Terms(NamedTuple):
    """The terms of the loss and the metrics beside it: f32[B] by row, or sums over rows."""

    policy_loss: jax.Array
    vf_loss: jax.Array
    vf_loss_unclipped: jax.Array
    error: jax.Array
    entropy: jax.Array
    mean_kl_loss: jax.Array
    clip_fraction: jax.Array
    vf_clip_fraction: jax.Array
    weight: jax.Array


class Sums(NamedTuple):
    """Sums over the active rows of a minibatch."""

    terms: jax.Array  # f32[len(Terms)]
    model: dict[str, jax.Array]  # {name: f32[]}: what the model reports of its own loss


def total_loss(terms: Any, hypers: Any, model_loss: Any = 0.0) -> Any:
    """PPO's loss (Schulman et al. 2017, eq. 9 with the KL penalty of section 4), lower is better.

    It is what the gradient is taken of, row by row; the metric `total_loss`, of the terms' means;
    and the formula that `describe` prints, of their symbols.

    Args:
        terms, hypers: anything with the fields of `Terms` and of `Hypers.at` that are read here.
        model_loss: of the model itself, if it has one.
    """
    penalties = hypers.kl_coeff * terms.mean_kl_loss - hypers.entropy_coeff * terms.entropy
    return terms.policy_loss + hypers.vf_loss_coeff * terms.vf_loss + (penalties + model_loss)


def ppo_loss(params: PyTree, spec: PPOSpec, batch: Batch, hypers: Hypers) -> tuple[jax.Array, Sums]:
    """(the sum of `total_loss` over the active rows, the sums of its terms)."""
    distribution, value = spec.policy_spec.evaluate_actions(
        params, batch.obs, batch.action_mask, batch.carry, batch.is_first, batch.waited
    )
    if not spec.use_critic:
        value = batch.value  # 0, as the target is: no error, and no gradient
    learned = batch.learned(distribution)
    log_prob = learned.log_prob(batch.action)
    values = (value, batch.value, batch.target, hypers.vf_clip_param, spec.value_clip)
    error = batch.target - value
    surrogate = clipped_surrogate(
        log_prob, batch.log_prob, batch.advantage, hypers.clip_param, hypers.dual_clip
    )
    terms = Terms(
        policy_loss=weighed(surrogate, batch.importance),
        vf_loss=weighed(value_loss(*values), batch.importance),
        vf_loss_unclipped=error**2,
        error=error,
        entropy=distribution.entropy(),
        mean_kl_loss=batch.learned(batch.distribution).kl(learned),
        clip_fraction=clip_fraction(log_prob, batch.log_prob, hypers.clip_param),
        vf_clip_fraction=value_clip_fraction(*values),
        weight=jnp.ones_like(value),
    )
    model_loss, model_metrics = _model_loss(params, spec, batch)
    loss = jnp.sum(batch.weight * total_loss(terms, hypers, model_loss))
    return loss, _sums(*jax.lax.stop_gradient((terms, model_metrics)), batch.weight)


def gradient(params: PyTree, spec: PPOSpec, batch: Batch, hypers: Hypers) -> tuple[PyTree, Sums]:
    """(gradient, sums) of `ppo_loss`, one part of the rows after the other where that is faster."""
    part_gradient = jax.grad(ppo_loss, has_aux=True)
    num_parts = 1
    if not spec.policy_spec.has_memory:
        num_parts = num_microbatches(len(batch.weight), spec.axis_name)
    if num_parts == 1:
        return part_gradient(params, spec, batch, hypers)

    def add(total, part):
        return jax.tree.map(jnp.add, total, part_gradient(params, spec, part, hypers)), None

    parts = jax.tree.map(lambda leaf: leaf.reshape(num_parts, -1, *leaf.shape[1:]), batch)
    first = jax.tree.map(lambda leaf: leaf[0], parts)
    shapes = jax.eval_shape(lambda part: part_gradient(params, spec, part, hypers), first)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.scan(add, zeros, parts)[0]


def num_microbatches(num_rows: int, axis_name: str | None) -> int:
    """The number of parts that a minibatch is cut into.

    Where every core is a device, a part fits the core's cache. One device for all cores spreads
    large products over them, and an accelerator wants them as large as they are.
    """
    if axis_name is None or jax.default_backend() != "cpu":
        return 1
    least = max(1, num_rows // CACHED_ROWS)
    return next((parts for parts in range(least, 2 * least) if num_rows % parts == 0), 1)


def _model_loss(
    params: PyTree, spec: PPOSpec, batch: Batch
) -> tuple[jax.Array | float, dict[str, jax.Array]]:
    """(loss, {name: f32[]}) of the model itself, if it has a loss."""
    if not hasattr(spec.policy_spec.model, "loss"):
        return 0.0, {}
    loss, metrics = spec.policy_spec.model.loss(params, batch)
    return loss, {**metrics, "model_loss": loss}


def _sums(terms: Terms, model_metrics: dict[str, jax.Array], weight: jax.Array) -> Sums:
    stacked = jnp.stack(terms).reshape(len(terms), -1)
    # One product costs less than a sum for each term.
    sums = jnp.matmul(stacked, weight.reshape(-1), precision="highest")
    total = jnp.sum(weight)
    return Sums(sums, {name: total * value for name, value in model_metrics.items()})


def learner_metrics(
    steps: tuple[Sums, jax.Array], last_pass: int, target_variance: jax.Array, hypers: Hypers
) -> dict[str, jax.Array]:
    """{name: f32[]}, means over the active rows of the last `last_pass` minibatches.

    Args:
        steps: the sums and the gradient's norm of each minibatch, [num_minibatches, ...].
        target_variance: f32[], of the value targets.
        hypers: of this iteration, as the loss had them.
    """
    sums, norms = steps
    last = Terms(*jnp.sum(sums.terms[-last_pass:], axis=0))
    count = jnp.maximum(last.weight, 1.0)
    means = Terms(*(value / count for value in last))
    model = {name: jnp.sum(values[-last_pass:]) / count for name, values in sums.model.items()}
    unexplained = means.vf_loss_unclipped - means.error**2
    return {
        **model,
        "total_loss": total_loss(means, hypers, model.get("model_loss", 0.0)),
        "policy_loss": means.policy_loss,
        "vf_loss": means.vf_loss,
        "vf_loss_unclipped": means.vf_loss_unclipped,
        "vf_clip_fraction": means.vf_clip_fraction,
        "vf_explained_var": jnp.maximum(-1.0, 1 - unexplained / jnp.maximum(target_variance, 1e-8)),
        "entropy": means.entropy,
        "mean_kl_loss": means.mean_kl_loss,
        "clip_fraction": means.clip_fraction,
        "gradients_default_optimizer_global_norm": jnp.mean(norms[-last_pass:]),
        "num_module_steps_trained": _whole_sum(Terms(*sums.terms.T).weight),
        "curr_kl_coeff": hypers.kl_coeff,
        "curr_entropy_coeff": hypers.entropy_coeff,
        "default_optimizer_learning_rate": hypers.lr,
    }


def _whole_sum(numbers: jax.Array) -> jax.Array:
    """The sum of whole numbers, f32[], exact until it is rounded."""
    return jnp.sum(numbers.astype(jnp.int32)).astype(jnp.float32)
