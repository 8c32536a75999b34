"""Curves of a page: the panels of a run, or of a sweep's settings, as JSON can hold them.

A panel is {"title", "note", "log", "lines"}; a line {"name", "role", "xs", "ys"}, where the role is
its colour, and more: "smooth", its moving average; "low" and "high", the edges of a band; "style",
"dots" or "dashes".
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.algorithms.task_settings import EVERYBODY
from jaxrl.run.logging.comparison import Groups, band_name, has_interval, mean_line
from jaxrl.run.logging.curves import (
    MAX_LINES,
    Curves,
    aligned,
    band_of,
    of_kind,
    smooth,
    spans_decades,
)
from jaxrl.run.logging.figures import SMOOTHED_FROM
from jaxrl.run.logging.history import Series
from jaxrl.run.logging.panels import WIN_RATE, Panel

MAX_POINTS = 400  # of a line as it is sent
NUM_ROLES = 8  # the colours of agents on a page
INK, QUIET = "ink", "muted"

Line = dict[str, Any]


def role_of(index: int) -> str:
    """The colour of an agent, a policy or a setting; the page's scheme says which that is."""
    return f"agent{index % NUM_ROLES}"


def run_panels(curves: Curves, panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """The panels of a run, the returns first; those without a point are left out."""
    series = curves.series()
    found = [_panel("return", _returns(series))]
    for panel in panels:
        values = of_kind(series, panel.name)
        logarithmic = not panel.linear and spans_decades(values)
        lines = _lines_of(values, logarithmic=logarithmic)
        if (target := finite(panel.target)) is not None and lines:
            lines.append(_target(target, lines))
        found.append(_panel(panel.title, lines, logarithmic=logarithmic))
    return [panel for panel in found if panel["lines"]]


def setting_panels(
    groups: Groups, panels: Sequence[Panel], score: str, title: str, note: str = ""
) -> list[dict[str, Any]]:
    """The panels of several settings, a line for each: of several seeds their mean in a band.

    Args:
        score: the series that the first panel shows.
        title, note: of the first panel.
    """
    if max(map(len, groups.values()), default=0) > 1:
        note = ", ".join(filter(None, [note, f"{band_name(groups)} of seeds"]))
    score_line = lambda series: series.get(score)
    found = [_panel(title, _setting_lines(groups, score_line), note=note)]
    for panel in panels:
        lines = _setting_lines(groups, _line_for(panel))
        several = panel.name != WIN_RATE and _has_policies(groups, panel)
        of_policies = "mean over policies" * several
        values = {line["name"]: (np.array(line["xs"]), _floats(line["ys"])) for line in lines}
        logarithmic = not panel.linear and spans_decades(values)
        found.append(_panel(panel.title, lines, note=of_policies, logarithmic=logarithmic))
    return [panel for panel in found if panel["lines"]]


def _panel(
    title: str, lines: list[Line], *, note: str = "", logarithmic: bool = False
) -> dict[str, Any]:
    return {"title": title, "note": note, "log": logarithmic, "lines": lines}


def _returns(series: Mapping[str, Series]) -> list[Line]:
    """The return, of several agents also their own, and the evaluations as dots."""
    agents, lines = of_kind(series, "agent"), []
    several = len(agents) > 1
    if len(series.get("return", ((), ()))[0]):
        lines.append(_line("sum" if several else "return", series["return"], INK))
    if several:
        lines += _lines_of(agents, smoothed=False)
    if len(series.get("evaluation", ((), ()))[0]):
        lines.append({**_line("evaluation", series["evaluation"], INK), "style": "dots"})
    return lines


def _lines_of(
    values: Mapping[str, Series], *, smoothed: bool = True, logarithmic: bool = False
) -> list[Line]:
    """A line each; of many their mean, in a band from the least to the greatest."""
    if len(values) > MAX_LINES:
        steps, rows = aligned(values.values())
        band = steps, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0)
        return [_band_line(f"mean of {len(values)}", *band, role_of(0))]
    lines = []
    for index, (name, line) in enumerate(values.items()):
        made = _line(name, line, role_of(index))
        if smoothed and len(line[1]) >= SMOOTHED_FROM:
            average = smooth(line[1], logarithmic=logarithmic)
            made["smooth"] = _numbers(average[_rows(line[0])])
        lines.append(made)
    return lines


def _line(name: str, series: Series, role: str) -> Line:
    steps, values = series
    rows = _rows(steps)
    return {"name": name, "role": role, "xs": steps[rows].tolist(), "ys": _numbers(values[rows])}


def _band_line(
    name: str, steps: np.ndarray, middle: np.ndarray, low: np.ndarray, high: np.ndarray, role: str
) -> Line:
    rows = _rows(steps)
    edges = {"low": _numbers(low[rows]), "high": _numbers(high[rows])}
    return {**_line(name, (steps, middle), role), **edges}


def _target(target: float, lines: Iterable[Line]) -> Line:
    """A dashed line across the panel."""
    steps = np.concatenate([line["xs"] for line in lines])
    ends = [float(steps.min()), float(steps.max())]
    return {"name": "target", "role": QUIET, "xs": ends, "ys": [target] * 2, "style": "dashes"}


def _setting_lines(
    groups: Groups, line_of: Callable[[Mapping[str, Series]], Series | None]
) -> list[Line]:
    lines = []
    for index, (label, seeds) in enumerate(groups.items()):
        found = [line for line in map(line_of, seeds) if line is not None and len(line[0])]
        if len(found) > 1:
            steps, (low, middle, high) = band_of(found, interval=has_interval(groups))
            lines.append(_band_line(label, steps, middle, low, high, role_of(index)))
        elif found:
            lines.append(_line(label, found[0], role_of(index)))
    return lines


def _line_for(panel: Panel) -> Callable[[Mapping[str, Series]], Series | None]:
    """Finds the line of one run in a panel: the mean over its policies, or the win rate."""
    if panel.name == WIN_RATE:
        return lambda series: series.get(f"{WIN_RATE}/{EVERYBODY}")
    return lambda series: mean_line(of_kind(series, panel.name))


def _has_policies(groups: Groups, panel: Panel) -> bool:
    """Returns whether a run has a panel's metric of several policies."""
    every = itertools.chain.from_iterable(groups.values())
    return any(len(of_kind(series, panel.name)) > 1 for series in every)


def finite(value: Any) -> float | None:
    """The value as a float; None where it is no finite number, as JSON holds one."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else None


def _rows(steps: np.ndarray) -> np.ndarray:
    """The points that are sent: evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, len(steps) - 1, MAX_POINTS).astype(int))


def _numbers(values: np.ndarray) -> list[float | None]:
    """The values to six digits; NaN is None, as in JSON."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _floats(values: list[float | None]) -> np.ndarray:
    found = np.array(values, np.float64)
    return found[np.isfinite(found)]
