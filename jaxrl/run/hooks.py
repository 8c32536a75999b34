"""Hooks: the host's work after each chunk of a run, by one protocol and in one order."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax

from jaxrl.core.errors import UsageError
from jaxrl.core.trust import Kind
from jaxrl.core.types import PyTree
from jaxrl.run.every import Every
from jaxrl.run.health import Diverged, HealthMonitor, first_bad, undeclared_wait
from jaxrl.run.results import ITERATIONS, Result, Snapshot, lookup
from jaxrl.run.stopping import LIMITS, met

FIRST_AGAIN = 2**30  # numbers of sampled episodes start again there


@dataclasses.dataclass
class Chunk:
    """Iterations that were computed together."""

    results: list[Result]  # of the iterations that count; of a trial's perhaps the last ones alone
    count: int  # iterations that count
    now: Callable[[], Snapshot]  # reads the present state of training
    before: Snapshot | None = None  # the state that they began with; None: a trial's is not kept
    steps: PyTree = None  # the recorded steps of all its iterations

    def cut(self, number: int) -> None:
        """Counts the first `number` of the results alone."""
        self.count -= len(self.results) - number
        self.results = self.results[:number]


class Hook:
    """Work of the host after each chunk; every method may be left out.

    Those of the setting `hooks` have the trainer as `self.trainer`, and are called after callbacks.

    A method is called for all hooks of a run, in their order, before the next method is:

    1. `keep`, which sees the numbers alone, and may add to them. Then the state after the
       iterations that count is set.
    2. `look`, in process 0. Where fewer results count after it, that state is computed again.
    3. `look_at_the_end`, in process 0, if training ends.
    4. `after`; that of a hook with `is_record` also where one of these methods failed.
    """

    name = ""  # the key of its state in checkpoints
    every = Every()  # chunks end at these moments; whoever acts then asks `every.is_due(iteration)`
    is_record = False  # whether it keeps what was trained, whatever another hook raises
    ending = ""  # the words for how it has ended training, if it has
    adds_to_each = False  # whether `look` may change each result; a user's is taken to do so

    def keep(self, results: list[Result]) -> int:
        """The number of a chunk's results that count; the state becomes the one after the last.

        Training goes on from there, unless `look` or a criterion sets that result's "done".
        """
        return len(results)

    def look(self, results: list[Result]) -> int:
        """The number of results that count, which it may add to; fewer only to end training."""
        return len(results)

    def look_at_the_end(self, result: Result) -> None:
        """May add to the result that training ends with, whose state is at hand."""

    def after(self, chunk: Chunk) -> None:
        """Acts on the results that count."""

    def state(self) -> Any:
        """The data that a checkpoint holds of it, anything that JSON can hold; None: nothing."""

    def restore(self, state: Any) -> None:
        """Takes back what `state` gave, when a run is resumed."""


def _is_hook(found: Any) -> bool:
    return isinstance(found, Hook) or (isinstance(found, type) and issubclass(found, Hook))


HOOK = Kind("hook", "jaxrl.hooks", "a class derived from jaxrl.Hook", _is_hook)


def states_of(hooks: Iterable[Hook]) -> dict[str, Any]:
    """The states of hooks by their names, as a checkpoint holds them."""
    return {hook.name: state for hook in hooks if (state := hook.state()) is not None}


class NoCallbacks(Hook):
    """The host hooks of a configuration without callbacks, in place of `HostCallbacks`."""

    name = "callbacks"
    add_to_results = take_episodes = have_ended = False
    evaluate = None

    def __init__(self, is_last: Callable[[Result], bool]):
        self.is_last = is_last

    def look(self, results: list[Result]) -> int:
        """Training ends with the first result that meets a criterion."""
        for i, result in enumerate(results, start=1):
            result["done"] = self.is_last(result)
            if result["done"]:
                return i
        return len(results)

    def call(self, hook: str, value: Any = None) -> None:
        """Calls nothing."""

    def state(self) -> list[Any]:
        return []


class StopCriteria(Hook):
    """Ends training with the first result that meets a criterion."""

    def __init__(self):
        self.stop: Mapping[str, float] = {}

    def are_met(self, result: Result) -> bool:
        return met(self.stop, result) is not None

    def keep(self, results: list[Result]) -> int:
        reached = (i for i, result in enumerate(results, start=1) if self.are_met(result))
        return next(reached, len(results))

    def line(self, result: Result | None) -> str | None:
        """The words for the first criterion that a result has reached, or None."""
        path = met(self.stop, result)
        if path is None:
            return None
        return f"{path}={lookup(result, path):g} has reached the stop criterion {self.stop[path]:g}"

    def end_line(self, result: Result, hooks: Sequence[Hook]) -> str | None:
        """The words for what ended training with a result; None for the steps it was to take."""
        if met(self.stop, result) in LIMITS:
            return None
        endings = (hook.ending for hook in reversed(hooks) if hook.ending)  # a later one cuts
        return self.line(result) or next(endings, None)


class Evaluating(Hook):
    """Evaluates the state after a chunk, if that is due, and the state that training ends with."""

    def __init__(
        self, every: Every, evaluate: Callable[[], Result], is_last: Callable[[Result], bool]
    ):
        self.every, self.evaluate, self.is_last = every, evaluate, is_last

    def look(self, results: list[Result]) -> int:
        self._evaluate(results[-1], at_the_end=self.is_last(results[-1]))
        return len(results)

    def look_at_the_end(self, result: Result) -> None:
        self._evaluate(result, at_the_end=True)

    def _evaluate(self, result: Result, *, at_the_end: bool) -> None:
        is_due = self.every.is_due(result[ITERATIONS], at_the_end=at_the_end)
        if is_due and "evaluation" not in result:
            began = time.perf_counter()
            result["evaluation"] = self.evaluate()
            result["timers"]["evaluation"] = time.perf_counter() - began


class Sampling(Hook):
    """Plays episodes with the policies after a chunk, for callbacks that take them."""

    def __init__(self, trainer: Any):
        self.trainer, self.every = trainer, trainer.settings.samplings

    def look(self, results: list[Result]) -> int:
        trainer, number = self.trainer, self.trainer.settings.sampling_duration
        iteration = results[-1][ITERATIONS]
        if trainer.callbacks.take_episodes and self.every.is_due(iteration):
            which = {"seed": trainer.config.seed, "first": iteration * number % FIRST_AGAIN}
            for episode in trainer.sample(number, env_args={}, **which):
                trainer.callbacks.take(episode)
        return len(results)


class Remembering(Hook):
    """Keeps the results in the memory of a trainer that logs none."""

    is_record = True

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def after(self, chunk: Chunk) -> None:
        self.trainer.keep_results(chunk.results)


class Health(Hook):
    """Ends training before an iteration that broke it, and warns of problems that persist."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.monitor = HealthMonitor(
            trainer.config, trainer.algorithm.diagnostics, trainer.settings.score_attribute
        )
        # (iterations before it, ...) of the chunk at hand
        self._broken: tuple[int, type[Exception], str] | None = None

    def keep(self, results: list[Result]) -> int:
        waits = undeclared_wait(results)
        bad = first_bad(results, self.trainer.algorithm.root_cause_metrics)
        index, why = min(filter(None, (waits, bad)), default=(len(results), ""), key=lambda i: i[0])
        error = UsageError if waits and why is waits[1] else Diverged
        self._broken = (index, error, why) if why else None
        return index

    def after(self, chunk: Chunk) -> None:
        trainer, monitor = self.trainer, self.monitor
        warnings = monitor.look(chunk.results)
        if jax.process_count() == 1:
            runners = chunk.before.runner, trainer.runner
            warnings += monitor.look_at_observations(trainer.algorithm.grouping, *runners)
        for warning in warnings:
            trainer.progress.say(f"warning: {warning}")

    def check(self, chunk: Chunk) -> None:
        """Ends training where an iteration broke it, unless it ended before.

        Raises:
            UsageError: an agent waited in an environment that has no `acting_agents`.
            Diverged: a number is not finite.
        """
        is_done = bool(chunk.results) and chunk.results[-1]["done"]
        if self._broken is None or is_done or chunk.count < self._broken[0]:
            return
        good, (_, error, bad) = self.trainer.lifetime.training_iteration, self._broken
        why = f"iteration {good + 1}: {bad}; the state after iteration {good} is kept"
        if error is Diverged and not self.trainer.algorithm.plays_outside:  # else it is played once
            from jaxrl.run.divergence import with_operation

            why = with_operation(why, self.trainer)
        raise error(why)


class Output(Hook):
    """The episode output of a trainer; this one writes nothing."""

    is_record = True
    num_recorded = 0  # environments of each device, the first ones
    lost: str | None = None  # why no more episodes are written
    position: dict[str, Any] | None = None  # of the written files, for `resume`

    def resume(self, position: dict[str, Any] | None) -> None:
        """Takes up a run's files, cut back to those at the position of its checkpoint."""

    def flush(self) -> Future | None:
        """Has all episodes so far written to files: the future position, if there is an output."""

    def finish(self) -> None:
        """Writes what waits; returns when it is written."""

    def close(self) -> None:
        """Writes what waits, and nothing more."""
