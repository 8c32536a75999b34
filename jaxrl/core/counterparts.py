"""A counterpart: what another library's name is called here, and what to do where there is none."""

from typing import NamedTuple


class Counterpart(NamedTuple):
    """The name here for another library's name, and a note."""

    here: str = ""  # the name here; "" if there is none
    note: str = ""  # the difference, or what to do instead
    # Values that a training does without and stays the same (`jaxrl.from_rllib`); None: all.
    harmless: tuple | None = None


def same(
    *names: str, here: str, note: str = "", harmless: tuple | None = None
) -> dict[str, Counterpart]:
    """`names` are called `here` in this library."""
    return dict.fromkeys(names, Counterpart(here, note, harmless))


def none(*names: str, note: str, harmless: tuple | None = None) -> dict[str, Counterpart]:
    """`names` have no counterpart; `note` says what to do instead, or why nothing is needed."""
    return dict.fromkeys(names, Counterpart("", note, harmless))


UNSET = (None, False, {}, [], (), "")  # values that ask for nothing
