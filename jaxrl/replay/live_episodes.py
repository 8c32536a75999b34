"""Episodes of a run's newest checkpoint for its page, or of several checkpoints side by side."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, one_line
from jaxrl.play.recording import EpisodeRecording, episodes_to_show
from jaxrl.replay.page import Column, replay_data
from jaxrl.replay.replay import UNTRAINED, columns_of, players_of_run
from jaxrl.run.health import outside
from jaxrl.run.storage import checkpoint

TO_COMPARE = (UNTRAINED, "best", "last")
ASKED_SECONDS = 10.0  # after a page's last question it compares no more


class LiveEpisodes:
    """Plays an episode of each new checkpoint; with a page that compares, of three of them.

    Attributes:
        trouble: why there is no episode yet, or none of the newest checkpoint; mostly empty.
        warnings: of observations that are outside their spaces.
    """

    def __init__(self, *, trust: bool = False):
        self.trust, self.trouble, self.warnings = trust, "", []
        self._lock, self._count = threading.Lock(), 0
        self._shown: dict[bool, tuple[int, dict[str, Any]]] = {}  # by whether it compares
        self._played: dict[bool, Any] = {}  # the stamp of the checkpoint
        self._asked = -ASKED_SECONDS

    def shown(self, *, compared: bool) -> tuple[int, dict[str, Any] | None]:
        """(the number of the page's episode, its data); (0, None) before the first."""
        if compared:
            self._asked = time.monotonic()
            if not (self._played.get(True) or self.trouble):
                self.trouble = "the checkpoints to compare begin to play"
        with self._lock:
            newest = self._shown.get(False, (0, None))
            return self._shown.get(compared, newest)

    def play(self, folder: Path) -> None:
        """Plays what is due of the run in `folder`."""
        if not has_checkpoint(folder):
            return
        if not self._played:
            self.trouble = "the newest checkpoint begins to play"  # which compiles for a while
        self._play(folder, ["last"], compared=False)
        if time.monotonic() - self._asked < ASKED_SECONDS:
            self._play(folder, TO_COMPARE, compared=True)

    def _play(self, folder: Path, checkpoints: Sequence[str], *, compared: bool) -> None:
        stamp = None
        try:
            found = checkpoint.find(folder)
            stamp = found, (found / checkpoint.FACTS).stat().st_mtime_ns
            if stamp == self._played.get(compared):
                return
            columns = columns_for(folder, checkpoints, trust=self.trust)
            data = replay_data(columns, note=folder.name)
            warnings = observation_warnings(columns[-1].recordings[0])
        except Exception as error:  # of an environment, or of a folder that is being written
            self.trouble = one_line(error)
            self._played[compared] = stamp  # not again until there is another checkpoint
            return
        with self._lock:
            self._count += 1
            self._shown[compared] = self._count, data
            self._played[compared], self.trouble, self.warnings = stamp, "", warnings


def has_checkpoint(folder: Path) -> bool:
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
