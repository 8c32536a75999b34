"""Plot of a population's lineage: members over iterations, numbers as colours, copies as lines."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.run.logging.figures import INK, QUIET, empty_figure, quiet_scales, save_figure
from jaxrl.sweeps.lineage import Lineage, Stretch
from jaxrl.sweeps.outcomes import TrialResult
from jaxrl.sweeps.plots import is_logarithmic, is_number

MOST_PANELS = 4  # numbers that have one


def draw(
    path: str | Path, lineage: Lineage | None, outcomes: list[TrialResult], way: list[Stretch]
) -> None:
    """Writes the picture, a PNG; nothing where the sweep is no finished population."""
    drawn = figure(lineage, outcomes, way)
    if drawn is not None:
        save_figure(path, lambda: drawn)


def figure(lineage: Lineage | None, outcomes: list[TrialResult], way: list[Stretch]) -> Any:
    """The matplotlib figure, a panel for each number that changed; None without a lineage.

    Args:
        lineage, outcomes: of a sweep; None where it is no population.
        way: of the best policy; empty where no trial has a score.
    """
    if lineage is None or len(outcomes) < len(lineage.first):
        return None
    stretches = lineage.stretches([outcome.iterations for outcome in outcomes])
    names = []
    for name in lineage.first[0]:
        numbers = [part.settings[name] for part in stretches]
        if all(map(is_number, numbers)) and len(set(numbers)) > 1:
            names.append(name)
    names = names[:MOST_PANELS] or [""]
    height = 1.5 + len(names) * (1.2 + 0.2 * len(outcomes))
    drawn = empty_figure((10, min(height, 24)), layout="constrained")
    config = outcomes[0].trial.config
    copies = f"{len(outcomes)} members, {len(lineage.takeovers)} copies"
    drawn.suptitle(f"{config.env_name}, population: {copies}", size=15, weight="bold", color=INK)
    axes = drawn.subplots(len(names), 1, squeeze=False)[:, 0]
    for axis, name in zip(axes, names, strict=True):
        _draw_numbers(axis, stretches, name)
        _draw_copies(axis, lineage, way)
        _finish(axis, f"{name or 'copies'}; in black the way of the best policy", len(outcomes))
    axes[-1].set_xlabel("iteration", size=10, color=QUIET)
    return drawn


def _draw_numbers(axis: Any, stretches: list[Stretch], name: str) -> None:
    """Each member's number as the colour of its line."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    colour_of = lambda settings: QUIET
    if name:
        values = np.array([part.settings[name] for part in stretches], np.float64)
        kind = LogNorm if is_logarithmic(values) else Normalize
        norm, colours = kind(values.min(), values.max()), colormaps["viridis"]
        colour_of = lambda settings: colours(norm(settings[name]))
        bar = axis.figure.colorbar(ScalarMappable(norm, colours), ax=axis, pad=0.01, aspect=25)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=9, colors=QUIET)
    for part in stretches:
        colour = colour_of(part.settings)
        axis.hlines(part.trial, part.begin, part.end, colors=[colour], linewidth=4, zorder=2)


def _draw_copies(axis: Any, lineage: Lineage, way: list[Stretch]) -> None:
    """Draws the copies between trials, and the best policy's way in black."""
    for takeover in lineage.takeovers:
        at, ends = takeover.iteration, sorted((takeover.source, takeover.target))
        axis.vlines(at, *ends, colors=QUIET, alpha=0.5, linewidth=1, zorder=1)
        axis.plot(at, takeover.target, "|", color=QUIET, markersize=7, zorder=3)
    at = np.ravel([(part.begin, part.end) for part in way])
    trials = np.repeat([part.trial for part in way], 2)
    axis.plot(at, trials, color=INK, linewidth=1.2, zorder=4)


def _finish(axis: Any, title: str, num_members: int) -> None:
    """Title, quiet scales, and a line for each member, the first one at the top."""
    quiet_scales(axis)
    axis.grid(False)
    axis.set_title(title, loc="left", size=11, color=INK)
    axis.set_ylabel("trial", size=10, color=QUIET)
    axis.set_xlim(left=0)
    axis.set_ylim(num_members - 0.5, -0.5)
    axis.yaxis.get_major_locator().set_params(integer=True)
