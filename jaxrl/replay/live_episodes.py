"""Episodes of a run's newest checkpoint for its page, or of several checkpoints side by side."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, one_line
from jaxrl.play.recording import EpisodeRecording, episodes_to_show
from jaxrl.replay.page import Column, replay_data
from jaxrl.replay.replay import UNTRAINED, columns_of, players_of_run
from jaxrl.run.health import outside
from jaxrl.run.storage import checkpoint

TO_COMPARE = (UNTRAINED, "best", "last")
ASKED_SECONDS = 10.0  # after a page's last question it compares no more


class ShownEpisode(NamedTuple):
    """An episode on a page, of one checkpoint or of several side by side."""

    number: int = 0  # counts those that were played; 0: none yet
    data: dict[str, Any] | None = None
    name: str = ""  # what the page's headline calls it
    warnings: Sequence[str] = ()  # of observations that are outside their spaces

    def status(self, page_episode: int) -> dict[str, Any]:
        """The part of a page's contents; without the data if the page has this episode."""
        data = None if self.number == page_episode else self.data
        return {"compares": bool(self.number), "number": self.number, "episode": data}


NO_EPISODE = ShownEpisode()


class LiveEpisodes:
    """Plays an episode of each new checkpoint; with a page that compares, of three of them.

    Attributes:
        trouble: why there is no episode yet, or none of the newest checkpoint; mostly empty.
    """

    def __init__(self, *, trust: bool = False):
        self.trust, self.trouble = trust, ""
        self._lock, self._count = threading.Lock(), 0
        self._shown: dict[bool, ShownEpisode] = {}  # by whether it compares
        self._played: dict[bool, Any] = {}  # the stamp of the checkpoint
        self._asked = -ASKED_SECONDS

    def shown(self, *, compared: bool) -> ShownEpisode:
        """The episode that a page shows."""
        with self._lock:
            if compared:
                self._asked = time.monotonic()
                if not (self._played.get(True) or self.trouble):
                    self.trouble = "the checkpoints to compare begin to play"
            newest = self._shown.get(False, NO_EPISODE)
            return self._shown.get(compared, newest)

    def play(self, folder: Path, name: str = "") -> None:
        """Plays what is due of the run in `folder`.

        Args:
            name: as of `ShownEpisode`.
        """
        if not has_checkpoint(folder):
            return
        with self._lock:
            if not self._played:
                self.trouble = "the newest checkpoint begins to play"  # which compiles for a while
        self._play(folder, ["last"], name, compared=False)
        if time.monotonic() - self._asked < ASKED_SECONDS:
            self._play(folder, TO_COMPARE, name, compared=True)

    def _play(self, folder: Path, checkpoints: Sequence[str], name: str, *, compared: bool) -> None:
        stamp = None
        try:
            found = checkpoint.find(folder)
            stamp = found, (found / checkpoint.FACTS).stat().st_mtime_ns
            if stamp == self._played.get(compared):
                return
            columns = columns_for(folder, checkpoints, trust=self.trust)
            shown = episode_of(columns, folder, name)
        except Exception as error:  # of an environment, or of a folder that is being written
            with self._lock:
                self.trouble = one_line(error)
                self._played[compared] = stamp  # not again until there is another checkpoint
            return
        with self._lock:
            self._count += 1
            self._shown[compared] = shown._replace(number=self._count)
            self._played[compared], self.trouble = stamp, ""


def episode_of(columns: Sequence[Column], folder: Path, name: str = "") -> ShownEpisode:
    """The first episode of a page, with the warnings of its last column.

    Args:
        folder: of the run that it is of.
        name: as of `ShownEpisode`.
    """
    data = replay_data(columns, note=folder.name)
    return ShownEpisode(1, data, name, observation_warnings(columns[-1].recordings[0]))


def has_checkpoint(folder: Path) -> bool:
    """Returns whether a run's folder has a checkpoint, regular or best."""
    return any(checkpoint.both_kinds(folder / checkpoint.CHECKPOINTS))


def columns_for(
    folder: Path, checkpoints: Sequence[str | int], *, trust: bool = False
) -> list[Column]:
    """An episode of each checkpoint, with sampled actions, as training plays.

    Of `TO_COMPARE` those that the run has, each iteration once.
    """
    if tuple(checkpoints) == TO_COMPARE:
        _, best = checkpoint.both_kinds(folder / checkpoint.CHECKPOINTS)
        checkpoints = [which for which in TO_COMPARE if best or which != "best"]
    played = {}
    for which in checkpoints:
        players = players_of_run(folder, which, {"trust": trust})
        played = {name: other for name, other in played.items() if other.name != players.name}
        played[which] = players
    seed = next(iter(played.values())).seed
    return columns_of(played, episodes_to_show(seed, explore=True))


def observation_warnings(recording: EpisodeRecording) -> list[str]:
    """The health monitor's words on observations, of each policy's first agent."""
    found = {}
    for agent, obs in recording.observations.items():
        facts = recording.facts[agent]
        try:
            parts = list(outside(facts.observation_space, obs))
        except (TypeError, ValueError, UsageError):  # observations of another form than the space
            continue
        for where, text in parts:
            found.setdefault((where, facts.module_id), f"{text} (policy {facts.module_id!r})")
    return [f"{text}; jaxrl.check_env finds it" for text in found.values()]
