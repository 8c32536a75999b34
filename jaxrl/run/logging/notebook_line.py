"""The progress of a run below a notebook's cell: a curve of the returns, and the newest line."""

import html
import math
from collections.abc import Sequence
from typing import Any

from rich.text import Text

MOST_POINTS = 400  # of the curve; of more every other one is left out
WIDTH, HEIGHT, EDGE = 560, 90, 4  # pixels


class NotebookLine:
    """A line below a notebook's cell, replaced by the next; it has the methods of rich's `Live`.

    rich's own needs ipywidgets, and a saved notebook does not hold what these show.
    """

    def __init__(self):
        self.handle: Any = None  # IPython's, of the output that is replaced
        self.values: list[float] = []  # every `stride`-th, and the newest
        self.stride, self.num_added = 1, 0

    def start(self) -> None:
        """The output appears with the first line."""

    def add(self, value: float | None) -> None:
        """Adds the newest value of the curve; None: there is none yet."""
        if value is None or not math.isfinite(value):
            return
        if self.num_added and (self.num_added - 1) % self.stride:
            self.values.pop()  # it was shown as the newest alone
        self.values.append(value)
        self.num_added += 1
        if len(self.values) > MOST_POINTS:
            self.values, self.stride = self.values[::2], 2 * self.stride

    def update(self, line: Text, *, refresh: bool) -> None:
        from IPython.display import display

        shown = {"text/plain": line.plain}
        if len(self.values) > 1:
            text = f'<pre style="margin:0">{html.escape(line.plain)}</pre>'
            shown["text/html"] = f"{curve(self.values)}{text}"
        if self.handle is None:
            self.handle = display(shown, raw=True, display_id=True)
        else:
            self.handle.update(shown, raw=True)

    def stop(self) -> None:
        """The last line stays."""


def curve(values: Sequence[float]) -> str:
    """A line through the values as SVG, with the least and the greatest beside it."""
    least, greatest = min(values), max(values)
    across = (WIDTH - 2 * EDGE) / (len(values) - 1)
    up = (HEIGHT - 2 * EDGE) / ((greatest - least) or 1.0)
    points = " ".join(
        f"{EDGE + across * i:.1f},{HEIGHT - EDGE - up * (value - least):.1f}"
        for i, value in enumerate(values)
    )
    label = f'x="{WIDTH + EDGE}" fill="currentColor" font-size="11" font-family="sans-serif"'
    return (
        f'<svg width="{WIDTH + 90}" height="{HEIGHT}" role="img" aria-label="returns">'
        f'<polyline points="{points}" fill="none" stroke="#1962aa" stroke-width="1.6"/>'
        f'<text {label} y="12">{greatest:.4g}</text>'
        f'<text {label} y="{HEIGHT - EDGE}">{least:.4g}</text></svg>'
    )
