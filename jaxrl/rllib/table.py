"""The table of a translation: RLlib's keys in the left column, what became of them in the right."""

import functools
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxrl.rllib.rows import CHANGES, HARMLESS, TAKEN, Row, asks_nothing, shown

KINDS = (TAKEN, HARMLESS, CHANGES)
LEFT, RIGHT = 52, 44  # columns
MOST_NAMES = 6  # of harmless keys of one reason


def table(rows: Iterable[Row], defaults: Mapping[str, Any]) -> str:
    """All rows by kind, those of one reason together.

    Args:
        defaults: of the settings here; what equals them is only named.
    """
    by_kind: dict[str, list[Row]] = {TAKEN: [], HARMLESS: [], CHANGES: []}
    for row in rows:
        by_kind[row.kind].append(row)
    taken, ignored = by_kind[TAKEN], by_kind[CHANGES]
    usual = [row for row in taken if not row.why and _is_default(row, defaults)]
    lines = []
    for row in taken:
        if row not in usual:
            lines += _lines(shown(_set(row.entries)) or "RLlib's default", row.text)
    names = []
    for row in usual:
        names += _set(row.entries)
    lines += _lines(", ".join(names), "the default here, too")
    harmless = list(_harmless(by_kind[HARMLESS]))
    text = []
    if lines:
        text += [TAKEN, *lines]
    if harmless:
        text += [HARMLESS, *harmless]
    if ignored:
        text.append(f"{CHANGES} (ignored)")
    for row in ignored:
        text += _lines(shown(_set(row.entries)), row.text)
    return "\n".join(text)


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


def _set(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys that are set; all if none is."""
    found = {key: value for key, value in entries.items() if not asks_nothing(value, (None, []))}
    return found or entries


def _lines(left: str, right: str) -> Iterator[str]:
    """Both texts in their columns, wrapped; none where there is nothing on the left."""
    if not left:
        return
    wrap = functools.partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    columns = wrap(left, LEFT), wrap(right, RIGHT)
    for first, second in itertools.zip_longest(*columns, fillvalue=""):
        yield f"  {first:{LEFT}}  {second}".rstrip()
