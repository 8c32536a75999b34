"""Plot of a sweep: learning curves of its settings, and the effect of each setting on the score."""

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.run.logging.comparison import label_of, varied_settings
from jaxrl.run.logging.figures import (
    COLOURS,
    INK,
    QUIET,
    empty_figure,
    legend_above,
    quiet_scales,
    save_figure,
    seeds_line,
)
from jaxrl.run.logging.figures import short as short_steps
from jaxrl.run.logging.history import Series
from jaxrl.run.logging.statistics import FEWEST, INTERVAL, RANGE, iqm
from jaxrl.sweeps.outcomes import MAX, TrialResult, merit, short

MOST_CURVES = len(COLOURS)  # of more settings, those that end best
MOST_VALUES = 6  # a number with more than these is drawn along an axis
DECADES = 20.0  # greatest over least, from which on a scale is logarithmic

# Each with the outcomes of its seeds.
Settings = list[tuple[dict[str, Any], list[TrialResult]]]


def draw(path: str | Path, groups: Settings, metric: str, mode: str = MAX) -> None:
    """Writes the picture, a PNG; nothing where no trial has a score."""
    drawn = figure(groups, metric, mode)
    if drawn is not None:
        save_figure(path, lambda: drawn)


def figure(groups: Settings, metric: str, mode: str = MAX) -> Any:
    """The matplotlib figure, or None where no trial has a score."""
    trials = list(itertools.chain.from_iterable(outcomes for _, outcomes in groups))
    groups = _scored(groups)
    if not groups:
        return None
    kinds = _panels(groups, mode)
    drawn = empty_figure((12 if kinds else 8, 5.6))
    edges = {
        "left": 0.065 if kinds else 0.09,
        "right": 0.95,
        "bottom": 0.105,
        "top": 0.72,
        "wspace": 0.24,
    }
    drawn.subplots_adjust(**edges)
    axes = drawn.subplots(1, 1 + len(kinds), squeeze=False)[0]
    drawn.text(
        edges["left"],
        0.945,
        f"{trials[0].trial.config.env_name}, sweep",
        size=17,
        weight="bold",
        color=INK,
        va="center",
    )
    steps = max(_last_step(outcomes) for _, outcomes in groups)
    note = f"{len(trials):,} trials of up to {short_steps(steps)} environment steps"
    drawn.text(0.95, 0.945, note, size=11, color=QUIET, ha="right", va="center")
    _curves(axes[0], groups, metric, mode)
    for axis, (kind, names) in zip(axes[1:], kinds, strict=True):
        kind(axis, groups, names, metric)
    return drawn


def _scored(groups: Settings) -> Settings:
    """The settings with the outcomes that have a score, where there is one."""
    scored = []
    for settings, outcomes in groups:
        outcomes = [outcome for outcome in outcomes if outcome.score is not None]
        if outcomes:
            scored.append((settings, outcomes))
    return scored


def _last_step(outcomes: list[TrialResult]) -> int:
    return max(outcome.curve[0][-1] for outcome in outcomes)


def _scores(outcomes: list[TrialResult]) -> np.ndarray:
    return np.array([outcome.score for outcome in outcomes])


def _merit(outcomes: list[TrialResult], mode: str) -> float:
    return merit(float(np.median(_scores(outcomes))), mode)


def _values(groups: Settings, name: str) -> list[Any]:
    """The value of a setting in each of the groups; None where it has none."""
    return [settings.get(name) for settings, _ in groups]


def _panels(groups: Settings, mode: str) -> list[tuple[Any, list[str]]]:
    """(what draws it, of which settings) for each panel beside the curves."""
    varied = _varied(groups)
    numeric = [name for name in varied if all(map(is_number, _values(groups, name)))]
    if len(varied) == 2 and (math.prod(varied.values()) == len(groups) or not numeric):
        return [(_heat_map, list(varied))]
    if len(varied) == len(numeric) == 2:
        return [(functools.partial(_score_map, mode=mode), numeric)]
    for name in numeric:
        if varied[name] > MOST_VALUES or (len(varied) > 2 and varied[name] > 2):
            return [(_scores_along, [name])]
    return []


def _varied(groups: Settings) -> dict[str, int]:
    return varied_settings([settings for settings, _ in groups])


def _curves(axis: Any, groups: Settings, metric: str, mode: str) -> None:
    """The interquartile mean over the seeds of each setting, in a band."""
    best_first = sorted(groups, key=lambda group: _merit(group[1], mode), reverse=True)
    fewest = min(len(outcomes) for _, outcomes in groups)
    varied = _varied(groups)
    interval = fewest >= FEWEST
    for colour, (settings, outcomes) in zip(COLOURS, best_first, strict=False):
        lines = [line for line in map(_scored_points, outcomes) if len(line[0])]
        if not lines:
            continue
        label = label_of(settings, varied) or "as configured"
        seeds_line(axis, lines, colour, label, interval=interval)
    seeds = best = ""
    if fewest > 1:
        seeds = f", interquartile mean and {INTERVAL if interval else RANGE} of seeds"
    if len(groups) > MOST_CURVES:
        best = f", the best {MOST_CURVES} of {len(groups)} settings"
    _finish(axis, f"{metric.split('/')[-1]}{seeds}{best}")
    axis.set_xlim(left=0)
    axis.set_xlabel("environment steps", size=10, color=QUIET)
    axis.xaxis.set_major_formatter(lambda value, _: short_steps(value))


