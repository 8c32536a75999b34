"""Checkpoint policy: which states of a run are written, and when; the best one among them."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.run.every import Every
from jaxrl.run.health import has_constant_sum, is_same
from jaxrl.run.hooks import Chunk, Hook
from jaxrl.run.results import RETURN, Result, Snapshot, lookup

if TYPE_CHECKING:
    from jaxrl.run.recorder import Recorder

FIRST_SECONDS = 10.0  # to the first checkpoint, at most: a kill soon after the start loses little


class BestState:
    """The best state so far: the one whose policies earned the score, kept until it is written.

    A result under "evaluation/" measures the state that the chunk ended in; any other one measures
    the state that the iteration began with, whose policies played it. So the first result of a
    chunk scores the end of the last one. No state is best as long as the agents' returns have had
    one sum in all episodes, as in a game.

    Args:
        attribute: the path in the result tree; the higher the better.

    Attributes:
        value: to be beaten.
    """

    def __init__(self, attribute: str):
        self.attribute, self.value = attribute, float("-inf")
        self._unsaved: tuple[Snapshot, dict[str, Any]] | None = None
        self._first: float | None = None  # the first value
        self._varies = not attribute.endswith(RETURN)

    def update(self, before: Snapshot, results: list[Result], after: Snapshot) -> None:
        """Takes a chunk's results, between the states `before` and `after` it."""
        is_evaluation = self.attribute.startswith("evaluation/")
        snapshot, result = (after, results[-1]) if is_evaluation else (before, results[0])
        value = lookup(result, self.attribute)
        try:
            value = float(value)
        except (TypeError, ValueError):  # there is none yet, or a callback's own value of that name
            return
        self._varies = self._varies or self._is_news(value, result)
        if self._varies and value > self.value and snapshot.result is not None:
            self.value = value
            self._unsaved = snapshot, {"metric": self.attribute, "value": value}

    def _is_news(self, value: float, result: Result) -> bool:
        """Returns whether a sum of returns is no longer the only one that there has been."""
        # Sampled actions tell more: an evaluation's likeliest ones may repeat an episode.
        sampled = result if lookup(result, RETURN) is not None else result.get("evaluation", {})
        if not has_constant_sum(sampled.get("env_runners", {})):
            return True
        is_resumed = self._first is None and self.value > float("-inf")
        self._first = value if self._first is None else self._first
        return is_resumed or not is_same(value, self._first)

    def pop(self) -> tuple[Snapshot, dict[str, Any]] | None:
        """(snapshot, score) of a best state that is not written yet, once."""
        unsaved, self._unsaved = self._unsaved, None
        return unsaved


