"""The metrics that an iteration reports of a policy's learning."""

import jax
import jax.numpy as jnp

from jaxrl.algorithms.base import HeadlineMetric
from jaxrl.algorithms.ppo.hypers import Hypers
from jaxrl.algorithms.ppo.loss import Sums, Terms, total_loss

HEADLINE_METRICS = (
    HeadlineMetric(
        "mean_kl_loss", "KL divergence of an update, nats", label="kl", target="kl_target"
    ),
    HeadlineMetric("entropy", "entropy, nats", label="entropy", form=".2f", linear=True),
    HeadlineMetric("vf_loss", "value loss"),
)
ROOT_CAUSE_METRICS = ("policy_loss", "vf_loss", "vf_loss_unclipped", "entropy", "mean_kl_loss")


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
