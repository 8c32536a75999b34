"""Folders that hold runs: the latest one, `runs/arena/latest`, and what is inside."""

import contextlib
import os
import re
import time
from datetime import datetime, timedelta
from pathlib import Path

from jaxrl.core.errors import UsageError
from jaxrl.run.storage import own_files
from jaxrl.run.storage.forms import NUMBER, Form, problem_of
from jaxrl.run.storage.json_lines import Damage, read_rows

LATEST = "latest"
CONFIG, PLAN = "config.json", "sweep.json"  # the file that tells the folder of a run, of a sweep
KINDS = {CONFIG: "run", PLAN: "sweep"}
METRICS, PROGRESS = "metrics.jsonl", "progress.csv"  # in a run's folder
CURVES, EPISODE, PAGE = "curves.png", "episode.gif", "episode.html"
RESULTS, TRIALS = "results.jsonl", "trials"  # in a sweep's folder
SCORED: Form = {"trial": int, "score": NUMBER}  # a line of results with a score
MOST_NAMES = 6
# The start of a folder's name, unless its user chose another.
TIME, TIME_FORMAT = re.compile(r"[0-9]{8}-[0-9]{6}"), "%Y%m%d-%H%M%S"


def resolve(path: str | Path, kinds: tuple[str, ...] = (CONFIG,)) -> Path:
    """The newest run beside it for a path that ends in `latest`, any other path as it is.

    Of kind `PLAN` it is the newest sweep, of `CONFIG` and `PLAN` the newest of both. A trial of a
    sweep may be named by its number alone, `trials/0003`.

    Raises:
        UsageError: there is none, or the folder cannot be read.
    """
    path = Path(path)
    if path.parent.name == TRIALS and path.name.isdecimal() and not path.exists():
        return path.with_name(trial_names(path.parent.parent).get(int(path.name), path.name))
    if path.name != LATEST or (path.exists() and not path.is_symlink()):
        return path
    found = _newest_first(path.parent, *kinds)
    if not found:
        raise UsageError(f"{path}: {path.parent} holds no {' or '.join(map(KINDS.get, kinds))}")
    return found[0]


def link_latest(run: Path) -> None:
    """Has a link `latest` beside a new run lead to it, for `ls`, browsers and viewers of pictures.

    Commands do not follow it: they look for the newest run. A file or folder of that name stays.
    """
    link = run.with_name(LATEST)
    if link.exists() and not link.is_symlink():
        return
    made = own_files.temporary_beside(link)
    with contextlib.suppress(OSError, NotImplementedError):  # where there are no links
        made.symlink_to(run.name, target_is_directory=True)
        os.replace(made, link)


def is_link(path: Path) -> bool:
    """Returns whether it is what `link_latest` makes: the same run as another path beside it."""
    return path.name == LATEST and path.is_symlink()


def trial_names(sweep: Path) -> dict[int, str]:
    """The names of the folders of a sweep's trials, by number; only the number in older sweeps."""
    found = (path.name for path in (sweep / TRIALS).glob("[0-9]*"))
    return {int(number): name for name in found if (number := name.partition("_")[0]).isdecimal()}


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
    number_of = lambda trial: trial.partition("_")[0]
    ranked = sorted(trials, key=lambda trial: -scores.get(number_of(trial), -float("inf")))
    named = [
        f"{TRIALS}/{trial}" + (f" ({scores[number]:.2f})" if number in scores else "")
        for trial, number in zip(ranked, map(number_of, ranked), strict=True)
    ]
    inside = f": choose one of {_names(named)}" if named else ""
    return f"{path} is a sweep of {_counted(trials, 'trial')}, not a run{inside}"


def _scores(path: Path) -> dict[str, float]:
    """The scores of finished trials that have one, by the number that begins a folder's name."""
    rows = read_rows(path / RESULTS, lambda row: problem_of(row, SCORED, ""), Damage(path))
    return {f"{row['trial']:04d}": float(row["score"]) for row in rows}


def _newest_first(folder: Path, *kinds: str) -> list[Path]:
    """The folders of these kinds in `folder`, by the time in their names or of their first file."""
    begins = {}
    try:
        for kind in kinds:
            for path in folder.iterdir() if folder.is_dir() else ():
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if (path / kind).is_file() and not is_link(path):
                        begins[path] = begin(path, kind)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted(begins, key=begins.__getitem__, reverse=True)


def begin(path: Path, kind: str) -> tuple[str, float]:
    """The time in a folder's name, else of its file `kind`; the later of two runs is greater."""
    written = (path / kind).stat().st_mtime
    return _time_in(path.name) or time.strftime(TIME_FORMAT, time.localtime(written)), written


def next_time(folder: Path) -> str:
    """The time for a new folder's name: now, but later than those that are there.

    So `latest` stays the run that was begun last where the clock was set back, as every autumn.
    """
    now, times = time.strftime(TIME_FORMAT), []
    with contextlib.suppress(OSError):
        times = [found for path in folder.iterdir() if (found := _time_in(path.name))]
    if (newest := max(times, default=now)) <= now:
        return now
    with contextlib.suppress(OverflowError):  # the end of the year 9999
        later = datetime.strptime(newest, TIME_FORMAT) + timedelta(seconds=1)
        return later.strftime(TIME_FORMAT)
    return newest


def _time_in(name: str) -> str | None:
    """The time that a folder's name begins with, if it is one."""
    with contextlib.suppress(ValueError):  # the 99th of a month
        if found := TIME.match(name):
            datetime.strptime(found[0], TIME_FORMAT)
            return found[0]
    return None


def _counted(found: list, what: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
