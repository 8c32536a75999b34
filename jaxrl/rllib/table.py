"""The table of a translation: RLlib's keys in the left column, what became of them in the right."""

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxrl.core.errors import brief
from jaxrl.rllib.rows import CHANGES, HARMLESS, TAKEN, Row, asks_nothing

KINDS = (TAKEN, HARMLESS, CHANGES)
LEFT, RIGHT = 52, 44  # columns
MOST_NAMES = 6  # of harmless keys of one reason


def table(rows: Iterable[Row], defaults: Mapping[str, Any]) -> str:
    """All rows by kind, those of one reason together.

    Args:
        defaults: of the settings here; what equals them is only named.
    """
    rows = list(rows)
    taken = [row for row in rows if row.kind == TAKEN]
    usual = [row for row in taken if not row.why and _is_default(row, defaults)]
    lines = []
    for row in taken:
        if row not in usual:
            lines += _lines(_shown(row.entries) or "RLlib's default", row.text)
    lines += _lines(", ".join(_names(usual)), "the default here, too")
    ignored = [row for row in rows if row.kind == CHANGES]
    harmless = list(_harmless([row for row in rows if row.kind == HARMLESS]))
    parts = (
        (TAKEN, lines),
        (HARMLESS, harmless),
        (f"{CHANGES} (ignored)", [line for row in ignored for line in _line_of(row)]),
    )
    return "\n".join("\n".join((title, *found)) for title, found in parts if found)


def _line_of(row: Row) -> list[str]:
    return list(_lines(_shown(row.entries), row.text))


def _harmless(rows: list[Row]) -> Iterator[str]:
    """A few names for each reason; keys whose value asks for nothing are only counted."""
    by_reason: dict[str, list[str]] = {}
    nothing = 0
    for row in rows:
        for key, value in row.entries.items():
            if not row.why or asks_nothing(value):
                nothing += 1
            else:
                by_reason.setdefault(row.why, []).append(key)
    for why, keys in by_reason.items():
        more = f" and {len(keys) - MOST_NAMES} more" if len(keys) > MOST_NAMES else ""
        yield from _lines(", ".join(keys[:MOST_NAMES]) + more, why)
    if nothing:
        yield from _lines(f"{nothing} key{'s' * (nothing > 1)}", "not set, or ask for nothing")


def _is_default(row: Row, defaults: Mapping[str, Any]) -> bool:
    return all(_plain(defaults[name]) == _plain(value) for name, value in row.settings.items())


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _names(rows: Iterable[Row]) -> list[str]:
    return [key for row in rows for key in _set(row.entries)]


def _set(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys that are set; all if none is."""
    return {
        key: value for key, value in entries.items() if not asks_nothing(value, (None, []))
    } or entries


def _shown(entries: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={brief(value)}" for key, value in _set(entries).items())


def _lines(left: str, right: str) -> Iterator[str]:
    """Both texts in their columns, wrapped; none where there is nothing on the left."""
    if not left:
        return
    columns = [
        textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for text, width in ((left, LEFT), (right, RIGHT))
    ]
    for first, second in itertools.zip_longest(*columns, fillvalue=""):
        yield f"  {first:{LEFT}}  {second}".rstrip()
