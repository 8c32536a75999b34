"""`RunFolderLock`: the run's folder that a process writes to; made again where it is missing."""

import os
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock

from jaxrl.core.errors import UsageError
from jaxrl.run.storage import run_folder
from jaxrl.run.storage.run_folder import LOCK, METADATA
from jaxrl.run.storage.runs import CONFIG


class RunFolderLock:
    """A run's folder that this process writes to and holds the lock on.

    Args:
        path: as the user wrote it, for messages; `self.path` stays the same folder if the process
            changes its own.
        facts: what `create` was given.
        is_new: whether it was made for this run, and is not that of a resumed one.
    """

    def __init__(self, path: Path, held: FileLock, facts: dict[str, Any], *, is_new: bool):
        self.path, self.shown, self.lock, self.facts = path.absolute(), path, held, facts
        self._identity = _identity(self.path)
        self._is_new, self._is_withdrawn = is_new, False

    def withdraw(self) -> None:
        """Removes a new folder in which nothing but the settings is written, until `bring_back`."""
        if not self._is_new or self._is_withdrawn or _identity(self.path) != self._identity:
            return
        if set(os.listdir(self.path)) <= {CONFIG, METADATA, LOCK}:
            self.lock.release()
            shutil.rmtree(self.path, ignore_errors=True)
            self._is_withdrawn = True

    def bring_back(self) -> None:
        """Makes a withdrawn folder again.

        Raises:
            FolderExists: another one has its name by now.
        """
        if self._is_withdrawn:
            self.lock = run_folder.create(self.path, self.facts)
            self._identity, self._is_withdrawn = _identity(self.path), False

    def ensure(self) -> str | None:
        """Makes what is missing of the folder again; returns what was done in a line, mostly None.

        Raises:
            OSError: another folder has its name, or it cannot be made.
        """
        found = _identity(self.path)
        if found == self._identity and (self.path / CONFIG).exists():
            return None
        if found is not None and found != self._identity:
            raise OSError(f"{self.shown} is another folder now")
        if found is None:
            self.lock.release()
            try:
                self.lock = run_folder.create(self.path, self.facts)
            except UsageError as error:
                raise OSError(str(error)) from None
            self._identity = _identity(self.path)
            return (
                f"run folder {self.shown} was removed or moved; it is made again, and --resume "
                "works from there"
            )
        run_folder.write_settings(self.path, self.facts)
        return f"{CONFIG} was removed from {self.shown}; it is written again, with {METADATA}"


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of a folder, unlike others of the same name; None where there is none."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
