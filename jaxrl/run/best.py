"""Which state was the best so far: the one that was measured, not the one that came of it."""

from typing import Any

from jaxrl.run.recorder import Snapshot
from jaxrl.run.results import Result, lookup


class Best:
    """Keeps the best snapshot in memory until it is written.

    A result under "evaluation/" measures the state that the chunk ended in; any other one measures
    the state that the iteration began with, whose policies played it. So the first result of a
    chunk scores the end of the last one.

    Args:
        attribute: the path in the result tree; the higher the better.
        value: to be beaten.
    """

    def __init__(self, attribute: str, value: float = float("-inf")):
        self.attribute, self.value = attribute, value
        self._unsaved: tuple[Snapshot, dict[str, Any]] | None = None

    def look(self, before: Snapshot, results: list[Result], after: Snapshot) -> None:
        """Takes a chunk's results, between the states `before` and `after` it."""
        after_it = self.attribute.startswith("evaluation/")
        snapshot, result = (after, results[-1]) if after_it else (before, results[0])
        value = lookup(result, self.attribute)
        try:
            value = float(value)
        except (
            TypeError,
            ValueError,
        ):  # there is none yet, or a callback reports something else by that name
            return
        if value > self.value and snapshot.result is not None:
            self.value = value
            self._unsaved = snapshot, {"metric": self.attribute, "value": value}

    def take(self) -> tuple[Snapshot, dict[str, Any]] | None:
        """(snapshot, score) of a best state that is not written yet; once."""
        unsaved, self._unsaved = self._unsaved, None
        return unsaved
