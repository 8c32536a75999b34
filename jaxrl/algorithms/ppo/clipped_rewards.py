"""The setting `clip_rewards`: rewards are learned from by their sign, or within a bound."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import FLOAT32

SIGN = "sign"


def read_clip(name: str, value: Any) -> Any:
    """RLlib's True as "sign", which 1 is not, and its False as None."""
    return {True: SIGN, False: None}[value] if isinstance(value, bool) else value


def check_clip(name: str, value: Any) -> None:
    """None, "sign", or a number above 0."""
    is_bound = isinstance(value, int | float) and 0 < value <= FLOAT32
    if value not in (None, SIGN) and not is_bound:
        raise UsageError(f"{name}={brief(value)} must be sign, a number > 0, or None")


check_clip.value = "sign|NUMBER"


def clipped(reward: jax.Array, clip_rewards: float | str) -> jax.Array:
    """Rewards to learn from, f32[...]: their sign, or themselves within +- the number."""
    if clip_rewards == SIGN:
        return jnp.sign(reward)
    return jnp.clip(reward, -clip_rewards, clip_rewards)


def described(clip_rewards: float | str | None) -> str:
    """The words of a summary."""
    if clip_rewards is None:
        return ""
    bound = "their sign" if clip_rewards == SIGN else f"+-{clip_rewards:g}"
    return f", rewards clipped to {bound}"
