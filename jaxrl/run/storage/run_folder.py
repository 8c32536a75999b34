"""The folder of a run: made before compiling, with what is needed to understand the run later."""

import errno
import functools
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax
from filelock import FileLock, Timeout

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import without
from jaxrl.core.json_text import read_json
from jaxrl.run.storage import own_files
from jaxrl.run.storage.config_file import asks_for_trust, described
from jaxrl.run.storage.forms import RUN, problem_of
from jaxrl.run.storage.runs import CONFIG, link_latest, next_time

Made = TypeVar("Made")

TAKEN = (errno.EEXIST, errno.ENOTEMPTY)  # what renaming to the name of another run's folder raises
LENGTH_BELOW = 200  # bytes of the longest path inside a run's folder, and some to spare
METADATA, LOCK = "metadata.json", ".lock"


class FolderExists(UsageError):
    """A run folder that was to be made exists already."""


def run_folders(
    env_name: str, seed: int, root: str | Path = "runs", ending: str = ""
) -> Iterator[Path]:
    """`runs/<env>/<time>-s<seed>` and alternatives; only names that every file system takes.

    Args:
        ending: in place of `-s<seed>`.
    """
    folder = Path(root) / folder_name(env_name)
    stem = folder / f"{next_time(folder)}{ending or f'-s{seed}'}"
    yield stem
    yield from (stem.with_name(f"{stem.name}-{i}") for i in range(2, 1000))


def folder_name(env_name: str) -> str:
    """A name for a folder of this environment's runs, which every file system takes."""
    safe = "".join(
        character if character.isalnum() or character in "-_." else "-" for character in env_name
    )
    return safe.strip(".") or "env"  # ".." would lead out of the root


def first_free(candidates: Iterable[Path], make: Callable[[Path], Made]) -> tuple[Path, Made]:
    """(path, what `make` returned) of the first candidate that `make` does not find taken."""
    taken = None
    for path in candidates:
        try:
            return path, make(path)
        except FolderExists as error:
            taken = error
    raise taken


def new_folder(
    run_dir: str | Path, facts: dict[str, Any], fill: Callable[[Path], None] = lambda path: None
) -> tuple[Path, FileLock]:
    """`create`, with the path; "auto" is the first of `run_folders` that is free."""
    if run_dir != "auto":
        return Path(run_dir), create(Path(run_dir), facts, fill)
    candidates = run_folders(facts["env_name"], facts["config"].get("seed"))
    path, held = first_free(candidates, lambda path: create(path, facts, fill))
    link_latest(path)
    return path, held


def create(
    path: Path, facts: dict[str, Any], fill: Callable[[Path], None] = lambda path: None
) -> FileLock:
    """Makes the folder with config.json and metadata.json in it, all or nothing, and locks it.

    Of several processes that make the same folder, exactly one succeeds.

    Args:
        facts: what `config_facts` gave, and more.
        fill: puts more into it before it has its name.

    Raises:
        FolderExists: another one has this name.
        UsageError: it cannot be written.
    """
    check_length(path)
    unfinished = own_files.unfinished_beside(path)
    try:
        if os.path.lexists(path):
            raise FileExistsError
        unfinished.mkdir(parents=True)
        own_files.remove_unfinished(path.parent)
        write_settings(unfinished, facts)
        fill(unfinished)
        os.rename(unfinished, path)  # fails where another process was faster
    except OSError as error:
        if error.errno in TAKEN or isinstance(error, FileExistsError):
            raise FolderExists(
                f"run folder {path} exists already; choose another --run-dir, or --resume "
                f"{path}{_trust(path)}"
            ) from None
        raise UsageError(
            f"run folder {brief(str(path))} cannot be written: {error.strerror or error}"
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return lock(path)


def _trust(path: Path) -> str:
    """The flag that `--resume` of the run at `path` needs besides, if any."""
    try:
        return " --trust" if asks_for_trust(read(path), to_play=False, folder=path) else ""
    except UsageError:  # it is no run's folder
        return ""


def check_length(path: Path) -> None:
    """Refuses a run folder whose checkpoints would have longer paths than the system takes."""
    if not hasattr(os, "pathconf"):
        return
    longest = os.pathconf("/", "PC_PATH_MAX") - LENGTH_BELOW
    if (length := len(os.fsencode(path.absolute()))) > longest:
        raise UsageError(
            f"run folder {str(path)[:40]}... has a path of {length} bytes; at most {longest} are "
            "possible"
        )


def lock(path: Path) -> FileLock:
    """Locks the folder for this process; the system unlocks it when the process ends.

    Raises:
        UsageError: another process holds it, it cannot be written, or a link in it leads elsewhere.
    """
    own_files.refuse_links(path)
    held = FileLock(path / LOCK, blocking=False)
    try:
        held.acquire()
    except Timeout:
        raise UsageError(
            f"run folder {path} is in use by another trainer; stop that one first, "
            "or give run_dir=None to write no folder"
        ) from None
    except (OSError, NotImplementedError) as error:  # the second: a file system without locks
        raise UsageError(
            f"run folder {path} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from None
    return held


def read(path: Path) -> dict[str, Any]:
    """The facts given to `create`, of a run that may have no checkpoint yet."""
    from jaxrl.run.storage import migrate

    try:
        config, rest = (read_json(own_files.read_text(path / name)) for name in (CONFIG, METADATA))
    except OSError as error:
        what = f"its {CONFIG} or {METADATA} cannot be read ({error.strerror or error})"
        raise UsageError(f"{path} is not a run's folder: {what}") from None
    except ValueError as error:
        what = f"config.json or metadata.json is not JSON: {one_line(error)}"
        raise UsageError(f"run folder {path} is damaged: {what}") from None
    if not isinstance(config, dict) or not isinstance(rest, dict):
        raise UsageError(
            f"run folder {path} is damaged: config.json or metadata.json holds no settings"
        )
    facts = migrate.present_facts({**rest, "config": config})
    if problem := problem_of(facts, RUN, METADATA):
        raise UsageError(f"run folder {path} is damaged: {problem}")
    return facts


def metadata() -> dict[str, Any]:
    """The origins of the numbers besides the configuration: versions, device, commit."""
    device = jax.devices()[0]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "device": f"{device.platform}: {device.device_kind}",
        "num_devices": jax.device_count(),
        "commit": _commit(),
    }


def versions() -> dict[str, str]:
    """The versions of everything that affects the numbers."""
    return {name: _version(name) for name in ("jaxrl", "jax", "jaxlib", "flax", "optax", "numpy")}


_version = functools.cache(version)  # which searches the packages each time


@functools.cache
def _commit() -> str | None:
    """The commit of the checkout that jaxrl runs from, if it is one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def write_settings(path: Path, facts: dict[str, Any]) -> None:
    _write_json(path / CONFIG, facts["config"])
    _write_json(path / METADATA, {**metadata(), **without(facts, {"config"})})


def _write_json(path: Path, values: dict[str, Any]) -> None:
    own_files.write_text(path, json.dumps(values, indent=2, default=described) + "\n")
