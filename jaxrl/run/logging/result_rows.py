"""The rows of `metrics.jsonl`: a result on each line, as every reader of the log has them."""

from pathlib import Path
from typing import Any

from jaxrl.run.results import ENV_STEPS, ITERATIONS, Result
from jaxrl.run.storage.json_lines import Damage, read_row, whole_lines

COUNTS = {ENV_STEPS, ITERATIONS}  # which are finite numbers where a result has them


def read_result(line: bytes) -> Result | None:
    """The result on a line; None where the line is damaged."""
    result, problem = read_row(line, _problem_of)
    return None if problem else result


def _problem_of(result: Any) -> str:
    if not isinstance(result, dict):
        return "is not a result"
    counts = [result[name] for name in result.keys() & COUNTS]
    are_counts = (type(count) in (int, float) and abs(count) < float("inf") for count in counts)
    return "" if all(are_counts) else "has no counts"


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
