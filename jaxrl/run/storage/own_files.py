"""Files that a run writes into its folder: opened without following links.

A folder may come from somebody else. A link in it, in place of a log or of a folder of checkpoints,
would let a resumed run write to, cut or remove what the link points to.
"""

import os
import secrets
from pathlib import Path

from jaxrl.core.errors import UsageError

LINKED_BY_ITSELF = "wandb"  # the folder in which Weights & Biases makes links of its own


def without_links(path: str | Path, flags: int) -> int:
    """An `opener` for `open` that fails (OSError) where `path` is a symbolic link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def write_text(path: Path, text: str, mode: str = "w") -> None:
    """Writes a file, or with `mode` "a" adds to it, never through a link."""
    with open(path, mode, encoding="utf-8", opener=without_links) as file:
        file.write(text)


def temporary_beside(path: Path) -> Path:
    """A name in the folder of `path`, of the same ending, that nobody could have put a link at."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")


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
