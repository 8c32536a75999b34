"""Optimisers of optax under JAX's flags."""

import jax
import optax

from jaxrl.core.types import PyTree


def promoting(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser under JAX's usual promotion of types.

    Adam divides by powers of a count, which `jax_numpy_dtype_promotion=strict` refuses.
    """

    def init(params: PyTree) -> PyTree:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.init(params)

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(grads, state, params)

    return optax.GradientTransformation(init, update)
