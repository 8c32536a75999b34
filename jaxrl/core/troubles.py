"""Troubles that come again and again: each kind is said once, and then counted."""

from collections import Counter
from collections.abc import Callable

MOST_KINDS = 20  # that are told apart: a stranger may make up more
OTHERS = "other troubles"


class Troubles:
    """Says the first trouble of each kind, and counts the rest.

    Args:
        say: shows one line.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say, self.counts = say, Counter[str]()

    def tell(self, kind: str, line: str) -> None:
        """Counts a trouble; says it if it is the first of its kind."""
        if kind not in self.counts and len(self.counts) >= MOST_KINDS:
            kind, line = OTHERS, f"{line} (troubles of further kinds are counted as one)"
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            self._say(line)

    def end(self, kind: str) -> int:
        """Ends a kind of trouble and returns its count; the next occurrence is reported again."""
        return self.counts.pop(kind, 0)

    @property
    def summary(self) -> str:
        """The kinds that came more than once, with their counts; empty where none did."""
        often = [f"{kind}: {count:,} times" for kind, count in self.counts.items() if count > 1]
        return ", ".join(often)
