"""A result as a notebook shows it: the figures that most people look at, then every path."""

from collections.abc import Mapping
from typing import Any

from jaxrl.core.displays import Display
from jaxrl.core.errors import brief
from jaxrl.core.plan import Line

ITERATIONS, RETURN = "training_iteration", "env_runners/episode_return_mean"
FIGURES = {  # {path: (label, form)}
    ITERATIONS: ("iteration", "{:,}"),
    "num_env_steps_sampled_lifetime": ("steps", "{:,}"),
    RETURN: ("return", "{:.2f}"),
    "env_runners/episode_len_mean": ("length", "{:.1f} steps"),
    f"evaluation/{RETURN}": ("evaluation", "return {:.2f}"),
    "perf/env_steps_per_s": ("speed", "{:,.0f} steps/s"),
}
MOST_SHOWN = 10  # numbers of a list


def result_display(results: Mapping[str, Any]) -> Display:
    """A result, or a part of one, by paths: a part shows them all."""
    every = [(path, _shown(value)) for path, value in results.items()]
    if not {ITERATIONS, RETURN} & results.keys():
        return Display("Result", every)
    folded = Display(f"all {len(every)} results, by their paths", every)
    return Display("Result", figures_of(results), folded=folded)


def figures_of(results: Mapping[str, Any], paths: tuple[str, ...] = tuple(FIGURES)) -> list[Line]:
    """The lines of some of the `FIGURES`, from results by paths.

    A log may hold anything: what is no number is left out.
    """
    lines: list[Line] = []
    for path in paths:
        label, form = FIGURES[path]
        if isinstance(results.get(path), int | float):
            lines.append((label, form.format(results[path])))
    return lines


def _shown(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        return f"{len(value):,} values, the last {brief(value[-1])}"
    return value
