"""The rows of `metrics.jsonl`, read: a result on each line, as every reader of the log has them.

A damaged line costs that line alone. A last line without its end, as a kill leaves it, is none yet.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from jaxrl.core.json_text import read_json
from jaxrl.run.results import ENV_STEPS, ITERATIONS, Result

COUNTS = {ENV_STEPS, ITERATIONS}  # which are numbers where a result has them

log = logging.getLogger(__name__)


def read_result(line: bytes) -> Result | None:
    """The result on a line; None where the line is damaged."""
    try:
        result = read_json(line)
    except ValueError:
        return None
    counts = result.keys() & COUNTS if isinstance(result, dict) else None
    is_result = counts is not None and all(type(result[name]) in (int, float) for name in counts)
    return result if is_result else None


def read_results(path: Path) -> list[Result]:
    """The results of a log, the oldest first; none before the first iteration."""
    damage, results = Damage(path), []
    for number, line in whole_lines(path):
        if (result := read_result(line)) is None:
            damage.note(number)
        else:
            results.append(result)
    damage.say()
    return results


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of a log; none where there is no file."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line


class Damage:
    """Counts the damaged lines of a log, for one line about all of them."""

    def __init__(self, path: Path):
        self._path, self._first, self._count = path, 0, 0

    def note(self, number: int) -> None:
        """The line of this number, from 1, is damaged."""
        self._first, self._count = min(self._first or number, number), self._count + 1

    def say(self) -> None:
        """Warns of them, if there are any."""
        if self._count:
            more = f", the first of {self._count:,} such lines" if self._count > 1 else ""
            log.warning("%s: line %d is damaged and left out%s", self._path, self._first, more)
