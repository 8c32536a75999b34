"""The base class of episodes: what one of a single agent and one of several have in common."""

import time
import uuid
from collections import defaultdict
from typing import Any

import numpy as np

from jaxrl.core.errors import AnswersOtherWords, brief
from jaxrl.core.fields import INT64, count
from jaxrl.core.value_copies import owned
from jaxrl.episodes.errors import EpisodeError, unknown

STARTED = count(0, INT64, optional=True)


def check_space(name: str, space: Any) -> None:
    """Refuses what is no space of jaxrl or Gymnasium; None is none."""
    if space is not None and (isinstance(space, type) or not hasattr(space, "sample")):
        raise EpisodeError(f"{name}={brief(space)} must be a space, or None")


def as_lookback(length: Any, steps: int, allowed: str = '"auto" or 0 or more') -> int:
    """The steps of a lookback, of at most `steps`; "auto" means all."""
    if isinstance(length, str) and length == "auto":
        return steps
    is_count = isinstance(length, int | np.integer) and not isinstance(length, bool)
    if not is_count or length < 0:
        raise EpisodeError(f"len_lookback_buffer is {allowed}, not {brief(length)}")
    return min(int(length), steps)


class Episode(AnswersOtherWords):
    """Identity, clock and remarks of an episode, or of the chunk of one between two cuts."""

    is_terminated: bool
    is_truncated: bool

    def __init__(self, id_: str | None = None):
        if not isinstance(id_, str | None):
            raise EpisodeError(f"id_={brief(id_)} must be a text, or None")
        self.id_ = id_ or uuid.uuid4().hex
        self.custom_data: dict[Any, Any] = {}  # the user's own; `cut` hands a copy on
        self._temporary: defaultdict[str, list] = defaultdict(list)
        self._duration_s = 0.0
        self._last_time: float | None = None  # of the reset or step before, on this process' clock

    @property
    def is_done(self) -> bool:
        """True if the episode has ended; it then takes no more steps."""
        return self.is_terminated or self.is_truncated

    def env_steps(self) -> int:
        """The number of environment steps, as `len`."""
        return len(self)

    def get_duration_s(self) -> float:
        """The seconds from the reset, or the cut, to the last step."""
        return self._duration_s

    def _tick(self, is_step: bool = True) -> None:
        now = time.perf_counter()
        if is_step and self._last_time is not None:
            self._duration_s += now - self._last_time
        self._last_time = now

    def add_temporary_timestep_data(self, key: str, data: Any) -> None:
        """Appends to a list that is kept until `to_numpy`, such as the frames of a video."""
        if self.is_numpy:
            raise EpisodeError("temporary data end with to_numpy(); use custom_data")
        self._temporary[key].append(owned(data))

    def get_temporary_timestep_data(self, key: str) -> list:
        """The data that `add_temporary_timestep_data` has gathered under a key."""
        if key not in self._temporary:
            raise unknown("temporary data", key, self._temporary)
        return owned(self._temporary[key])

    def __getitem__(self, indices: slice):
        """`episode[10:20]` is `episode.slice(slice(10, 20))`."""
        if not isinstance(indices, slice):
            raise EpisodeError(
                f"an episode takes slices such as episode[2:5], not {brief(indices)}"
            )
        return self.slice(indices)

    def _bounds(self, slice_: slice) -> tuple[int, int]:
        """The steps where a slice of this episode starts and stops, from 0 to its length."""
        if slice_.step not in (None, 1):
            raise EpisodeError(f"an episode is sliced in steps of 1, not of {brief(slice_.step)}")
        try:
            start, stop, _ = slice_.indices(len(self))
        except TypeError:
            raise EpisodeError(f"the bounds of a slice are integers, not {brief(slice_)}") from None
        return start, max(start, stop)

    def _check_growing(self) -> None:
        if self.is_done:
            raise EpisodeError(f"episode {self.id_} has ended: it takes no more steps")

    def _check_next_chunk(self, other: "Episode", times: tuple[int, int]) -> None:
        """Raises EpisodeError if `other` cannot follow; times: of this end and that beginning."""
        if type(other) is not type(self):
            raise EpisodeError(f"{type(self).__name__} cannot take {brief(other)} on")
        if other.id_ != self.id_:
            raise EpisodeError(f"chunks of different episodes: {self.id_} and {other.id_}")
        if self.is_done:
            raise EpisodeError(f"episode {self.id_} has ended: no chunk can follow")
        if times[0] != times[1]:
            raise EpisodeError(
                f"episode {self.id_} ends at step {times[0]}, the other chunk starts at {times[1]}"
            )

    def _take_on(self, other: "Episode") -> None:
        """Takes over how a following chunk ended, its duration and its remarks."""
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._duration_s += other._duration_s
        self._last_time = other._last_time
        self.custom_data.update(other.custom_data)
        for key, data in other._temporary.items():
            self._temporary[key].extend(data)