def _scored_points(outcome: TrialResult) -> Series:
    """The part of a trial's curve that has scores."""
    steps, scores = (np.asarray(part, np.float64) for part in outcome.curve)
    return steps[~np.isnan(scores)], scores[~np.isnan(scores)]


def _scores_along(axis: Any, groups: Settings, names: list[str], metric: str) -> None:
    """Every trial's last score over one setting."""
    (name,) = names
    numbers = [len(outcomes) for _, outcomes in groups]
    values = np.repeat(np.array(_values(groups, name), np.float64), numbers)
    scores = np.concatenate([_scores(outcomes) for _, outcomes in groups])
    axis.plot(values, scores, "o", color=COLOURS[0], markersize=5, alpha=0.7, markeredgewidth=0)
    _finish(axis, f"last {metric.split('/')[-1]} of each trial over {name}")
    _scale(axis.set_xscale, values)
    axis.set_xlabel(name, size=10, color=QUIET)


def _score_map(axis: Any, groups: Settings, names: list[str], metric: str, *, mode: str) -> None:
    """The interquartile mean of the last scores, as a colour where two settings meet."""
    across, up = (np.array(_values(groups, name), np.float64) for name in names)
    scores = np.array([iqm(_scores(outcomes)[:, None]) for _, outcomes in groups])
    order = np.argsort([_merit(outcomes, mode) for _, outcomes in groups])  # the best on top
    points = axis.scatter(
        across[order], up[order], c=scores[order], cmap="viridis", s=70, edgecolors="white"
    )
    _finish(axis, f"last {metric.split('/')[-1]}, interquartile mean of seeds")
    bar = axis.figure.colorbar(points, ax=axis, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, colors=QUIET, length=0)
    _scale(axis.set_xscale, across)
    _scale(axis.set_yscale, up)
    axis.set_xlabel(names[0], size=10, color=QUIET)
    axis.set_ylabel(names[1], size=10, color=QUIET)


def _heat_map(axis: Any, groups: Settings, names: list[str], metric: str) -> None:
    """The interquartile mean of the last scores, for each pair of values of two settings."""
    values = [_sorted(_values(groups, name)) for name in names]
    grid = np.full((len(values[0]), len(values[1])), np.nan)
    for settings, outcomes in groups:
        place = tuple(values[i].index(short(settings.get(name))) for i, name in enumerate(names))
        grid[place] = iqm(_scores(outcomes)[:, None])
    axis.imshow(grid, aspect="auto", cmap="viridis")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for place in np.argwhere(~np.isnan(grid)):
        score = grid[tuple(place)]
        colour = "white" if score <= middle else INK
        axis.text(
            place[1], place[0], f"{score:.1f}", ha="center", va="center", color=colour, fontsize=9.5
        )
    _finish(axis, f"last {metric.split('/')[-1]}, interquartile mean of seeds")
    axis.grid(False)
    for i, (outcome, name) in enumerate(zip((axis.yaxis, axis.xaxis), names, strict=True)):
        outcome.set_ticks(range(len(values[i])), values[i])
        outcome.set_label_text(name, size=10, color=QUIET)
    axis.spines["bottom"].set_visible(False)


def _finish(axis: Any, title: str) -> None:
    """Title, legend above the panel, where it covers nothing, and scales as in a run's plot."""
    handles, labels = axis.get_legend_handles_labels()
    columns = max(1, min(3, 84 // max((len(label) + 6 for label in labels), default=84)))
    rows = -(-len(labels) // columns)
    axis.set_title(title, loc="left", size=12, color=INK, y=1.01 + 0.058 * min(rows, 3))
    if len(labels) > 3 * columns:  # the worst of them go, so that the others have room
        handles, labels = handles[: 3 * columns], labels[: 3 * columns]
    if labels:
        legend_above(axis, handles, labels, columns)
    quiet_scales(axis)


def _scale(set_scale: Any, values: np.ndarray) -> None:
    if is_logarithmic(values):
        set_scale("log")


def is_logarithmic(values: np.ndarray) -> bool:
    """Returns whether numbers span so much that a logarithmic scale shows them better."""
    return values.min() > 0 and values.max() >= DECADES * values.min()


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _sorted(values: list[Any]) -> list[str]:
    """The different values as texts: numbers by size, anything else in the order of the plan."""
    if all(map(is_number, values)):
        values = sorted(values)
    return list(dict.fromkeys(map(short, values)))
