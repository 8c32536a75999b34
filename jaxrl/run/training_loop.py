"""Training loop: compiled chunks of iterations, and the host's work after each of them."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from jaxrl.algorithms.base import RunnerState
from jaxrl.core.types import PyTree
from jaxrl.run.devices.mesh import copy_here
from jaxrl.run.every import chunk_length
from jaxrl.run.hooks import Chunk
from jaxrl.run.results import Result, iteration_results, recent_episodes
from jaxrl.run.stopping import last_iteration
from jaxrl.run.storage.run_state import Snapshot


class TrainingLoop:
    """Trains the state that a trainer holds, and makes results of it.

    After each chunk it calls the trainer's hooks. A chunk that ran past the iteration that ends
    training is computed again up to there, which gives the same numbers.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.seconds_per_update: float | None = None  # of the last chunk

    def train_until(self) -> None:
        """Iterations until one meets a criterion or the user asks to stop."""
        trainer, size = self.trainer, self.trainer.algorithm.num_env_steps
        stop, moments = trainer.criteria.stop, [hook.every for hook in trainer.hooks]
        # Where episodes were dropped, the last one moves on.
        while (trained := trainer.lifetime.training_iteration) < (
            last := last_iteration(stop, size, trainer.lifetime)
        ):
            if trainer.processes.stop_asked(trainer.interrupt):
                break
            # A chunk cannot be computed again where the episodes are held outside the program.
            most = 1 if trainer.algorithm.plays_outside else trainer.executable.capacity
            count = chunk_length(trained, self.seconds_per_update, most, moments)
            results = self.advance(min(count, last - trained))
            seconds_left = (last - trainer.lifetime.training_iteration) * self.seconds_per_update
            trainer.progress.show(results[-1], trainer.algorithm.headline_metrics, seconds_left)
            if results[-1]["done"]:
                break

    def advance(self, count: int) -> list[Result]:
        """At most `count` iterations, fewer if training ends before; their results, logged."""
        trainer, before = self.trainer, self.trainer.snapshot()
        first = self.seconds_per_update is None
        after, results, steps = self._train(before, count)
        if first:
            results[0]["timers"]["compile"] = trainer.compile_seconds
        results = results[: min(hook.keep(results) for hook in trainer.hooks)]
        if results:
            self._set_state(before, after if len(results) == count else None, results)
            chunk = Chunk(before, results, steps, trainer.snapshot)
            try:
                chunk.results = results = self._looked_at(before, results)
                for hook in trainer.hooks:
                    if not hook.is_record:
                        hook.after(chunk)
            finally:  # whatever a hook raises, what was trained is logged
                for hook in trainer.hooks:
                    if hook.is_record:
                        hook.after(chunk)
                trainer.keep_results(chunk.results)
        if not (results and results[-1]["done"]):
            trainer.health.check()
        return results

    def _train(self, before: Snapshot, count: int) -> tuple[RunnerState, list[Result], PyTree]:
        """The state after `count` iterations, their results, and the recorded steps."""
        trainer, began = self.trainer, time.perf_counter()
        after, metrics, steps = self._run_chunk(before, count)
        seconds, ended = trainer.processes.broadcast(
            lambda: (time.perf_counter() - began, time.time())
        )
        self.seconds_per_update = seconds / count
        lifetime = dataclasses.replace(trainer.lifetime)
        algorithm, num_env_steps = trainer.algorithm, trainer.executable.num_env_steps
        if num_env_steps is not None:
            algorithm = dataclasses.replace(algorithm, num_env_steps=num_env_steps)
        results = iteration_results(algorithm, metrics, count, seconds, lifetime)
        for result in results:
            result["timers"] |= trainer.executable.timers
            result.get("env_runners", {}).update(trainer.executable.counts)
        trainer.session.stamp(results, ended)
        trainer.tasks.report(results, trainer.env_params)
        return after, results, steps

    def _run_chunk(self, before: Snapshot, count: int) -> tuple[RunnerState, Any, PyTree]:
        trainer = self.trainer
        numbers = trainer.hypers, trainer.env_params, trainer.data
        return trainer.processes.run_chunk(trainer.executable, before.runner, *numbers, count)

    def _set_state(
        self, before: Snapshot, after: RunnerState | None, results: list[Result]
    ) -> None:
        """Sets the state after `results`: `after`, or computed again where a chunk ran past it."""
        if after is None:
            after, *_ = self._run_chunk(before, len(results))
        self.trainer.set_state(after, results[-1])
        results[-1].update(recent_episodes(jax.tree.map(copy_here, after.window)))

    def _looked_at(self, before: Snapshot, results: list[Result]) -> list[Result]:
        """The results up to the one that ends training, with what hooks add."""
        hooks = self.trainer.hooks

        def look() -> list[Result]:
            left = results
            for hook in hooks:
                left = left[: hook.look(left)]
            return left

        def look_at_the_end() -> list[Result]:
            for hook in hooks:
                hook.look_at_the_end(left[-1])
            return left

        left = self._from_leader(results, look)
        if len(left) < len(results):
            self._set_state(before, None, left)
        if left[-1]["done"]:
            left = self._from_leader(left, look_at_the_end)
        self.trainer.last_result = left[-1]
        return left

    def _from_leader(self, results: list[Result], make: Callable[[], list[Result]]) -> list[Result]:
        """Runs `make` in process 0 and sends the results it kept or changed to all processes."""
        changed = len(results) if self.trainer.callbacks.has("on_train_result") else 1

        def made() -> dict[str, Any]:
            kept = make()
            return {"count": len(kept), "results": kept[-changed:]}

        told = self.trainer.processes.broadcast(made)
        return results[: max(0, told["count"] - changed)] + told["results"]
