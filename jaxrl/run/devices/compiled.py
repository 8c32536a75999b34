"""The compiled form of an algorithm: one program for the start, one for any number of updates.

With it, what a compiled program says of itself: its memory, and whether a cache had it.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.memory_estimate import check_sizes
from jaxrl.core import machine
from jaxrl.core.env import has_outside_state
from jaxrl.core.types import Key, PyTree
from jaxrl.ops.packing import Packed, pack
from jaxrl.run.devices.mesh import AXIS, by_environment, mesh_of, placed, recorded_by_environment

if TYPE_CHECKING:
    from jaxrl.rollout.recorded_steps import RecordedSteps

ITERATION_STRIDE = 1_000_003  # between the seeds of episodes that are held outside
CAPACITY = 256  # updates of one chunk at most: the length of its metrics' buffer
# Of recorded steps in one chunk, unless a single update has more. They take this memory on the
# device, and on the host as often as chunks wait to be written.
RECORDED_BYTES = 2**26
HIT = "/jax/compilation_cache/cache_hits"  # JAX's name of the event


@dataclass
class StartAndChunk:
    """Two programs for arguments of certain shapes: traced at first, compiled by `compile`."""

    metrics: Metrics  # shapes of a chunk's metrics, [capacity, ...]
    start_program: Any
    chunk_program: Any
    capacity: int  # updates of one chunk at most
    compiled: bool = field(default=False, init=False)
    # The start is compiled as well; a run that is resumed needs none.
    can_start: bool = field(default=False, init=False)
    traced: bool = field(default=True, init=False)  # False: an earlier process kept the programs
    # Whether all that `compile` was last asked for came out of a compile cache.
    loaded: bool = field(default=False, init=False)
    timers = counts = MappingProxyType({})  # see `OutsideTraining`
    num_env_steps = None  # of the last update; None: what the algorithm says

    def is_ready(self, *, start: bool) -> bool:
        """Returns whether nothing is left to compile, with or without the start."""
        return self.compiled and (self.can_start or not start)

    def compile(self, *, start: bool) -> float:
        """Compiles what is missing, with or without the start; returns the seconds that it took."""
        begin, hits = time.perf_counter(), num_hits()
        needs = {"start_program": start and not self.can_start, "chunk_program": not self.compiled}
        missing = [name for name in needs if needs[name]]
        programs = compile_all([getattr(self, name) for name in missing])
        machine.give_back_memory()  # of the compiler, which took more than training does
        # All or nothing: where one fails, both stay as they were, to be compiled again.
        vars(self).update(zip(missing, programs, strict=True))
        self.can_start, self.compiled = start or self.can_start, True
        self.loaded = 0 < len(missing) == num_hits() - hits
        return time.perf_counter() - begin

    def start(self, key: Key, hypers: PyTree, env_params: PyTree) -> RunnerState:
        return jax.block_until_ready(self.start_program(key, hypers, env_params))


class CompiledAlgorithm(StartAndChunk):
    """The start and the updates of an algorithm whose environments are part of the program."""

    def start(self, key: Key, hypers: PyTree, env_params: PyTree) -> RunnerState:
        arguments = key, hypers, env_params
        if jax.process_count() > 1:
            arguments = placed(arguments, self.start_program.input_shardings[0])
        return jax.block_until_ready(self.start_program(*arguments))

    def chunk(
        self, runner: RunnerState, hypers: PyTree, env_params: PyTree, data: PyTree, count: int
    ) -> "tuple[RunnerState, Metrics, RecordedSteps | None]":
        """`count` updates, with their metrics first in a buffer [CAPACITY, ...]; waits for them.

        Args:
            data: what `Algorithm.data` returns.

        Returns:
            (runner, metrics, steps): the recorded steps [capacity, T, ...], None if none are.
        """
        arguments = runner, hypers, env_params, data, jnp.int32(count)
        arguments = placed(arguments, self.chunk_program.input_shardings[0])
        runner, rows, steps = jax.block_until_ready(self.chunk_program(*arguments))
        return runner, jax.tree.map(np.asarray, rows).unpack(), steps


class UncompiledAlgorithm(StartAndChunk):
    """The functions themselves in place of programs, under `jax.disable_jit()`."""

    def begin(self) -> str:
        """Marks it as ready; returns what people are told of it."""
        self.compiled = self.can_start = True
        return (
            "not compiled, since JAX's jit is disabled: hundreds of times slower, and breakpoint() "
            "stops in environments, models and losses"
        )

    def chunk(self, *arguments: Any) -> "tuple[RunnerState, Metrics, RecordedSteps | None]":
        """A chunk as of `CompiledAlgorithm`; metrics and steps have its length alone."""
        return self.chunk_program(*arguments)


@dataclass
class Program:
    """A configuration's structure; whoever trains with it in this process shares what was compiled.

    The algorithm's own default numbers are not those of any run: a run passes its hypers. `split`
    is the same algorithm where the environments are split over several devices.
    """

    algorithm: Algorithm
    split: Algorithm | None = None
    devices: int = 1
    # (configuration, environment); None if the program depends on more than these.
    identity: tuple | None = None
    # by the shapes of the numbers
    executables: dict[str, StartAndChunk] = field(default_factory=dict)

    def executable(
        self,
        key: Key,
        hypers: PyTree,
        env_params: PyTree,
        data: PyTree | None = None,
        num_recorded: int = 0,
    ) -> StartAndChunk:
        """The programs for arguments of these shapes, traced if they were not before.

        Args:
            num_recorded: how many of each device's environments are recorded, the first ones.
        """
        numbers = hypers, env_params, data
        which = shapes_of(numbers, num_recorded)
        if which not in self.executables:
            self.executables[which] = self.build(key, numbers, num_recorded)
        return self.executables[which]

    def build(
        self, key: Key, numbers: tuple[PyTree, PyTree, PyTree | None], num_recorded: int
    ) -> StartAndChunk:
        """The programs, kept by an earlier process or traced; `numbers` as `trace` takes them."""
        if jax.config.jax_disable_jit:
            from jaxrl.run.devices.uncompiled import parts_of

            return UncompiledAlgorithm(*parts_of(self, key, numbers, num_recorded))
        if not jax.config.jax_compilation_cache_dir:
            return CompiledAlgorithm(*self.trace(key, numbers, num_recorded))
        from jaxrl.run.devices import kept_programs

        trace = functools.partial(self.trace, key, numbers, num_recorded)
        shapes = shapes_of(numbers, num_recorded)
        file = kept_programs.file_of(self.identity, self.devices, shapes)
        if file is None:
            return CompiledAlgorithm(*trace())
        programs, is_new = kept_programs.filed(file, trace, hits_here, count_hit)
        compiled = CompiledAlgorithm(*programs)
        compiled.traced = is_new
        return compiled

    def trace(
        self, key: Key, numbers: tuple[PyTree, PyTree, PyTree | None], num_recorded: int
    ) -> tuple[PyTree, Any, Any, int]:
        """The first fields of `StartAndChunk`, traced; `numbers` are (hypers, env_params, data)."""
        hypers, env_params, _ = numbers
        start = jax.jit(self._start()).lower(key, hypers, env_params)
        chunk = jax.jit(self._chunk(num_recorded))
        chunk = chunk.lower(start.out_info, *numbers, jnp.int32(0))
        _, rows, steps = chunk.out_info
        metrics = jax.eval_shape(lambda rows: rows.unpack(), rows)
        capacity = len(steps.episode_done) if num_recorded else CAPACITY
        return metrics, start, chunk, capacity

    def close(self) -> None:
        """Others may share what was compiled, so nothing ends."""

    def _start(self) -> Callable[..., RunnerState]:
        if jax.process_count() == 1:
            return self.algorithm.init
        everywhere = PartitionSpec()  # each process makes its own environments
        return jax.shard_map(
            self.split.init,
            mesh=mesh_of(self.devices),
            in_specs=(everywhere, everywhere, everywhere),
            out_specs=by_environment(self.algorithm.rollout_spec),
            check_vma=False,
        )

    def _chunk(self, num_recorded: int) -> Callable[..., tuple]:
        algorithm = self.algorithm if self.devices == 1 else self.split
        if num_recorded:
            algorithm = algorithm.recording(num_recorded)
        if self.devices == 1:
            return functools.partial(run_chunk, algorithm)
        runner, everywhere = by_environment(algorithm.rollout_spec), PartitionSpec()
        return jax.shard_map(
            functools.partial(run_chunk, algorithm),
            mesh=mesh_of(self.devices),
            in_specs=(runner, everywhere, everywhere, everywhere, everywhere),
            out_specs=(runner, everywhere, recorded_by_environment() if num_recorded else None),
            check_vma=False,
        )


def compile_all(traced: Sequence[Any]) -> list[Any]:
    """The traced programs compiled, side by side; Ctrl-C does not wait for the compiler."""
    threads = ThreadPoolExecutor(max(1, len(traced)))
    compiled = threads.map(lambda program: program.compile(), traced)
    threads.shutdown(wait=False)
    return list(compiled)


def shapes_of(numbers: PyTree, num_recorded: int) -> str:
    """A text that tells apart what the programs of a `Program` differ in."""
    shapes = jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), numbers)
    return str((shapes, num_recorded, jax.config.jax_disable_jit))


def run_chunk(
    algorithm: Algorithm,
    runner: RunnerState,
    hypers: PyTree,
    env_params: PyTree,
    data: PyTree,
    count: jax.Array,
) -> "tuple[RunnerState, Packed, RecordedSteps | None]":
    """`count` i32[] updates in a loop with a traced trip count: one program for every length.

    Returns:
        (runner, rows, steps): as of `CompiledAlgorithm.chunk`, the metrics packed: the host takes
        them apart, for which nothing has to be compiled.
    """

    @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and for the loop
    def packed_update(runner, hypers, env_params, data):
        runner, metrics, steps = algorithm.recorded_update(runner, hypers, env_params, data)
        # A line of numbers, not a program for each of them.
        return runner, pack(metrics, num_axes=0), steps

    _, row, steps = jax.eval_shape(packed_update, runner, hypers, env_params, data)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(steps))
    most = max(1, min(CAPACITY, RECORDED_BYTES // max(1, size)))
    empty = lambda length, tree: jax.tree.map(
        lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), tree
    )

    def update(i, state):
        runner, *new = packed_update(state[0], hypers, env_params, data)
        put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, i, axis=0)
        return runner, *jax.tree.map(put, state[1:], tuple(new))

    return jax.lax.fori_loop(0, count, update, (runner, empty(CAPACITY, row), empty(most, steps)))


def program_for(config: AlgorithmConfig, devices: int = 1, iteration: int = 0) -> Program:
    """The program of a configuration, over the environment that its name means now.

    Trainings share it if they differ in numbers alone, unless episodes are held outside of it: then
    it draws them by the seed, and by the iteration that training resumes after.
    """
    env, static = config.setup().env, config.static()
    if not has_outside_state(env):
        return program_of(static, env, devices)
    seed = (config.seed + ITERATION_STRIDE * iteration) % 2**32
    return program_of.__wrapped__(static.replace(seed=seed), env, devices)


@functools.lru_cache(maxsize=16)
def program_of(static_config: AlgorithmConfig, env: Any, devices: int = 1) -> Program:
    """The program of `config.static()`, kept by the environment as well."""
    algorithm = static_config.build()
    check_sizes(static_config, algorithm)
    split = static_config.build(axis_name=AXIS) if devices > 1 else None
    identity = None if has_outside_state(env) else (static_config, env)
    return Program(algorithm, split, devices, identity)


def num_hits() -> int:
    """The number of programs that this process has loaded from a cache since it first asked."""
    return len(_hits())


def hits_here() -> int:
    """The number of them that this thread has loaded."""
    return _hits().count(threading.get_ident())


def count_hit() -> None:
    """Counts a program that was loaded otherwise than by JAX's cache."""
    _hits().append(threading.get_ident())


