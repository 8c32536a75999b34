"""JSON of files and messages that anybody may have written, read with bounded depth."""

import json
from typing import Any

MOST_DEEP = 100  # lists and objects within each other; what walks a value is recursive


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or is nested more than `MOST_DEEP` deep.
    """
    try:
        value = json.loads(text)
        opening = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
        # A text with few brackets, as most are, need not be walked.
        if sum(map(text.count, opening)) > MOST_DEEP and _is_too_deep(value):
            raise RecursionError
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEEP} deep") from None
    return value


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
