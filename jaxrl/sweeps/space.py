"""What a sweep tries: grids and distributions over settings, by Ray Tune's names."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError


@dataclass(frozen=True)
class Grid:
    """Every one of the values."""

    values: tuple


@dataclass(frozen=True)
class Draw:
    """A value at random."""

    name: str  # with its arguments, for people
    sample: Callable[[np.random.Generator], Any]


def grid_search(values: Sequence[Any]) -> Grid:
    """Each of the values, with each of every other grid's."""
    if not len(values):
        raise UsageError("a grid without values: give at least one")
    return Grid(tuple(values))


def choice(values: Sequence[Any]) -> Draw:
    """One of the values, each as likely."""
    if not len(values):
        raise UsageError("a choice without values: give at least one")
    values = tuple(values)
    return Draw(f"choice{values}", lambda generator: values[int(generator.integers(len(values)))])


def uniform(low: float, high: float) -> Draw:
    """A number between the two."""
    _check_range("uniform", low, high)
    return Draw(f"uniform({low:g}, {high:g})", lambda generator: float(generator.uniform(low, high)))


def loguniform(low: float, high: float) -> Draw:
    """A number between the two whose logarithm is uniform."""
    _check_range("loguniform", low, high, above=0)
    least, most = math.log(low), math.log(high)
    return Draw(f"loguniform({low:g}, {high:g})", lambda generator: math.exp(generator.uniform(least, most)))


def randint(low: int, high: int) -> Draw:
    """A whole number from `low` to `high` - 1."""
    _check_range("randint", low, high)
    return Draw(f"randint({low}, {high})", lambda generator: int(generator.integers(low, high)))


def _check_range(name: str, low: float, high: float, above: float = -math.inf) -> None:
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            raise UsageError(f"{name}({low!r}, {high!r}): both bounds must be finite numbers")
    if not above < low < high:
        raise UsageError(f"{name}({low:g}, {high:g}): wanted is {'0 < ' if above == 0 else ''}low < high")


def settings_of(space: Mapping[str, Any], num_samples: int = 1, seed: int = 0) -> list[dict[str, Any]]:
    """The settings to try: every combination of the grids, `num_samples` times, with new draws each time.

    Args:
        space: {setting: what it takes}; a list is a grid, and anything else that is not of the kinds above one value.
        seed: of the draws.
    """
    if num_samples < 1:
        raise UsageError(f"num_samples={num_samples} must be at least 1")
    kinds = {name: grid_search(value) if isinstance(value, list) else value for name, value in space.items()}
    grids = {name: kind.values for name, kind in kinds.items() if isinstance(kind, Grid)}
    generator, found = np.random.default_rng(seed), []
    for _ in range(num_samples):
        for values in itertools.product(*grids.values()):
            chosen = dict(zip(grids, values, strict=True))
            for name, kind in kinds.items():
                if name not in grids:
                    chosen[name] = kind.sample(generator) if isinstance(kind, Draw) else kind
            found.append({name: chosen[name] for name in kinds})
    return found
