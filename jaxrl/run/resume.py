"""A run resumed: what its folder holds, checked against the configuration that continues it."""

import functools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from jaxrl.algorithms.hypers import ended_schedules
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import field_names, only
from jaxrl.core.types import Key, PyTree
from jaxrl.run.command_line import from_here
from jaxrl.run.devices.mesh import num_processes, split_cpu
from jaxrl.run.results import Lifetime, Snapshot
from jaxrl.run.settings import RunSettings
from jaxrl.run.stopping import all_met, unmet
from jaxrl.run.storage import checkpoint, run_folder, run_state, runs
from jaxrl.run.storage.checkpoint import CHECKPOINTS, Checkpoint
from jaxrl.run.storage.config_file import check_output, check_saved_parts
from jaxrl.run.storage.run_state import Restored, fresh_line, restore


@dataclass(frozen=True)
class Saved:
    """A run to resume."""

    run_dir: Path | None  # the folder that it is in; None for a checkpoint by itself
    facts: dict[str, Any]
    checkpoint: Checkpoint | None  # None: it was stopped before the first one
    newest: bool  # whether its run has no later checkpoint
    strict: bool = False  # whether a state that does not fit whole is refused

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime(**self.facts["lifetime"]) if self.checkpoint else Lifetime()

    @property
    def folder(self) -> Path | None:
        """The folder of its run, wherever the state was found."""
        return self.run_dir or self.checkpoint.path.parents[1]

    def run_settings(self) -> dict[str, Any]:
        """The saved settings without the stop criteria that the run has met already.

        The number of devices is kept only if as many processes share them again.
        """
        settings = dict(self.facts["run_settings"])
        settings["stop"] = unmet(settings.get("stop", {}), self.facts.get("result"))
        if self.facts["num_processes"] != num_processes():
            settings["devices"] = "auto"
        return settings

    def settings_with(self, changes: Mapping[str, Any], *, trust: bool) -> dict[str, Any]:
        """The saved settings with some changes; what they name has to be allowed."""
        # A file may name others, such as `quiet`.
        settings = {**only(self.run_settings(), field_names(RunSettings)), **changes}
        check_saved_parts(self.facts, changes, trust=trust)
        if "output" not in changes:
            check_output(self.facts, self.folder, trust=trust)
        return settings

    def met_criteria(self) -> dict[str, float]:
        """The stop criteria among the saved settings that the saved result has reached."""
        return all_met(self.facts["run_settings"].get("stop", {}), self.facts.get("result"))

    def other_versions(self) -> str:
        """A warning if the numbers were made by other versions than those here; mostly empty."""
        here, there = run_folder.versions(), self.facts["versions"]
        changed = [
            f"{name} {there.get(name)}, here {here[name]}"
            for name in here
            if there.get(name) != here[name]
        ]
        if changed:
            return f"saved with {'; '.join(changed)}: the last bits may differ from then on"
        return ""

    def folder_to_go_on_in(self) -> Path:
        """The run's folder, if its last checkpoint continues: nothing later is overwritten."""
        if self.run_dir is None or not self.newest:
            what = "is not the last one of its run"
            if self.run_dir is None:
                what = "is not in a run's folder"
            raise UsageError(
                f"checkpoint {self.checkpoint.path} {what}: give a new --run-dir to resume from it"
            )
        return self.run_dir

    def folder_beside(self, path: str | Path) -> Path:
        """The run's folder to continue in, relative if `path` is."""
        folder = self.folder_to_go_on_in()
        return folder if Path(path).is_absolute() else from_here(folder)

    def best(self) -> tuple[Path, dict[str, Any]] | None:
        """(path, score) of the best state up to this one, if one was scored and can be read."""
        beside = (
            checkpoint.iterations(self.checkpoint.path.parent, best=True) if self.checkpoint else {}
        )
        for iteration, path in reversed(beside.items()):
            try:
                if iteration <= self.lifetime.training_iteration:
                    return path, checkpoint.read_facts(path)["score"]
            except UsageError:  # damaged: what is resumed is not
                continue
        return None

    def check_unchanged(self) -> None:
        """Refuses, once the folder is locked, a run that another process resumed meanwhile."""
        regular = checkpoint.iterations(self.run_dir / CHECKPOINTS)
        newest = regular[max(regular)] if regular else None
        if newest != (self.checkpoint.path if self.checkpoint else None):
            raise UsageError(
                f"run {self.run_dir} was resumed by another process, its last checkpoint is "
                f"{newest}; try again"
            )


def read_run(
    path: str | Path, which: str | int = "last", devices: int | str | None = None
) -> Saved:
    """A run's folder, or one checkpoint's.

    Args:
        devices: that the run continues on, which reading its arrays is too late for; None: as many
        as it had.

    Raises:
        UsageError: neither, or damaged, in one line that names what can be resumed.
    """
    path = runs.resolve(checkpoint.run_path(path)).resolve()
    is_run = (path / runs.CONFIG).exists()
    if is_run and which == "last" and not any(checkpoint.both_kinds(path / CHECKPOINTS)):
        return Saved(path, run_folder.read(path), None, True)

    def read_checkpoint(found: Path) -> Checkpoint:
        facts, number = checkpoint.read_facts(found), devices
        if number is None and facts["num_processes"] != num_processes():
            number = "auto"
        split_cpu(number or facts["run_settings"]["devices"])
        return checkpoint.read(found)

    try:
        read = checkpoint.open_found(path, which, read_checkpoint)
    except UsageError as error:
        found = checkpoint.find(path, which)  # which says the same where there is none
        raise UsageError(f"{error}{_intact(checkpoint.iterations(found.parent), found)}") from None
    regular = checkpoint.iterations(read.path.parent)
    found_in = read.path.parents[1]
    run_dir = path if is_run else found_in if (found_in / runs.CONFIG).exists() else None
    return Saved(run_dir, read.facts, read, bool(regular) and read.path == regular[max(regular)])


