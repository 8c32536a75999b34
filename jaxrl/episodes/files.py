"""The files of a folder of episodes, and whether a folder can be written to."""

import contextlib
import os
from pathlib import Path

from jaxrl.core.errors import UsageError, one_line

OF_RLLIB = "output-*.json"  # of its JsonWriter
ROWS_OF_RLLIB = ("run-*/*.parquet", "*/run-*/*.parquet")  # of Ray Data: below a run's folder


def episode_files(path: str | Path) -> list[Path]:
    """The Parquet files of a folder in the order of their names, or the one file; [] if none.

    Of a folder without any, those of RLlib's batches, `output-*.json`, or the Parquet files of its
    runs in an environment's folder. A name may be a pattern, such as `data/*.parquet`.

    Raises:
        UsageError: a path that the system does not take.
    """
    path = Path(path)
    try:
        found = [path]
        if path.is_dir():
            patterns = ("*.parquet", OF_RLLIB, *ROWS_OF_RLLIB)
            found = next(filter(None, (sorted(path.glob(pattern)) for pattern in patterns)), [])
        elif "*" in path.name and not path.exists():
            found = sorted(path.parent.glob(path.name))
        return [file for file in found if file.is_file()]  # a pipe would be waited for
    except OSError as error:
        raise UsageError(f"no episodes in {path!s:.200}: {one_line(error)}") from None


def why_not_writable(folder: Path) -> str:
    """The reason why a folder cannot be written to, or made; mostly empty."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()
    except (OSError, ValueError) as error:  # a name that the system does not take
        return getattr(error, "strerror", None) or one_line(error)
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"
