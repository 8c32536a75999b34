"""S trainings in one compiled program, each of which stops by itself."""

import functools
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from jaxrl.core.types import Key, PyTree
from jaxrl.loop.runner import Algorithm, Metrics, Runner
from jaxrl.run.devices import mesh_of
from jaxrl.run.memory import peak_of
from jaxrl.run.program import CAPACITY
from jaxrl.sweeps.values import Reader

AXIS = "member"  # of the mesh


class Numbers(struct.PyTreeNode):
    """What the members differ by, [S, ...]."""

    key: Key
    hypers: PyTree
    env_params: PyTree
    last: jax.Array  # i32[S]  the update that a member stops after
    goals: jax.Array  # f32[S, C]  the least value of each criterion that stops it


class State(struct.PyTreeNode):
    """The members between two chunks, [S, ...]; one that is done keeps what it had then."""

    runner: Runner
    metrics: Metrics  # of its last update
    num_episodes: jax.Array  # i32[S]
    met: jax.Array  # bool[S]  a criterion to stop by
    diverged: jax.Array  # bool[S]  an update gave numbers that are not finite; the state is the one before it


class Seen(NamedTuple):
    """What the host looks at, [CAPACITY, S], as far as the chunk went."""

    score: jax.Array  # f32  not a number before the first episode, and after the member was done
    num_updates: jax.Array  # i32


class Members:
    """The program of a group of trials, `size` at once.

    Args:
        algorithm: of the group; it is vmapped here.
        metrics: the shapes of one member's update.
        numbers: of `size` members, or their shapes.
        score: what `Seen` shows.
        stop: a member is done after the update in which one of these reaches its goal.
        devices: that the members are split over.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        metrics: Metrics,
        numbers: Numbers,
        score: Reader,
        stop: Sequence[Reader],
        devices: int = 1,
    ):
        begin = time.perf_counter()
        self.algorithm, self.devices = algorithm, devices
        chunk = functools.partial(run_members, algorithm, score, tuple(stop))
        if devices > 1:
            split, everywhere, rows = PartitionSpec(AXIS), PartitionSpec(), PartitionSpec(None, AXIS)
            chunk = jax.shard_map(
                chunk,
                mesh=mesh_of(devices, AXIS),
                in_specs=(split, split, everywhere),
                out_specs=(split, rows),
                check_vma=False,
            )
        start = jax.jit(functools.partial(start_members, algorithm, metrics)).lower(numbers)
        state = start.out_info
        chunk = jax.jit(chunk, donate_argnums=0).lower(state, numbers, jnp.int32(0))
        self.start_program, self.chunk_program = start.compile(), chunk.compile()
        self.compile_seconds = time.perf_counter() - begin

    @property
    def peak(self) -> int | None:
        """Bytes that a chunk takes on each device."""
        return peak_of(self.chunk_program)

    def start(self, numbers: Numbers) -> State:
        return self.start_program(numbers)

    def chunk(self, state: State, numbers: Numbers, count: int) -> tuple[State, Seen]:
        """At most `count` updates, fewer when every member is done; returns when they are computed."""
        arguments = state, numbers, jnp.int32(count)
        arguments = jax.device_put(arguments, self.chunk_program.input_shardings[0])
        return jax.block_until_ready(self.chunk_program(*arguments))


def start_members(algorithm: Algorithm, metrics: Metrics, numbers: Numbers) -> State:
    """`metrics`: the shapes of one member's update."""
    runner = jax.vmap(algorithm.init)(numbers.key, numbers.hypers, numbers.env_params)
    size = numbers.last.shape
    return State(
        runner=runner,
        metrics=jax.tree.map(lambda leaf: jnp.zeros((*size, *leaf.shape), leaf.dtype), metrics),
        num_episodes=jnp.zeros(size, jnp.int32),
        met=jnp.zeros(size, bool),
        diverged=jnp.zeros(size, bool),
    )


def is_done(state: State, numbers: Numbers) -> jax.Array:
    """bool[S]."""
    return state.met | state.diverged | (state.runner.num_updates >= numbers.last)


def run_members(
    algorithm: Algorithm,
    score: Reader,
    stop: tuple[Reader, ...],
    state: State,
    numbers: Numbers,
    count: jax.Array,
) -> tuple[State, Seen]:
    """`count` i32[] updates of all members, in one loop whose trip count is traced."""
    size = numbers.last.shape[0]
    seen = Seen(jnp.full((CAPACITY, size), jnp.nan), jnp.zeros((CAPACITY, size), jnp.int32))
    one_update = jax.jit(jax.vmap(functools.partial(_one_update, algorithm, score, stop)), inline=True)

    def unfinished(carry):
        i, state, _ = carry
        return (i < count) & jnp.any(~is_done(state, numbers))

    def update(carry):
        i, state, seen = carry
        state, value = one_update(state, numbers)
        return i + 1, state, Seen(seen.score.at[i].set(value), seen.num_updates.at[i].set(state.runner.num_updates))

    _, state, seen = jax.lax.while_loop(unfinished, update, (jnp.int32(0), state, seen))
    return state, seen


def _one_update(algorithm, score, stop, state: State, numbers: Numbers) -> tuple[State, jax.Array]:
    """One member's; if it is done, nothing changes."""
    runner, metrics = algorithm.update(state.runner, numbers.hypers, numbers.env_params)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(metrics.learners)]))
    reached = (read(metrics) >= numbers.goals[i] for i, read in enumerate(stop))
    met = functools.reduce(jnp.logical_or, reached, state.met)
    num_episodes = state.num_episodes + metrics.episodes.iteration.count
    after = state.replace(runner=runner, metrics=metrics, num_episodes=num_episodes, met=met)
    waits = is_done(state, numbers)
    state, value = jax.tree.map(
        lambda new, old: jnp.where(waits | ~finite, old, new), (after, score(metrics)), (state, jnp.nan)
    )
    return state.replace(diverged=state.diverged | (~waits & ~finite)), value
