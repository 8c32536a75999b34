"""Figures of several runs: a line each, or for the seeds of one setting their median in a band."""

import itertools
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.algorithms.task_settings import EVERYBODY
from jaxrl.run.logging.curves import aligned, last_step, of_kind, spans_decades
from jaxrl.run.logging.figures import (
    COLOURS,
    QUIET,
    RULE,
    empty_figure,
    empty_panels,
    finish,
    seeds_line,
    short,
    smoothed_line,
)
from jaxrl.run.logging.history import Series
from jaxrl.run.logging.panels import WIN_RATE, Panel

FEWEST_FOR_QUARTILES = 8  # seeds whose quartiles are shown; of fewer their range
COLUMN = (3.4, 2.5)  # inches: the width of one of a paper's two columns
POINTS = 8.0  # of its letters

Groups = Mapping[str, Sequence[Mapping[str, Series]]]  # {label: the series of each seed}


def compared(groups: Groups, panels: Sequence[Panel], title: str, footer: str = "") -> Any:
    """The figure of several runs; of a run's policies the mean."""
    last = last_step(itertools.chain.from_iterable(groups.values()))
    note = f"{sum(map(len, groups.values()))} runs"
    if _has_seeds(groups):
        note += f", {band_name(groups)} of seeds"
    drawn, (returns, *others) = empty_panels(1 + len(panels), title, note, footer)
    _draw_returns(returns, groups)
    caption = "return"
    if _draw_evaluations(returns, groups):
        caption += ", evaluations as dots"
    finish(returns, caption)
    for axis, panel in zip(others, panels, strict=True):
        one_line = _against_all if panel.name == WIN_RATE else mean_line
        lines = _lines(groups, lambda series, panel=panel: of_kind(series, panel.name), one_line)
        every = dict(enumerate(itertools.chain.from_iterable(lines.values())))
        logarithmic = not panel.linear and spans_decades(every)
        _draw(axis, groups, lines, logarithmic=logarithmic)
        of_policies = "" if panel.name == WIN_RATE else ", mean over policies"
        finish(axis, panel.title + of_policies, logarithmic=logarithmic)
    for axis in (returns, *others):
        axis.set_xlim(0, 1.01 * last or 1)
    return drawn


def paper(groups: Groups) -> Any:
    """The returns alone, for one column of a paper; the legend is below the data."""
    drawn = empty_figure(COLUMN, layout="constrained")
    axis = drawn.subplots()
    _draw_returns(axis, groups)
    handles, labels = axis.get_legend_handles_labels()
    names = [label.rpartition("  ")[0] for label in labels]  # without the last value
    if len(names) > 1:
        columns = 1 + (max(map(len, names)) <= 20)
        looks = {"ncols": columns, "frameon": False, "fontsize": POINTS}
        drawn.legend(handles, names, loc="outside lower center", **looks)
    axis.set_xlabel("environment steps", fontsize=POINTS)
    axis.set_ylabel("episode return", fontsize=POINTS)
    axis.xaxis.set_major_formatter(lambda value, _: short(value))
    axis.tick_params(labelsize=POINTS - 1, length=2)
    axis.grid(True, color=RULE, linewidth=0.6)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(QUIET)
    axis.set_xlim(left=0)
    return drawn


def grouped(settings: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], list[int]]]:
    """[(settings, which have them)]: equal ones are together, in the order of the first."""
    groups: dict[str, tuple[Mapping[str, Any], list[int]]] = {}
    for i, values in enumerate(settings):
        groups.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(i)
    return list(groups.values())


def varied_settings(settings: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """{setting: how many values it takes} of those that take several; None where one has none."""
    found = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(settings)):
        number = len(set(map(repr, map(operator.methodcaller("get", name), settings))))
        if number > 1:
            found[name] = number
    return found


def label_of(settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """`lr=0.001 clip_param=0.2`, of the settings that tell lines apart."""
    return " ".join(f"{name}={_brief(settings.get(name))}" for name in names)


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def band_name(groups: Groups) -> str:
    """The name of a line and its band: median and range, or quartiles."""
    return f"median and {'quartiles' if has_quartiles(groups) else 'range'}"


def _has_seeds(groups: Groups) -> bool:
    return max(map(len, groups.values())) > 1


def has_quartiles(groups: Groups) -> bool:
    """Returns whether every group has so many seeds that quartiles say more than a range."""
    return min(map(len, groups.values())) >= FEWEST_FOR_QUARTILES


def _draw_returns(axis: Any, groups: Groups) -> None:
    one_return = lambda lines: lines.get("return")
    _draw(axis, groups, _lines(groups, lambda series: series, one_return))


def _draw_evaluations(axis: Any, groups: Groups) -> bool:
    """Dots, of several seeds at their median; returns whether there are any."""
    found = _lines(groups, lambda series: series, lambda lines: lines.get("evaluation"))
    for lines, colour in zip(found.values(), itertools.cycle(COLOURS)):
        if lines:
            steps, values = aligned(lines)
            dots = {"color": "white", "markeredgecolor": colour, "markersize": 5}
            axis.plot(steps, np.median(values, axis=0), "o", **dots)
    return any(found.values())


def _draw(
    axis: Any, groups: Groups, found: Mapping[str, list[Series]], *, logarithmic: bool = False
) -> None:
    for (label, lines), colour in zip(found.items(), itertools.cycle(COLOURS)):
        if len(lines) > 1:
            seeds_line(axis, lines, colour, label, quartiles=has_quartiles(groups))
        elif lines:
            smoothed_line(axis, *lines, colour, label, logarithmic=logarithmic)


def _lines(
    groups: Groups,
    chosen: Callable[[Mapping[str, Series]], Mapping[str, Series]],
    one_line: Callable[[Mapping[str, Series]], Series | None],
) -> dict[str, list[Series]]:
    """{label: a line of each seed that has one}."""
    found = {}
    for label, seeds in groups.items():
        lines = [one_line(chosen(series)) for series in seeds]
        found[label] = [line for line in lines if line is not None and len(line[0])]
    return found


def _against_all(lines: Mapping[str, Series]) -> Series | None:
    return lines.get(EVERYBODY)


def mean_line(lines: Mapping[str, Series]) -> Series | None:
    """The mean of a run's lines, such as those of its policies; None where there are none."""
    if not lines:
        return None
    steps, values = aligned(lines.values())
    return steps, values.mean(0)
