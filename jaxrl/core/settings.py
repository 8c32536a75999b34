"""How a setting is declared and checked: a default, a help text, and what is allowed, said once."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, unknown_name

Check = Callable[[str, Any], None]


def setting(default: Any, help: str, check: Check | None = None, *, traced: bool = False) -> Any:
    """A field of a configuration. `traced` ones are numbers that never cause a compilation."""
    metadata = {"help": help, "check": check, "traced": traced}
    return dataclasses.field(default=default, metadata=metadata)


def count(least: int = 1, *, optional: bool = False) -> Check:
    """An integer of at least `least`; if `optional`, None as well."""

    def check(name, value):
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**63:
            raise UsageError(f"{name}={value!r} must be an integer of at least {least}{' or None' if optional else ''}")

    return check


def number(low: float = -math.inf, high: float = math.inf, *, open_low: bool = False, optional: bool = False) -> Check:
    """A finite number within [low, high], or (low, high]; if `optional`, None and infinity as well."""
    interval = (
        f"{'(' if open_low else '['}{low:g}, {high:g}]" if high < math.inf else f"{'>' if open_low else '>='} {low:g}"
    )

    def check(name, value):
        if value is None and optional:
            return
        valid = isinstance(value, int | float | np.number) and not isinstance(value, bool) and not math.isnan(value)
        valid = valid and (optional or not math.isinf(value))
        if not valid or value > high or value < low or (open_low and value == low):
            wanted = f"in {interval}" if high < math.inf else interval
            raise UsageError(f"{name}={value!r} must be a number {wanted}{' or None' if optional else ''}")

    return check


def one_of(*allowed: Any) -> Check:
    def check(name, value):
        if value not in allowed:
            raise unknown_name(f"{name}", value, map(str, allowed))

    return check


def names(name: str, value: Any) -> None:
    """None, or a tuple of strings."""
    if value is not None and not (isinstance(value, tuple) and all(isinstance(part, str) for part in value)):
        raise UsageError(f"{name}={value!r} must be a list of names")


def pairs(what: str) -> Check:
    """A frozen mapping from strings."""

    def check(name, value):
        if not isinstance(value, tuple) or not all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
        ):
            raise UsageError(f"{name}={value!r} must be a mapping {what}")

    return check


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} must be True or False")


def freeze(value: Any) -> Any:
    """Lists as tuples and mappings as tuples of pairs, all the way down, so that a configuration can be hashed."""
    if isinstance(value, Mapping):
        return tuple((key, freeze(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(freeze(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


def checked(cls: type) -> type:
    """A class decorator: unknown names are refused with the nearest known one, before Python's own TypeError."""
    known = [field.name for field in dataclasses.fields(cls)]
    generated = cls.__init__

    def __init__(self, *args, **settings):
        for name in settings:
            if name not in known:
                raise unknown_name("setting", name, known)
        generated(self, *args, **settings)

    __init__.__wrapped__ = generated
    __init__.__doc__ = generated.__doc__
    cls.__init__ = __init__
    return cls


def check_all(config: Any) -> None:
    """Runs the check of every field that has one."""
    for field in dataclasses.fields(config):
        if field.metadata.get("check") is not None:
            field.metadata["check"](field.name, getattr(config, field.name))