@functools.cache
def _hits() -> list[int]:
    """The threads of JAX's reports of programs that it loaded, from the first call on."""
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(threading.get_ident()) if event == HIT else None
    )
    return hits


def peak_of(compiled: Any) -> int | None:
    """Bytes that a compiled program needs on each device: arguments, results and temporaries.

    As XLA planned them; None where it does not tell.
    """
    plan = compiled.memory_analysis()
    if plan is None:
        return None
    needed = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return needed - plan.alias_size_in_bytes


def memory_line(needed: int | None, devices: int) -> str:
    """Memory that training needs (`needed` by each device) and has; a warning if it is short."""
    if needed is None:
        return "memory: this backend does not tell beforehand"
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:
        needed, free = needed * devices // jax.process_count(), machine.free_memory()
    else:
        free = machine.free_on_device()
    what = "" if on_cpu else " on each device" if devices > 1 else " on the device"
    line = f"memory: {machine.in_units(needed)}{what} at the peak of training"
    if on_cpu and (held := machine.process_memory()) is not None:
        line += f", plus the process's own {machine.in_units(held)}"
    if free is None:
        return line
    if needed > free:
        return (
            f"warning: {line}, but only {machine.in_units(free)} are free; fewer environments or "
            "shorter rollouts need less"
        )
    return f"{line}; {machine.in_units(free)} are free"
