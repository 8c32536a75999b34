"""A sweep in one picture: scores over environment steps, and a heat map where two settings were varied."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.run.curves import COLOURS, INK, QUIET, RULE
from jaxrl.sweeps.outcome import Outcome, Sweep, short, shown
from jaxrl.sweeps.statistics import iqm

MOST_CURVES = 10  # of more settings, those that end best
POINTS = 200


def draw(sweep: Sweep, path: str | Path) -> None:
    """Writes the picture, a PNG; nothing where no trial has a score."""
    from matplotlib.figure import Figure

    groups = [(settings, [one for one in own if one.score is not None]) for settings, own in sweep.by_settings()]
    groups = [(settings, own) for settings, own in groups if own]
    if not groups:
        return
    names = list(dict.fromkeys(name for settings, _ in groups for name in settings))
    varied = [name for name in names if len({repr(settings.get(name)) for settings, _ in groups}) > 1]
    figure = Figure(figsize=(15 if len(varied) == 2 else 9, 5.5), dpi=100, layout="constrained")
    panels = figure.subplots(1, 2 if len(varied) == 2 else 1, squeeze=False)[0]
    best_first = sorted(groups, key=lambda group: -np.median([one.score for one in group[1]]))
    _curves(panels[0], best_first[:MOST_CURVES], sweep.metric)
    if len(varied) == 2:
        _heat_map(panels[1], groups, varied, sweep.metric)
    figure.savefig(Path(path), format="png")


def _curves(axes, groups: list[tuple[dict[str, Any], list[Outcome]]], metric: str) -> None:
    """Medians over seeds, in bands from the first quartile to the third."""
    for number, (settings, own) in enumerate(groups):
        steps = np.linspace(0, max(one.curve[0][-1] for one in own), POINTS)
        values = np.stack([_at(steps, one) for one in own])
        seen = ~np.all(np.isnan(values), axis=0)
        low, middle, high = np.nanpercentile(values[:, seen], [25, 50, 75], axis=0)
        colour = COLOURS[number % len(COLOURS)]
        label = shown(settings) or "as configured"
        axes.plot(steps[seen], middle, color=colour, linewidth=1.5, label=f"{label} ({len(own)})")
        axes.fill_between(steps[seen], low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_title("median and quartiles over seeds", loc="left", fontsize=10, color=INK)
    axes.set_xlabel("environment steps", color=QUIET)
    axes.set_ylabel(metric.split("/")[-1], color=QUIET)
    axes.grid(color=RULE, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _at(steps: np.ndarray, outcome: Outcome) -> np.ndarray:
    """The newest score at each of these steps; a trial that is over keeps its last."""
    own, scores = (np.asarray(part, np.float64) for part in outcome.curve)
    known = ~np.isnan(scores)
    own, scores = own[known], scores[known]
    place = np.searchsorted(own, steps, side="right") - 1
    return np.where(place >= 0, scores[np.maximum(place, 0)], np.nan)


def _heat_map(axes, groups: list[tuple[dict[str, Any], list[Outcome]]], names: list[str], metric: str) -> None:
    """The interquartile mean of the last scores, for two settings."""
    values = [list(dict.fromkeys(short(settings[name]) for settings, _ in groups)) for name in names]
    cells: dict[tuple[int, int], list[float]] = {}
    for settings, own in groups:
        place = tuple(values[i].index(short(settings[name])) for i, name in enumerate(names))
        cells.setdefault(place, []).extend(one.score for one in own)
    grid = np.full((len(values[0]), len(values[1])), np.nan)
    for place, scores in cells.items():
        grid[place] = iqm(np.array(scores)[:, None])
    axes.imshow(grid, aspect="auto", cmap="viridis")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for place in cells:
        colour = "white" if grid[place] <= middle else INK
        axes.text(place[1], place[0], f"{grid[place]:.1f}", ha="center", va="center", color=colour, fontsize=9)
    for i, (axis, name) in enumerate(zip((axes.yaxis, axes.xaxis), names, strict=True)):
        axis.set_ticks(range(len(values[i])), values[i])
        axis.set_label_text(name, color=QUIET)
    axes.set_title(f"{metric.split('/')[-1]}, interquartile mean over seeds", loc="left", fontsize=10, color=INK)
