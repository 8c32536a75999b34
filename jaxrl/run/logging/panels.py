"""The panels of a run's curves, as its folder stores them: the metrics that its algorithm names."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxrl.algorithms.base import HeadlineMetric
from jaxrl.core.errors import UsageError

MAX_PANELS = 3  # beside the return's


class Panel(NamedTuple):
    """A metric of each policy, or a win rate, that is drawn beside the return."""

    name: str  # of the metric
    title: str
    linear: bool = False
    target: float | None = None


# The last panel of a run with a pool: against all members, and against each that is no copy.
WIN_RATE = "win_rate"
WIN_RATE_FACTS = [WIN_RATE, "win rate against opponents", "", True]


def panel_facts(
    metrics: Iterable[HeadlineMetric], *, has_opponents: bool = False
) -> list[list[Any]]:
    """The facts of a run's panels that its folder stores, for `panels_of`."""
    titled = [
        [metric.name, metric.title, metric.target, metric.linear]
        for metric in metrics
        if metric.title
    ]
    if not has_opponents:
        return titled[:MAX_PANELS]
    return [*titled[: MAX_PANELS - 1], WIN_RATE_FACTS]


def panels_of(facts: Mapping[str, Any]) -> tuple[Panel, ...]:
    """The panels of a run, from what its folder says."""
    targets = facts["config"]
    try:
        return tuple(
            Panel(str(name), str(title), bool(linear), targets.get(target))
            for name, title, target, linear in facts["panels"]
        )
    except (TypeError, ValueError):
        raise UsageError("the run's folder is damaged: metadata.json has other panels") from None
