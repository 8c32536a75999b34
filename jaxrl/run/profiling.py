"""The time of an iteration's parts, sampling and learning, measured on request.

Training compiles both into one program, which no clock can look into. So sampling is compiled once
more by itself and timed; learning is what is left of the whole iteration. Measuring changes nothing
in the run.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.rollout.rollout import Rollout
from jaxrl.run.devices.compiled import CAPACITY, CompiledAlgorithm, Program
from jaxrl.run.devices.mesh import AXIS, by_environment, mesh_of, placed

MEASURED_SECONDS = 1.0  # that each of the two is repeated for, about
FEWEST = 3  # repetitions


def profile(trainer: Any, prepare: Callable[[], None]) -> dict[str, dict[str, float]]:
    """The result of `Trainer.profile`.

    Args:
        prepare: has the trainer's program compiled.
    """
    if trainer.algorithm.plays_outside:
        raise UsageError(
            f"profile: episodes of {trainer.config.env_name} are played once, not again and again "
            "from one state"
        )
    if jax.config.jax_disable_jit:
        raise UsageError("profile measures compiled programs, and jax.disable_jit() is on")
    prepare()
    arguments = trainer.runner, trainer.hypers, trainer.env_params, trainer.data
    measured = timers(trainer.program, trainer.executable, arguments)
    trainer.progress.say(profile_line(measured))
    return {"timers": measured}


def timers(
    program: Program,
    executable: CompiledAlgorithm,
    arguments: tuple[RunnerState, PyTree, PyTree, PyTree],
) -> dict[str, float]:
    """Seconds of one iteration, under RLlib's names.

    Args:
        executable: compiled.
        arguments: (runner, hypers, env_params, data) that it starts from; none of them is changed.

    Returns:
        {"iteration": all of it, "env_runner_sampling_timer": sampling alone,
        "learner_update_timer": the rest}.

    Raises:
        UsageError: several processes train together.
    """
    if jax.process_count() > 1:
        raise UsageError(
            "profile measures one process alone: call it where several do not train together"
        )
    runner, _, env_params, _ = arguments
    sample = jax.jit(_sampling(program)).lower(runner, env_params).compile()
    places = placed((runner, env_params), sample.input_shardings[0])
    sampling = _median_seconds(functools.partial(sample, *places))
    once = _seconds(functools.partial(executable.chunk, *arguments, 1))
    count = min(CAPACITY, max(1, int(MEASURED_SECONDS / once)))
    iteration = min(
        _seconds(functools.partial(executable.chunk, *arguments, count)) / count for _ in range(2)
    )
    return {
        "iteration": iteration,
        "env_runner_sampling_timer": sampling,
        "learner_update_timer": max(0.0, iteration - sampling),
    }


def profile_line(seconds: dict[str, float]) -> str:
    """The measured seconds for people."""
    whole, sampling, learning = seconds.values()
    return (
        f"profile: an iteration takes {1e3 * whole:,.1f} ms: sampling {1e3 * sampling:,.1f} ms "
        f"({min(1.0, sampling / whole):.0%}), learning {1e3 * learning:,.1f} ms "
        f"({learning / whole:.0%})"
    )


def _sampling(program: Program) -> Callable[[RunnerState, PyTree], Any]:
    if program.devices == 1:
        return functools.partial(_collected, program.algorithm)
    steps_by_environment = PartitionSpec(None, AXIS)
    return jax.shard_map(
        functools.partial(_collected, program.split),
        mesh=mesh_of(program.devices),
        in_specs=(by_environment(program.algorithm.rollout_spec), PartitionSpec()),
        out_specs=Rollout(
            trajectories=PartitionSpec(None, None, AXIS),
            reached=steps_by_environment,
            episode_done=steps_by_environment,
            agent_steps=PartitionSpec(),
            hist_data=steps_by_environment,
            shown=steps_by_environment,
        ),
        check_vma=False,
    )


def _collected(algorithm: Algorithm, runner: RunnerState, env_params: PyTree) -> Rollout:
    return algorithm.collect(runner, env_params=env_params)[1]


def _median_seconds(function: Callable[[], Any]) -> float:
    """The median duration of repeated calls, the first one left out."""
    _seconds(function)
    times = []
    while len(times) < FEWEST or sum(times) < MEASURED_SECONDS:
        times.append(_seconds(function))
    return statistics.median(times)


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - begin
