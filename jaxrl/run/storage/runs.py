"""Folders that hold runs: the latest one, `runs/arena/latest`, and what is inside."""

import contextlib
import re
import time
from pathlib import Path

from jaxrl.core.errors import UsageError
from jaxrl.run.storage.forms import NUMBER, Form, problem_of
from jaxrl.run.storage.json_lines import Damage, read_rows

LATEST = "latest"
CONFIG, PLAN = "config.json", "sweep.json"  # the file that tells the folder of a run, of a sweep
METRICS, PROGRESS = "metrics.jsonl", "progress.csv"  # in a run's folder
RESULTS, TRIALS = "results.jsonl", "trials"  # in a sweep's folder
SCORED: Form = {"trial": int, "score": NUMBER}  # a line of results with a score
MOST_NAMES = 6
# The start of a folder's name, unless its user chose another.
TIME = re.compile(r"\d{8}-\d{6}")


def resolve(path: str | Path, kind: str = CONFIG) -> Path:
    """The newest run beside it for a path that ends in `latest`, any other path as it is.

    Args:
        kind: `CONFIG` or `PLAN`.

    Raises:
        UsageError: there is none, or the folder cannot be read.
    """
    path = Path(path)
    if path.name != LATEST or path.exists():
        return path
    found = _newest_first(path.parent, kind)
    if not found:
        raise UsageError(f"{path}: {path.parent} holds no {'run' if kind == CONFIG else 'sweep'}")
    return found[0]


def contents(path: Path) -> str:
    """The runs and sweeps in a folder that is not a run itself, in one line; empty if none."""
    if (path / PLAN).exists():
        return _of_sweep(path)
    runs, sweeps = _newest_first(path, CONFIG), _newest_first(path, PLAN)
    if not runs and not sweeps:
        return ""
    kinds = [_counted(found, what) for found, what in ((runs, "run"), (sweeps, "sweep")) if found]
    latest = f"; {path / LATEST} is the newest run" if runs else ""
    names = _names([folder.name for folder in (*runs, *sweeps)])
    return f"{path} holds {' and '.join(kinds)}: {names}{latest}"


def _of_sweep(path: Path) -> str:
    trials = sorted(config.parent.name for config in (path / TRIALS).glob(f"*/{CONFIG}"))
    scores = _scores(path)
    ranked = sorted(trials, key=lambda trial: -scores.get(trial, -float("inf")))
    named = [
        f"{TRIALS}/{trial}" + (f" ({scores[trial]:.2f})" if trial in scores else "")
        for trial in ranked
    ]
    inside = f": choose one of {_names(named)}" if named else ""
    return f"{path} is a sweep of {_counted(trials, 'trial')}, not a run{inside}"


def _scores(path: Path) -> dict[str, float]:
    """By trial, of those that are finished and have one."""
    rows = read_rows(path / RESULTS, lambda row: problem_of(row, SCORED, ""), Damage(path))
    return {f"{row['trial']:04d}": float(row["score"]) for row in rows}


def _newest_first(folder: Path, kind: str) -> list[Path]:
    """The folders of this kind in `folder`, by the time in their names or of their first file."""
    begins = {}
    try:
        for path in folder.iterdir() if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if (path / kind).is_file():
                    begins[path] = _begin(path, kind)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted(begins, key=begins.__getitem__, reverse=True)


def _begin(path: Path, kind: str) -> tuple[str, float]:
    written = (path / kind).stat().st_mtime
    stamp = TIME.match(path.name)
    return stamp[0] if stamp else time.strftime("%Y%m%d-%H%M%S", time.localtime(written)), written


def _counted(found: list, what: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
