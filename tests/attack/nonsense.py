"""Bad inputs made systematically: each argument of each public entry gets values of each kind."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.env_contract import ContractError
from jaxrl.core.errors import UsageError, one_line
from jaxrl.episodes.errors import EpisodeError

CLEAR = "clear"
LONGEST_MESSAGE = 400  # characters
LONGEST_COMPILE = 1.0  # seconds that what precedes an error may compile
CLIENTS = ("PolicyClient", "NumpyPolicy")  # they know nothing of jaxrl, nor of its errors
OWN_ERRORS = (UsageError, EpisodeError, ContractError)


class Thing:
    """An object that is nothing."""

    def __repr__(self):
        return "<thing>"


VALUES = {
    "0": 0,
    "5": 5,
    "-1": -1,
    "0.5": 0.5,
    "'x'": "x",
    "''": "",
    "NUL": "a\0b",
    "None": None,
    "[]": [],
    "{}": {},
    "True": True,
    "nan": float("nan"),
    "inf": float("inf"),
    "10**400": 10**400,
    "f32 0.5": np.float32(0.5),
    "f64 nan": np.float64("nan"),
    "array": np.zeros(3),
    "ragged": [[1], [2, 3]],
    "object": Thing(),
    "[object]": [Thing()],
    "bytes": b"x",
    "set": {1},
    "class": int,
    "{5: 5}": {5: 5},
}
# The values that each kind of argument takes.
WHOLE = {"5"}
NATURAL = {"0", "5"}
SEED = {"0", "5"}
POSITIVE = {"5", "0.5", "f32 0.5"}
NUMBER = {"0", *POSITIVE}
REAL = {"-1", *NUMBER}
SHARE = {"0.5", "f32 0.5"}
FLAG = {"True"}
WORD = set()
TEXT = {"'x'"}
PATH = {"'x'"}
NOTHING = {"None"}
MAPPING = {"{}"}
EMPTY = {"{}", "[]"}
OBJECT = {"object"}


class Case(NamedTuple):
    """A call with one bad value."""

    entry: str  # "Trainer.keep"
    label: str  # of `VALUES`
    call: Callable[[], Any]
    names: tuple[str, ...]  # one of them must be in the message
    may_work: bool = False  # for what a library may take: then the call has to succeed


def cases(
    owner: str,
    call: Callable[..., Any],
    arguments: dict[str, set[str]],
    **also: str,
) -> Iterator[Case]:
    """A case of each argument and each value that it does not take.

    Args:
        call: takes the argument by keyword.
        arguments: the values that each takes.
        **also: another word for an argument, which a message may say instead.
    """
    for name, taken in arguments.items():
        for label, value in VALUES.items():
            if label not in taken:
                bound = lambda name=name, value=value: call(**{name: value})
                yield Case(f"{owner}.{name}", label, bound, (name, *also.get(name, "").split()))


def kind_of(field: dataclasses.Field) -> set[str]:
    """The values that a declared setting of a plain type takes, by its type alone."""
    declared = str(field.type)
    kind = NATURAL if "int" in declared else REAL if "float" in declared else WORD
    kind = FLAG if "bool" in declared else kind
    return kind | (NOTHING if "None" in declared else set())


class Clock:
    """Seconds that compiling took."""

    def __init__(self):
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            self.seconds += seconds


def verdict(case: Case, clock: Clock, refusals: tuple = OWN_ERRORS) -> tuple[str, str]:
    """("clear", "raw", "unclear", "late" or "silent"; the message)."""
    compiled, began = clock.seconds, time.process_time()
    try:
        given = case.call()
    except refusals as error:
        message = str(error)
    except Exception as error:
        return "raw", f"{type(error).__name__}: {one_line(error)}"
    else:
        return (CLEAR if case.may_work else "silent"), f"{given!r:.80}"
    if clock.seconds - compiled > LONGEST_COMPILE or time.process_time() - began > 10:
        return "late", message
    if "\n" in message or len(message) > LONGEST_MESSAGE:
        return "unclear", message
    if not any(name.lower() in message.lower() for name in case.names):
        return "unclear", message
    return CLEAR, message


def failures(all_cases):
    """What is not refused as it should be: {entry: [(value, verdict, message), ...]}."""
    clock, found = Clock(), {}
    for case in all_cases:
        refusals = ValueError if case.entry.startswith(CLIENTS) else OWN_ERRORS
        result, message = verdict(case, clock, refusals)
        if result != CLEAR:
            found.setdefault(case.entry, []).append((case.label, result, message))
    return found
