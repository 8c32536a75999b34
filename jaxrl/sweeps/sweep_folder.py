"""A sweep's folder: the plan, and every trial's settings, result and final state as they come.

runs/<env>/<time>-sweep/sweep.json      the configuration, the settings and seeds of every trial
                        results.jsonl   a line for each trial that is finished
                        optuna.journal  of a search: its trials, for Optuna's own tools
                        trials/0003_lr=0.001/
                                        a run's folder, for `load_policy`, `evaluate`, `--resume`;
                                        its logs grow while it trains, its checkpoint comes at
                                        the end; of a population it is called by its number alone
                        curves.png      scores over environment steps, a band for each setting
                        lineage.jsonl   of a population: a line for each copy
                        lineage.png     its members over iterations, with their numbers as colours
                        population/     its newest checkpoint, while it trains
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.errors import UsageError, brief, one_line, require
from jaxrl.core.json_text import read_json
from jaxrl.run.command_line import command
from jaxrl.run.logging.text_logs import start_after
from jaxrl.run.results import Snapshot
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage import checkpoint, own_files, run_folder, run_state, runs
from jaxrl.run.storage.checkpoint import CHECKPOINTS
from jaxrl.run.storage.config_file import asks_for_trust, config_facts
from jaxrl.run.storage.json_lines import dumped
from jaxrl.run.storage.run_state import facts_of
from jaxrl.run.storage.runs import CURVES, PLAN, RESULTS, TRIALS
from jaxrl.sweeps import lineage_plots, plots, saved_sweep
from jaxrl.sweeps.outcomes import TrialResult, thinned
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.trials import Trial

LINEAGE_PICTURE = "lineage.png"


def _planned(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The trials as the plan has them."""
    return [{"settings": trial.settings, "seed": trial.config.seed} for trial in trials]


def create_trial(path: Path, trial: Trial, algorithm: Algorithm, settings: RunSettings) -> None:
    """Makes a run's folder for a trial, in place of what a kill left there."""
    shutil.rmtree(path, ignore_errors=True)
    run_folder.create(path, facts_of(trial.config, algorithm, settings.to_dict())).release()


def keep_trial(
    path: Path, trial: Trial, algorithm: Algorithm, settings: RunSettings, snapshot: Snapshot
) -> Path:
    """Writes a checkpoint of a trial's state into its folder; returns the checkpoint's.

    Raises:
        OSError: it could not be written.
    """
    facts = facts_of(trial.config, algorithm, settings.to_dict())
    try:
        written = run_state.write(path / CHECKPOINTS, algorithm, facts, snapshot)
    except Exception as error:  # orbax raises errors of many kinds for a full disk
        why = f"the checkpoint of a trial could not be written: {one_line(error)} ({path})"
        raise OSError(why) from error
    checkpoint.prune(path / CHECKPOINTS, settings.keep)
    return written


def _make(path: Path, plan: dict[str, Any], longest: str) -> FileLock:
    """Makes the sweep's folder with its plan in it; of several processes exactly one succeeds.

    Args:
        longest: the longest name of a trial's folder.
    """
    run_folder.check_length(path / TRIALS / longest)
    try:
        path.mkdir(parents=True)
        own_files.write_text(path / PLAN, json.dumps(plan, indent=1, default=str) + "\n")
    except FileExistsError:
        raise run_folder.FolderExists(
            f"sweep folder {path} exists already; choose another, or "
            + " ".join(("--resume", str(path), *_trust(path)))
        ) from None
    except OSError as error:
        raise UsageError(
            f"sweep folder {brief(str(path))} cannot be written: {error.strerror or error}"
        ) from None
    return run_folder.lock(path)


def to_resume(path: Path) -> str:
    """The command that trains what is missing of the sweep at `path`."""
    return command("sweep", "--resume", path, *_trust(path))


def _trust(path: Path) -> tuple[str, ...]:
    """The flag that `--resume` of the sweep at `path` needs besides, if any."""
    try:
        plan = saved_sweep.read_plan(path)
        for trial in plan["trials"]:
            facts = {**plan, "config": {**plan["config"], **trial["settings"]}}
            if asks_for_trust(facts, to_play=False):
                return ("--trust",)
    except UsageError:  # it is no sweep's folder
        pass
    return ()


