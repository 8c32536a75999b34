"""How a setting is declared and checked: a default, a help text, and what is allowed, said once."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, unknown_name

Check = Callable[[str, Any], None]
DEFAULT_SIZES = {"num_envs": 40, "rollout_length": 100, "train_batch_size": 4000}


def setting(default: Any, help: str, check: Check | None = None, *, traced: bool = False) -> Any:
    """A field of a configuration. `traced` ones are numbers that never cause a compilation."""
    metadata = {"help": help, "check": check, "traced": traced}
    return dataclasses.field(default=default, metadata=metadata)


def count(least: int = 1) -> Check:
    """An integer of at least `least`."""

    def check(name, value):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**63:
            raise UsageError(f"{name}={value!r} must be an integer of at least {least}")

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


def schedule(low: float = 0.0) -> Check:
    """A number of at least `low`, or [[step, value], ...] with growing steps from 0."""
    is_number, is_step = number(low), number(0)

    def check(name, value):
        if not isinstance(value, tuple):
            return is_number(name, value)
        if not value or not all(isinstance(knot, tuple) and len(knot) == 2 for knot in value):
            raise UsageError(f"{name}={value!r} must be a number or a schedule [[step, value], ...]")
        for step, at_step in value:
            is_step(f"{name}: step", step)
            is_number(f"{name}: value", at_step)
        steps = [step for step, _ in value]
        if steps[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
            raise UsageError(f"{name}: the steps of a schedule must begin at 0 and grow, not {steps}")

    return check


def one_of(*allowed: Any) -> Check:
    def check(name, value):
        if value not in allowed:
            raise unknown_name(f"{name}", value, map(str, allowed))

    return check


def environment(name: str, value: Any) -> None:
    """A name or an instance."""
    if isinstance(value, type | tuple):
        meant = f"{value.__name__}()" if isinstance(value, type) else "the first of what make() returns"
        raise UsageError(f"{name} must be a name or an environment object, not {value!r:.60}; perhaps {meant}?")


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


def policies(name: str, value: Any) -> None:
    """None, a word, a function, or a frozen mapping; which words, the environment decides."""
    if value is not None and not isinstance(value, str) and not callable(value):
        pairs("{policy: [agents]}, 'shared', 'per-agent', or a function from agent to policy")(name, value)


def per_policy(name: str, value: Any) -> None:
    """A frozen mapping of mappings."""
    pairs("{policy: {setting: value}}")(name, value)
    for policy, overrides in value:
        pairs("{setting: value}")(f"{name}[{policy!r}]", overrides)


def sizes(name: str, value: Any) -> None:
    """A tuple of layer widths."""
    if not isinstance(value, tuple):
        raise UsageError(f"{name}={value!r} must be a list of layer sizes")
    for size in value:
        count()(f"{name}: layer size", size)


def filters(name: str, value: Any) -> None:
    """None, or a tuple of (number of filters, kernel size, stride)."""
    layers = value if isinstance(value, tuple) else ()
    if value is not None and not (layers and all(isinstance(layer, tuple) and len(layer) == 3 for layer in layers)):
        raise UsageError(f"{name}={value!r} must be a list of layers [filters, kernel, stride], or None")
    for layer in layers:
        for size in layer:
            count()(f"{name}: layer {list(layer)}", size)


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


def resolve_sizes(given: dict[str, int], tuned: dict[str, int]) -> dict[str, int]:
    """num_envs, rollout_length and train_batch_size from those given and, where they are too few, the tuned ones."""
    for name, size in given.items():
        count()(name, size)
    envs, length, batch = (given.get(name) for name in DEFAULT_SIZES)
    if batch is None:
        if envs is None and length is None:
            return dict(tuned)
        length = length or max(1, round(tuned["train_batch_size"] / envs))
        envs = envs or max(1, round(tuned["train_batch_size"] / length))
    elif envs is None:
        length = length or tuned["rollout_length"]
        envs = _divide(batch, "rollout_length", length)
    elif length is None:
        length = _divide(batch, "num_envs", envs)
    elif envs * length != batch:
        raise UsageError(f"train_batch_size={batch} is not num_envs={envs} * rollout_length={length} = {envs * length}")
    return {"num_envs": envs, "rollout_length": length, "train_batch_size": envs * length}


def _divide(batch: int, name: str, size: int) -> int:
    if batch % size:
        raise UsageError(f"train_batch_size={batch} is no multiple of {name}={size}")
    return batch // size
