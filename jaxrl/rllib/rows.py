"""Rows of a translation's table: RLlib's keys, and what became of them here."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl.core.errors import brief
from jaxrl.core.foreign_names import UNSET
from jaxrl.core.frozen import is_array

TAKEN = "taken over"
HARMLESS = "no counterpart, harmless"
CHANGES = "no counterpart, changes the result"


class Row(NamedTuple):
    """RLlib's keys that were read together, and what became of them."""

    kind: str  # TAKEN, HARMLESS or CHANGES
    entries: Mapping[str, Any]  # by path, such as "model/fcnet_hiddens"; none: RLlib's default
    settings: Mapping[str, Any] = {}  # of PPOConfig and RunSettings, if taken over
    why: str = ""  # why there are none, or a note

    @property
    def text(self) -> str:
        """The settings, or why there are none."""
        return "; ".join(filter(None, (shown(self.settings), self.why)))

    def below(self, path: str) -> "Row":
        """The same row, of a part of a configuration."""
        return self._replace(
            entries={f"{path}/{key}": value for key, value in self.entries.items()}
        )


def taken(entries: Mapping[str, Any], why: str = "", **settings: Any) -> Row:
    return Row(TAKEN, entries, settings, why)


def harmless(entries: Mapping[str, Any], why: str) -> Row:
    return Row(HARMLESS, entries, why=why)


def changes(entries: Mapping[str, Any], why: str) -> Row:
    return Row(CHANGES, entries, why=why)


def shown(settings: Mapping[str, Any]) -> str:
    """`lr=0.001, gamma=0.9`."""
    return ", ".join(f"{name}={brief(value)}" for name, value in settings.items())


def asks_nothing(value: Any, nothing: tuple = UNSET) -> bool:
    """Returns whether a value is one of those that ask for nothing."""
    return not is_array(value) and any(value == part for part in nothing)


def given_of(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The values of those of `keys` that are among `values`."""
    return {key: values[key] for key in keys if key in values}


def first(values: Mapping[str, Any], *keys: str, default: Any = None) -> Any:
    """The value of the first of `keys`, an old name behind its new ones, that is there and set."""
    return next((values[key] for key in keys if values.get(key) is not None), default)
