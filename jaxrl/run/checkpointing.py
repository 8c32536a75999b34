"""What is kept of a run, and when: checkpoints by the clock and by count, the best state, the pictures at the end."""

import time
from collections.abc import Callable
from pathlib import Path

from jaxrl.algorithms.base import RunnerState
from jaxrl.run.best import Best
from jaxrl.run.callbacks import Hooks
from jaxrl.run.recorder import Recorder, Snapshot
from jaxrl.run.results import Result
from jaxrl.run.settings import RunSettings

FIRST_SECONDS = 10.0  # to the first checkpoint, at most: a kill soon after the start loses little


class CheckpointManager:
    """Decides what the recorder writes; without a recorder, of a run with no folder, nothing."""

    def __init__(
        self,
        recorder: Recorder | None,
        settings: RunSettings,
        best: Best,
        hooks: Hooks,
        iteration: int,
        whole: Callable[[RunnerState], RunnerState],
    ):
        self.recorder, self.settings, self.best, self.hooks = recorder, settings, best, hooks
        self.whole = whole  # brings a state's environments into this process, if others hold some
        self.saved_at, self.saved_iteration, self.concluded = time.monotonic(), iteration, iteration
        self.began: float | None = (
            None  # when the first chunk was over: what came before is mostly compiling
        )

    def chunk(self, before: Snapshot, results: list[Result], now: Snapshot) -> None:
        """After a chunk from the state `before` to `now`: logs, and a checkpoint if one is due."""
        if self.recorder is None:
            return
        results = [
            _copied(result) for result in results
        ]  # the caller's own are the caller's to change
        now = now._replace(result=results[-1])
        self.best.look(before, results, now)
        self.recorder.record(results)
        self.began = time.monotonic() if self.began is None else self.began
        every = self.settings.checkpoint_frequency
        counted = every is not None and now.lifetime.training_iteration % every == 0
        if counted or self.recorder.remade or self._is_due(time.monotonic()):
            self.save(now)
        self._tell_written()

    def _is_due(self, now: float) -> bool:
        """By the clock; a process that has just begun waits as long as it has trained so far, but FIRST_SECONDS."""
        interval = self.settings.checkpoint_interval_s
        early = max(FIRST_SECONDS, self.saved_at - self.began)
        return interval is not None and now - self.saved_at >= min(interval, early)

    def save(self, now: Snapshot, *, wait: bool = False) -> Path | None:
        """Has a checkpoint written, and the best one if there is a new one; with `wait` returns its folder."""
        if self.recorder is None:
            return None
        self.recorder.save(now._replace(runner=self.whole(now.runner)))
        best = self.best.take() or self.recorder.unwritten
        self.recorder.unwritten = None
        if best is not None:
            self.recorder.save(best[0]._replace(runner=self.whole(best[0].runner)), score=best[1])
        self.saved_at, self.saved_iteration = time.monotonic(), now.lifetime.training_iteration
        if wait:
            self.recorder.wait()
            if self.recorder.failed:
                raise OSError(self.recorder.failed)
        return self._tell_written()

    def conclude(self, now: Snapshot, *, pictures: bool = True) -> None:
        """At the end of training: the last checkpoint, then the pictures; returns when all is written."""
        iteration = now.lifetime.training_iteration
        if self.recorder is None or now.result is None or iteration == self.concluded:
            return
        self.recorder.wait()
        if self.settings.checkpoint_at_end and (
            iteration > self.saved_iteration or self.recorder.failed
        ):
            self.save(now)
        self.recorder.finish(now, pictures=pictures)
        self.concluded = iteration
        self._tell_written()

    def finish_pictures(self, now: Snapshot) -> None:
        """Where nothing is left to train: draws the pictures if a kill came before they were drawn."""
        if self.recorder is not None and now.result is not None and self.settings.pictures:
            self.recorder.finish_pictures(now)

    def close(self, now: Snapshot | None) -> str | None:
        """Concludes and lets go of the folder; returns why the last checkpoint is missing."""
        if self.recorder is None:
            return None
        if now is not None:
            self.conclude(now)
        recorder, self.recorder = self.recorder, None
        recorder.close()
        return recorder.failed

    def hurry(self) -> None:
        """Has what was asked for written, from another thread than the trainer's."""
        if self.recorder is not None:
            self.recorder.hurry()

    def _tell_written(self) -> Path | None:
        """Tells the callbacks of the checkpoints that were written meanwhile; returns the newest but the best ones."""
        newest = None
        while self.recorder.written:
            path = self.recorder.written.popleft()
            newest = newest if path.name.startswith("best") else path
            self.hooks.call("on_checkpoint", path)
        return newest


def _copied(result: Result) -> Result:
    return {
        name: _copied(value) if isinstance(value, dict) else value for name, value in result.items()
    }
