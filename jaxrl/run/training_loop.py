"""Training loop: compiled chunks of iterations, and the host's work after each of them."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxrl.algorithms.base import RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.rollout.episode_callbacks import EPISODE_HOOK
from jaxrl.run.devices.mesh import copy_here
from jaxrl.run.every import chunk_length
from jaxrl.run.health import Diverged, first_bad, undeclared_wait
from jaxrl.run.results import ITERATIONS, Result, iteration_results, recent_episodes
from jaxrl.run.stopping import last_iteration, met
from jaxrl.run.storage.run_state import Snapshot

FIRST_AGAIN = 2**30  # numbers of sampled episodes start again there


class TrainingLoop:
    """Trains the state that a trainer holds, and makes results of it.

    After each chunk: health, evaluation, callbacks, logs and checkpoints. A chunk that ran past the
    iteration that ends training is computed again up to there, which gives the same numbers.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.seconds_per_update: float | None = None  # of the last chunk

    def train_until(self, stop: Mapping[str, float]) -> None:
        """Iterations until one meets a criterion or the user asks to stop."""
        trainer, size = self.trainer, self.trainer.algorithm.num_env_steps
        # Where episodes were dropped, the last one moves on.
        while (trained := trainer.lifetime.training_iteration) < (
            last := last_iteration(stop, size, trainer.lifetime)
        ):
            if trainer.processes.stop_asked(trainer.interrupt):
                break
            # A chunk cannot be computed again where the episodes are held outside the program.
            most = 1 if trainer.algorithm.plays_outside else trainer.executable.capacity
            settings, checkpoints = trainer.settings, trainer.keeping.every
            moments = settings.evaluations, settings.samplings, trainer.tasks.every, checkpoints
            count = chunk_length(trained, self.seconds_per_update, most, moments)
            results = self.advance(min(count, last - trained), stop)
            seconds_left = (last - trainer.lifetime.training_iteration) * self.seconds_per_update
            trainer.progress.show(results[-1], trainer.algorithm.headline_metrics, seconds_left)
            if results[-1]["done"]:
                break

    def advance(self, count: int, stop: Mapping[str, float]) -> list[Result]:
        """At most `count` iterations, fewer if one meets a criterion; their results, logged."""
        trainer, before = self.trainer, self.trainer.snapshot()
        first = self.seconds_per_update is None
        after, results, steps = self._train(before, count)
        waits = undeclared_wait(results)
        broken = first_bad(results, trainer.algorithm.root_cause_metrics)
        bad = min(filter(None, (waits, broken)), key=lambda found: found[0], default=None)
        results = results[: bad[0] if bad else None]
        if results and first:
            results[0]["timers"]["compile"] = trainer.compile_seconds
        reached = (i for i, result in enumerate(results, start=1) if met(stop, result))
        ends = next(reached, len(results))
        if ends:
            results = self._set_state(before, after if ends == count else None, results[:ends])
            try:
                results = self._evaluate_and_call_back(before, results, stop)
                self._set_task(results[-1])
            finally:  # whatever a callback raises, what was trained is logged
                trainer.output.write(steps, len(results), before)
                trainer.keeping.chunk(before, results, trainer.snapshot())
                trainer.keep_results(results)
        if bad and not (results and results[-1]["done"]):
            if bad is waits:
                raise UsageError(self._what_is_kept(bad[1]))
            raise Diverged(self._why(bad[1]))
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
    ) -> list[Result]:
        """Sets the state after `results`: `after`, or computed again where a chunk ran past it."""
        if after is None:
            after, *_ = self._run_chunk(before, len(results))
        self.trainer.set_state(after, results[-1])
        results[-1].update(recent_episodes(jax.tree.map(copy_here, after.window)))
        return results

    def _evaluate_and_call_back(
        self, before: Snapshot, results: list[Result], stop: Mapping[str, float]
    ) -> list[Result]:
        """The results up to the one that ends training, with what evaluation and callbacks add."""
        trainer = self.trainer
        told = self._from_leader(results, lambda: self._until_done(results, stop))
        if len(told) < len(results):
            self._set_state(before, None, told)
        if told[-1]["done"]:  # a callback may have said so
            told = self._from_leader(told, lambda: self._evaluate_if_due(told, at_the_end=True))
        trainer.last_result = told[-1]
        warnings = trainer.watch.look(told)
        if jax.process_count() == 1:
            warnings += trainer.watch.look_at_observations(
                trainer.algorithm.grouping, before.runner, trainer.runner
            )
        for warning in warnings:
            trainer.progress.say(f"warning: {warning}")
        return told

    def _from_leader(self, results: list[Result], make: Callable[[], list[Result]]) -> list[Result]:
        """What `make`, which process 0 alone calls, leaves of the results and adds to them."""
        changed = len(results) if self.trainer.hooks.has("on_train_result") else 1

        def made() -> dict[str, Any]:
            kept = make()
            return {"count": len(kept), "results": kept[-changed:]}

        told = self.trainer.processes.broadcast(made)
        return results[: max(0, told["count"] - changed)] + told["results"]

    def _until_done(self, results: list[Result], stop: Mapping[str, float]) -> list[Result]:
        """The results up to the first that is done."""
        self._evaluate_if_due(results, at_the_end=met(stop, results[-1]) is not None)
        self._sample_if_due(results[-1][ITERATIONS])
        for i, result in enumerate(results, start=1):
            self.trainer.hooks.call("on_train_result", result)
            result["done"] = bool(result["done"] or met(stop, result))
            if result["done"]:
                return results[:i]
        return results

    def _evaluate_if_due(self, results: list[Result], *, at_the_end: bool) -> list[Result]:
        """Evaluates the state that `results` led to, if that is due and not done yet."""
        result = results[-1]
        evaluations = self.trainer.settings.evaluations
        due = evaluations.is_due(result[ITERATIONS], at_the_end=at_the_end)
        if due and "evaluation" not in result:
            began = time.perf_counter()
            result["evaluation"] = self.trainer.evaluate()
            result["timers"]["evaluation"] = time.perf_counter() - began
        return results

    def _sample_if_due(self, iteration: int) -> None:
        """Plays episodes with the present policies, for hooks that take them."""
        trainer, settings = self.trainer, self.trainer.settings
        if not (trainer.hooks.has(EPISODE_HOOK) and settings.samplings.is_due(iteration)):
            return
        number = settings.sampling_duration
        which = {"seed": trainer.config.seed, "first": iteration * number % FIRST_AGAIN}
        for episode in trainer.sample(number, env_args={}, **which):
            trainer.hooks.episode_ended(episode)

    def _set_task(self, result: Result) -> None:
        """The environment's numbers for the next iterations, as `env_task_fn` says, if it is due.

        Due or not depends on the iteration alone, so that a resumed run gets the same tasks.
        """
        trainer = self.trainer
        if not trainer.tasks.every.is_due(result[ITERATIONS]):
            return
        values = trainer.processes.broadcast(
            lambda: trainer.tasks.next_values(result, trainer.env_params)
        )
        if values is not None:
            trainer.env_params = jax.tree.unflatten(jax.tree.structure(trainer.env_params), values)

    def _why(self, bad: str) -> str:
        """What is known of a bad number in the iteration after the state that is kept."""
        trainer, text = self.trainer, self._what_is_kept(bad)
        if trainer.algorithm.plays_outside:
            return text  # the iteration cannot be played again
        from jaxrl.run.divergence import find_nan, with_source

        if jax.process_count() == 1 and not trainer.config.is_offline:
            text = with_source(text, trainer.config, trainer.runner, trainer.env_params)
        if not trainer.settings.debug:
            return f"{text}; --debug names the operation"
        trainer.progress.say("running the iteration again, uncompiled, to find the operation ...")
        runner = trainer.processes.gather(trainer.runner)
        found = find_nan(
            trainer.algorithm, runner, trainer.hypers, trainer.env_params, trainer.data
        )
        return f"{text}\n{found}"

    def _what_is_kept(self, bad: str) -> str:
        good = self.trainer.lifetime.training_iteration
        return f"iteration {good + 1}: {bad}; the state after iteration {good} is kept"
