"""Losses of PPO per row: arrays [...] in, the loss of each row out, lower is better."""

from typing import Literal

import chex
import jax
import jax.numpy as jnp

ValueClip = Literal["loss", "prediction"] | None


def clipped_surrogate(
    log_probs: jax.Array,
    old_log_probs: jax.Array,
    advantages: jax.Array,
    clip_param: jax.Array | float,
    dual_clip: jax.Array | float | None = None,
) -> jax.Array:
    """The clipped surrogate objective, negated (Schulman et al. 2017, eq. 7).

        l = -min(rho A, clip(rho, 1 - c, 1 + c) A),    rho = exp(log pi(a|s) - log pi_old(a|s))
        with a dual clip d, where A < 0: min(l, -d A)    (Ye et al. 2020, eq. 5)

    Args:
        log_probs, old_log_probs, advantages: f32[...].
        clip_param: c, a scalar.
        dual_clip: d > 1, a scalar; None or infinity: no such bound.
    """
    chex.assert_equal_shape([log_probs, old_log_probs, advantages])
    # Beyond e^20 every row is clipped anyway. An overflow would turn its zero gradient into NaN.
    ratio = jnp.exp(jnp.clip(log_probs - old_log_probs, -20.0, 20.0))
    clipped = jnp.clip(ratio, 1 - clip_param, 1 + clip_param)
    loss = -jnp.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is None:
        return loss
    negative = advantages < 0  # also inside the product: infinity times 0 would be NaN
    bound = dual_clip * jnp.where(negative, -advantages, 1.0)
    return jnp.minimum(loss, jnp.where(negative, bound, jnp.inf))


def clip_fraction(
    log_probs: jax.Array, old_log_probs: jax.Array, clip_param: jax.Array | float
) -> jax.Array:
    """1.0 where the ratio is outside 1 +- clip_param, else 0.0; f32[...]."""
    return (jnp.abs(jnp.exp(log_probs - old_log_probs) - 1) > clip_param).astype(jnp.float32)


def value_loss(
    values: jax.Array,
    old_values: jax.Array,
    targets: jax.Array,
    clip_param: jax.Array | float,
    kind: ValueClip = "loss",
) -> jax.Array:
    """The squared error of the value, clipped in one of three ways.

        "loss"        min((V - R)^2, c)                                         (RLlib)
        "prediction"  max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)    (OpenAI's PPO2)
        None          (V - R)^2

    CleanRL and PPO2 multiply "prediction" by 1/2.

    Args:
        values, old_values, targets: V, V_old, R; f32[...].
        clip_param: c, a scalar; infinity clips nothing.
    """
    chex.assert_equal_shape([values, old_values, targets])
    error = (values - targets) ** 2
    if kind == "loss":
        return jnp.minimum(error, clip_param)
    if kind == "prediction":
        clipped = old_values + jnp.clip(values - old_values, -clip_param, clip_param)
        return jnp.maximum(error, (clipped - targets) ** 2)
    return error


def value_clip_fraction(
    values: jax.Array,
    old_values: jax.Array,
    targets: jax.Array,
    clip_param: jax.Array | float,
    kind: ValueClip = "loss",
) -> jax.Array:
    """1.0 where `value_loss` clips, else 0.0; f32[...].

    It clips (V - R)^2 > c for "loss", and |V - V_old| > c for "prediction".

    Args: as in `value_loss`.
    """
    chex.assert_equal_shape([values, old_values, targets])
    if kind == "loss":
        clipped = (values - targets) ** 2 > clip_param
    elif kind == "prediction":
        clipped = jnp.abs(values - old_values) > clip_param
    else:
        clipped = jnp.zeros(values.shape, bool)
    return clipped.astype(jnp.float32)


def next_kl_coeff(
    kl_coeff: jax.Array, kl: jax.Array, kl_target: jax.Array, least: float = 1e-6, most: float = 1e3
) -> jax.Array:
    """The adaptive KL coefficient (Schulman et al. 2017, section 4; RLlib's factors).

        KL > 2 target: x 1.5;    KL < target / 2: x 0.5;    else unchanged

    It stays within [least, most], so that it can neither vanish nor overflow. A coefficient of 0
    stays 0, and a NaN KL changes nothing.
    """
    factor = jnp.where(kl > 2 * kl_target, 1.5, jnp.where(kl < 0.5 * kl_target, 0.5, 1.0))
    return jnp.where(kl_coeff > 0, jnp.clip(kl_coeff * factor, least, most), 0.0)


def is_past_target(kl: jax.Array, target_kl: jax.Array | float) -> jax.Array:
    """bool[]: KL > 1.5 target_kl (Spinning Up's factor), where SB3 stops an iteration's epochs.

    An infinite target never stops the epochs. Neither does a NaN KL, so that divergence is reported
    instead of hidden.
    """
    return kl > 1.5 * target_kl