@dataclass
class SweepFolder:
    """The folder that a sweep is written to; `path` None: nowhere."""

    path: Path | None
    lock: FileLock | None = None
    # lines of trials finished before, by number
    over: dict[int, dict[str, Any]] = field(default_factory=dict)
    named_by_settings: bool = False  # whether these are in the names of the trials' folders

    @classmethod
    def begin(
        cls, run_dir: str | Path | None, config: Any, trials: Sequence[Trial], order: dict[str, Any]
    ) -> "SweepFolder":
        """Makes the folder.

        Args:
            order: what else the sweep was asked for, as JSON can hold it.
        """
        if run_dir is None:
            return cls(None)
        named_by_settings = order.get("scheduler") is None  # those of a population change
        facts = config_facts(config, config.setup().policies)
        plan = {
            **order,
            **facts,
            "named_by_settings": named_by_settings,
            "trials": _planned(trials),
            "metadata": run_folder.metadata(),
        }
        candidates = [Path(run_dir)]
        if run_dir == "auto":
            candidates = run_folder.run_folders(config.env_name, config.seed, ending="-sweep")
        longest = max((trial.folder_name for trial in trials), key=len)
        made = run_folder.first_free(candidates, lambda path: _make(path, plan, longest))
        return cls(*made, named_by_settings=named_by_settings)

    @classmethod
    def again(cls, path: str | Path) -> tuple["SweepFolder", dict[str, Any]]:
        """(the store of a sweep to resume, what `begin` wrote)."""
        path = runs.resolve(checkpoint.run_path(path), (runs.PLAN,))
        plan, lock = saved_sweep.read_plan(path), run_folder.lock(path)
        try:
            over = saved_sweep.read_results(path, plan)
            if (path / RESULTS).exists():  # without what a kill cut off
                start_after(path / RESULTS, lambda line: True)
        except BaseException:
            lock.release()
            raise
        return cls(path, lock, over, plan["named_by_settings"]), plan

    def outcomes(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """The outcomes of the trials that were finished before."""
        outcomes, by_number = [], {trial.number: trial for trial in trials}
        for number, row in self.over.items():
            if number not in by_number:  # of another batch of a search
                continue
            trial = by_number[number]
            if row["settings"] != trial.settings:  # of a population, whose numbers change
                trial = trial.changed(row["settings"])
            found = row["status"], row["result"], row["score"], tuple(row["curve"])
            folder, reason = self.folder_of(trial), row.get("reason", "")
            outcomes.append(TrialResult(trial, *found, folder, reason))
        return outcomes

    def forget(self, trials: Sequence[Trial]) -> None:
        """Forgets those of the trials that were finished before, which then start again."""
        forgotten = {trial.number for trial in trials} & self.over.keys()
        if forgotten:
            is_kept = lambda line: read_json(line)["trial"] not in forgotten
            start_after(self.path / RESULTS, is_kept)
            for number in forgotten:
                del self.over[number]

    def restate_trials(self, trials: Sequence[Trial]) -> None:
        """Writes the plan again, with the trials that a search has proposed by now."""
        if self.path is None:
            return
        plan = saved_sweep.read_plan(self.path)
        plan["trials"] = _planned(trials)
        text = json.dumps(plan, indent=1, default=str) + "\n"
        temporary = own_files.temporary_beside(self.path / PLAN)
        own_files.write_text(temporary, text)
        temporary.replace(self.path / PLAN)

    def open_trial(
        self, trial: Trial, algorithm: Algorithm, settings: RunSettings, *, resumed: bool = False
    ) -> Path | None:
        """A trial begins or is resumed: makes sure of its folder, which its logs go to."""
        if self.path is None:
            return None
        folder = self.folder_of(trial)
        if not (resumed and folder.is_dir()):
            create_trial(folder, trial, algorithm, settings)
        return folder

    def restate(self, trial: Trial, algorithm: Algorithm, settings: RunSettings) -> None:
        """Writes a trial's settings into its folder again, where they changed while it trained."""
        if self.path is not None:
            facts = facts_of(trial.config, algorithm, settings.to_dict())
            run_folder.write_settings(self.folder_of(trial), facts)

    def keep(
        self, trial: Trial, algorithm: Algorithm, settings: RunSettings, snapshot: Snapshot
    ) -> Path | None:
        """Writes a finished trial's final state; returns the checkpoint's folder."""
        if self.path is None:
            return None
        return keep_trial(self.folder_of(trial), trial, algorithm, settings, snapshot)

    def add_line(self, outcome: TrialResult) -> None:
        """Writes a finished trial's line; its folder holds its final state already."""
        if self.path is None:
            return
        trial = outcome.trial
        outcome.folder = self.folder_of(trial)
        row = {
            **{
                "trial": trial.number,
                "settings": trial.settings,
                "seed": trial.config.seed,
                "status": outcome.status,
            },
            **({"reason": outcome.reason} if outcome.reason else {}),
            **{
                "score": outcome.score,
                "curve": thinned(outcome.curve),
                "result": outcome.result,
            },
        }
        own_files.write_text(self.path / RESULTS, dumped(row) + "\n", "a")

    def draw(self, sweep: Sweep, say: Callable[[str], None]) -> None:
        """Draws the finished trials, and a population's lineage; `say` is told if it cannot."""
        if self.path is None:
            return
        try:
            require("matplotlib", "it")
        except UsageError as error:
            say(f"{CURVES} is left out: {error}")
        else:
            plots.draw(self.path / CURVES, sweep.by_settings(), sweep.metric, sweep.mode)
            way = sweep.best_lineage()
            lineage_plots.draw(self.path / LINEAGE_PICTURE, sweep.lineage, sweep.outcomes, way)

    def folder_of(self, trial: Trial) -> Path:
        name = trial.folder_name if self.named_by_settings else trial.name
        return self.path / TRIALS / name

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()
