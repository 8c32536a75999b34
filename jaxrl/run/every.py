"""Moments at which the host has work: every so many iterations, every so many seconds, or never."""

import dataclasses
import math
import time
from collections.abc import Iterable

from jaxrl.core.fields import count, number

CHUNK_SECONDS = 1.0  # between two looks at the host: the live line, the logs, the stop criteria


@dataclasses.dataclass
class Every:
    """Moments of a run; never, if neither iterations nor seconds are given.

    Those by iterations depend on the iteration alone, so a resumed run has the same ones.

    Attributes:
        iterations: between two moments.
        seconds: between two moments; 0: each time that somebody asks.
        first: the iteration before which no moment comes.
        since: when the seconds began.
    """

    iterations: int | None = None
    seconds: float | None = None
    first: int = 0
    since: float = dataclasses.field(default_factory=lambda: time.monotonic())

    def __post_init__(self):
        count(optional=True)("Every: iterations", self.iterations)
        number(0, optional=True)("Every: seconds", self.seconds)

    def is_due(self, iteration: int, *, at_the_end: bool = False) -> bool:
        """Returns whether a moment has come after `iteration`.

        Args:
            at_the_end: of training, which is a moment of all that come by iterations.
        """
        if self.seconds is not None and time.monotonic() - self.since >= self.seconds:
            return True
        if self.iterations is None:
            return False
        return at_the_end or (iteration >= self.first and iteration % self.iterations == 0)

    def until_due(self, iteration: int) -> float:
        """The iterations from `iteration` to the next moment; infinite if only the clock knows."""
        if self.iterations is None:
            return math.inf
        after = max(iteration + 1, self.first)
        return -(-after // self.iterations) * self.iterations - iteration

    def restart(self) -> None:
        """Counts the seconds from now on."""
        self.since = time.monotonic()


def chunk_length(
    iteration: int, seconds_per_update: float | None, most: int, moments: Iterable[Every]
) -> int:
    """Iterations of about `CHUNK_SECONDS` after `iteration`, none past the next of the moments.

    The first chunk is one iteration, to see how long it takes.
    """
    if seconds_per_update is None:
        return 1
    length = max(1, min(most, int(CHUNK_SECONDS / seconds_per_update)))
    return int(min([length, *(every.until_due(iteration) for every in moments)]))
