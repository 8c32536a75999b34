"""Files in a run's folder: written without following links, and read only where they are files.

A folder may come from somebody else. A link in it, in place of a log or of a folder of checkpoints,
would let a resumed run write to, cut or remove what the link points to. A pipe or a device in place
of a file would never end.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from pathlib import Path

from jaxrl.core.errors import UsageError

UNFINISHED = re.compile(r"\.unfinished-\d+-[0-9a-f]{8}")  # names of `unfinished_beside`
DAY = 24 * 3600
LINKED_BY_ITSELF = "wandb"  # the folder in which Weights & Biases makes links of its own


def without_links(path: str | Path, flags: int) -> int:
    """An `opener` for `open` that fails (OSError) where `path` is a symbolic link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def only_files(path: str | Path, flags: int) -> int:
    """An `opener` for `open` that fails (OSError) where there is something else, such as a pipe."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return descriptor


def read_text(path: Path) -> str:
    """The text of a file; OSError where there is none, ValueError where it is not UTF-8."""
    with open(path, "rb", opener=only_files) as file:
        return file.read().decode("utf-8")


def write_text(path: Path, text: str, mode: str = "w") -> None:
    """Writes a file, or with `mode` "a" adds to it, never through a link."""
    with open(path, mode, encoding="utf-8", opener=without_links) as file:
        file.write(text)


def temporary_beside(path: Path) -> Path:
    """A name in the folder of `path`, of the same ending, that nobody could have put a link at."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")


def remove_temporary(path: Path) -> None:
    """Removes what a killed process left at a name of `temporary_beside`."""
    stem, ending = re.escape(path.stem), re.escape(path.suffix)
    form = re.compile(rf"\.{stem}\.[0-9a-f]{{16}}{ending}")
    with contextlib.suppress(OSError):
        for found in path.parent.iterdir():
            if form.fullmatch(found.name):
                found.unlink()


def unfinished_beside(folder: Path) -> Path:
    """A name beside `folder` under which it is filled, before it takes its name."""
    return folder.parent / f".unfinished-{os.getpid()}-{secrets.token_hex(4)}"


def remove_unfinished(parent: Path) -> None:
    """Removes what killed processes left at names of `unfinished_beside`, for a day or longer."""
    for found in filter(lambda path: UNFINISHED.fullmatch(path.name), parent.glob(".unfinished-*")):
        with contextlib.suppress(OSError):  # another process renames its own meanwhile
            if found.lstat().st_mtime < time.time() - DAY:
                shutil.rmtree(found)


def refuse_links(folder: Path) -> None:
    """Refuses to write in a folder of a run or a sweep that has a link in it, however deep.

    Raises:
        UsageError: there is one.
    """
    for found, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = Path(found, name)
            if path.is_symlink():
                raise UsageError(
                    f"{path} is a link to {os.readlink(path)!r:.80}, and a resumed run would "
                    "write there: replace the link by what it points to"
                )
        folders[:] = [name for name in folders if name != LINKED_BY_ITSELF]
