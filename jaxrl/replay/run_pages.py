"""Pages of a run or a sweep: the live one, and the report, which is one file to send."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError
from jaxrl.play.video import write_file
from jaxrl.replay.live_run import LiveRun
from jaxrl.replay.live_sweep import LiveSweep
from jaxrl.replay.page import check_name, check_size, page_of
from jaxrl.run.storage import runs
from jaxrl.run.storage.checkpoint import run_path

CURVES = ("uplot/uPlot.min.css", "player.css", "overview.css", "uplot/uPlot.iife.min.js")
OVERVIEW = (*CURVES, "painting.js", "player.js", "overview.js")  # the files of a report
LIVE = (*OVERVIEW, "live.js")  # of the page that asks a server
REPORT = "report.html"  # in the folder of the run


def open_folder(path: str | Path, *, trust: bool = False) -> LiveRun | LiveSweep:
    """The run or the sweep in a folder, of which `newest` finds that of `runs/arena/latest`.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    folder = run_path(path)
    if (folder / runs.PLAN).is_file():
        return LiveSweep(folder, trust=trust)
    if not (folder / runs.CONFIG).exists() and (inside := runs.contents(folder)):
        raise UsageError(inside)
    return LiveRun(folder, trust=trust)


def newest(path: Path) -> Path:
    """The newest run or sweep for a path that ends in `latest`; any other as it is."""
    return runs.resolve(path, (runs.CONFIG, runs.PLAN))


def live_page() -> str:
    """The page that asks a server for all it shows."""
    return _page(None, LIVE)


def _page(data: Any, files: Sequence[str]) -> str:
    """The page, with the licence of the library that draws its curves."""
    licence = resources.files("jaxrl.replay").joinpath("uplot/LICENSE").read_text(encoding="utf-8")
    head = "<html lang"
    return page_of(data, files).replace(head, f"<!-- uPlot: {licence.strip()} -->\n{head}", 1)


def write_report(
    path: str | Path,
    out: str | Path | None = None,
    *,
    checkpoints: Sequence[str | int],
    trust: bool = False,
) -> Path:
    """Writes the page of a run or a sweep as one file, and returns the file's path.

    Args:
        path: a run's folder or a sweep's.
        out: the file, .html; None: report.html in that folder.
        checkpoints: whose episodes are shown side by side, of a sweep those of its best trial.
        trust: as of `jaxrl.replay`.

    Raises:
        UsageError: no such folder or checkpoint, a file that cannot be written, or a page that
            would be too large.
    """
    if out is not None:
        check_name(out, "out=")
    watched = open_folder(path, trust=trust)
    out = watched.folder / REPORT if out is None else Path(out)
    contents, columns = watched.report(checkpoints)
    page = _page(contents, OVERVIEW)
    check_size(page, columns)
    write_file(out, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return out
