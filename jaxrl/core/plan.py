"""Plans, and ends of runs: lines of a label and a text beside it, for people."""

import re
from collections.abc import Iterable
from typing import Any

COLUMN = 12  # the width of labels
LABEL = re.compile(rf"[\w ]{{1,{COLUMN}}} |\s{{{COLUMN + 1}}}")  # what such a line begins with
WIDE = 24  # where labels are names of users
# (label, text); "" is the label of what belongs to the line above, None that of a whole line.
Line = tuple[str | None, Any]


def laid_out(lines: Iterable[Line], column: int = COLUMN) -> str:
    """The lines, their texts below each other."""
    return "\n".join(labelled(label, text, column) for label, text in lines)


def labelled(label: str | None, text: Any, column: int = COLUMN) -> str:
    """One such line."""
    return str(text) if label is None else f"{label:<{column}} {text}"
