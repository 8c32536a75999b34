"""JSON lines and CSV loggers: files of whole lines, cut back when a run is resumed."""

import csv
import io
import math
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jaxrl.run.logging.loggers import Logger, RunStart
from jaxrl.run.logging.result_rows import read_result
from jaxrl.run.results import ITERATIONS, Result
from jaxrl.run.storage import own_files
from jaxrl.run.storage.json_lines import dumped, leaf
from jaxrl.run.storage.runs import METRICS, PROGRESS


class JsonLines(Logger):
    """`metrics.jsonl`: the nested result tree of every iteration, a line each; NaN is null.

    What is written is with the operating system at once, and nothing is open between two writes.
    """

    def open(self, run: RunStart) -> None:
        self.path = run.folder / METRICS
        start_after(
            self.path,
            lambda line: _iteration_of(line) <= run.iteration,
            anew=run.iteration == 0,
        )

    def write(self, results: list[Result]) -> None:
        append(self.path, (f"{dumped(result)}\n".encode() for result in results))


class CsvLines(Logger):
    """`progress.csv`: a row for each iteration, a column for each path; no number is empty.

    The columns are those of the first result, and the paths at which the run's results may have
    numbers later (returns, evaluations). What comes besides is left out, which one line says. Lists
    (the counts of histograms) have no column.
    """

    def open(self, run: RunStart) -> None:
        self.path, self._run, self._left_out = run.folder / PROGRESS, run, False
        self._columns = _header(self.path) if run.iteration > 0 else []
        places = {name: place for place, name in enumerate(self._columns)}

        def kept(line: bytes) -> bool:
            cells = _cells(line)
            number = cells[places[ITERATIONS]] if len(cells) == len(places) else ""
            return number.isdecimal() and int(number) <= run.iteration

        start_after(self.path, kept, anew=ITERATIONS not in places, num_head_lines=1)
        if ITERATIONS not in places:
            self._columns = []

    def write(self, results: list[Result]) -> None:
        rows = [leaves(result) for result in results]
        table = []
        if rows and not self._columns:
            first = [name for name, value in rows[0].items() if not isinstance(value, list)]
            self._columns = list(dict.fromkeys((*first, *self._run.result_names)))
            table = [[_cell(name) for name in self._columns]]
        table += [[_cell(row.get(name)) for name in self._columns] for row in rows]
        append(self.path, _csv_lines(table).splitlines(keepends=True))
        self._tell_left_out(rows)

    def _tell_left_out(self, rows: list[dict[str, Any]]) -> None:
        if self._left_out:
            return
        columns = set(self._columns)
        numbers = [(name, value) for row in rows for name, value in row.items()]
        new = {
            name for name, value in numbers if name not in columns and not isinstance(value, list)
        }
        if new:
            self._left_out = True
            more = f" and {len(new) - 1} more" if len(new) > 1 else ""
            self._run.say(
                f"{PROGRESS} has no column for {min(new)}{more}, which came after its first row; "
                "the jsonl log has all numbers"
            )


def append(path: Path, pieces: Iterable[bytes]) -> None:
    """Appends each piece in one write, so that a kill hardly ever meets half a piece.

    Nothing of a piece that cannot be written whole (the disk is full) stays. The file must exist:
    one that was removed is an error to hear of, not a log that begins in the middle.
    """
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
    descriptor = own_files.without_links(path, flags)
    try:
        for piece in pieces:
            written = 0
            try:
                while written < len(piece):
                    written += os.write(descriptor, piece[written:])
            except OSError:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise
    finally:
        os.close(descriptor)


def start_after(
    path: Path, is_kept: Callable[[bytes], bool], anew: bool = False, num_head_lines: int = 0
) -> None:
    """Ends the file after its last whole line that `is_kept` accepts; makes it where there is none.

    Read from its end, since lines are in order and most stay: a resume costs the same after any
    length. And cut in
    place: a kill on the way finds the file as it was or as it will be.

    Args:
        num_head_lines: lines at its beginning that stay whatever they are.
    """
    with open(path, "ab+", opener=own_files.without_links) as file:
        file.seek(0)
        begin = 0 if anew else sum(len(file.readline()) for _ in range(num_head_lines))
        end = 0 if anew else file.seek(0, os.SEEK_END)
        if end > begin:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                while end > begin:
                    line_begin = max(text.rfind(b"\n", begin, end - 1) + 1, begin)
                    line = text[line_begin:end]
                    if line.endswith(b"\n") and is_kept(line):
                        break
                    end = line_begin
        file.truncate(end)


def leaves(result: Result) -> dict[str, Any]:
    """{path: leaf} as `flatten`, in a quarter of its time; leaves as Python's plain values."""
    found: dict[str, Any] = {}

    def collect(tree, prefix):
        for name, value in tree.items():
            if isinstance(value, dict):
                collect(value, f"{prefix}{name}/")
            else:
                found[f"{prefix}{name}"] = value if type(value) in (float, int) else leaf(value)

    collect(result, "")
    return found


def _iteration_of(line: bytes) -> float:
    """The iteration that a line of JSON is of; of a damaged one infinity."""
    result = read_result(line)
    return math.inf if result is None else result.get(ITERATIONS, math.inf)


def _cell(value: Any) -> Any:
    """A value as the csv module takes it: a row is one line, whatever a text holds."""
    if isinstance(value, float):
        return value if math.isfinite(value) else ""
    return " ".join(value.splitlines()) if isinstance(value, str) else value


def _csv_lines(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode(errors="replace")]), [])


def _header(path: Path) -> list[str]:
    """The columns of a file that exists and has whole ones."""
    if not path.exists():
        return []
    with open(path, "rb", opener=own_files.only_files) as file:
        line = file.readline()
    return _cells(line) if line.endswith(b"\n") else []
