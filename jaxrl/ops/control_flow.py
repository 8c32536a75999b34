"""A `cond` that stays lazy under `vmap`, and an `any` that compiles fast."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import PyTree


def any_true(mask: jax.Array) -> jax.Array:
    """`jnp.any` of a large mask, bool[].

    A reduction of bools becomes ten times as much code on the CPU (XLA of jaxlib 0.10.2).
    """
    return jnp.sum(mask, dtype=jnp.int32) > 0


def cond_any(
    needed: jax.Array,
    work: Callable[..., PyTree],
    otherwise: Callable[..., PyTree],
    *operands: PyTree,
):
    """`work(*operands)` if `needed`, bool[], else `otherwise(*operands)`.

    Under `vmap` one test decides for all: the work is done for everybody as soon as anybody needs
    it, where `lax.cond` would always do it. So `work` must be harmless where it is not needed.

    Args:
        work, otherwise: pure functions with results of the same types, which close over no array.
    """

    if jax.config.jax_disable_jit:  # `custom_vmap` would trace
        return jax.lax.cond(needed, work, otherwise, *operands)

    @jax.custom_batching.custom_vmap
    def choose(needed, operands):
        return jax.lax.cond(needed, work, otherwise, *operands)

    @choose.def_vmap
    def choose_for_all(axis_size, in_batched, needed, operands):
        needed_batched, batched = in_batched
        anyone = jnp.any(needed) if needed_batched else needed
        if not any(jax.tree.leaves(batched)):
            result = cond_any(anyone, work, otherwise, *operands)
            return result, jax.tree.map(lambda _: False, result)
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
        everyone = jax.vmap(lambda *operands: work(*operands), axes, axis_size=axis_size)
        nobody = jax.vmap(lambda *operands: otherwise(*operands), axes, axis_size=axis_size)
        result = cond_any(anyone, everyone, nobody, *operands)
        return result, jax.tree.map(lambda _: True, result)

    return choose(needed, operands)