def restored_into(trainer: Any, saved: Saved, start: tuple[Key, PyTree, PyTree]) -> Restored:
    """The arrays of a saved state; the trainer goes on from where it was.

    Args:
        start: (key, hypers, env_params) that a new run would begin with.
    """
    facts, say = trainer.facts, trainer.progress.say
    restored = restore(
        saved.checkpoint, facts, trainer.config, trainer.algorithm, start, strict=saved.strict
    )
    if restored.fresh:
        say(fresh_line(restored.fresh, saved.facts, facts))
    for line in ended_schedules(trainer.config, restored.hypers):
        say(line)
    trainer.lifetime, trainer.last_result = saved.lifetime, saved.facts["result"]
    best = saved.best()
    if best and best[1]["metric"] == trainer.best.attribute:
        trainer.best.value = best[1]["value"]
    for path, least in saved.met_criteria().items():
        if path not in dict(trainer.settings.stop):
            say(f"cleared the stop criterion {path}={least:g}, which the run had met")
    if warning := saved.other_versions():
        say(f"warning: {warning}")
    return restored


def start_hooks(trainer: Any, states: dict[str, Any] | None) -> None:
    """Tells callbacks of a new trainer, and gives hooks the states of the run that it resumes.

    Where that fails, the trainer lets go of its folder; a new one is removed again.
    """
    tell = trainer.callbacks.call if trainer.processes.is_leader else lambda hook: None
    try:
        if trainer.config.callbacks:
            trainer.callbacks.watch_copies()
        tell("on_algorithm_init")
        if states is not None:
            restore_hooks(trainer, states)
            tell("on_checkpoint_loaded")
    except BaseException:
        if trainer.keeping.recorder is not None:
            trainer.keeping.recorder.held.withdraw()
            trainer.keeping.recorder.close()
        raise


def restore_hooks(trainer: Any, states: dict[str, Any]) -> None:
    """Gives the hooks of a trainer their saved states."""
    names = [hook.name for hook in trainer.hooks]
    for name in states:
        if name not in names:
            trainer.progress.say(f"the state of hook {name} is dropped: this run has no such hook")
    for hook in trainer.hooks:
        if hook.name in states:
            hook.restore(states[hook.name])
    trainer.hook_states = states


def open_folder(trainer: Any, run_dir: str | Path, saved: Saved) -> tuple[Path, FileLock]:
    """Continues in the folder of `saved`, or makes a new one for it; (its path, the lock on it).

    Args:
        run_dir: "auto": a new one, as of `new_folder`.
    """
    if run_dir == "auto" or saved.run_dir != Path(run_dir).resolve():
        fill = functools.partial(branch, saved, trainer)
        return run_folder.new_folder(run_dir, trainer.facts, fill)
    run_dir = Path(run_dir)
    saved.folder_to_go_on_in()
    lock = run_folder.lock(run_dir)
    saved.check_unchanged()
    if saved.checkpoint is None:
        trainer.progress.say(
            "there is no checkpoint yet: the run starts again from the beginning, and so do its "
            "logs"
        )
    trainer.output.resume(saved.facts.get("episodes"))
    return run_dir, lock


def branch(saved: Saved, trainer: Any, run_dir: Path) -> None:
    """Copies a run's state, best state and logs into the new folder that continues it."""
    for name in (runs.METRICS, runs.PROGRESS):
        if saved.run_dir is not None and (saved.run_dir / name).exists():
            shutil.copyfile(saved.run_dir / name, run_dir / name)
    if saved.checkpoint is not None:
        arrays, hooks = (trainer.runner, trainer.hypers, trainer.env_params), saved.facts["hooks"]
        # Process 0 alone is here, so hooks are not asked for their states.
        now = Snapshot(*arrays, saved.lifetime, trainer.last_result, hooks)
        run_state.write(run_dir / CHECKPOINTS, trainer.algorithm, trainer.facts, now)
        if best := saved.best():
            copy = run_dir / CHECKPOINTS / best[0].name
            try:
                shutil.copytree(best[0], copy)
            except OSError:
                if best[0].exists():
                    raise
                # The run is training and has found a better one.
                shutil.rmtree(copy, ignore_errors=True)


def _intact(regular: dict[int, Path], damaged: Path) -> str:
    """The advice on another checkpoint that can be resumed, for the end of an error."""
    for path in reversed(regular.values()):
        if path != damaged:
            try:
                checkpoint.read(path)
            except UsageError:
                continue
            return f"; {path} is intact: resume from it with a new --run-dir"
    return "; the run has no other checkpoint that is intact"
