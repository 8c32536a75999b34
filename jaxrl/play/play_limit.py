"""Whole episodes that do not end: where they are cut, and the lines that say so."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.run.settings import MAX_STEPS

PATIENCE_S = 10.0  # of silence, or without the end of an episode; then twice as long, and so on


def say_on_stderr(text: str) -> None:
    """Prints a line where there is no trainer that prints."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class PlayLimit:
    """The length at which episodes are cut, and where the line goes that says that none ends.

    Args:
        max_steps: of one episode.
        say: prints a line.
        setting: what sets `max_steps`, for people.
    """

    max_steps: int = MAX_STEPS
    say: Callable[[str], Any] = say_on_stderr
    setting: str = "max_steps"


class PlayCount:
    """Says now and then how many episodes have been played, batch after batch."""

    def __init__(self, limit: PlayLimit, env_name: str):
        self._limit, self._env_name = limit, env_name
        self._num_episodes, self._patience = 0, PATIENCE_S
        self._began = time.monotonic()

    def add(self, num_episodes: int) -> None:
        """Counts those of a batch."""
        self._num_episodes += num_episodes
        seconds = time.monotonic() - self._began
        if seconds >= self._patience:
            self._patience = 2 * seconds
            self._limit.say(
                f"{self._env_name}: {self._num_episodes:,} episodes have been played in "
                f"{seconds:.0f} s; Ctrl-C breaks off"
            )


class PlayWatch:
    """Looks at a batch of episodes while it is played.

    Args:
        env_name: for people.
    """

    def __init__(self, limit: PlayLimit, env_name: str):
        self._limit, self._env_name = limit, env_name
        self._num_done, self._patience = 0, PATIENCE_S
        self._began = self._since = time.monotonic()

    def look(self, done: np.ndarray, num_steps: int) -> None:
        """Says so if no episode has ended for a while.

        Args:
            done: bool[E], which have.
            num_steps: of each that has not ended.
        """
        num_done, now = int(done.sum()), time.monotonic()
        if num_done > self._num_done:
            self._num_done, self._since, self._patience = num_done, now, PATIENCE_S
        elif num_done < len(done) and now - self._since >= self._patience:
            self._patience = 2 * (now - self._since)
            self._limit.say(
                f"{self._env_name}: {num_done} of {len(done)} episodes have ended after "
                f"{num_steps:,} steps and {now - self._began:.0f} s; one that does not end is cut "
                f"at {self._limit.max_steps:,} steps, or at fewer by {self._limit.setting}; Ctrl-C "
                "breaks off"
            )

    def conclude(self, done: np.ndarray) -> None:
        """Says which episodes were cut, if any were."""
        if num_cut := int((~done).sum()):
            self._limit.say(
                f"{self._env_name}: {num_cut} of {len(done)} episodes did not end within "
                f"{self._limit.max_steps:,} steps and do not count: give the environment a time "
                f"limit, or raise {self._limit.setting}"
            )


DEFAULT_LIMIT = PlayLimit()