class CheckpointManager(Hook):
    """Logs results and decides what is written, alike in all processes; process 0 writes it.

    Args:
        recorder: writes; in process 0, if the run has a folder.
        writes: whether it has one; without one nothing is written.
    """

    is_record = True

    def __init__(self, trainer: Any, recorder: "Recorder | None", *, writes: bool):
        self.trainer, self.recorder, self.writes = trainer, recorder, writes
        self.settings, self.processes = trainer.settings, trainer.processes
        self.failed: str | None = None  # why the last checkpoint is missing, after `close`
        self.asked = False  # whether a callback wants a checkpoint, to which all must contribute
        self.saved_iteration = self.concluded = trainer.lifetime.training_iteration
        self.every = Every(self.settings.checkpoint_frequency)
        # When the first chunk was finished: what came before is mostly compiling.
        self.began = math.inf
        self._count_seconds()

    def after(self, chunk: Chunk) -> None:
        """Logs the results, and writes a checkpoint if one is due."""
        if not self.writes or self.processes.apart:
            return
        # The caller may change the originals.
        results = [_copied(result) for result in chunk.results]
        is_due = self.processes.broadcast(lambda: self._record(results))
        now = chunk.now()._replace(result=results[-1])  # a hook's `state` may fail
        self.trainer.best.update(chunk.before, results, now)
        if is_due:
            self.save(now)
        self.processes.broadcast(self._tell_written)

    def _record(self, results: list[Result]) -> bool:
        """Logs a chunk's results; returns whether a checkpoint is due."""
        self.recorder.record(results)
        self.began = min(self.began, time.monotonic())
        iteration = self.trainer.lifetime.training_iteration
        return self.asked or self.recorder.remade or self.every.is_due(iteration)

    def _count_seconds(self) -> None:
        """Sets the seconds to the next checkpoint: soon after the start, those trained so far."""
        self.every.restart()
        if (interval := self.settings.checkpoint_interval_s) is not None:
            early = max(FIRST_SECONDS, self.every.since - self.began)
            self.every.seconds = min(interval, early)

    def save(self, now: Snapshot, *, wait: bool = False) -> Path | None:
        """Writes a checkpoint, and a new best one if any; with `wait` returns its folder."""
        if not self.writes:
            return None
        if self.processes.inside:  # a callback in process 0: the others are not here
            self.asked = True
            return None
        gather = self.processes.gather
        now = now._replace(runner=gather(now.runner))
        best = self.trainer.best.pop()
        if best is not None:
            best = best[0]._replace(runner=gather(best[0].runner)), best[1]
        self.asked = False
        self.saved_iteration = now.lifetime.training_iteration
        self._count_seconds()
        return self.processes.broadcast(lambda: self._write(now, best, wait))

    def _write(
        self, now: Snapshot, best: tuple[Snapshot, dict[str, Any]] | None, wait: bool
    ) -> Path | None:
        self.recorder.save(now, episodes=self.trainer.output.flush())
        best = best or self.recorder.unwritten
        self.recorder.unwritten = None
        if best is not None:
            self.recorder.save(best[0], score=best[1])
        if wait:
            self.recorder.wait()
            if self.recorder.failed:
                raise OSError(self.recorder.failed)
        return self._tell_written()

    def conclude(self, now: Snapshot, *, pictures: bool = True) -> None:
        """Writes the last checkpoint and then the pictures, at the end of training."""
        iteration = now.lifetime.training_iteration
        if not self.writes or self.processes.apart:
            return
        if now.result is None or iteration == self.concluded:
            return
        if self.processes.broadcast(lambda: self._is_unsaved(iteration)):
            self.save(now)
        self.processes.broadcast(lambda: self.recorder.finish(now, pictures=pictures))
        self.concluded = iteration
        self.processes.broadcast(self._tell_written)

    def _is_unsaved(self, iteration: int) -> bool:
        """Returns whether the last state is still to be written."""
        self.recorder.wait()
        missing = iteration > self.saved_iteration or self.recorder.failed
        return bool(self.settings.checkpoint_at_end and missing)

    def finish_pictures(self, now: Snapshot) -> None:
        """Draws the pictures that a kill at the end prevented, where nothing is left to train."""
        if self.writes and now.result is not None and self.settings.pictures:
            self.processes.broadcast(lambda: self.recorder.finish_pictures(now))

    def close(self, now: Snapshot | None) -> str | None:
        """Concludes and lets go of the folder; returns what could not be written."""
        if not self.writes:
            return None
        try:
            if now is not None:
                self.conclude(now)
        finally:
            self.writes = False
            self.failed, lost = self.processes.broadcast(self._close) or (None, None)
        return "; ".join(filter(None, (self.failed, lost))) or None

    def _close(self) -> tuple[str | None, str | None]:
        recorder, self.recorder = self.recorder, None
        recorder.close()
        return recorder.failed, recorder.lost

    def hurry(self) -> None:
        """Has what was asked for written, from another thread than the trainer's."""
        if self.recorder is not None:
            self.recorder.hurry()

    def _tell_written(self) -> Path | None:
        """Tells the callbacks of new checkpoints; returns the newest regular one."""
        newest = None
        while self.recorder.written:
            path = self.recorder.written.popleft()
            newest = newest if path.name.startswith("best") else path
            self.trainer.callbacks.call("on_checkpoint", path)
        return newest


def _copied(result: Result) -> Result:
    return {
        name: _copied(value) if isinstance(value, dict) else value for name, value in result.items()
    }
