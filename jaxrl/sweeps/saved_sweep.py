"""Reading a sweep's folder: every file is checked, and what is damaged is named."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.json_text import read_json
from jaxrl.run.results import ITERATIONS
from jaxrl.run.storage import migrate, own_files
from jaxrl.run.storage.json_lines import Damage, read_rows
from jaxrl.run.storage.runs import PLAN, RESULTS
from jaxrl.sweeps.outcomes import DIVERGED, DROPPED, STOPPED, TERMINATED

STATUSES = (TERMINATED, STOPPED, DIVERGED, DROPPED)


def read_plan(path: Path) -> dict[str, Any]:
    """The plan of the sweep in a folder.

    Raises:
        UsageError: no sweep's folder, or a damaged one.
    """
    try:
        plan = migrate.present_plan(read_json(own_files.read_text(path / PLAN)))
    except OSError as error:
        raise UsageError(
            f"{path} is not a sweep's folder: {PLAN}: {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise UsageError(
            f"sweep folder {path} is damaged: {PLAN} is not JSON: {one_line(error)}"
        ) from None
    problem = _plan_problem(plan)
    if problem:
        raise UsageError(f"sweep folder {path} is damaged: {PLAN} {problem}")
    return plan


def read_results(path: Path, plan: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """{trial: its line} of the trials that are finished, which a damaged line does not tell.

    Args:
        plan: whose settings and seeds the lines must have.

    Raises:
        UsageError: a line is damaged, and the trials depend on each other, so that all of them
            would be trained again.
    """
    damage = Damage(path / RESULTS)
    rows = read_rows(path / RESULTS, lambda row: _row_problem(row, plan["trials"]), damage)
    by_trial = {row["trial"]: migrate.present_row(row) for row in rows}
    if damage.count and (plan["halving"] is not None or plan["scheduler"] is not None):
        raise UsageError(
            f"sweep folder {path} is damaged: {RESULTS}: {damage}, and its trials depend on each "
            f"other: without {RESULTS} all of them are trained again"
        )
    damage.say()
    return by_trial


@contextlib.contextmanager
def called_damaged(path: Path, file: str = PLAN, kind: str = "sweep") -> Iterator[None]:
    """Turns whatever impossible values of a file lead to into one line that names the file."""
    try:
        yield
    except UsageError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        where = f"{kind} folder {path} is damaged"
        raise UsageError(f"{where}: {file} holds no {kind}: {what}") from None


def _plan_problem(plan: Any) -> str:
    """The fault in the form of a plan; mostly empty."""
    if not isinstance(plan, dict):
        return "holds no settings"
    kinds = {
        "config_class": str,
        "config": dict,
        "objects": list,
        "metric": str,
        "mode": str,
        "stop": dict,
        "trials": list,
    }
    for name, kind in {**kinds, "halving": object, "devices": object, "batch_size": object}.items():
        if name not in plan:
            return f"has no {name!r}"
        if not isinstance(plan[name], kind):
            return f"has {name}={brief(plan[name])}"
    for number, trial in enumerate(plan["trials"]):
        if (
            not isinstance(trial, dict)
            or not isinstance(trial.get("settings"), dict)
            or not _is_int(trial.get("seed"))
        ):
            return f"has no settings and seed of trial {number}"
    return "" if plan["trials"] else "has no trials"


def _row_problem(row: Any, trials: list[dict[str, Any]]) -> str:
    """The fault of a line of results; mostly empty."""
    if not isinstance(row, dict):
        return "is not a result"
    for name in ("trial", "settings", "seed", "status", "score", "curve", "result"):
        if name not in row:
            return f"has no {name!r}"
    number = row["trial"]
    if not _is_int(number) or not 0 <= number < len(trials):
        return f"has trial={brief(number)}; the sweep has {len(trials)}"
    names = list(row["settings"]) if isinstance(row["settings"], dict) else None
    if (names, row["seed"]) != (list(trials[number]["settings"]), trials[number]["seed"]):
        return f"has other settings than trial {number} of {PLAN}"
    if row["status"] not in STATUSES:
        return f"has status={brief(row['status'])}"
    if not _is_number(row["score"]):
        return f"has score={brief(row['score'])}"
    result = row["result"]
    if result is not None and not (isinstance(result, dict) and _is_int(result.get(ITERATIONS))):
        return "has no result tree"
    return "" if _is_curve(row["curve"]) else "has no curve of steps and scores"


def _is_curve(curve: Any) -> bool:
    if (
        not isinstance(curve, list)
        or len(curve) != 2
        or not all(isinstance(part, list) for part in curve)
    ):
        return False
    return (
        len(curve[0]) == len(curve[1])
        and all(map(_is_int, curve[0]))
        and all(map(_is_number, curve[1]))
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Returns whether it is a number, or None where there was none."""
    return value is None or _is_int(value) or isinstance(value, float)
