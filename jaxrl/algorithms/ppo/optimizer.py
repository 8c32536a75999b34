"""The function that the setting `optimizer` means, and gradients that are clipped part by part."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.trust import Kind, load, parse_name
from jaxrl.core.types import PyTree

OPTIMIZER = Kind(
    "optimizer",
    "jaxrl.optimizers",
    "a function from the learning rate to an optax transformation",
    lambda found: callable(found) and not isinstance(found, type),
)
GLOBAL_NORM, NORM, VALUE = GRAD_CLIPS = ("global_norm", "norm", "value")


def check_optimizer(name: str, value: Any) -> None:
    """None, a function, or "module:name"; what that is, `optimizer_of` looks at."""
    named = parse_name(value)
    named = named is not None and not named.arguments
    if not (value is None or callable(value) or named):
        perhaps = "; perhaps lambda lr: optax.adam(lr)?" if isinstance(value, tuple) else ""
        raise UsageError(
            f"{name}={brief(value)} must be a function from the learning rate to an optax "
            f'transformation, module:name, {{"adam_epsilon": 1e-5}}, or None{perhaps}'
        )


def optimizer_of(
    value: Callable | str | None,
) -> Callable[[Any], optax.GradientTransformation] | None:
    """The function from the learning rate that a setting `optimizer` means; None: Adam.

    Raises:
        UsageError: there is none of this name, or what it makes is no optax transformation.
    """
    if value is None:
        return None
    is_name = isinstance(value, str)
    function = load(OPTIMIZER, parse_name(value)) if is_name else value
    called = f"optimizer {value if is_name else getattr(value, '__name__', value)}(0.001)"
    try:
        made = function(0.001)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        raise UsageError(
            f"{called} raises {type(error).__name__}: {reason}; it takes the learning rate"
        ) from None
    if not isinstance(made, optax.GradientTransformation):
        raise UsageError(f"{called} must be an optax transformation, not a {type(made).__name__}")
    return function


def clipped_apart(sums: PyTree, count: jax.Array, grad_clip: jax.Array, by: str) -> PyTree:
    """The gradient of a mean, each of its arrays clipped by itself.

    Args:
        sums: the gradient of the sum over `count` rows.
        grad_clip: the bound of each array's norm, or of each number's size.
        by: NORM or VALUE, which says which.
    """

    def clipped(leaf: jax.Array) -> jax.Array:
        mean = leaf / count
        if by == VALUE:
            return jnp.clip(mean, -grad_clip, grad_clip)
        return mean * jnp.minimum(1.0, grad_clip / jnp.maximum(optax.tree.norm(mean), 1e-12))

    return jax.tree.map(clipped, sums)
