"""The writer of a run's folder, off the training thread: logs, checkpoints, curves.

One thread does it all in order, so that a checkpoint never becomes visible before the logs of its
iterations are with the operating system. What fails is said, and training continues.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.env import has_pictures
from jaxrl.core.errors import UsageError, disk_error, is_installed, one_line
from jaxrl.core.troubles import Troubles
from jaxrl.run.devices.mesh import on_first_device
from jaxrl.run.every import Every
from jaxrl.run.job_queue import JobQueue
from jaxrl.run.logging.curves import Curves, source_line
from jaxrl.run.logging.loggers import Logs, RunStart
from jaxrl.run.logging.panels import panels_of
from jaxrl.run.results import ENV_STEPS, ITERATIONS, Lifetime, Result, Snapshot
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage import checkpoint, own_files, run_folder, run_state
from jaxrl.run.storage.checkpoint import CHECKPOINTS
from jaxrl.run.storage.run_folder_lock import RunFolderLock
from jaxrl.run.storage.runs import CURVES, EPISODE, METRICS, PAGE

if TYPE_CHECKING:
    from jaxrl.play.recording import EpisodeRecording
    from jaxrl.run.resume import Saved

BEST = "the best checkpoint"
WAITING = 16  # jobs that may wait
DRAW_SECONDS = 60.0


class Recorder:
    """Writes into a run's folder.

    Args:
        held: the run's folder.
        say: says one line to the user.
        lifetime: where the run stands; what the logs hold beyond it goes.
    """

    def __init__(
        self,
        held: RunFolderLock,
        algorithm: Algorithm,
        settings: RunSettings,
        say: Callable[..., None],
        lifetime: Lifetime,
    ):
        self.held, self.folder, self.facts = held, held.path, held.facts
        self.algorithm, self.settings, self.say = algorithm, settings, say
        self.written: deque[Path] = deque()  # checkpoints that nobody has been told of
        self.failed: str | None = None  # why the newest checkpoint could not be written
        self._lost: dict[str, str] = {}  # {picture or best checkpoint: why it is not written}
        self._troubles = Troubles(lambda line: say(line, even_if_quiet=True))
        self.remade = False  # whether the folder was made again and holds no checkpoint yet
        # Of each checkpoint, on the recorder's thread.
        self.checkpoint_seconds: list[float] = []
        self.unwritten: tuple[Snapshot, dict[str, Any]] | None = (
            None  # the best state, if it could not be written
        )
        # Of the last log.
        self._iteration, self._env_steps = lifetime.training_iteration, lifetime.num_env_steps
        self.result_names: list[str] = []  # paths at which results may have numbers
        self._logs: Logs | None = None
        self._curves: Curves | None = None
        self._drawings = Every(seconds=DRAW_SECONDS)
        self._jobs = JobQueue("jaxrl-recorder", WAITING)

    def record(self, results: list[Result]) -> None:
        """Logs a chunk's results, and now and then draws their curves."""
        self._jobs.submit(self._record, results)

    def save(
        self,
        snapshot: Snapshot,
        *,
        score: dict[str, Any] | None = None,
        episodes: Future | None = None,
    ) -> None:
        """Writes a checkpoint, as the best one if it comes with a score {"metric", "value"}.

        Args:
            episodes: the position of the written episodes, which are waited for.
        """
        self._jobs.submit(self._save, snapshot, score, episodes)

    def finish(self, snapshot: Snapshot, *, pictures: bool = True) -> None:
        """Draws the curves and an episode of the present policies; returns when all is written."""
        if pictures and self.settings.pictures:
            self._jobs.submit(self._draw)
            self._jobs.submit(self._play, snapshot)
        self.wait()

    def finish_pictures(self, snapshot: Snapshot) -> None:
        """Draws the pictures that a kill at the end of training prevented; others stay."""
        newest = checkpoint.newest_time(self.folder / CHECKPOINTS)
        pictures = [CURVES, *self._episode_files()]
        drawn = [path.stat().st_mtime for name in pictures if (path := self.folder / name).exists()]
        # Later ones than now are of a clock that was set back since.
        if len(drawn) == len(pictures) and newest <= min(drawn) and max(drawn) <= time.time():
            return
        self._jobs.submit(self._opened)
        self.finish(snapshot)

    def wait(self) -> None:
        """Waits until all that was asked for is done."""
        self._jobs.wait()

    def hurry(self) -> None:
        """Waits until all that was asked for so far is done; called from another thread."""
        self._jobs.result_of(lambda: self._logs and self._logs.flush())

    def close(self) -> None:
        try:
            self._jobs.close()
            if self._logs is not None:
                self._logs.close()
        finally:
            self.held.lock.release()

    @property
    def lost(self) -> str | None:
        """The rest that could not be written, beside the last checkpoint; None: nothing."""
        logs = {} if self._logs is None else self._logs.lost
        lost = [f"{name} could not be written: {why}" for name, why in (logs | self._lost).items()]
        if (count := self._troubles.counts[CHECKPOINTS]) > 1:
            lost.append(f"{count:,} checkpoints in all could not be written")
        return "; ".join(lost) or None

    def _opened(self) -> Logs:
        """The logs, cut back to the run's state when its first new result comes, not before."""
        if self._logs is None:
            self._clean()
            run = RunStart(
                self.folder,
                self.facts["config"],
                self._iteration,
                self._env_steps,
                tuple(self.result_names),
                self.say,
            )
            self._logs = Logs(self.settings.loggers, run)
            if self.settings.pictures and is_installed("matplotlib"):
                self._curves = Curves.from_jsonl(self.folder / METRICS, panels_of(self.facts))
            elif self.settings.pictures:
                self.say(f"{CURVES} is left out: it needs matplotlib, which is not installed")
        return self._logs

    def _clean(self) -> None:
        """Removes what a kill left unfinished."""
        checkpoint.clean(self.folder / CHECKPOINTS)
        for name in (CURVES, *self._episode_files()):
            own_files.remove_temporary(self.folder / name)

    def _ensure_folder(self) -> None:
        """Makes the run's folder again where somebody removed it; its logs begin again with it."""
        if done := self.held.ensure():
            self.say(f"warning: {done}")
            self.remade, self._logs = True, None

    def _record(self, results: list[Result]) -> None:
        with contextlib.suppress(OSError):  # the logs themselves say so
            self._ensure_folder()
        self._opened().write(results)
        self._iteration = results[-1].get(ITERATIONS, self._iteration)
        self._env_steps = results[-1].get(ENV_STEPS, self._env_steps)
        if self._curves is None:
            return
        try:
            self._curves.add(results)
        except Exception as error:  # a callback may have put anything where a number was
            self._curves = None
            self.say(f"{CURVES} is left out from now on: {one_line(error)}")
        if self._drawings.is_due(self._iteration):
            self._draw()

    def _draw(self) -> None:
        if self._curves is None:
            return
        try:
            from jaxrl.run.logging.figures import figure, save_figure

            curves, footer = self._curves, self._source(self.facts["config"].get("seed"))
            drawn = curves.series(), curves.panels, self.facts["env_name"], footer
            save_figure(self.folder / CURVES, lambda: figure(*drawn))
        except Exception as error:
            self._curves = None
            self.say(
                f"{CURVES} could not be written and is left out from now on: {one_line(error)}"
            )
            self._note_lost(CURVES, error)
        self._drawings.restart()

    def _source(self, seed: int | None) -> str:
        """The source of the figures; empty where metadata.json is gone."""
        try:
            return source_line(run_folder.read(self.folder), seed)
        except UsageError:
            return ""

    def _episode_files(self) -> list[str]:
        """The files that show an episode: the page only if `draw` is defined, which is quick."""
        env = self.algorithm.rollout_spec.env
        shown = {EPISODE: has_pictures(env), PAGE: hasattr(env, "draw")}
        return [name for name, is_shown in shown.items() if is_shown]

    def _play(self, snapshot: Snapshot) -> None:
        files = self._episode_files()
        if not files:
            what = "render(state, params), or a render_mode in Python"
            self.say(f"no {EPISODE}: {self.facts['env_name']} has nothing that draws it ({what})")
            return
        self.say(f"drawing {' and '.join(files)} ...")
        recording = None
        for name in files:
            try:
                recording = recording or self._recording(snapshot)
                self._show(name, recording, snapshot)
            except Exception as error:  # of a user's own `render`, which must not end the run
                self.say(f"{name} could not be written: {one_line(error)}")
                self._note_lost(name, error)

    def _recording(self, snapshot: Snapshot) -> "EpisodeRecording":
        from jaxrl.play.host_episodes import Players
        from jaxrl.play.recording import episodes_to_show, record_episodes

        weights = on_first_device(tuple(learner.weights for learner in snapshot.runner.learners))
        # As training plays: the likeliest actions of a young policy often get stuck.
        shown = episodes_to_show(self.settings.evaluation_seed, explore=True)
        players = Players(self.algorithm, weights, snapshot.env_params)
        (recording,) = record_episodes(players, shown)
        return recording

    def _note_lost(self, picture: str, error: Exception) -> None:
        if (found := disk_error(error)) is not None:
            self._lost[picture] = one_line(found)

    def _show(self, name: str, recording: "EpisodeRecording", snapshot: Snapshot) -> None:
        path = self.folder / name
        if name == EPISODE:
            from jaxrl.play.video import write_episode

            write_episode(path, recording)
        else:
            from jaxrl.replay.page import Column, make_replay

            iteration = f"iteration {snapshot.lifetime.training_iteration:,}"
            column = Column(iteration, (recording,), "sampled actions")
            make_replay([column], note=self.folder.name).save(path)

    def _save(
        self, snapshot: Snapshot, score: dict[str, Any] | None, episodes: Future | None
    ) -> None:
        begin, folder, facts = time.perf_counter(), self.folder / CHECKPOINTS, self.facts
        if episodes is not None:
            facts = facts | {"episodes": episodes.result()}
        try:
            self._ensure_folder()
            self._opened().flush()
            path = run_state.write(folder, self.algorithm, facts, snapshot, score)
        except Exception as error:  # orbax raises errors of many kinds for a full disk
            iteration = snapshot.lifetime.training_iteration
            what = f"the checkpoint of iteration {iteration}"
            failed = f"{what} could not be written to {self.held.shown}: {one_line(error)}"
            self._troubles.tell(CHECKPOINTS, f"{failed}; the older ones are as they were")
            if score is None:
                self.failed = failed
            else:
                self.unwritten = snapshot, score
                self._lost[BEST] = one_line(error)
            return
        if (count := self._troubles.end(CHECKPOINTS)) > 1:
            self.say(f"{count:,} checkpoints could not be written; this one is", even_if_quiet=True)
        if score is None:
            self.failed, self.remade = None, False
        else:
            self._lost.pop(BEST, None)
        self.written.append(path)
        self.checkpoint_seconds.append(time.perf_counter() - begin)
        try:
            checkpoint.prune(folder, self.settings.keep)
        except OSError as error:
            self.say(f"older checkpoints could not be removed: {one_line(error)}")


def open_recorder(
    trainer: Any, run_dir: str | Path, saved: "Saved | None"
) -> tuple[Path, Recorder]:
    """A trainer's folder, which is locked: a new one or that of the run `saved`; its recorder."""
    if saved is None:
        folder, lock = run_folder.new_folder(run_dir, trainer.facts)
    else:
        from jaxrl.run.resume import open_folder

        folder, lock = open_folder(trainer, run_dir, saved)
    held = RunFolderLock(folder, lock, trainer.facts, is_new=saved is None)
    say, lifetime = trainer.progress.say, trainer.lifetime
    return folder, Recorder(held, trainer.algorithm, trainer.settings, say, lifetime)
