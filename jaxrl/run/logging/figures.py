"""Figures of matplotlib: a run's curves, a matrix of win rates, and what other figures share."""

import functools
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, require
from jaxrl.run.logging.curves import (
    MAX_LINES,
    aligned,
    band_of,
    last_step,
    of_kind,
    smooth,
    spans_decades,
)
from jaxrl.run.logging.history import Series
from jaxrl.run.logging.panels import Panel
from jaxrl.run.storage import own_files

PICTURES = (".png", ".pdf", ".svg")  # what the file's name may end in
SMOOTHED_FROM = 60  # points of a noisy curve before it is smoothed
FONTS = {"pdf.fonttype": 42}  # embedded whole, as publishers ask, and text that can be searched
INLINE_DPI = 75  # of a figure in a notebook: 900 x 600 pixels
LONGEST_NAME = 50  # characters of a setting in a legend, and of its number of seeds
HEIGHT, LEGEND_ROW = 8.0, 15 / 72  # inches
LEGEND_MARGIN = 8  # pixels around a legend's texts
COLOURS = ("#1962aa", "#e25822", "#2f9e6e", "#9c5fb5", "#c9a227", "#5b6770")
INK, QUIET, RULE = "#20242c", "#6b7280", "#e3e5e8"

_drawing = threading.Lock()  # matplotlib's fonts and caches are one for the process


def save_figure(path: str | Path, make: Callable[[], Any]) -> None:
    """Writes the matplotlib figure that `make` returns, all or nothing.

    The file's ending gives the format.

    Raises:
        UsageError: the name ends in none of `PICTURES`.
    """
    path = Path(path)
    if path.suffix not in PICTURES:
        raise UsageError(
            f"picture {brief(path.name)}: the name must end in one of {', '.join(PICTURES)}"
        )
    require("matplotlib", path.name)
    temporary = own_files.temporary_beside(path)
    try:
        with _drawing:
            import matplotlib

            with matplotlib.rc_context(FONTS):
                make().savefig(temporary, format=path.suffix[1:])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def empty_figure(size: tuple[float, float], **layout: Any) -> Any:
    """A matplotlib figure of hundreds of pixels `size`, on a canvas without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=100, facecolor="white", **layout)


def figure(
    series: Mapping[str, Series], panels: Sequence[Panel], title: str, footer: str = ""
) -> Any:
    """The matplotlib figure of these series."""
    last = last_step([series])
    texts = title, f"{short(last)} environment steps", footer
    drawn, (returns, *others) = empty_panels(1 + len(panels), *texts)
    legend_rows = [_draw_returns(returns, series)]
    for axis, panel in zip(others, panels, strict=True):
        lines = of_kind(series, panel.name)
        logarithmic = not panel.linear and spans_decades(lines)
        _draw_lines(axis, lines, logarithmic=logarithmic)
        if panel.target is not None and lines:
            dashes, label = (0, (5, 3)), f"target {panel.target:g}"
            axis.axhline(panel.target, color=QUIET, linewidth=1.1, linestyle=dashes, label=label)
        legend_rows.append(finish(axis, panel.title, logarithmic=logarithmic))
    for axis in (returns, *others):
        axis.set_xlim(0, 1.01 * last or 1)
    make_room(drawn, max(legend_rows))
    return drawn


def heat_map(shares: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> Any:
    """The matplotlib figure of a matrix of shares: 1 is blue, 0 is red."""
    size = 4.5 + 0.45 * len(columns), 2.2 + 0.45 * len(rows)
    drawn = empty_figure(size, layout="constrained")
    axis = drawn.subplots()
    image = axis.imshow(shares, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    for (i, j), share in np.ndenumerate(shares):
        colour = "white" if abs(share - 0.5) > 0.3 else INK
        axis.text(j, i, f"{share:.2f}", ha="center", va="center", size=8, color=colour)
    axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axis.set_yticks(range(len(rows)), rows)
    axis.set_title(title, color=INK, size=11)
    axis.tick_params(length=0, colors=QUIET)
    drawn.colorbar(image, ax=axis, label="of the row against the column")
    return drawn


def inline(drawn: Any) -> Any:
    """The figure, which a notebook shows as a picture even where nobody imported pyplot."""
    drawn._repr_png_ = functools.partial(_png, drawn)
    return drawn


def _png(drawn: Any) -> bytes:
    file = io.BytesIO()
    with _drawing:
        drawn.savefig(file, format="png", dpi=INLINE_DPI)
    return file.getvalue()


def empty_panels(number: int, title: str, note: str, footer: str) -> tuple[Any, list[Any]]:
    """(figure, up to four panels in reading order), with the texts around them."""
    drawn = empty_figure((12, HEIGHT))
    drawn.subplots_adjust(left=0.065, right=0.95, bottom=0.075, top=0.845, wspace=0.21, hspace=0.36)
    columns = 1 if number == 1 else 2
    rows = -(-number // columns)
    panels = list(drawn.subplots(rows, columns, squeeze=False).flat)
    for spare in panels[number:]:
        spare.remove()
    drawn.text(0.065, 0.96, title, size=17, weight="bold", color=INK, va="center")
    drawn.text(0.95, 0.96, note, size=11, color=QUIET, ha="right", va="center")
    drawn.text(0.95, 0.015, footer, size=8.5, color=QUIET, ha="right", va="center")
    for axis in panels[max(0, number - columns) : number]:
        axis.set_xlabel("environment steps", size=10, color=QUIET)
    return drawn, panels[:number]


def make_room(drawn: Any, legend_rows: int) -> None:
    """Makes the figure taller where a legend has more than the two rows that fit above a panel."""
    more = LEGEND_ROW * max(0, legend_rows - 2)
    rows, edges = drawn.axes[0].get_gridspec().nrows, drawn.subplotpars
    panel = HEIGHT * (edges.top - edges.bottom) / (rows + (rows - 1) * edges.hspace)
    height = HEIGHT + rows * more
    drawn.set_size_inches(drawn.get_figwidth(), height)
    for text in drawn.texts:  # as far from the nearer edge as before
        _, y = text.get_position()
        text.set_y(y * HEIGHT / height if y < 0.5 else 1 - (1 - y) * HEIGHT / height)
    drawn.subplots_adjust(
        bottom=edges.bottom * HEIGHT / height,
        top=1 - ((1 - edges.top) * HEIGHT + more) / height,
        hspace=edges.hspace + more / panel,
    )


def _draw_returns(axis: Any, series: Mapping[str, Series]) -> int:
    """The summed return and, of a few agents, their own; returns the legend's rows."""
    agents = of_kind(series, "agent")
    few = 1 < len(agents) <= MAX_LINES
    if few:
        for (agent, line), colour in zip(agents.items(), COLOURS, strict=False):
            named_line(axis, line, colour, agent)
    if "return" in series:
        name = "sum" if few else f"sum of {len(agents)} agents" if len(agents) > 1 else "return"
        named_line(axis, series["return"], INK, name, width=2.2)
    if len(series.get("evaluation", ((), ()))[0]):
        axis.plot(
            *series["evaluation"],
            "o",
            color="white",
            markeredgecolor=INK,
            markersize=5,
            label="evaluation",
        )
    return finish(axis, "return per agent and in sum" if few else "return")


