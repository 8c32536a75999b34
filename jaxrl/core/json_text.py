"""JSON of files and messages that anybody may have written, read with bounded depth and numbers."""

import json
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
        if text.count("[") + text.count("{") > MOST_DEEP and _is_too_deep(value):
            raise RecursionError
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEEP} deep") from None
    if "\\u" in text or not text.isascii():
        _refuse_surrogates(value)
    return value


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has an integer of {len(digits):,} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)


def _refuse_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it has half of a character, a lone surrogate") from None


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEEP):
        containers = [part for part in level if isinstance(part, dict | list)]
        level = [
            inner
            for part in containers
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
    return any(isinstance(part, dict | list) for part in level)
