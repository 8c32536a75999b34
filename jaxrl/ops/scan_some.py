"""A `scan` that passes over some of its rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import PyTree


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
