"""Where the episodes of a training go: nowhere, or to the files that the setting `output` names."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from jaxrl.algorithms.base import Algorithm
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.rollout.recorded_steps import RecordedSteps
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage.run_state import Snapshot


class Output(Protocol):
    """The episode output of a trainer."""

    num_recorded: int  # environments of each device, the first ones
    lost: str | None  # why no more episodes are written
    position: dict[str, Any] | None  # of the written files, for `resume`

    def write(self, steps: RecordedSteps | None, count: int, before: Snapshot) -> None:
        """Has the episodes of a chunk written; waits while too many chunks wait already.

        Args:
            count: updates of the chunk that count: training may have ended within it.
            before: the state that the chunk began with.
        """

    def resume(self, position: dict[str, Any] | None) -> None:
        """Takes up a run's files, cut back to those at the position of its checkpoint."""

    def flush(self) -> Future | None:
        """Has all episodes so far written to files: the future position, if there is an output."""

    def finish(self) -> None:
        """Writes what waits; returns when it is written."""

    def close(self) -> None:
        """Writes what waits, and nothing more."""


class NoOutput:
    """Nothing is recorded and nothing written."""

    num_recorded, lost, position = 0, None, None

    def write(self, steps: RecordedSteps | None, count: int, before: Snapshot) -> None:
        pass

    def resume(self, position: dict[str, Any] | None) -> None:
        pass

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


def output_of(
    settings: RunSettings,
    config: AlgorithmConfig,
    algorithm: Algorithm,
    say: Callable[[str], None],
) -> Output:
    """The output that the settings ask for.

    Raises:
        UsageError: see `EpisodeOutput`.
    """
    if settings.output is None:
        return NoOutput()
    from jaxrl.run.episode_output import EpisodeOutput

    return EpisodeOutput(settings, config, algorithm, say)
