"""When training ends: criteria read from the result tree."""

import math
import numbers
from collections.abc import Mapping

from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.run.results import ITERATIONS, Result, lookup

LIFETIME_STEPS = ("num_env_steps_sampled_lifetime", "env_runners/num_env_steps_sampled_lifetime")
LIMITS = frozenset({ITERATIONS, *LIFETIME_STEPS})  # what grows as training goes on, whatever is learned


def last_iteration(stop: Mapping[str, float], num_env_steps: int) -> float:
    """The iteration that training does not go beyond, at `num_env_steps` of each; infinity where nothing limits it."""
    limits = [stop.get(ITERATIONS, math.inf)]
    limits += [stop.get(name, math.inf) / num_env_steps for name in LIFETIME_STEPS]
    least = min(limits)
    return least if math.isinf(least) else math.ceil(least)


def check_stop(stop: Mapping[str, float], names: list[str] | None) -> None:
    """Refuses criteria that no result has, if the names that results have are known, or that are no numbers."""
    for path, threshold in stop.items():
        if names is not None and path not in names:
            raise unknown_name("stop criterion", path, names)
        if isinstance(threshold, bool) or not isinstance(threshold, numbers.Real) or threshold != threshold:
            raise UsageError(f"stop criterion {path}={threshold!r} must be a number")


def met(stop: Mapping[str, float], result: Result) -> str | None:
    """The first criterion that `result` has reached (value >= threshold), or None."""
    for path, threshold in stop.items():
        value = lookup(result, path)
        if value is not None and value >= threshold:
            return path
    return None
