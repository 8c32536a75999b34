"""The criteria by which training ends, read from the result tree."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from jaxrl.core.errors import UsageError, brief, unknown_result
from jaxrl.core.fields import FLOAT32, as_number
from jaxrl.run.results import ITERATIONS, Lifetime, Result, lookup

LIFETIME_STEPS = ("num_env_steps_sampled_lifetime", "env_runners/num_env_steps_sampled_lifetime")
SECONDS = "time_total_s"
# These grow as training goes on, whatever is learned.
LIMITS = frozenset({ITERATIONS, *LIFETIME_STEPS})


def last_iteration(
    stop: Mapping[str, float], num_env_steps: int, trained: Lifetime | None = None
) -> float:
    """The iteration that training does not go beyond; infinity where nothing limits it.

    Args:
        num_env_steps: of each iteration to come.
        trained: what was trained before, perhaps with other iterations; default: nothing.
    """
    done = trained or Lifetime()
    steps = min(stop.get(name, math.inf) for name in LIFETIME_STEPS) - done.num_env_steps
    least = min(stop.get(ITERATIONS, math.inf), done.training_iteration + steps / num_env_steps)
    return least if math.isinf(least) else math.ceil(least)


def criteria_of(stop: Any) -> dict[str, float]:
    """The criteria given to `fit`, as {path: least value}."""
    if stop is not None and not isinstance(stop, Mapping):
        raise UsageError(
            f"fit takes criteria such as {{'env_runners/episode_return_mean': 30}}, not "
            f"{brief(stop)}; how long "
            "to train, the configuration's total_env_steps says"
        )
    return dict(stop or {})


def check_goal(name: str, least: Any) -> None:
    """Refuses a return to stop at that none reaches, or that is no number."""
    is_number = isinstance(least, int | float) and not isinstance(least, bool)
    if least is not None and not (is_number and abs(least) <= FLOAT32):
        raise UsageError(f"{name}={brief(least)} must be a finite number, or None")


def check_stop(stop: Mapping[str, float], names: Collection[str] | None) -> None:
    """Refuses criteria that are not numbers, or that no result has, where its names are known."""
    for path, threshold in stop.items():
        if names is not None and path not in names:
            raise unknown_result("stop criterion", path, names)
        number = as_number(threshold)  # files hold int and float alone
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or number != number:
            raise UsageError(f"stop criterion {path}={brief(threshold)} must be a number")


def met(stop: Mapping[str, float], result: Result | None) -> str | None:
    """The first criterion that `result` has reached (value >= threshold), or None."""
    return next(iter(all_met(stop, result)), None)


def unmet(stop: Mapping[str, float], result: Result | None) -> dict[str, float]:
    """The criteria that `result` has not reached: all of them before the first result."""
    reached = all_met(stop, result)
    return {path: threshold for path, threshold in stop.items() if path not in reached}


def all_met(stop: Mapping[str, float], result: Result | None) -> dict[str, float]:
    """The criteria that `result` has reached; none before the first result."""
    values = {path: lookup(result, path) for path in stop}
    return {
        path: stop[path]
        for path, value in values.items()
        if value is not None and value >= stop[path]
    }
