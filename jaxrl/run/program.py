"""The compiled form of an algorithm: one program for the start, one for any number of updates."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.types import Key, PyTree
from jaxrl.loop.runner import Algorithm, Metrics, Runner

CAPACITY = 256  # updates of one chunk at most: the length of its metrics' buffer


@dataclass
class Program:
    """Compiled once for a configuration without its numbers; kept for the process, whoever trains with it."""

    algorithm: Algorithm
    executables: dict[str, Any] = field(default_factory=dict)
    metrics: Metrics | None = None  # shapes of a chunk's metrics, [CAPACITY, ...]; known once traced

    def trace(self, key: Key, hypers: PyTree, env_params: PyTree) -> Callable[[], float] | None:
        """Traces for arguments of these shapes; returns what compiles, in s, or None if that was done before."""
        shapes = str(jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), (hypers, env_params)))
        if self.executables.get("shapes") == shapes:
            return None
        start = jax.jit(self.algorithm.init).lower(key, hypers, env_params)
        chunk = jax.jit(functools.partial(run_chunk, self.algorithm)).lower(
            start.out_info, hypers, env_params, jnp.int32(0)
        )
        self.metrics = chunk.out_info[1]

        def compile_both() -> float:
            begin = time.perf_counter()
            self.executables = {"start": start.compile(), "chunk": chunk.compile(), "shapes": shapes}
            return time.perf_counter() - begin

        return compile_both

    def start(self, key: Key, hypers: PyTree, env_params: PyTree) -> Runner:
        return self.executables["start"](key, hypers, env_params)

    def chunk(self, runner: Runner, hypers: PyTree, env_params: PyTree, count: int) -> tuple[Runner, Metrics]:
        """`count` updates, and their metrics at the front of a buffer [CAPACITY, ...]; returns when they are done."""
        return jax.block_until_ready(self.executables["chunk"](runner, hypers, env_params, jnp.int32(count)))


def run_chunk(
    algorithm: Algorithm, runner: Runner, hypers: PyTree, env_params: PyTree, count: jax.Array
) -> tuple[Runner, Metrics]:
    """`count` i32[] updates in one loop whose trip count is traced, so that one program serves every length."""
    shapes = jax.eval_shape(algorithm.update, runner, hypers, env_params)[1]
    buffer = jax.tree.map(lambda leaf: jnp.zeros((CAPACITY, *leaf.shape), leaf.dtype), shapes)

    def update(i, state):
        runner, buffer = state
        runner, metrics = algorithm.update(runner, hypers, env_params)
        return runner, jax.tree.map(lambda rows, row: rows.at[i].set(row), buffer, metrics)

    return jax.lax.fori_loop(0, count, update, (runner, buffer))


@functools.lru_cache(maxsize=16)
def program_of(static_config: Any) -> Program:
    """The program of a configuration's structure, `config.static()`."""
    return Program(static_config.build())
