"""The loop of training: compiled chunks of iterations, and the host's work after each of them.

`advance` serves a run, one member without the axis S, and the S trials of one program alike.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import jax

from jaxrl.algorithms.base import RunnerState
from jaxrl.core.types import PyTree
from jaxrl.run.devices.mesh import copy_here
from jaxrl.run.every import Every, chunk_length
from jaxrl.run.hooks import Chunk, Hook
from jaxrl.run.processes import Processes
from jaxrl.run.results import Result, Snapshot, iteration_results, recent_episodes
from jaxrl.run.stopping import last_iteration


class Member(Protocol):
    """A training of its own in the loop: a run, or a trial."""

    hooks: Sequence[Hook]
    processes: Processes
    last_result: Result | None


class Program(Protocol):
    """The program that trains some members together, and their present state."""

    members: Sequence[Member]
    capacity: int  # iterations of one chunk at most
    iteration: int  # the last one
    iterations_left: int  # until all members are done
    seconds_per_update: float | None  # in the last chunk

    def compute(self, count: int) -> list[Chunk]:
        """At most `count` iterations of each member; a chunk without results for one that is done.

        The state is only settled afterwards.
        """

    def settle(self, chunks: Sequence[Chunk]) -> None:
        """Sets the state after the iterations of each chunk that count, and the last results.

        A chunk that ran past them is computed again up to there, which gives the same numbers.
        """

    def conclude(self, chunks: Sequence[Chunk]) -> None:
        """Is called after the hooks: members whose last result is done train no further."""

    def stop_asked(self) -> bool:
        """Returns whether training is to stop before the next chunk."""


def train(program: Program, moments: Iterable[Every]) -> Iterator[list[Chunk]]:
    """Chunk after chunk, none past one of the moments, until all is trained or a stop is asked."""
    while (left := program.iterations_left) > 0 and not program.stop_asked():
        timing = program.iteration, program.seconds_per_update, program.capacity
        yield advance(program, min(chunk_length(*timing, moments), left))


def advance(program: Program, count: int) -> list[Chunk]:
    """At most `count` iterations, with the moments of the hooks; fewer of members that end before.

    The order is that of the class `Hook`. Hooks of one member do not meet those of another.
    """
    chunks = program.compute(count)
    pairs = [pair for pair in zip(program.members, chunks, strict=True) if pair[1].results]
    for member, chunk in pairs:
        chunk.cut(min(hook.keep(chunk.results) for hook in member.hooks))
    program.settle(chunks)
    pairs = [(member, chunk) for member, chunk in pairs if chunk.results]
    try:
        counts = [chunk.count for chunk in chunks]
        for member, chunk in pairs:
            _look(member, chunk)
        if [chunk.count for chunk in chunks] != counts:
            program.settle(chunks)
        for member, chunk in pairs:
            _look_at_the_end(member, chunk)
            member.last_result = chunk.results[-1]
        _call_after(pairs, are_records=False)
    finally:  # whatever a hook raises, what was trained is logged
        _call_after(pairs, are_records=True)
    program.conclude(chunks)
    return chunks


def _call_after(pairs: Iterable[tuple[Member, Chunk]], *, are_records: bool) -> None:
    """Calls `after`; all records are called before the first error of theirs is raised."""
    errors = []
    for member, chunk in pairs:
        for hook in member.hooks:
            if hook.is_record == are_records and (are_records or not errors):
                try:
                    hook.after(chunk)
                except BaseException as error:
                    errors.append(error)
    if errors:
        raise errors[0]


def _look(member: Member, chunk: Chunk) -> None:
    """Cuts a chunk to the results that count by its hooks' `look`, with what these add."""
    results = chunk.results

    def look() -> list[Result]:
        left = results
        for hook in member.hooks:
            left = left[: hook.look(left)]
        return left

    chunk.cut(len(left := _from_leader(member, results, look)))
    chunk.results = left


def _look_at_the_end(member: Member, chunk: Chunk) -> None:
    results = chunk.results

    def look() -> list[Result]:
        for hook in member.hooks:
            hook.look_at_the_end(results[-1])
        return results

    if results[-1]["done"]:
        chunk.results = _from_leader(member, results, look)


def _from_leader(
    member: Member, results: list[Result], make: Callable[[], list[Result]]
) -> list[Result]:
    """Runs `make` in process 0 and sends the results it kept or changed to all processes."""
    changed = len(results) if any(hook.adds_to_each for hook in member.hooks) else 1

    def made() -> dict[str, Any]:
        left = make()
        return {"count": len(left), "results": left[-changed:]}

    sent = member.processes.broadcast(made)
    return results[: max(0, sent["count"] - changed)] + sent["results"]


class RunLoop:
    """The program of a run: trains the state that its trainer holds, and makes results of it."""

    def __init__(self, trainer: Any):
        self.trainer, self.members = trainer, (trainer,)
        self.seconds_per_update: float | None = None  # in the last chunk
        # The state that was computed last and is not set yet, and after how many iterations it is.
        self._computed: tuple[RunnerState | None, int] = None, 0

    @property
    def capacity(self) -> int:
        # A chunk cannot be computed again where the episodes are held outside the program.
        return 1 if self.trainer.algorithm.plays_outside else self.trainer.executable.capacity

    @property
    def iteration(self) -> int:
        return self.trainer.lifetime.training_iteration

    @property
    def iterations_left(self) -> int:
        """The iterations to the last one, which moves on where episodes are dropped."""
        trainer = self.trainer
        size, lifetime = trainer.algorithm.num_env_steps, trainer.lifetime
        return last_iteration(trainer.criteria.stop, size, lifetime) - self.iteration

    def stop_asked(self) -> bool:
        return self.trainer.processes.stop_asked(self.trainer.interrupt)

    def train_once(self) -> Result:
        """One iteration; its result."""
        (chunk,) = advance(self, 1)
        return chunk.results[-1]

    def train_until(self) -> None:
        """Iterations until one meets a criterion or the user asks to stop."""
        trainer = self.trainer
        for (chunk,) in train(self, [hook.every for hook in trainer.hooks]):
            seconds_left = self.iterations_left * self.seconds_per_update
            result = chunk.results[-1]
            trainer.progress.show(result, trainer.algorithm.headline_metrics, seconds_left)
            if result["done"]:
                if line := trainer.criteria.end_line(result, trainer.hooks):
                    trainer.progress.keep()
                    trainer.progress.say(line)
                break

    def compute(self, count: int) -> list[Chunk]:
        trainer, before = self.trainer, self.trainer.snapshot()
        first = self.seconds_per_update is None
        after, results, steps = self._train(before, count)
        if first:
            results[0]["timers"]["compile"] = trainer.compile_seconds
        self._computed = after, count
        return [Chunk(results, count, trainer.snapshot, before, steps)]

    def settle(self, chunks: Sequence[Chunk]) -> None:
        (chunk,), (after, count) = chunks, self._computed
        self._computed = None, 0
        if not chunk.results:
            return
        if count != chunk.count:
            after, *_ = self._run_chunk(chunk.before, chunk.count)
        self.trainer.set_state(after, chunk.results[-1])
        chunk.results[-1].update(recent_episodes(jax.tree.map(copy_here, after.window)))

    def conclude(self, chunks: Sequence[Chunk]) -> None:
        self.trainer.health.check(*chunks)

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
        return after, results, steps

    def _run_chunk(self, before: Snapshot, count: int) -> tuple[RunnerState, Any, PyTree]:
        trainer = self.trainer
        numbers = trainer.hypers, trainer.env_params, trainer.data
        return trainer.processes.run_chunk(trainer.executable, before.runner, *numbers, count)
