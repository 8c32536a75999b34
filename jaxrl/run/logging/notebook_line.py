"""The progress of a run below a notebook's cell."""

from typing import Any

from rich.text import Text


class NotebookLine:
    """A line below a notebook's cell, replaced by the next; it has the methods of rich's `Live`.

    rich's own needs ipywidgets, and a saved notebook does not hold what these show.
    """

    def __init__(self):
        self.handle: Any = None  # IPython's, of the output that is replaced

    def start(self) -> None:
        """The output appears with the first line."""

    def update(self, line: Text, *, refresh: bool) -> None:
        from IPython.display import display

        shown = {"text/plain": line.plain}
        if self.handle is None:
            self.handle = display(shown, raw=True, display_id=True)
        else:
            self.handle.update(shown, raw=True)

    def stop(self) -> None:
        """The last line stays."""
