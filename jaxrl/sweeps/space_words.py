"""What a sweep tries as words of a command line: `lr=1e-4,1e-3`, `lr=loguniform:1e-5:1e-2`."""

from collections.abc import Sequence
from typing import Any

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.words import flag_name, value_of
from jaxrl.sweeps.space import DRAWS, Draw, Grid, choice, grid_search

GRID, RANDOM = "SETTING=VALUE,VALUE", "SETTING=DISTRIBUTION:LOW:HIGH"
MUTATIONS = f"{GRID}|{RANDOM}"


def grid_of(flag: str, texts: Sequence[str]) -> dict[str, Grid]:
    """`lr=1e-4,3e-4 fcnet_hiddens=[64,64],[256,256]` as grids."""
    return {name: grid_search(_values(text)) for name, text in _pairs(flag, texts).items()}


def draws_of(flag: str, texts: Sequence[str]) -> dict[str, Draw]:
    """`lr=loguniform:1e-5:1e-2 clip_param=choice:0.1:0.2` as what is drawn from."""
    found = {}
    for name, text in _pairs(flag, texts).items():
        kind, *values = text.split(":")
        if kind not in DRAWS:
            raise unknown_name("distribution", kind, DRAWS, f"of {name}")
        values = [value_of(value) for value in values if value]
        if kind == "choice":
            found[name] = choice(values)
        elif len(values) == 2:
            found[name] = DRAWS[kind](*values)
        else:
            raise UsageError(f"{name}={text}: {kind} takes two bounds, {kind}:LOW:HIGH")
    return found


def mutations_of(flag: str, texts: Sequence[str]) -> dict[str, Grid | Draw]:
    """Both forms, those of grids and those of draws."""
    drawn = [text for text in texts if text.partition("=")[2].partition(":")[0] in DRAWS]
    listed = [text for text in texts if text not in drawn]
    return disjoint(grid_of(flag, listed), draws_of(flag, drawn), f"{flag_name(flag)} twice")


def disjoint(grid: dict[str, Grid], draws: dict[str, Draw], where: str) -> dict[str, Any]:
    """Both together; a setting that is in both is refused."""
    if both := sorted(grid.keys() & draws.keys()):
        raise UsageError(f"{both[0]} is in {where}: give it once")
    return {**grid, **draws}


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{flag_name(flag)} takes SETTING=..., not {brief(text)}")
        if name in found:
            raise UsageError(f"{flag_name(flag)} names {name} twice")
        found["lambda_" if name == "lambda" else name] = values
    return found


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
