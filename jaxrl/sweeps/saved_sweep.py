"""Reading a sweep's folder: every file is checked, and what is damaged is named."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.json_text import read_json
from jaxrl.run.results import ITERATIONS
from jaxrl.run.storage import migrate, own_files
from jaxrl.run.storage.forms import NUMBER, Form, problem_of
from jaxrl.run.storage.json_lines import Damage, read_rows
from jaxrl.run.storage.runs import PLAN, RESULTS
from jaxrl.sweeps.outcomes import DIVERGED, DROPPED, STOPPED, TERMINATED

STATUSES = (TERMINATED, STOPPED, DIVERGED, DROPPED)
SCORE = NUMBER | None  # None: there was none


def _curve(value: Any) -> None:
    steps, scores = value
    if len(steps) != len(scores) or problem_of([steps, scores], [list], "it"):
        raise ValueError
    if problem_of(steps, [int], "it") or problem_of(scores, [SCORE], "it"):
        raise ValueError


def _result(value: Any) -> None:
    if value is not None and problem_of(value, {ITERATIONS: int}, "it"):
        raise ValueError


SWEEP: Form = {  # of sweep.json
    **{"config_class": str, "config": dict, "objects": list},
    **{"metric": str, "mode": str, "stop": dict},
    **{"halving": object, "devices": object, "batch_size": object},
    "trials": [{"settings": dict, "seed": int}],
}
ROW: Form = {  # of a line of results.jsonl
    **{"trial": int, "settings": dict, "seed": int, "status": STATUSES.index},
    **{"score": SCORE, "curve": _curve, "result": _result},
}


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
    problem = problem_of(plan, SWEEP, PLAN)
    if problem or not plan["trials"]:
        raise UsageError(f"sweep folder {path} is damaged: {problem or f'{PLAN} has no trials'}")
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


def _row_problem(row: Any, trials: list[dict[str, Any]]) -> str:
    """The fault of a line of results; mostly empty."""
    if problem := problem_of(row, ROW, "it"):
        return problem
    number = row["trial"]
    if not 0 <= number < len(trials):
        return f"trial in it is {brief(number)}; the sweep has {len(trials)}"
    if (list(row["settings"]), row["seed"]) != (
        list(trials[number]["settings"]),
        trials[number]["seed"],
    ):
        return f"it has other settings than trial {number} of {PLAN}"
    return ""
