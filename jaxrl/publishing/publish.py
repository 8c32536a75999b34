"""Publishing a run: a folder with a model card and weights, which jaxrl loads as a run's."""

import functools
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, is_installed, one_line
from jaxrl.core.fields import count, file_path, flag, takes, without
from jaxrl.core.json_text import read_json
from jaxrl.core.plan import Line, laid_out
from jaxrl.core.settings_display import changed_settings
from jaxrl.play.load import LoadedRun, evaluate, open_run, policy_of
from jaxrl.publishing.card import Card, MeanReturn
from jaxrl.replay.run_pages import REPORT, write_report
from jaxrl.run.inference.policy import Policy
from jaxrl.run.logging.loaded_run import Run
from jaxrl.run.logging.result_rows import read_results
from jaxrl.run.results import lookup
from jaxrl.run.storage import checkpoint as saved_states
from jaxrl.run.storage import hub, own_files, run_folder, runs
from jaxrl.run.storage.config_file import asks_for_trust, read_config
from jaxrl.run.storage.hub import MARK
from jaxrl.run.storage.json_lines import dumped

CARD, POLICIES = "README.md", "policies"
EPISODES = 100  # that are evaluated
PRIVATE = {"hostname", "node_ip", "pid"}  # of a result
# What playing needs of a checkpoint, by the beginnings of its arrays' names.
PLAYED = ("env_params.", "runner.opponents.")  # beside the weights
UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Published:
    """A published run: where it is, what is in it, and the return that its card says."""

    where: str  # a folder, or the address of a repository at Hugging Face
    name: str  # what `jaxrl.load_policy` takes
    files: tuple[str, ...]
    mean_return: MeanReturn | None
    notes: tuple[str, ...] = ()  # what could not be written, and why

    def __str__(self) -> str:
        lines: list[Line] = [("published", self.where)]
        if self.mean_return is not None:
            lines.append(("return", self.mean_return))
        lines += [("files", ", ".join(self.files))]
        lines += [("note", note) for note in self.notes]
        return laid_out([*lines, ("load", f"jaxrl.load_policy({self.name!r})")])


@takes(
    to=file_path("a folder's path or hf:USER/NAME"),
    episodes=count(),
    onnx=flag,
    private=flag,
    trust=flag,
)
def publish(
    path: str | Path,
    to: str | Path,
    *,
    checkpoint: str | int = "last",
    episodes: int = EPISODES,
    onnx: bool = False,
    private: bool = False,
    trust: bool = False,
) -> Published:
    """Publishes the policies of a run: in a folder, or at Hugging Face.

    Written are a model card (README.md) with the return of newly played episodes, the weights as
    safetensors and npz, the curves, a report with an episode to play, and what `jaxrl.load_policy`
    reads.

    Args:
        path: a run's folder.
        to: a folder, which is new, empty or an earlier publication; or "hf:USER/NAME".
        checkpoint: "last", "best" or an iteration.
        episodes: how many whole episodes the card's return is the mean of.
        onnx: write ONNX files as well.
        private: whether a new repository at Hugging Face is private.
        trust: import what the run names, though it is not jaxrl's or an installed plug-in's; see
            docs/loading.md.

    Raises:
        UsageError: no checkpoint, a folder with other files, a bad name, a missing package, or
            an upload that failed.
    """
    run = _run_of(path, checkpoint)
    target = checked_target(to)
    hub.require_hub("publish", "safetensors")
    if onnx and not (is_installed("jax2onnx") and is_installed("onnxruntime")):
        raise UsageError('onnx needs jax2onnx and onnxruntime: pip install "jaxrl[onnx]"')
    opened = open_run(run, checkpoint, trust=trust, call="jaxrl.publish")
    publication = _Publication(run, opened, str(to), onnx=onnx, trust=trust)
    if target is None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "published"
            folder.mkdir()
            publication.write(folder, episodes)
            where = hub.upload(folder, str(to), private=private)
        return publication.published(where)
    unfinished = own_files.unfinished_beside(target.absolute())
    try:
        unfinished.mkdir(parents=True)
        publication.write(unfinished, episodes)
        _move(unfinished, target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return publication.published(str(target))


def _run_of(path: Any, which: str | int) -> Path:
    """The folder of the run, which has the checkpoint that is to be published."""
    if hub.is_hub_name(path):
        raise UsageError(f"{brief(path)} is published already: give a run's folder")
    folder = runs.resolve(saved_states.run_path(path))
    if (folder / MARK).exists():
        raise UsageError(f"{folder} is a published folder already: give the run's folder")
    saved_states.find(folder, which)  # refuses what is no run, or has no such checkpoint
    if not (folder / runs.CONFIG).exists():
        raise UsageError(f"{folder} is a checkpoint: name the run's folder, and checkpoint=...")
    return folder


def checked_target(to: Any) -> Path | None:
    """The folder to write; None for a repository at Hugging Face."""
    if hub.is_hub_name(to):
        if hub.check_hub_name(to)[1] is not None:
            raise UsageError(f"{brief(to)} names a revision: publish to hf:USER/NAME alone")
        hub.require_hub(to)
        return None
    folder = saved_states.run_path(to)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder to publish to")
    if folder.is_dir() and any(folder.iterdir()):
        _earlier_files(folder)
    return folder


def _earlier_files(folder: Path) -> list[str]:
    """The files of an earlier publication, which a new one replaces.

    Raises:
        UsageError: the folder is not of a publication.
    """
    try:
        found = read_json(own_files.read_text(folder / MARK))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UsageError(
            f"{folder} exists and was not made by jaxrl publish: give a new or an empty folder"
        )
    own_files.refuse_links(folder)
    return found


def _move(unfinished: Path, folder: Path) -> None:
    """Gives a finished publication its name; other files in an earlier one's folder stay."""
    if folder.is_dir() and any(folder.iterdir()):
        earlier = set(_earlier_files(folder))
        for path in [folder / name for name in _files_in(folder) if name in earlier]:
            path.unlink()
            for parent in path.relative_to(folder).parents[:-1]:  # of an earlier checkpoint
                if not any((folder / parent).iterdir()):
                    (folder / parent).rmdir()
    folder.mkdir(parents=True, exist_ok=True)
    for name in _files_in(unfinished):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / name).replace(folder / name)


