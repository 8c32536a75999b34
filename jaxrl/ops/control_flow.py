"""A `cond` that stays lazy under `vmap`, and a `scan` that passes over some of its rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import PyTree


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


def scan_some(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    state: PyTree,
    rows: PyTree,
    chosen: jax.Array,
) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan` over the rows [N, ...] that are `chosen`, bool[N].

    Computing a step that is not wanted and keeping the previous state copies the state each time.

    Returns:
        (state, results): the results are [N, ...], zeros where a row was passed over.
    """
    step = jax.jit(step, inline=True)  # traced once, for the shapes as well
    row_of = lambda i: jax.tree.map(lambda leaf: leaf[i], rows)
    shapes = jax.eval_shape(step, state, row_of(0))[1]
    zeros = lambda shape: jnp.zeros((len(chosen), *shape.shape), shape.dtype)
    chosen_first = jnp.argsort(~chosen, stable=True)

    def go_on(i, carry):
        state, results = carry
        i = chosen_first[i]
        state, result = step(state, row_of(i))
        put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, i, axis=0)
        return state, jax.tree.map(put, results, result)

    return jax.lax.fori_loop(0, jnp.sum(chosen), go_on, (state, jax.tree.map(zeros, shapes)))
