"""Other libraries' names for settings, results, hooks and calls, with their counterparts here.

The names are data: `names/rllib.toml`, `names/sb3.toml` and `names/cleanrl.toml`. A file is read
when somebody gives an unknown name, or a configuration of RLlib's.
"""

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

LIBRARIES = ("RLlib", "SB3", "CleanRL")  # in the order in which a name is looked up
SETTINGS, RESULTS, HOOKS = "settings", "results", "hooks"  # the tables of each
CRITERIA = "criteria"  # of a run's end, beside those of results
COMMANDS = "commands"  # of the shell
CALLS = "calls of"  # with a class of ours: the methods and attributes that its counterparts have
UNSET = (None, False, {}, [], (), "")  # values that ask for nothing


class Counterpart(NamedTuple):
    """The name here for another library's name, and a note."""

    here: str = ""  # the name here; "" if there is none
    note: str = ""  # the difference, or what to do instead
    # Values that a training does without and stays the same (`jaxrl.from_rllib`); None: all.
    harmless: tuple | None = None


@functools.cache
def library_file(library: str) -> dict[str, Any]:
    """The content of a library's file; what its entries mean is said there."""
    import tomllib

    path = Path(__file__).with_name("names") / f"{library.lower()}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


@functools.cache
def names_of(library: str, table: str) -> dict[str, Counterpart]:
    """The counterpart of each of a library's names for settings, or for results."""
    found = {}
    for entry in library_file(library).get(table, ()):
        harmless = entry.get("harmless")
        if harmless is not None:
            harmless = (*(UNSET if "unset" in harmless else ()), *harmless)
            harmless = tuple(value for value in harmless if value != "unset")
        same = Counterpart(entry.get("here", ""), entry.get("note", ""), harmless)
        found |= dict.fromkeys(entry["names"].split(), same)
    return found


def counterpart(name: str, table: str) -> tuple[str, Counterpart] | None:
    """(the library, the counterpart here) of a name for a setting or a result; None without one."""
    for library in LIBRARIES:
        names = names_of(library, table)
        if name in names:
            return library, names[name]
        for pattern, found in names.items():
            if "<" in pattern and (match := _match(pattern, name)):
                here = found.here
                for part, value in match.groupdict().items():
                    here = here.replace(f"<{part}>", value)
                return library, found._replace(here=here)
    return None


def criterion(name: str) -> tuple[str, Counterpart] | None:
    """(the library, the counterpart here) of a name for a result that ends a run, or ranks runs."""
    return counterpart(name, RESULTS) or counterpart(name, CRITERIA)


def said_of(name: str, table: str) -> str | None:
    """The sentence on another library's name that leads to ours; None: no library has it."""
    found = counterpart(name, table)
    if found is None:
        return None
    library, match = found
    if not match.here:
        return match.note
    return f"{library}'s name for {match.here}{match.note and f'; {match.note}'}"


def _match(pattern: str, name: str) -> re.Match | None:
    """A match of a pattern such as `policy_reward_<statistic>/<policy>`.

    Only a last part that is a whole placeholder may match a slash.
    """
    pattern = re.sub(r"/<(\w+)>$", r"/(?P<\1>.+)", pattern)
    return re.fullmatch(re.sub(r"(?<!\?P)<(\w+)>", r"(?P<\1>[^/]+)", pattern), name)
