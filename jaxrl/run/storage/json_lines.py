"""JSON lines: the rows of a run's or a sweep's logs, as every writer and reader has them.

A damaged line costs that line alone. A last line without its end, as a kill leaves it, is none yet.
"""

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.json_text import read_json
from jaxrl.run.storage import own_files

log = logging.getLogger(__name__)


class Damage:
    """Counts the damaged lines of a file, for one line about all of them."""

    def __init__(self, path: Path):
        self.path, self.count = path, 0
        self._first, self._problem = 0, ""

    def note(self, number: int, problem: str = "") -> None:
        """The line of this number, from 1, is damaged."""
        if not self.count or number < self._first:
            self._first, self._problem = number, problem
        self.count += 1

    def __str__(self) -> str:
        """The first damaged line."""
        return f"line {self._first} is damaged" + f" ({self._problem})" * bool(self._problem)

    def say(self) -> None:
        """Warns of them, if there are any."""
        if self.count:
            more = f", the first of {self.count:,} such lines" if self.count > 1 else ""
            log.warning("%s: %s and left out%s", self.path, self, more)


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of a file; none where there is no file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with (
            contextlib.suppress(FileNotFoundError),
            open(path, "rb", opener=own_files.only_files) as file,
        ):
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield number, line
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def read_rows(path: Path, problem_of: Callable[[Any], str], damage: Damage) -> Iterator[Any]:
    """The rows of a file, the oldest first; those with a problem are noted in `damage` instead.

    Args:
        problem_of: what is wrong with a row, such as "has no score"; mostly empty.
    """
    for number, line in whole_lines(path):
        row, problem = read_row(line, problem_of)
        if problem:
            damage.note(number, problem)
        else:
            yield row


def read_row(line: bytes, problem_of: Callable[[Any], str]) -> tuple[Any, str]:
    """(the row on a line, what is wrong with it)."""
    try:
        row = read_json(line)
    except ValueError as error:
        return None, f"is not JSON: {one_line(error)}"
    return row, problem_of(row)


def dumped(row: Any) -> str:
    """A row, such as a result, as one line of JSON; NaN is null."""
    try:
        return json.dumps(row, allow_nan=False, default=leaf)
    except ValueError:  # some number is none: rare, so only then the tree is walked here
        return json.dumps(plain(row), allow_nan=False)


def plain(tree: Any) -> Any:
    """A result tree as JSON holds it: NaN is None, numbers of NumPy and JAX are Python's."""
    if isinstance(tree, Mapping):
        return {name: plain(part) for name, part in tree.items()}
    value = leaf(tree)
    if isinstance(value, list):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def leaf(value: Any) -> Any:
    """The JSON value of what hooks may have added, of any type; a text if JSON does not know it."""
    if value is None or isinstance(value, bool | int | float | str | list):
        return value
    if hasattr(value, "tolist"):  # of a picture its type and shape: pixels would bury the numbers
        return f"{value.dtype}{value.shape}" if getattr(value, "ndim", 0) > 2 else value.tolist()
    return list(value) if isinstance(value, tuple) else str(value)