def _draw_lines(axis: Any, lines: Mapping[str, Series], *, logarithmic: bool) -> None:
    """One smoothed line each; of many their mean within a band from the least to the greatest."""
    if len(lines) > MAX_LINES:
        steps, values = aligned(lines.values())
        axis.fill_between(
            steps,
            values.min(0),
            values.max(0),
            color=COLOURS[0],
            alpha=0.22,
            linewidth=0,
            label="range",
        )
        mean = values.mean(0)
        mean = smooth(mean, logarithmic=logarithmic) if len(steps) >= SMOOTHED_FROM else mean
        named_line(axis, (steps, mean), COLOURS[0], f"mean of {len(lines)}")
        return
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        smoothed_line(axis, line, colour, name, logarithmic=logarithmic)


def smoothed_line(
    axis: Any,
    series: Series,
    colour: str,
    name: str,
    longest: int = 16,
    *,
    logarithmic: bool = False,
) -> None:
    """The values, pale, under their moving average; of a few points the values alone."""
    steps, values = series
    if len(values) >= SMOOTHED_FROM:
        axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9)
        values = smooth(values, logarithmic=logarithmic)
    named_line(axis, (steps, values), colour, name, longest=longest)


def named_line(
    axis: Any, series: Series, colour: str, name: str, width: float = 1.7, longest: int = 16
) -> None:
    """A line that the legend calls `name`, with its last value."""
    steps, values = series
    if len(steps):
        name = (
            name if len(name) <= longest else f"{name[: longest // 2]}…{name[1 - longest // 2 :]}"
        )
        marker = "o" if len(steps) == 1 else None
        axis.plot(
            steps,
            values,
            color=colour,
            linewidth=width,
            marker=marker,
            label=f"{name}  {values[-1]:.3g}",
        )


def seeds_line(
    axis: Any, seeds: Sequence[Series], colour: str, name: str, *, interval: bool
) -> None:
    """The interquartile mean of several seeds, in a band: its 95 % interval, or their range."""
    steps, (least, middle, greatest) = band_of(seeds, interval=interval)
    axis.fill_between(steps, least, greatest, color=colour, alpha=0.15, linewidth=0)
    named_line(axis, (steps, middle), colour, name, longest=LONGEST_NAME)


def finish(axis: Any, name: str, *, logarithmic: bool = False) -> int:
    """Title, legend above the panel so that it covers nothing, and quiet scales.

    Returns:
        The number of the legend's rows, for `make_room`.
    """
    from matplotlib.ticker import FuncFormatter

    handles, labels = axis.get_legend_handles_labels()
    rows = _legend_within(axis, handles, labels)
    axis.set_title(name, loc="left", size=12, color=INK, pad=6 + 72 * LEGEND_ROW * rows)
    if not labels:
        axis.text(
            0.5, 0.5, "nothing yet", transform=axis.transAxes, ha="center", va="center", color=QUIET
        )
        axis.set_yticks([])
    if logarithmic:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    quiet_scales(axis)
    return rows


def _legend_within(axis: Any, handles: list[Any], labels: list[str]) -> int:
    """Places the legend in the fewest rows that end with the panel; returns their number."""
    for rows in range(1, len(labels) + 1):
        legend_above(axis, handles, labels, -(-len(labels) // rows))
        if axis.get_legend().get_window_extent().x1 <= axis.get_window_extent().x1 + LEGEND_MARGIN:
            return rows
    return len(labels)


def legend_above(axis: Any, handles: list[Any], labels: list[str], columns: int) -> None:
    """A legend above the panel, so that it covers nothing."""
    axis.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(-0.012, 0.985),
        ncols=columns,
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
        handlelength=1.3,
        columnspacing=1.5,
        handletextpad=0.5,
    )


def quiet_scales(axis: Any) -> None:
    """A pale grid below the data, and no frame but the line at the bottom."""
    axis.grid(True, color=RULE, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=9, colors=QUIET, which="both", length=0)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(RULE)


def short(steps: float) -> str:
    """1500 as "1.5k", 2_000_000 as "2M"."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(steps) >= unit:
            return f"{steps / unit:.4g}{sign}"
    return f"{steps:g}"
