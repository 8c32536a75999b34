"""JSON of files and messages that anybody may have written, read with bounded depth and numbers."""

import json
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

MOST_DEEP = 100  # lists and objects within each other; what walks a value is recursive
MOST_DIGITS = 300  # of an integer: a float can hold any of these


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text, which UTF-8 can hold again.

    Raises:
        ValueError: it is not JSON, is nested more than `MOST_DEEP` deep, has an integer of more
            than `MOST_DIGITS` digits, or half of a character (a lone surrogate).
    """
    text = text if isinstance(text, str) else _decoded(text)
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark")
    try:
        value = _DECODER.decode(text)
        # A text with few brackets, as most are, need not be walked.
        if text.count("[") + text.count("{") > MOST_DEEP and is_too_deep(value):
            raise RecursionError
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEEP} deep") from None
    if ("\\u" in text or not text.isascii()) and (why := why_unreadable(value)):
        raise ValueError(f"it {why}")
    return value


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _integer(text: str) -> int:
    if (count := len(text.removeprefix("-"))) > MOST_DIGITS:
        raise ValueError(f"it has an integer of {count:,} digits")
    return int(text)


_DECODER = json.JSONDecoder(parse_int=_integer)


def is_too_deep(value: Any) -> bool:
    """Returns whether lists and dicts are nested deeper than `MOST_DEEP`, or contain themselves."""
    return next(islice(_levels(value), MOST_DEEP, None), None) is not None


def why_unreadable(value: Any) -> str:
    """The reason why `read_json` would refuse the JSON of a value; empty if it would read it."""
    if is_too_deep(value):
        return f"is nested more than {MOST_DEEP} deep"
    for part in chain([value], *_levels(value)):
        if isinstance(part, int) and abs(part) >= 10**MOST_DIGITS:
            return f"has an integer of more than {MOST_DIGITS} digits"
        if isinstance(part, str) and has_surrogate(part):
            return "has half of a character, a lone surrogate"
    return ""


def has_surrogate(text: str) -> bool:
    """Returns whether a text has half of a character, which UTF-8 cannot hold."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _levels(value: Any) -> Iterator[list[Any]]:
    """The parts of lists and dicts, level by level, without end where one holds itself."""
    level = [value]
    while containers := {id(part): part for part in level if isinstance(part, dict | list)}:
        level = [
            inner
            for part in containers.values()
            for inner in (chain(part, part.values()) if isinstance(part, dict) else part)
        ]
        yield level
