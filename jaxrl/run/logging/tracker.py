"""Base class of the loggers that write to a tracker: Weights & Biases, Trackio, MLflow."""

import re
import secrets
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxrl.core.errors import UsageError
from jaxrl.run.logging.loggers import Logger, RunStart
from jaxrl.run.logging.scalars import Downsampler, charts, pictures
from jaxrl.run.results import Result
from jaxrl.run.storage import own_files

PROJECT = "jaxrl"  # of all trackers, unless the user names another
MOST_CHARACTERS = 128  # of an id
Histograms = dict[str, tuple[list[float], list[int]]]  # {path: (edges, counts)}


def known_id(path: Path, tracker: str) -> str:
    """The id that a run's folder holds; trackers look it up, and W&B makes a folder's name of it.

    Raises:
        UsageError: the file holds something else.
    """
    with open(path, "rb", opener=own_files.without_links) as file:
        text = file.read(MOST_CHARACTERS + 1).decode(errors="replace").strip()
    if not re.fullmatch(rf"[-\w]{{1,{MOST_CHARACTERS}}}", text, re.ASCII):
        raise UsageError(f"{path} holds no id of a run of {tracker}")
    return text


def drawn(result: Result, histograms: Histograms, library: ModuleType) -> dict[str, Any]:
    """Histograms and a result's pictures, as objects of a library that has wandb's classes."""
    made = {}
    for tag, (edges, counts) in histograms.items():
        made[tag] = library.Histogram(np_histogram=(counts, edges))
    for tag, pixels in pictures(result).items():
        made[tag] = library.Image(pixels)
    return made


class Tracker(Logger):
    """A logger to a tracker; a resumed run continues under its id, kept in the run's folder.

    Results are thinned as TensorBoard's are. A subclass defines `begin`, `log` and `end`.
    """

    tracker = ""  # its name, for errors
    id_file = ""  # in the run's folder

    def open(self, run: RunStart) -> None:
        self._thin = Downsampler()
        file = run.folder / self.id_file
        if run.iteration > 0 and file.exists():
            self.begin(run, known_id(file, self.tracker), resumed=True)
            return
        own_files.write_text(file, self.begin(run, secrets.token_hex(4), resumed=False))

    def write(self, results: list[Result]) -> None:
        for result in self._thin.due(results):
            self.log(result, *charts(result))

    def flush(self) -> None:
        self.write(self._thin.held())

    def close(self) -> None:
        self.flush()
        self.end()

    def begin(self, run: RunStart, run_id: str, *, resumed: bool) -> str:
        """Begins or resumes a run at the tracker; returns its id there.

        Args:
            run_id: of a new run a suggestion, which trackers with ids of their own leave alone.
        """
        raise NotImplementedError

    def log(self, result: Result, scalars: dict[str, float], histograms: Histograms) -> None:
        """Logs the curves and the histograms of one result."""
        raise NotImplementedError

    def end(self) -> Any:
        """Ends the run at the tracker."""
        raise NotImplementedError
