"""Figures of several runs: a line each, or for the seeds of one setting their mean in a band."""

import itertools
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxrl.algorithms.task_settings import EVERYBODY
from jaxrl.run.logging.curves import aligned, last_step, of_kind, spans_decades
from jaxrl.run.logging.figures import (
    COLOURS,
    LONGEST_NAME,
    QUIET,
    RULE,
    empty_figure,
    empty_panels,
    finish,
    make_room,
    named_line,
    seeds_line,
    short,
    smoothed_line,
)
from jaxrl.run.logging.history import Series
from jaxrl.run.logging.panels import WIN_RATE, Panel
from jaxrl.run.logging.statistics import FEWEST, INTERVAL, RANGE, spread_along

COLUMN = (3.4, 2.5)  # inches: the width of one of a paper's two columns
POINTS = 8.0  # of its letters
LONGEST_AT_POINTS = 40  # characters of a line's name; longer ones are a point smaller
ROWS_IN_COLUMN = 4  # of the legend; with more the figure is taller
SCHEDULED = ([int, int], [int, float])  # a step and the value at it

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
    legend_rows = [finish(returns, caption)]
    for axis, panel in zip(others, panels, strict=True):
        one_line = _against_all if panel.name == WIN_RATE else mean_line
        lines = _lines(groups, lambda series, panel=panel: of_kind(series, panel.name), one_line)
        every = dict(enumerate(itertools.chain.from_iterable(lines.values())))
        logarithmic = not panel.linear and spans_decades(every)
        _draw(axis, groups, lines, logarithmic=logarithmic)
        of_policies = "" if panel.name == WIN_RATE else ", mean over policies"
        legend_rows.append(finish(axis, panel.title + of_policies, logarithmic=logarithmic))
    for axis in (returns, *others):
        axis.set_xlim(0, 1.01 * last or 1)
    make_room(drawn, max(legend_rows))
    return drawn


def paper(groups: Groups) -> Any:
    """The returns alone, for one column of a paper; the legend is below the data."""
    drawn = empty_figure(COLUMN, layout="constrained")
    axis = drawn.subplots()
    _draw_returns(axis, groups)
    handles, labels = axis.get_legend_handles_labels()
    names = [label.rpartition("  ")[0] for label in labels]  # without the last value
    if len(names) > 1:
        longest = max(map(len, names))
        size = POINTS - (longest > LONGEST_AT_POINTS)
        columns = 1 + (longest <= 20)
        more = max(0, -(-len(names) // columns) - ROWS_IN_COLUMN)
        drawn.set_size_inches(COLUMN[0], COLUMN[1] + more * 1.6 * size / 72)
        looks = {"ncols": columns, "frameon": False, "fontsize": size}
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


def label_of(settings: Mapping[str, Any], names: Iterable[str], longest: int | None = None) -> str:
    """`lr=0.001 clip_param=0.2`, of the settings that tell lines apart.

    Args:
        longest: the most characters of a value; the rest of it is cut off.
    """
    return " ".join(f"{name}={_brief(settings.get(name), longest)}" for name in names)


def _brief(value: Any, longest: int | None) -> str:
    if _is_schedule(value):
        return "→".join(f"{number:.3g}" for _, number in value)
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


def _is_schedule(value: Any) -> bool:
    """Returns whether a value is `[[0, 0.001], [60000, 0.0001]]`: numbers from step 0 on."""
    if not isinstance(value, list | tuple) or len(value) < 2:
        return False
    for part in value:
        if not isinstance(part, list | tuple) or list(map(type, part)) not in SCHEDULED:
            return False
    return value[0][0] == 0


def band_name(groups: Groups) -> str:
    """The words for a line and its band."""
    return f"interquartile mean and {INTERVAL if has_interval(groups) else RANGE}"


def _has_seeds(groups: Groups) -> bool:
    return max(map(len, groups.values())) > 1


def has_interval(groups: Groups) -> bool:
    """Returns whether every group has so many seeds that a bootstrap interval is true."""
    return min(map(len, groups.values())) >= FEWEST


def _draw_returns(axis: Any, groups: Groups) -> None:
    one_return = lambda lines: lines.get("return")
    _draw(axis, groups, _lines(groups, lambda series: series, one_return))


def _draw_evaluations(axis: Any, groups: Groups) -> bool:
    """Dots, of several seeds at their interquartile mean; returns whether there are any."""
    found = _lines(groups, lambda series: series, lambda lines: lines.get("evaluation"))
    for lines, colour in zip(found.values(), itertools.cycle(COLOURS)):
        if lines:
            steps, values = aligned(lines)
            dots = {"color": "white", "markeredgecolor": colour, "markersize": 5}
            axis.plot(steps, spread_along(values, interval=False)[1], "o", **dots)
    return any(found.values())


def _draw(
    axis: Any, groups: Groups, found: Mapping[str, list[Series]], *, logarithmic: bool = False
) -> None:
    """Lines, smoothed where every one of them is of a single run; a mean of seeds is not."""
    for (label, lines), colour in zip(found.items(), itertools.cycle(COLOURS)):
        if len(lines) > 1:
            seeds_line(axis, lines, colour, label, interval=has_interval(groups))
        elif lines and _has_seeds(groups):
            named_line(axis, *lines, colour, label, longest=LONGEST_NAME)
        elif lines:
            smoothed_line(axis, *lines, colour, label, LONGEST_NAME, logarithmic=logarithmic)


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
