"""What an iteration reports of a policy's learning, from sums over the rows of each minibatch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.ppo.hypers import Hypers


class Coefficients(NamedTuple):
    """The weights of this iteration, after schedules and adaptation; f32[]."""

    lr: jax.Array
    entropy: jax.Array
    kl: jax.Array


class Terms(NamedTuple):
    """What a minibatch reports, f32[B] row by row, or summed over the rows."""

    policy_loss: jax.Array
    vf_loss: jax.Array
    vf_loss_unclipped: jax.Array
    error: jax.Array
    entropy: jax.Array
    mean_kl_loss: jax.Array
    clip_fraction: jax.Array
    vf_clip_fraction: jax.Array
    weight: jax.Array


def learner_metrics(
    sums: tuple[jax.Array, dict[str, jax.Array]],
    norms: jax.Array,
    last_pass: int,
    target_variance: jax.Array,
    hypers: Hypers,
    coefficients: Coefficients,
) -> dict[str, jax.Array]:
    """Means over the active rows of the last `last_pass` minibatches.

    Args:
        sums: f32[num_minibatches, len(Terms)] of the rows; and what the model says of its own loss,
            {name: f32[num_minibatches]}, times the minibatch's weight.
        norms: f32[num_minibatches], of the gradients.
    """
    terms, own = sums
    trained = jnp.sum(Terms(*terms.T).weight)
    latest = Terms(*jnp.sum(terms[-last_pass:], axis=0))._asdict()
    count = jnp.maximum(latest.pop("weight"), 1.0)
    means = {name: value / count for name, value in latest.items()}
    unexplained = means["vf_loss_unclipped"] - means.pop("error") ** 2
    own = {name: jnp.sum(values[-last_pass:]) / count for name, values in own.items()}
    penalties = coefficients.kl * means["mean_kl_loss"] - coefficients.entropy * means["entropy"]
    penalties = penalties + own.get("model_loss", 0.0)
    return {
        **own,
        **means,
        "total_loss": means["policy_loss"] + hypers.vf_loss_coeff * means["vf_loss"] + penalties,
        "vf_explained_var": jnp.maximum(-1.0, 1 - unexplained / jnp.maximum(target_variance, 1e-8)),
        "gradients_default_optimizer_global_norm": jnp.mean(norms[-last_pass:]),
        "num_module_steps_trained": trained,
    }
