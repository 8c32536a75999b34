"""Vectorised trials: S trainings in one compiled program, each of which stops by itself."""

import functools
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import PartitionSpec

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.core.machine import give_back_memory
from jaxrl.core.types import Key, PyTree
from jaxrl.run.devices.compiled import CAPACITY, compile_all, peak_of
from jaxrl.run.devices.mesh import mesh_of
from jaxrl.run.health import FINITE
from jaxrl.sweeps.metric_readers import Reader, reader
from jaxrl.sweeps.trials import TrialGroup

AXIS = "member"  # of the mesh
MOST_PROGRAMS = 16  # that a process keeps
PROGRAMS: "dict[Any, VmappedTrials]" = {}  # by all that they depend on
KEEPING = threading.Lock()  # programs are compiled side by side


class Numbers(struct.PyTreeNode):
    """The numbers in which the members differ, [S, ...]."""

    key: Key
    hypers: PyTree
    env_params: PyTree
    last: jax.Array  # i32[S]  the update that a member stops after
    # f32[S] each: the least value of each criterion that stops it. Not one array, which would be
    # empty without criteria: jaxlib 0.11 ends the process at an empty input of several devices.
    goals: tuple[jax.Array, ...]


class State(struct.PyTreeNode):
    """The members between two chunks, [S, ...]; one that is done keeps what it had then."""

    runner: RunnerState
    met: jax.Array  # bool[S]  a criterion to stop by
    # bool[S]  an update gave numbers that are not finite; the state is the one before it
    diverged: jax.Array


class Seen(NamedTuple):
    """The results on the host, [CAPACITY, S, ...]: first the updates before a member was done."""

    score: jax.Array  # f32  NaN before the first episode
    metrics: Metrics


class MemberSpec(NamedTuple):
    """The algorithm that is trained, and the readers of its metrics while it trains."""

    algorithm: Algorithm  # of one member; it is vmapped here
    metrics: Metrics  # the shapes of one member's update
    score: Reader  # what `Seen` shows
    stop: tuple[Reader, ...] = ()  # a member is done once one of these reaches its goal


class VmappedTrials:
    """The program of a group of trials, `size` at once.

    Args:
        numbers: of `size` members, or their shapes.
        devices: that the members are split over.
    """

    def __init__(self, spec: MemberSpec, numbers: Numbers, devices: int = 1):
        begin = time.perf_counter()
        self.algorithm, self.devices = spec.algorithm, devices
        self.data = jax.device_put(spec.algorithm.data())
        chunk = functools.partial(run_members, spec)
        if devices > 1:
            split, everywhere = PartitionSpec(AXIS), PartitionSpec()
            rows = PartitionSpec(None, AXIS)
            chunk = jax.shard_map(
                chunk,
                mesh=mesh_of(devices, AXIS),
                in_specs=(split, split, everywhere, everywhere),
                out_specs=(split, rows),
                check_vma=False,
            )
        self._start = jax.jit(functools.partial(start_members, spec.algorithm)).trace(numbers)
        chunk = jax.jit(chunk, donate_argnums=0)
        chunk = chunk.lower(self.state_shapes, numbers, self.data, jnp.int32(0))
        (self.chunk_program,) = compile_all([chunk])
        give_back_memory()  # of the compiler
        self.start_program = None
        self.compile_seconds = time.perf_counter() - begin

    @property
    def state_shapes(self) -> State:
        """`jax.ShapeDtypeStruct` for each array of the members' state."""
        return self._start.out_info

    @property
    def peak(self) -> int | None:
        """Bytes that a chunk takes on each device."""
        return peak_of(self.chunk_program)

    def compile_start(self) -> None:
        """Compiles what `start` runs; members that are only trained further do without."""
        if self.start_program is None:
            begin = time.perf_counter()
            (self.start_program,) = compile_all([self._start.lower()])
            give_back_memory()
            self.compile_seconds += time.perf_counter() - begin

    def start(self, numbers: Numbers) -> State:
        self.compile_start()
        return self.start_program(numbers)

    def chunk(self, state: State, numbers: Numbers, count: int) -> tuple[State, Seen]:
        """At most `count` updates, fewer if all members are done; waits until they are computed."""
        arguments = state, numbers, self.data, jnp.int32(count)
        arguments = jax.device_put(arguments, self.chunk_program.input_shardings[0])
        return jax.block_until_ready(self.chunk_program(*arguments))


def start_members(algorithm: Algorithm, numbers: Numbers) -> State:
    runner = jax.vmap(algorithm.init)(numbers.key, numbers.hypers, numbers.env_params)
    size = numbers.last.shape
    return State(runner=runner, met=jnp.zeros(size, bool), diverged=jnp.zeros(size, bool))


