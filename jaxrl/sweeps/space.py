"""The search space of a sweep: grids and distributions over settings, by Ray Tune's names."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import FLOAT32, count, number, text
from jaxrl.core.words import flag_name, pairs_of_texts, value_of


@dataclass(frozen=True)
class Grid:
    """Every one of the values."""

    values: tuple


@dataclass(frozen=True)
class Draw:
    """A value at random."""

    kind: str  # in `DRAWS`
    arguments: tuple
    sample: Callable[[np.random.Generator], Any]


def grid_search(values: Sequence[Any]) -> Grid:
    """Each of the values (a list, a range or a NumPy array), with each of every other grid's."""
    values = _plain("a grid", values)
    shown = [repr(value) for value in values]
    if repeated := [text for i, text in enumerate(shown) if text in shown[:i]]:
        raise UsageError(f"a grid has {repeated[0]} twice, which would be the same training twice")
    return Grid(values)


def choice(values: Sequence[Any]) -> Draw:
    """One of the values, each as likely."""
    values = _plain("a choice", values)
    sample = lambda generator: values[int(generator.integers(len(values)))]
    return Draw("choice", (values,), sample)


def uniform(low: float, high: float) -> Draw:
    """A number between the two."""
    _check_range("uniform", low, high)
    return Draw("uniform", (low, high), lambda generator: float(generator.uniform(low, high)))


def quniform(low: float, high: float, q: float) -> Draw:
    """A multiple of `q` next to a uniform number, both bounds included."""
    _check_range("quniform", low, high)
    form = f"quniform({low!r}, {high!r}, {brief(q)})"
    number(0, open_low=True)("quniform q", q)
    for bound in (low, high):
        if not math.isclose(bound / q, round(bound / q), abs_tol=1e-9):
            raise UsageError(f"{form}: both bounds must be multiples of {q:g}, as in Tune")

    def sample(generator: np.random.Generator) -> float:
        nearest = round(generator.uniform(low, high) / q) * q
        return float(min(max(nearest, low), high))

    return Draw("quniform", (low, high, q), sample)


def loguniform(low: float, high: float) -> Draw:
    """A number between the two whose logarithm is uniform."""
    _check_range("loguniform", low, high, above=0)
    least, most = math.log(low), math.log(high)
    sample = lambda generator: math.exp(generator.uniform(least, most))
    return Draw("loguniform", (low, high), sample)


def randint(low: int, high: int) -> Draw:
    """An integer from `low` to `high` - 1."""
    low, high = _integers("randint", low, high)
    return Draw("randint", (low, high), lambda generator: int(generator.integers(low, high)))


def lograndint(low: int, high: int) -> Draw:
    """An integer from `low` to `high` - 1, the floor of a number whose logarithm is uniform."""
    low, high = _integers("lograndint", low, high, above=0)
    least, most = math.log(low), math.log(high)

    def sample(generator: np.random.Generator) -> int:
        drawn = math.floor(math.exp(generator.uniform(least, most)))
        return min(max(drawn, low), high - 1)  # the exponential rounds

    return Draw("lograndint", (low, high), sample)


def _integers(name: str, low: int, high: int, above: float = -math.inf) -> tuple[int, int]:
    """The bounds, once they are integers."""
    _check_range(name, low, high, above)
    if low != int(low) or high != int(high):
        continuous = name.replace("randint", "uniform")
        raise UsageError(
            f"{name}({low!r}, {high!r}): both bounds must be integers; "
            f"{continuous}(...) draws other numbers"
        )
    return int(low), int(high)


DRAWS = {
    draw.__name__: draw for draw in (choice, uniform, quniform, loguniform, randint, lograndint)
}
INTEGERS = ("randint", "lograndint")  # draws of integers below the upper bound
# Their forms on the command line.
GRID, RANDOM = "SETTING=VALUE,VALUE", "SETTING=DISTRIBUTION:LOW:HIGH"
MUTATIONS = f"{GRID}|{RANDOM}"


def values_of(kind: Grid | Draw) -> tuple | None:
    """The values of a grid or a choice; None of the other draws."""
    if isinstance(kind, Grid):
        return kind.values
    return kind.arguments[0] if kind.kind == "choice" else None


def to_json(kind: Grid | Draw) -> dict[str, Any]:
    """`{"loguniform": [1e-5, 1e-2]}`, which `from_json` takes; a grid is its list of values."""
    if isinstance(kind, Grid):
        return {"grid_search": [list(kind.values)]}
    return {kind.kind: list(kind.arguments)}


def from_json(saved: Mapping[str, Any]) -> Grid | Draw:
    ((name, arguments),) = saved.items()
    return {**DRAWS, "grid_search": grid_search}[name](*arguments)


def _check_range(name: str, low: float, high: float, above: float = -math.inf) -> None:
    for bound in (low, high):
        is_number = isinstance(bound, int | float | np.number) and not isinstance(bound, bool)
        if not is_number or not abs(bound) <= FLOAT32:
            bounds = f"{brief(low)}, {brief(high)}"
            raise UsageError(f"{name}({bounds}): both bounds must be finite numbers")
    if not above < low < high:
        raise UsageError(
            f"{name}({low:g}, {high:g}) needs {'0 < ' if above == 0 else ''}low < high"
        )


