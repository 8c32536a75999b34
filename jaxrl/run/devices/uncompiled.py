"""Training under `jax.disable_jit()`: each operation by itself, so that a debugger sees numbers.

Loops over steps and minibatches are then Python's. So is `jax.vmap`: an environment's `step_env`
is called for one environment after the other, with arrays in place of tracers.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.types import Key, PyTree

VMAP = {"fun": None, "in_axes": 0, "out_axes": 0}  # arguments of `jax.vmap` that a loop can serve


def parts_of(program: Any, key: Key, numbers: tuple, num_recorded: int) -> tuple:
    """(metrics, start, chunk, capacity) of an `UncompiledAlgorithm`; arguments as `Program.trace`.

    start(key, hypers, env_params) -> runner
    chunk(runner, hypers, env_params, data, count) -> (runner, metrics, recorded steps or None),
    both with a leading axis [count]

    Raises:
        UsageError: several processes train together.
    """
    if jax.process_count() > 1:
        raise UsageError(
            "JAX's jit is disabled: several processes train by compiled programs alone"
        )
    with jax.disable_jit(False):  # traced for the shapes of its results
        metrics, _, _, capacity = program.trace(key, numbers, num_recorded)
    algorithm = program.algorithm
    if num_recorded:
        algorithm = algorithm.recording(num_recorded * program.devices)

    def start(*arguments):
        with one_by_one():
            return algorithm.init(*arguments)

    def chunk(runner, hypers, env_params, data, count):
        rows, recorded = [], []
        with one_by_one():
            for _ in range(count):
                runner, *new = algorithm.recorded_update(runner, hypers, env_params, data)
                rows.append(new[0])
                recorded.append(new[1])
        together = lambda *leaves: np.stack(leaves)
        return runner, jax.tree.map(together, *rows), jax.tree.map(together, *recorded)

    return metrics, start, chunk, capacity


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """A context in which `jax.vmap` calls its function in a loop, where jit is disabled."""
    batched = jax.vmap
    jax.vmap = functools.partial(_looped, batched)
    try:
        yield
    finally:
        jax.vmap = batched


def _looped(batched: Callable, *positional: Any, **options: Any) -> Callable:
    """`jax.vmap` by its arguments; on traced arrays, and in other threads, the real one."""
    mapped = batched(*positional, **options)  # it refuses what no vmap takes
    settings = {**VMAP, **dict(zip(VMAP, positional, strict=False)), **options}
    if settings.keys() != VMAP.keys() or len(positional) > len(VMAP):
        return mapped
    function, in_axes, out_axes = settings.values()

    def call(*arguments, **keywords):
        leaves, form = jax.tree.flatten(arguments)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        if traced or keywords or not jax.config.jax_disable_jit:
            return mapped(*arguments, **keywords)
        jax.eval_shape(batched(lambda *entry: 0, in_axes, None), *arguments)  # so do axes and sizes
        axes = _by_leaf(tuple(in_axes) if isinstance(in_axes, list) else in_axes, arguments)
        pairs = [_from_zero(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
        number = next(leaf.shape[axis] for leaf, axis in pairs if axis is not None)
        if number == 0:
            return mapped(*arguments)
        results = []
        for i in range(number):
            entry = [_entry(leaf, axis, i) for leaf, axis in pairs]
            results.append(function(*jax.tree.unflatten(form, entry)))
        return _stacked(results, out_axes)

    return call


def _from_zero(leaf: Any, axis: int | None) -> tuple[Any, int | None]:
    """A leaf and the axis that it is mapped along, counted from its first one."""
    if axis is None:
        return leaf, None
    return jnp.asarray(leaf), axis % leaf.ndim


def _by_leaf(axes: Any, tree: PyTree) -> list[int | None]:
    """The axis of each leaf, from a prefix of the tree."""
    found: list[int | None] = []
    add = lambda axis, part: found.extend([axis] * len(jax.tree.leaves(part)))
    jax.tree.map(add, axes, tree, is_leaf=lambda node: node is None)
    return found


def _entry(leaf: jax.Array, axis: int | None, i: int) -> jax.Array:
    return leaf if axis is None else leaf[(slice(None),) * axis + (i,)]


def _stacked(results: list[PyTree], axes: Any) -> PyTree:
    """The results of the entries along an axis of each leaf; where that is None the first one."""
    by_entry = [jax.tree.leaves(result) for result in results]
    leaves = []
    for axis, *entries in zip(_by_leaf(axes, results[0]), *by_entry, strict=True):
        leaves.append(entries[0] if axis is None else jnp.stack(entries, axis))
    return jax.tree.unflatten(jax.tree.structure(results[0]), leaves)