def is_done(state: State, numbers: Numbers) -> jax.Array:
    """bool[S]."""
    return state.met | state.diverged | (state.runner.num_updates >= numbers.last)


def done_members(state: State, numbers: Numbers) -> np.ndarray:
    """`is_done` of members that are not being traced, bool[S]; it compiles nothing."""
    met, diverged = np.asarray(state.met), np.asarray(state.diverged)
    return met | diverged | (np.asarray(state.runner.num_updates) >= np.asarray(numbers.last))


def run_members(
    spec: MemberSpec, state: State, numbers: Numbers, data: PyTree, count: jax.Array
) -> tuple[State, Seen]:
    """`count` i32[] updates of all members, in one loop whose trip count is traced."""
    size = numbers.last.shape[0]
    zeros = lambda leaf: jnp.zeros((CAPACITY, size, *leaf.shape), leaf.dtype)
    rows = Seen(jnp.full((CAPACITY, size), jnp.nan), jax.tree.map(zeros, spec.metrics))
    update_all = jax.jit(
        jax.vmap(functools.partial(update_member, spec), in_axes=(0, 0, None)), inline=True
    )

    def unfinished(carry):
        i, state, _ = carry
        return (i < count) & jnp.any(~is_done(state, numbers))

    def update(carry):
        i, state, rows = carry
        state, *reported = update_all(state, numbers, data)
        rows = jax.tree.map(lambda leaf, row: leaf.at[i].set(row), rows, Seen(*reported))
        return i + 1, state, rows

    _, state, rows = jax.lax.while_loop(unfinished, update, (jnp.int32(0), state, rows))
    return state, rows


def is_finite(metrics: Metrics) -> jax.Array:
    """bool[]: whether an update's numbers and parameters are finite (`FINITE` of the latter).

    What `first_bad` looks for on the host. Where no policy learns nothing can be otherwise.
    """
    finite = jnp.bool_(True)
    for learner in metrics.learners:
        for name, values in learner.items():
            finite &= jnp.all(jnp.isfinite(values))
            finite &= jnp.all(values != 0.0) if name == FINITE else True
    return finite


def update_member(
    spec: MemberSpec, state: State, numbers: Numbers, data: PyTree
) -> tuple[State, jax.Array, Metrics]:
    """One member's (state, score, metrics); if it is done, its state stays."""
    runner, metrics = spec.algorithm.update(state.runner, numbers.hypers, numbers.env_params, data)
    finite = is_finite(metrics)
    reached = (read(metrics) >= numbers.goals[i] for i, read in enumerate(spec.stop))
    met = functools.reduce(jnp.logical_or, reached, state.met)
    after = state.replace(runner=runner, met=met)
    waits = is_done(state, numbers)
    state, value = jax.tree.map(
        lambda new, old: jnp.where(waits | ~finite, old, new),
        (after, spec.score(metrics)),
        (state, jnp.nan),
    )
    return state.replace(diverged=state.diverged | (~waits & ~finite)), value, metrics


def known(
    group: TrialGroup, numbers: Numbers, metric: str, criteria: Sequence[str], devices: int
) -> VmappedTrials | None:
    """The program, if this process has compiled it already."""
    members = PROGRAMS.get(_key(group, numbers, metric, criteria, devices))
    if members is not None:
        members.data = jax.device_put(group.algorithm.data())  # which may have changed
    return members


def program_of(
    group: TrialGroup, numbers: Numbers, metric: str, criteria: Sequence[str], devices: int
) -> VmappedTrials:
    """The program of a group; compiled once for the same trials, and as many of them.

    Args:
        numbers: of as many members as the program is to train at once.
        metric: path in the result tree that ranks them.
        criteria: paths that may stop them.

    Raises:
        UsageError: no result has such a path.
    """
    key = _key(group, numbers, metric, criteria, devices)
    members = known(group, numbers, metric, criteria, devices)
    if members is None:
        algorithm, shapes = group.algorithm, group.shapes.metrics
        score = reader(algorithm, shapes, metric, "metric")
        stop = tuple(reader(algorithm, shapes, path, "stop criterion") for path in criteria)
        spec = MemberSpec(algorithm, shapes, score, stop)
        members = VmappedTrials(spec, numbers, devices)
        with KEEPING:
            while len(PROGRAMS) >= MOST_PROGRAMS:
                PROGRAMS.pop(next(iter(PROGRAMS)))
            PROGRAMS[key] = members
    return members


def _key(
    group: TrialGroup, numbers: Numbers, metric: str, criteria: Sequence[str], devices: int
) -> tuple:
    arrays = numbers, group.algorithm.data()
    shapes = str(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arrays))
    where = str(jax.config.jax_default_device)  # a program is that of one device
    return group.static, group.env, shapes, metric, tuple(criteria), devices, where