def _plain(what: str, values: Sequence[Any]) -> tuple:
    """The values as a tuple, NumPy's numbers as Python's."""
    no_list = str | bytes | bytearray | Mapping | Set
    if isinstance(values, no_list) or not hasattr(values, "__len__"):
        raise UsageError(f"{what} takes a list of values, not {brief(values)}")
    if not len(values):
        raise UsageError(f"{what} without values: give at least one")
    return tuple(value.item() if isinstance(value, np.generic) else value for value in values)


def settings_of(
    space: Mapping[str, Any], num_samples: int = 1, seed: int = 0
) -> list[dict[str, Any]]:
    """The settings to try: every combination of the grids, `num_samples` times, each newly drawn.

    Args:
        space: {setting: what it takes}; a list, a range or an array is a grid, and anything else
            that is not of the kinds above one value.
        seed: of the draws.

    Raises:
        UsageError: no mapping, a grid without values, or `num_samples` of a space with nothing to
            draw.
    """
    count()("num_samples", num_samples)
    kinds = kinds_of(as_space(space))
    if num_samples > 1 and not any(isinstance(kind, Draw) for kind in kinds.values()):
        raise UsageError(
            f"num_samples={num_samples} has nothing to draw: every sample would be the same "
            "training; "
            f"seeds={num_samples} trains with other seeds"
        )
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


def as_space(space: Mapping[str, Any] | None) -> dict[str, Any]:
    """The space as a dict, or a UsageError where it is no mapping."""
    if space is not None and not isinstance(space, Mapping):
        raise UsageError(
            f'space must be a mapping such as {{"lr": [3e-4, 1e-3]}}, not {brief(space)}'
        )
    for name in space or {}:
        text("a setting's name")("space", name)
    return dict(space or {})


def kinds_of(space: Mapping[str, Any]) -> dict[str, Any]:
    """The kinds by setting: a `Grid`, a `Draw`, or the one value that it always takes."""
    return {name: _kind_of(name, value) for name, value in space.items()}


def _kind_of(name: str, value: Any) -> Any:
    if isinstance(value, list | range) or (isinstance(value, np.ndarray) and value.ndim == 1):
        try:
            return grid_search(value)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
    return value.item() if isinstance(value, np.generic) else value


def grid_of(flag: str, words: Sequence[str]) -> dict[str, Grid]:
    """`lr=1e-4,3e-4 fcnet_hiddens=[64,64],[256,256]` as grids."""
    return {name: grid_search(_values(text)) for name, text in _pairs(flag, words).items()}


def draws_of(flag: str, words: Sequence[str]) -> dict[str, Draw]:
    """`lr=loguniform:1e-5:1e-2 clip_param=choice:0.1:0.2` as what is drawn from."""
    found = {}
    for name, form in _pairs(flag, words).items():
        kind, *values = form.split(":")
        if kind not in DRAWS:
            raise unknown_name("distribution", kind, DRAWS, f"of {name}")
        values = [value_of(value) for value in values if value]
        if kind == "choice":
            found[name] = choice(values)
        elif kind == "quniform" and len(values) != 3:
            raise UsageError(f"{name}={form}: {kind} takes two bounds and Q, {kind}:LOW:HIGH:Q")
        elif kind != "quniform" and len(values) != 2:
            raise UsageError(f"{name}={form}: {kind} takes two bounds, {kind}:LOW:HIGH")
        else:
            found[name] = DRAWS[kind](*values)
    return found


def mutations_of(flag: str, words: Sequence[str]) -> dict[str, Grid | Draw]:
    """Both forms, those of grids and those of draws."""
    drawn, listed = [], []
    for word in words:
        distribution = word.partition("=")[2].partition(":")[0]
        if distribution in DRAWS:
            drawn.append(word)
        else:
            listed.append(word)
    return disjoint(grid_of(flag, listed), draws_of(flag, drawn), f"{flag_name(flag)} twice")


def disjoint(grid: dict[str, Grid], draws: dict[str, Draw], where: str) -> dict[str, Any]:
    """Both together; a setting that is in both is refused."""
    if both := sorted(grid.keys() & draws.keys()):
        raise UsageError(f"{both[0]} is in {where}: give it once")
    return {**grid, **draws}


def _pairs(flag: str, words: Sequence[str]) -> dict[str, str]:
    found = pairs_of_texts(flag_name(flag), words, form="SETTING=VALUES")
    if {"lambda", "lambda_"} <= found.keys():
        raise UsageError(f"{flag_name(flag)} names lambda twice")
    return {"lambda_" if name == "lambda" else name: text for name, text in found.items()}


def _values(text: str) -> list[Any]:
    """Values between commas that are not within brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    values = [value_of(part) for part in parts if part]
    return [tuple(value) if isinstance(value, list) else value for value in values]
