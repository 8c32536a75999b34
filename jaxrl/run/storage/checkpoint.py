"""Checkpoints on disk: a folder each, written whole or not at all, and read only as it was written.

    checkpoints/000120/arrays/           orbax: every array of the state, by its path in the tree
                       checkpoint.json   everything else, with a digest of every file
    checkpoints/best-000107/             the best state so far, with its score

Nothing is pickled. A checkpoint is written under a name that no reader looks for, and takes its own
at the end.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line, unlike
from jaxrl.core.fast_prng import is_key
from jaxrl.core.json_text import read_json
from jaxrl.core.types import PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.run.storage import array_storage, own_files, runs
from jaxrl.run.storage.dtypes import narrowed
from jaxrl.run.storage.forms import problem_of_checkpoint

FORMAT = 5  # grows with every change that older code could not read
CHECKPOINTS = "checkpoints"  # in a run's folder
FACTS, ARRAYS, UNFINISHED, REPLACED = "checkpoint.json", "arrays", ".unfinished-", ".replaced-"
READ_ATTEMPTS = 20  # while a trainer removes what is being read
Read = TypeVar("Read")
NAME = re.compile(r"(best-)?(\d{6,})")


class Checkpoint(NamedTuple):
    """The contents of a checkpoint that was read."""

    path: Path
    # by their path in the tree, such as "runner.learners.0.params.policy.0.kernel"
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


def write(folder: Path, tree: PyTree, facts: dict[str, Any], *, best: bool = False) -> Path:
    """Writes a checkpoint of the iteration in `facts["lifetime"]` into `folder`; returns its path.

    `folder` is made if it is missing, but not the run's folder around it: without its config.json
    no checkpoint in it could be resumed.

    Raises:
        OSError, ValueError: it could not be written; nothing of it stays.
    """
    name = f"{'best-' if best else ''}{facts['lifetime']['training_iteration']:06d}"
    target, unfinished = folder / name, folder / (UNFINISHED + name)
    shutil.rmtree(unfinished, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    try:
        unfinished.mkdir()
        arrays = named_arrays(tree)
        array_storage.write(unfinished / ARRAYS, arrays)
        facts = {"format": FORMAT, **facts, "arrays": sorted(arrays), "files": _digests(unfinished)}
        text = json.dumps({**facts, "digest": _digest(facts)}, indent=1) + "\n"
        (unfinished / FACTS).write_text(text, encoding="utf-8")
        replaced = target.with_name(REPLACED + name)
        if target.exists():
            os.replace(target, replaced)  # a kill between these two: `clean` brings it back
        os.replace(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    return target


def read(path: Path) -> Checkpoint:
    """The checkpoint at `path`, held against its digests.

    Raises:
        UsageError: no checkpoint, a newer format, or a damaged one, in one line that names the
            file.
    """
    facts = read_facts(path)
    try:
        found = _digests(path)
    except OSError as error:
        raise UsageError(f"checkpoint {path} cannot be read: {error.strerror or error}") from None
    for name, digest in facts["files"].items():
        if name not in found:
            raise UsageError(f"checkpoint {path} is damaged: {name} is missing")
        if found[name] != digest:
            raise UsageError(f"checkpoint {path} is damaged: {name} is not as it was written")
    try:
        arrays = array_storage.read(path / ARRAYS, facts["arrays"])
    except Exception as error:  # orbax and tensorstore raise errors of many kinds
        raise UsageError(
            f"the arrays of checkpoint {path} cannot be read: {one_line(error)}"
        ) from None
    from jaxrl.run.storage import migrate

    return Checkpoint(path, migrate.present_arrays(arrays, facts["format"]), facts)


def read_facts(path: Path) -> dict[str, Any]:
    """The `checkpoint.json` of a checkpoint, if nobody changed it."""
    try:
        facts = read_json(own_files.read_text(path / FACTS))
        digest, newer = facts.pop("digest"), facts["format"] > FORMAT
    except FileNotFoundError:
        what = "is damaged: it has no checkpoint.json" if path.is_dir() else "does not exist"
        raise UsageError(f"checkpoint {path} {what}") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(
            f"checkpoint {path} is damaged: {FACTS} is not that of a checkpoint"
        ) from None
    except OSError as error:
        raise UsageError(f"checkpoint {path} cannot be read: {error.strerror or error}") from None
    if newer:
        raise UsageError(
            f"checkpoint {path} has format {facts['format']}; this jaxrl reads up to {FORMAT}: it "
            "is of a newer version"
        )
    if digest != _digest(facts):
        raise UsageError(f"checkpoint {path} is damaged: {FACTS} was changed after it was written")
    from jaxrl.run.storage import migrate

    facts = migrate.present_facts(facts)
    if problem := problem_of_checkpoint(facts, FACTS):
        raise UsageError(f"checkpoint {path} is damaged: {problem}")
    _check_name(path, facts)
    return facts


def open_found(
    path: Path, which: str | int = "last", reader: Callable[[Path], Read] = read
) -> Read:
    """Reads the checkpoint that `find` names with `reader`.

    A trainer may remove it meanwhile, for it keeps its newest ones alone: then the newer one is
    read.

    Raises:
        UsageError: as `find` and `reader` do, or checkpoints were removed faster than they could be
            read.
    """
    path = run_path(path)
    for attempt in range(READ_ATTEMPTS):
        time.sleep(0.02 * attempt)
        found = find(path, which)
        before = _stamp(found)
        try:
            value = reader(found)
        except UsageError:
            removed = before != _stamp(found) or not found.is_dir()
            if found == path or not removed:
                raise
        else:
            if before == _stamp(found):
                return value
    raise UsageError(
        f"checkpoint {found} was removed while it was read, and so were those before it: try again"
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    """Differs between two checkpoints of the same name; None where there is none."""
    try:
        status = (path / FACTS).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _check_name(path: Path, facts: dict[str, Any]) -> None:
    """Refuses a checkpoint under the name of another iteration, or of a best one that it is not."""
    if (name := NAME.fullmatch(path.name)) is None:
        return  # a name of the user's own
    iteration = facts.get("lifetime", {}).get("training_iteration")
    if int(name[2]) != iteration:
        raise UsageError(f"checkpoint {path} was renamed: it is of iteration {iteration}")
    if name[1] and not facts.get("score"):
        raise UsageError(
            f"checkpoint {path} was renamed: it is not a best one, for it has no score"
        )


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """The tree's arrays by path; keys as words, none of size zero, which orbax refuses."""
    leaves = {_name(path): _words(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return {name: leaf for name, leaf in leaves.items() if leaf.size}


def filled(
    template: PyTree,
    arrays: dict[str, np.ndarray],
    prefix: str,
    what: str,
    *,
    others_allowed: bool = False,
) -> PyTree:
    """`template`, a tree of arrays or their shapes, with the arrays that were saved under `prefix`.

    Args:
        others_allowed: whether more than these may have been saved under it.

    Raises:
        UsageError: they do not fit; the first difference, with both shapes.
    """
    from jaxrl.run.storage import migrate

    name_of = lambda path: ".".join(filter(None, (prefix, _name(path))))
    names = [name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(template)]
    saved = {name: array for name, array in arrays.items() if name.startswith(f"{prefix}.")}
    saved = migrate.with_joined_layers(saved, names)

    def fill(path, leaf):
        name = name_of(path)
        shape = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
        if not shape.size:
            return np.zeros(shape.shape, shape.dtype)
        if name not in saved and (value := migrate.value_of_later(name, shape)) is not None:
            return value
        if name not in saved:
            raise UsageError(
                f"{what} does not fit: it has no {name}, this configuration needs {_form(shape)}"
            )
        value = narrowed(saved[name], shape.dtype)
        if (value.shape, value.dtype) != (shape.shape, shape.dtype):
            forms = _form(saved[name]), _form(shape)
            raise UsageError(f"{what} does not fit: {unlike(name, *forms)}")
        del saved[name]
        return jax.random.wrap_key_data(value, impl=_key_impl(leaf)) if is_key(leaf) else value

    tree = jax.tree_util.tree_map_with_path(fill, template)
    if saved and not others_allowed:
        name, array = next(iter(saved.items()))
        raise UsageError(f"{what} does not fit: {name}, {_form(array)} there, is nothing here")
    return jax.device_put(tree)  # all at once: array by array, each shape compiles a program


def saved_weights(saved: Checkpoint, policy: PolicyId, policy_spec: PolicySpec) -> PolicyWeights:
    """The weights of a policy that the checkpoint has.

    Raises:
        UsageError: they are of other shapes than the policy's.
    """
    what = f"policy {policy!r} of checkpoint {saved.path}"
    return filled(_shapes(policy_spec), saved.arrays, f"weights.{policy}", what)


@functools.lru_cache(maxsize=64)
def _shapes(policy_spec: PolicySpec) -> PolicyWeights:
    """The shapes of a policy's weights; nothing is computed."""
    init, moments = policy_spec.model.init, policy_spec.initial_filter
    return jax.eval_shape(lambda: PolicyWeights(init(jax.random.key(0)), moments()))


def iterations(folder: Path, *, best: bool = False) -> dict[int, Path]:
    """The finished checkpoints in a folder of such, oldest first; the best ones or the others.

    One that a kill met while another took its place is among them, under its other name.
    """
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():  # other names come first
        match = NAME.fullmatch(path.name.removeprefix(REPLACED))
        if match and (match[1] is not None) == best:
            found[int(match[2])] = path
    return dict(sorted(found.items()))


def both_kinds(folder: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """The regular checkpoints in a folder, and the best ones.

    While one takes the place of another, a trainer that keeps a single one has none for a moment:
    that is waited for.
    """
    for attempt in range(3):
        time.sleep(0.02 * attempt)
        regular, best = iterations(folder), iterations(folder, best=True)
        if regular or best or not folder.is_dir():
            break
    return regular, best


def run_path(path: Any) -> Path:
    """The path of a run's or a checkpoint's folder; UsageError if `path` cannot be one."""
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes):
        raise UsageError(f"{brief(path)} is not the path of a run's folder")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{brief(text)} is not the path of a run's folder")
    try:
        Path(text).exists()
    except OSError as error:  # a name that is too long, say
        raise UsageError(
            f"run folder {brief(text)} cannot be read: {error.strerror or error}"
        ) from None
    return Path(text)


def is_checkpoint(path: Any) -> bool:
    """Returns whether a path is a checkpoint's, not a run's (also with a name like 20261121)."""
    path = run_path(path)
    return (path / FACTS).exists() or (
        NAME.fullmatch(path.name) is not None and not (path / runs.CONFIG).exists()
    )


def find(path: str | Path, which: str | int = "last") -> Path:
    """The folder of a checkpoint.

    Args:
        path: of a checkpoint itself, or of a run's folder; `runs/arena/latest` is the newest run in
            `runs/arena`.
        which: of a run's checkpoints: "last", "best" (the one with the highest score), or an
            iteration.

    Raises:
        UsageError: no such folder, or no such checkpoint in it.
    """
    if isinstance(which, bool) or not isinstance(which, str | int):
        raise UsageError(f"checkpoint={brief(which)} must be last, best or an iteration")
    try:
        path = runs.resolve(run_path(path))
        if is_checkpoint(path):
            return _itself(path, which)
        if not path.is_dir():
            raise UsageError(f"run folder {path} does not exist")
        regular, best = both_kinds(path / CHECKPOINTS)
        if not (regular or best or (path / runs.CONFIG).exists()):
            if inside := runs.contents(path):
                raise UsageError(inside)
            raise UsageError(
                f"{path} is not a run's folder: it holds no {runs.CONFIG} and no checkpoints"
            )
    except OSError as error:
        raise UsageError(
            f"run folder {brief(str(path))} cannot be read: {error.strerror or error}"
        ) from None
    by_iteration = {**best, **regular}
    there = ", ".join(map(str, sorted(by_iteration)))
    if which == "best" and by_iteration and not best:
        raise UsageError(
            f"run {path} has no best checkpoint: no score was measured; choose last, or an "
            f"iteration of: {there}"
        )
    named = {"best": best, "last": regular or best}
    if which in named:
        candidates = named[which]
    else:
        candidates = {i: by_iteration[i] for i in by_iteration if str(which) == str(i)}
    if not by_iteration:
        raise UsageError(f"run {path} has no checkpoint yet")
    if not candidates:
        raise UsageError(
            f"run {path} has no checkpoint {brief(which)}; allowed are best, last, or an "
            f"iteration of: {there}"
        )
    return candidates[max(candidates)]


def newest_time(folder: Path) -> float:
    """Time of the newest regular checkpoint in a folder, in seconds; 0 if there is none."""
    regular = iterations(folder)
    try:
        return (regular[max(regular)] / FACTS).stat().st_mtime if regular else 0.0
    except OSError:
        return 0.0


def _itself(path: Path, which: str | int) -> Path:
    """A checkpoint that was named by its own folder, of which there is no other to choose."""
    match = NAME.fullmatch(path.name)
    possible = {
        "last",
        *(("best",) if match and match[1] else ()),
        *((match[2], str(int(match[2]))) if match else ()),
    }
    if str(which) not in possible:
        raise UsageError(
            f"{path} is a checkpoint itself: name its run's folder to choose checkpoint {which!r}"
        )
    if (path.parent.parent / runs.PLAN).exists():
        raise UsageError(f"{path} has all of a population: {runs.contents(path.parent.parent)}")
    return path


def prune(folder: Path, keep: int) -> None:
    """Removes all but the newest `keep` and the newest best one, and unfinished leftovers."""
    for path in (
        *list(iterations(folder).values())[:-keep],
        *list(iterations(folder, best=True).values())[:-1],
    ):
        remove(path)
    clean(folder)


def clean(folder: Path) -> None:
    """Removes what a kill left unfinished, and restores what it had begun to replace."""
    for path in folder.glob(f"{REPLACED}*"):
        if not (target := path.with_name(path.name.removeprefix(REPLACED))).exists():
            os.replace(path, target)
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Removes a checkpoint: at once for every reader, then file by file."""
    if path.exists():
        gone = path.with_name(f"{UNFINISHED}removed-{path.name}")
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _words(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _key_impl(leaf: Any) -> Any:
    """The kind of random keys that an array, or only its shape, is of."""
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def _form(array: Any) -> str:
    return f"{np.dtype(array.dtype).name}{list(array.shape)}"


def _digests(path: Path) -> dict[str, str]:
    """The SHA-256 of every file below `path` but checkpoint.json."""
    found = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file != path / FACTS):
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256")
        found[file.relative_to(path).as_posix()] = digest.hexdigest()
    return found


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
