"""The arrays of a checkpoint on disk, by name, in orbax's format.

Orbax and tensorstore do not take every path literally. They read `[1]` as a pattern and a backslash
as a separator, and then write nothing that can be read back, without an error. So such a folder is
reached through a link with a plain name, and after writing the index is read back. A path with `..`
is refused by tensorstore, so they get the folder that it leads to.
"""

import contextlib
import copy
import functools
import logging
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core import machine
from jaxrl.core.json_text import read_json
from jaxrl.core.machine import host_memory, in_units, require_descriptors

# A path that every version takes literally.
LITERAL_PATH = re.compile(r"([A-Za-z]:)?[\w/.,+=@~ -]{1,2000}")
FEWEST_DESCRIPTORS = 10  # that orbax needs to begin
LINK_FOLDERS = ("/tmp", "/var/tmp", ".")  # beside the system's own folder for temporary files


def write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the arrays into the new `folder`, and checks that they can be found there.

    Raises:
        OSError, ValueError: they could not be written.
    """
    require_descriptors(FEWEST_DESCRIPTORS)
    try:
        with _literal_path(folder) as path:
            _drop_echoes()
            _checkpointer().save(path, arrays)
            stored = _stored_names(path)
    finally:
        machine.give_back_memory()  # the writers' buffers
    missing = sorted(set(arrays) - stored)
    if missing:
        raise OSError(
            f"{len(missing)} of {len(arrays)} arrays are missing after writing, the first is "
            f"{missing[0]}"
        )
    # Orbax's mark, which holds the temporary path.
    for mark in folder.rglob("commit_success.txt"):
        mark.unlink()


def read(folder: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of these names in `folder`."""
    import orbax.checkpoint as ocp

    names = list(names)
    restore_args = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    with _literal_path(folder) as path:
        _check_sizes(path, names)
        return _checkpointer().restore(path, restore_args=restore_args)


class _WithoutEchoes:
    """A hook for errors that nobody catches, without those of writes that have failed.

    Where a checkpoint does not fit on the disk, the writes of its other arrays end later, and
    tensorstore complains of each that the event loop which waited for it is closed.
    """

    def __init__(self, before: Any):
        self._before = before

    def __call__(self, unraisable: Any) -> None:
        if unraisable.object is not None or str(unraisable.exc_value) != "Event loop is closed":
            self._before(unraisable)


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Returns whether a record of absl or asyncio is no echo of a failed write of an array."""
    text = record.getMessage()
    is_unheard = "exception was never retrieved" in text and "OCDBT" in text
    return not is_unheard and "_SignalingThread.run() raised an exception" not in text


def _drop_echoes() -> None:
    """Has threads not print what is raised as an error besides: orbax would for every array."""
    if not isinstance(sys.unraisablehook, _WithoutEchoes):
        sys.unraisablehook = _WithoutEchoes(sys.unraisablehook)
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_no_echo)  # once, however often it is called


@contextlib.contextmanager
def _literal_path(folder: Path) -> Iterator[Path]:
    """`folder`, or a link to it where its path has special characters or is very long."""
    folder = folder.resolve()
    if LITERAL_PATH.fullmatch(folder.as_posix()):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="jaxrl-", dir=_link_folder()) as temporary:
        link = Path(temporary) / "checkpoint"
        os.symlink(folder.parent, link, target_is_directory=True)
        yield link / folder.name


def _link_folder() -> str:
    """A folder for links that has a plain path and can be written to."""
    for candidate in (tempfile.gettempdir(), *LINK_FOLDERS):
        path = Path(candidate).absolute()
        if LITERAL_PATH.fullmatch(path.as_posix()) and os.access(path, os.W_OK):
            return str(path)
    raise OSError(
        "the path has special characters, and so has every folder for temporary files (set TMPDIR)"
    )


def _index(path: Path) -> Any:
    """The index of the arrays stored at `path`, by key."""
    import tensorstore

    base = {"driver": "file", "path": f"{path.as_posix()}/"}
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()


def _check_sizes(path: Path, names: list[str]) -> None:
    """Raises ValueError where the arrays would be larger than the memory; none is allocated.

    An array that nothing was written of has any shape that its form says.
    """
    index, most, total = _index(path), (host_memory() or 0) // 2, 0
    for form in [index.read(f"{name}/.zarray") for name in names]:
        if text := form.result().value:  # else the reader says that it is missing
            array = read_json(text)
            sizes = [math.prod(map(int, array[part])) for part in ("shape", "chunks")]
            total += max(sizes) * np.dtype(array["dtype"]).itemsize
    if most and total > most:
        raise ValueError(f"they take {in_units(total)}, more than half of this machine's memory")


def _stored_names(path: Path) -> set[str]:
    """The names in the index of the arrays at `path`, from `name/.zarray` and `name/<chunk>`."""
    keys = [key.decode() for key in _index(path).list().result()]
    return {key[:end] for key in keys for end, character in enumerate(key) if character == "/"}


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    _ask_for_json_once()
    if jax.process_count() == 1:
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    # Each reads, and process 0 writes, by itself: no process waits for another one here.
    this = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=this, active_processes={this})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


@functools.cache
def _ask_for_json_once() -> None:
    """Has tensorstore give the JSON of a folder once, not once for each array in it.

    Orbax asks for it with every array that it writes or reads, and tensorstore 0.1.86 never frees
    the strings of an answer: 0.3 kB an array, megabytes an hour in a training.
    """
    import tensorstore

    spec_class, answers = tensorstore.KvStore.Spec, {}
    to_json = spec_class.to_json

    def remembered(spec: Any, *args: Any, **kwargs: Any) -> Any:
        asked = repr((spec, args, kwargs))
        answer = answers.get(asked)
        if answer is None:
            answer = to_json(spec, *args, **kwargs)
            answers.clear()  # the latest folder alone is asked for again
            answers[asked] = answer
        return copy.deepcopy(answer)

    spec_class.to_json = remembered
