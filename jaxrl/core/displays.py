"""Displays in a notebook: a title, lines of a label and a text, and a table, as HTML.

The text has the notebook's own font and colour, so a dark notebook shows it light on dark.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxrl.core.plan import Line

STYLE = (  # important: JupyterLab's own rule for tables of outputs would win
    ".jaxrl td, .jaxrl th {text-align: left !important; vertical-align: top; "
    "padding: 2px 12px 2px 0; white-space: pre-wrap; overflow-wrap: anywhere}"
)


@dataclass(frozen=True)
class Display:
    """An object as a notebook shows it; every text in it is escaped.

    Attributes:
        lines: below the title, as those of a plan.
        rows: of a table below the lines, the titles of its columns first.
        folded: what a click on its title opens.
    """

    title: str
    lines: Sequence[Line] = ()
    rows: Sequence[Sequence[Any]] = ()
    folded: "Display | None" = None

    @property
    def html(self) -> str:
        """The display as HTML."""
        title = f"<strong>{html.escape(self.title)}</strong>"
        return f'<div class="jaxrl"><style>{STYLE}</style>{title}{self._body}</div>'

    @property
    def _body(self) -> str:
        parts = [_table(map(_labelled, self.lines)), _table(_rows(self.rows))]
        if self.folded is not None:
            title = f"<summary>{html.escape(self.folded.title)}</summary>"
            parts.append(f"<details>{title}{self.folded._body}</details>")
        return "".join(parts)


def _table(rows: Iterable[str]) -> str:
    """An HTML table of the rows; empty where there are none."""
    inside = "".join(f"<tr>{row}</tr>" for row in rows)
    return inside and f"<table>{inside}</table>"


def _labelled(line: Line) -> str:
    """A row of a label and its text, or of a whole line, which keeps its columns."""
    label, text = line
    if label is None:
        return f'<td colspan="2"><pre>{html.escape(str(text))}</pre></td>'
    return f"{_cell(label, 'th')}{_cell(text, 'td')}"


def _rows(rows: Sequence[Sequence[Any]]) -> Iterable[str]:
    """The rows of a table, whose first holds titles."""
    kind = "th"
    for row in rows:
        yield "".join(_cell(value, kind) for value in row)
        kind = "td"


def _cell(value: Any, kind: str) -> str:
    return f"<{kind}>{html.escape(str(value))}</{kind}>"
