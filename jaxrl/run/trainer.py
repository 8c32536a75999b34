"""Training on the host's clock: chunks of about a second, with results, stop criteria and Ctrl-C between them."""

import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from jaxrl.core.env import strongly_typed
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.loop.runner import Runner
from jaxrl.run.console import Progress
from jaxrl.run.folder import create, new_run_folder
from jaxrl.run.loggers import JsonLines
from jaxrl.run.program import CAPACITY, Executable, program_of
from jaxrl.run.results import Lifetime, Result, check_stop, iteration_results, met, result_names

CHUNK_SECONDS = 1.0  # between two looks at the host: the live line, the logs, the stop criteria
ITERATIONS = "training_iteration"
LIFETIME_STEPS = ("num_env_steps_sampled_lifetime", "env_runners/num_env_steps_sampled_lifetime")


class Trainer:
    """Trains what a configuration describes, as `make_train` does and with the same numbers for the same key.

    Args:
        config: a configuration such as `PPOConfig`: anything with `build()`, `static()`, `hypers()`, `setup()`.
        run_dir: the run's folder, which must not exist yet; "auto" makes `runs/<env>/<time>-s<seed>`, None
            writes nothing.
        env_params: the environment's numbers, if not the configuration's.
        quiet: print nothing.

    Raises:
        UsageError: settings that cannot work, or a folder that exists or cannot be written; before any compiling.
    """

    def __init__(
        self, config: Any, *, run_dir: str | Path | None = "auto", env_params: PyTree = None, quiet: bool = False
    ):
        if not hasattr(config, "build"):
            raise UsageError(f"Trainer takes a configuration such as PPOConfig(env='arena'), not {config!r:.60}")
        self.config = config
        setup = config.setup()
        self.program = program_of(config.static(), setup.env)
        self.algorithm = self.program.algorithm
        self.hypers = config.hypers()
        self.env_params = strongly_typed(setup.env_params if env_params is None else env_params)
        self.executable: Executable | None = None
        self.lifetime = Lifetime()
        self.progress = Progress(quiet=quiet)
        self.interrupted = False
        self.compile_seconds = 0.0
        self.last_result: Result | None = None
        self.run_dir = None if run_dir is None else Path(run_dir)
        if run_dir == "auto":
            self.run_dir = new_run_folder(config.env_name, config.seed)
        if self.run_dir is not None:
            create(self.run_dir, config.to_dict())
        self._logs = [] if self.run_dir is None else [JsonLines(self.run_dir / "metrics.jsonl")]
        self._runner: Runner | None = None
        self._seconds_per_update: float | None = None

    @property
    def runner(self) -> Runner:
        """The state of training; compiles and initialises when first asked for."""
        if self._runner is None:
            self._prepare({})
            self._runner = self.executable.start(self._key(), self.hypers, self.env_params)
        return self._runner

    def train(self) -> Result:
        """One iteration; returns its result tree."""
        return self._advance(1, {})[-1]

    def fit(self, stop: Mapping[str, float] | None = None) -> Result | None:
        """Trains until a criterion holds, or Ctrl-C; returns the last iteration's result, None if there is none.

        Training ends in the very iteration that met the criterion: a chunk that ran past it is computed again up to
        there, which gives the same numbers.

        Args:
            stop: {path in the result tree: least value}, read for each iteration. Unless it limits the steps or the
                iterations itself, the configuration's `total_env_steps` does.
        """
        stop = {path: least for path, least in (stop or {}).items() if least != math.inf}
        if not set(stop) & {ITERATIONS, *LIFETIME_STEPS}:
            stop[ITERATIONS] = self.config.num_updates
        self._prepare(stop)
        last = self._last_iteration(stop)
        if self.lifetime.training_iteration >= last:
            self.progress.say(f"nothing to do: {self.lifetime.training_iteration} of {last} iterations are trained")
        with self._watched():
            while not self.interrupted and self.lifetime.training_iteration < last:
                results = self._advance(min(self._chunk_length(), last - self.lifetime.training_iteration), stop)
                self.progress.show(results[-1], self._seconds_left(last))
                if results[-1]["done"]:
                    break
        if self.interrupted:
            self.progress.say("stopped by Ctrl-C; what has been learned is kept")
        return self.last_result

    def _key(self) -> jax.Array:
        return jax.random.key(self.config.seed, impl="threefry2x32")

    def _prepare(self, stop: Mapping[str, float]) -> None:
        """Traces, checks the stop criteria, and compiles, each only if that was not done before."""
        begin = time.perf_counter()
        self.executable = self.program.executable(self._key(), self.hypers, self.env_params)
        traced = time.perf_counter() - begin
        check_stop(stop, result_names(self.algorithm, self.executable.metrics))
        if not self.executable.compiled:
            self.progress.say(f"compiling rollout and update in one program for {device_name()} ...")
            compiled = self.executable.compile()
            self.compile_seconds += traced + compiled
            self.progress.say(f"compiled in {traced + compiled:.1f} s (tracing {traced:.1f} s)")

    def _advance(self, count: int, stop: Mapping[str, float]) -> list[Result]:
        """At most `count` iterations, fewer if one meets a criterion; their results, logged."""
        before, lifetime = self.runner, dataclasses.replace(self.lifetime)
        begin = time.perf_counter()
        after, metrics = self.executable.chunk(before, self.hypers, self.env_params, count)
        self._seconds_per_update = seconds = (time.perf_counter() - begin) / count
        results = iteration_results(self.algorithm, metrics, count, seconds * count, lifetime)
        ends = [i for i, result in enumerate(results, start=1) if met(stop, result)]
        if ends:
            if ends[0] < count:
                after, _ = self.executable.chunk(before, self.hypers, self.env_params, ends[0])
                lifetime = dataclasses.replace(self.lifetime)
                results = iteration_results(self.algorithm, metrics, ends[0], seconds * ends[0], lifetime)
            results[-1]["done"] = True
        if self.lifetime.training_iteration == 0:
            results[0]["timers"]["compile"] = self.compile_seconds
        self._runner, self.lifetime, self.last_result = after, lifetime, results[-1]
        for log in self._logs:
            log.write(results)
        return results

    def _last_iteration(self, stop: Mapping[str, float]) -> int:
        """The iteration that training does not go beyond."""
        limits = [stop.get(ITERATIONS, math.inf)]
        limits += [stop.get(name, math.inf) / self.algorithm.num_env_steps for name in LIFETIME_STEPS]
        return math.ceil(min(limits))

    def _chunk_length(self) -> int:
        """Iterations of about `CHUNK_SECONDS`; one by itself first, to see how long it takes."""
        if self._seconds_per_update is None:
            return 1
        return max(1, min(CAPACITY, int(CHUNK_SECONDS / self._seconds_per_update)))

    def _seconds_left(self, last: int) -> float:
        return (last - self.lifetime.training_iteration) * self._seconds_per_update

    @contextmanager
    def _watched(self):
        """Shows progress, and lets the first Ctrl-C end the chunk at hand instead of breaking it off."""
        self.interrupted = False
        in_main_thread = threading.current_thread() is threading.main_thread()
        previous = signal.signal(signal.SIGINT, self._interrupt) if in_main_thread else None
        self.progress.open()
        try:
            yield
        finally:
            self.progress.close()
            if in_main_thread:
                signal.signal(signal.SIGINT, previous)

    def _interrupt(self, signum, frame) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.progress.say("Ctrl-C: stopping after the iterations at hand; once more stops at once")


def device_name() -> str:
    """Where programs run, as a person says it."""
    device = jax.devices()[0]
    return (
        f"the CPU ({os.cpu_count()} cores)"
        if device.platform == "cpu"
        else f"{device.platform.upper()} ({device.device_kind})"
    )