def _files_in(folder: Path) -> list[str]:
    """The files below a folder, by their paths in it."""
    files = filter(Path.is_file, folder.rglob("*"))
    return sorted(file.relative_to(folder).as_posix() for file in files)


class _Publication:
    """The contents of a published folder, of one checkpoint."""

    def __init__(self, run: Path, opened: LoadedRun, to: str, *, onnx: bool, trust: bool):
        self.run, self.opened, self.to = run, opened, to
        self.onnx, self.trust = onnx, trust
        self.saved, self.facts = opened.saved, run_folder.read(run)
        self.mean_return: MeanReturn | None = None
        self.notes: list[str] = []
        self.files: list[str] = []

    @functools.cached_property
    def policies(self) -> dict[str, Policy]:
        names = self.saved.facts["policies"]
        return {name: policy_of(self.saved, name, trust=self.trust) for name in names}

    @property
    def name(self) -> str:
        """The argument of `jaxrl.load_policy` for readers, of a folder its name."""
        return self.to if hub.is_hub_name(self.to) else Path(self.to).resolve().name

    def published(self, where: str) -> Published:
        """The answer to the user, who has the folder where it was written."""
        name = self.to if hub.is_hub_name(self.to) else where
        return Published(where, name, tuple(self.files), self.mean_return, tuple(self.notes))

    def write(self, folder: Path, episodes: int) -> None:
        """Writes everything; the model card last, which says what there is."""
        iteration = self.saved.facts["lifetime"]["training_iteration"]
        played = evaluate(self.saved.path, episodes=episodes, trust=self.trust)["env_runners"]
        returns = lookup(played, "hist_stats/episode_reward") or []
        self.mean_return = MeanReturn.of(returns)
        self._write_run(folder)
        policies = {name: self._write_policy(folder, name) for name in self.policies}
        self._write_curves(folder)
        try:
            report = folder / REPORT
            write_report(self.run, report, checkpoints=(iteration,), trust=self.trust)
        except UsageError as error:
            self.notes.append(f"{REPORT} is left out: {one_line(error)}")
        reading = {"to_play": True, "trust": self.trust}
        config = read_config(self.saved.facts, "jaxrl.publish", **reading)
        card = Card(
            name=self.name,
            env_name=self.saved.facts["env_name"],
            algorithm=type(config).__name__.removesuffix("Config"),
            plan=self.opened.algorithm.describe(config),
            settings=changed_settings(config),
            facts=self.facts,
            result=self.saved.facts["result"],
            mean_return=self.mean_return,
            agent_returns=played.get("agent_episode_returns_mean", {}),
            policies=policies,
            files=_files_in(folder),
            needs_trust=asks_for_trust(self.saved.facts, to_play=True),
            notes=self.notes,
        )
        (folder / CARD).write_text(str(card), encoding="utf-8")
        self.files = [CARD, *_shown(_files_in(folder)), MARK]
        files = [*_files_in(folder), MARK]
        mark = {"format": 1, "policies": policies, "files": files}
        (folder / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")

    def _write_run(self, folder: Path) -> None:
        """The run's folder that `load_policy` reads, with one checkpoint: what playing needs."""
        public = {"output": None, "init_from": {}}  # paths of this machine
        facts = without(self.saved.facts, {"format", "arrays", "files"})
        facts |= {
            "run_settings": {**facts["run_settings"], **public},
            "result": without(facts["result"], PRIVATE),
            "hooks": {"callbacks": []},
            "episodes": None,
        }
        weights = {name: policy.weights for name, policy in self.policies.items()}
        arrays = saved_states.named_arrays({"weights": weights})  # in today's form
        for name, array in self.saved.arrays.items():
            if name.startswith(PLAYED):
                arrays[name] = array
        saved_states.write(folder / saved_states.CHECKPOINTS, arrays, facts)
        settings = {**self.facts["run_settings"], **public}
        changed = {"run_settings": settings, "episodes": None}
        run_folder.write_settings(folder, {**self.facts, **changed})
        if (self.run / runs.METRICS).exists():
            rows = [dumped(without(row, PRIVATE)) for row in read_results(self.run / runs.METRICS)]
            (folder / runs.METRICS).write_text("\n".join(rows) + "\n", encoding="utf-8")

    def _write_policy(self, folder: Path, name: str) -> list[str]:
        """The files of a policy's weights."""
        from safetensors.numpy import save_file

        policy = self.policies[name]
        stem = _stem(name, list(self.saved.facts["policies"]))
        (folder / POLICIES).mkdir(exist_ok=True)
        arrays = {}
        for path, array in saved_states.named_arrays(policy.weights).items():
            arrays[path] = np.array(array, order="C")
        written = [f"{POLICIES}/{stem}.safetensors"]
        metadata = {"library": "jaxrl", "env": self.saved.facts["env_name"], "policy": name}
        save_file(arrays, folder / written[0], metadata)
        try:
            policy.export(folder / POLICIES / f"{stem}.npz")
            written.append(f"{POLICIES}/{stem}.npz")
        except UsageError as error:  # a network of the user's own, which NumPy has no part for
            self.notes.append(f"{stem}.npz is left out: {one_line(error)}")
        if self.onnx:
            policy.export(folder / POLICIES / f"{stem}.onnx")
            written.append(f"{POLICIES}/{stem}.onnx")
        return written

    def _write_curves(self, folder: Path) -> None:
        try:
            drawn = Run(self.run).plot()
        except (UsageError, OSError) as error:  # no log, or no matplotlib
            self.notes.append(f"{runs.CURVES} is left out: {one_line(error)}")
            return
        drawn.savefig(folder / runs.CURVES)


def _stem(name: str, names: list[str]) -> str:
    """A file's name for a policy; a number where two would have the same."""
    plain = [UNSAFE.sub("-", other).strip(".-") or "policy" for other in names]
    stems, place = [], names.index(name)
    for i, stem in enumerate(plain):
        taken = [other.lower() for other in (*stems, *plain[:i], *plain[i + 1 :])]
        while stem.lower() in taken:
            stem = f"{stem}-{i}"
        stems.append(stem)
    return stems[place]


def _shown(files: list[str]) -> list[str]:
    """The files as the user is told of them: a checkpoint's many are one."""
    shown, folder = [], f"{saved_states.CHECKPOINTS}/"
    for file in files:
        part = folder if file.startswith(folder) else file
        if part not in (CARD, *shown):
            shown.append(part)
    return shown
