"""Episode output: the episodes that training played, cut out of its rollouts and written to files.

What is written is what was learned from: the steps of the rollouts themselves. A rollout begins and
ends in the middle of episodes, so the open ones are carried over from chunk to chunk.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.fields import least_count
from jaxrl.core.types import PyTree
from jaxrl.episodes import EpisodeWriter
from jaxrl.episodes.by_agent import Episode
from jaxrl.play.recording import by_agent, facts_of, make_episode
from jaxrl.play.sampling import ORIGIN, env_of, plain_params
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.recorded_steps import RecordedSteps
from jaxrl.run import hooks
from jaxrl.run.devices.mesh import num_processes
from jaxrl.run.hooks import Output
from jaxrl.run.job_queue import JobQueue
from jaxrl.run.settings import RunSettings

WAITING = 2  # chunks that may wait
OPEN_BYTES = 2**30  # of steps whose episodes have not ended yet, shared by the environments alike


def recorded_share(settings: RunSettings, config: AlgorithmConfig) -> int:
    """The number of environments of each device that are recorded, the first ones."""
    held = config.num_envs // settings.devices
    return least_count(settings.output_share, held)


class Chunk(NamedTuple):
    """The recorded steps of one compiled chunk."""

    steps: RecordedSteps  # [capacity, T, ...]
    count: int  # updates, the first ones
    update: int  # the number of the first one
    env_params: PyTree


class EpisodeOutput(Output):
    """The folder that a trainer writes the episodes of its rollouts to.

    It cuts and writes on a thread of its own. If they cannot be written, it says so once, and
    training continues.

    Raises:
        UsageError: nothing is played, several processes train, or the folder cannot be written.
    """

    def __init__(
        self,
        settings: RunSettings,
        config: AlgorithmConfig,
        algorithm: Algorithm,
        say: Callable[[str], None],
    ):
        self.num_recorded = recorded_share(settings, config)
        self.writer: EpisodeWriter | None = _writer_of(settings.output, algorithm)
        self._say, self._config, self._algorithm = say, config, algorithm
        # Each device holds as many environments, and records its first ones.
        first = np.arange(settings.devices) * (config.num_envs // settings.devices)
        self._env_index = (first[:, None] + np.arange(self.num_recorded)).reshape(-1).tolist()
        self._cutter: EpisodeCutter | None = None
        self._params: PyTree = None
        self._origin: dict[str, Any] = {}
        self._jobs = JobQueue("jaxrl-episodes", WAITING)
        self._is_closed = False
        self.lost: str | None = None  # why no more episodes are written

    def after(self, chunk: hooks.Chunk) -> None:
        """Has the episodes of a chunk written; waits while too many chunks wait already."""
        if self.writer is None:
            return
        update, env_params = int(chunk.before.runner.num_updates) + 1, chunk.before.env_params
        chunk = Chunk(chunk.steps, len(chunk.results), update, env_params)
        self._jobs.submit(self._try, lambda writer: self._write(writer, chunk))

    def resume(self, position: dict[str, Any] | None) -> None:
        if self.writer is None or position is None:
            return
        try:
            self.writer.resume(**position)
        except (TypeError, UsageError) as error:
            raise UsageError(
                f"the run is damaged: its checkpoint names no files of episodes: {one_line(error)}"
            ) from None

    @property
    def position(self) -> dict[str, Any] | None:
        """The position in the files, for `resume`; None if nothing is written."""
        return None if self.writer is None else self.writer.position

    def flush(self) -> Future | None:
        return None if self._is_closed else self._jobs.submit(self._flush)

    def finish(self) -> None:
        self.flush()
        self._jobs.wait()

    def close(self) -> None:
        self.flush()
        self._jobs.close()
        self._is_closed = True

    def _write(self, writer: EpisodeWriter, chunk: Chunk) -> None:
        if chunk.env_params is not self._params:
            self._params = chunk.env_params
            numbers = None  # those of a curriculum's episodes are not known here
            if self._config.curriculum is None:
                numbers = plain_params(chunk.env_params)
            self._origin = {**env_of(self._config), "env_params": numbers}
            self._origin["seed"] = self._config.seed
        if self._cutter is None:
            spec, begins = self._algorithm.rollout_spec, chunk.update == 1
            self._cutter = EpisodeCutter(spec, self._env_index, begins=begins)
        has_warned = self._cutter.too_long is not None
        for episode in self._cutter.cut(chunk, self._origin):
            writer.write(episode)
        if self._cutter.too_long is not None and not has_warned:
            self._say(
                f"warning: an episode of more than {self._cutter.too_long:,} steps is too long to "
                "be kept, and such episodes are not written"
            )

    def _flush(self) -> dict[str, Any] | None:
        self._try(EpisodeWriter.flush)
        return self.position

    def _try(self, action: Callable[[EpisodeWriter], None]) -> None:
        if self.writer is None:
            return
        try:
            action(self.writer)
        except UsageError as error:
            self.writer, self.lost = None, str(error)
            self._say(f"warning: {error}; no more episodes are written")


def _writer_of(output: Any, algorithm: Algorithm) -> EpisodeWriter:
    if not algorithm.plays:
        raise UsageError(
            f"output={str(output)!r}: training on recorded episodes plays none that could be "
            "written; `jaxrl evaluate RUN --output DIR` plays some with the trained policies"
        )
    if num_processes() > 1:
        raise UsageError(
            f"output={str(output)!r}: several processes train, none of which has all episodes; "
            "one process alone can write them"
        )
    return EpisodeWriter(output)


class EpisodeCutter:
    """Cuts the steps of E environments into whole episodes, chunk after chunk.

    Args:
        env_index: the numbers of the environments.
        begins: whether the first step begins an episode in each of them. If not, as in a resumed
            training, the beginnings of the open episodes are not known, and they are left out.
    """

    def __init__(self, spec: RolloutSpec, env_index: list[int], *, begins: bool):
        self.too_long: int | None = None  # steps: the limit, once an episode has passed it
        self._spec, self._env_index = spec, env_index
        self._facts = facts_of(spec.grouping)
        self._open = [_OpenEpisode(update=1, step=0) if begins else None for _ in env_index]

    def cut(self, chunk: Chunk, origin: Mapping[str, Any]) -> Iterator[Episode]:
        """The episodes that end in a chunk.

        Args:
            origin: what plays the chunk's episodes again, but for the places where they begin.
        """
        columns, rollout_length = _Columns.of(self._spec, chunk), chunk.steps.episode_done.shape[1]
        most = OPEN_BYTES // (columns.bytes_per_step * len(self._env_index))
        for e, env in enumerate(self._env_index):
            begin = 0
            for end in (np.flatnonzero(columns.episode_done[e]) + 1).tolist():
                if (ended := self._open[e]) is not None:
                    ended.add(columns.rows(e, begin, end), origin)
                    episode = self._episode(columns, ended, (e, end - 1))
                    place = {"environment": env, "rollout_length": rollout_length}
                    episode.custom_data[ORIGIN] = ended.origin | {"rollout": ended.place | place}
                    yield episode
                updates, step = divmod(end, rollout_length)
                self._open[e], begin = _OpenEpisode(chunk.update + updates, step), end
            if (still_open := self._open[e]) is not None:
                # Copies, which do not keep the whole chunk in memory.
                still_open.add([leaf.copy() for leaf in columns.rows(e, begin, None)], origin)
                if still_open.length > most:
                    self._open[e], self.too_long = None, most

    def _episode(
        self, columns: "_Columns", ended: "_OpenEpisode", last: tuple[int, int]
    ) -> Episode:
        """The episode whose last step is at `last`, (environment, step of the chunk)."""
        observations, others = columns.joined(ended.parts, last)
        arrays = {}
        for agent, obs, rest in zip(self._facts, observations, others, strict=True):
            arrays[agent] = rest._replace(obs=obs)
        terminated = bool(columns.all_terminated[last])
        return make_episode(self._spec.env, arrays, self._facts, terminated)


class _OpenEpisode:
    """The steps so far of an episode that has not ended, from its place in training."""

    def __init__(self, update: int, step: int):
        self.place = {"update": update, "step": step}
        self.parts: list[list[np.ndarray]] = []
        self.length = 0
        self.origin: Mapping[str, Any] = {}

    def add(self, rows: list[np.ndarray], origin: Mapping[str, Any]) -> None:
        if self.parts and origin is not self.origin:  # the user has set other numbers meanwhile
            origin = origin | {"env_params": None}
        self.parts.append(rows)
        self.length += len(rows[0])
        self.origin = origin


class _Columns(NamedTuple):
    """A chunk's steps in NumPy, [E, S, ...], flat: much is done for each of many episodes."""

    arrays: list[np.ndarray]  # of all agents, the observations first
    reached: list[np.ndarray]  # beside those, what was observed after the steps, before any reset
    structure: Any  # of (observations by agent, the rest of `AgentSteps` by agent)
    all_terminated: np.ndarray  # bool[E, S]
    episode_done: np.ndarray  # bool[E, S]

    @classmethod
    def of(cls, spec: RolloutSpec, chunk: Chunk) -> "_Columns":
        def by_environment(axis: int, leaf: jax.Array) -> np.ndarray:
            rows = np.moveaxis(np.asarray(leaf)[: chunk.count], axis, 0)
            return rows.reshape(len(rows), -1, *rows.shape[3:])

        steps = chunk.steps
        groups = jax.tree.map(functools.partial(by_environment, 3), steps.groups)
        agents = list(by_agent(spec.grouping, groups).values())
        rest = [agent._replace(obs=None, reached=None) for agent in agents]
        arrays, structure = jax.tree.flatten(([agent.obs for agent in agents], rest))
        return cls(
            arrays,
            jax.tree.leaves([agent.reached for agent in agents]),
            structure,
            by_environment(2, steps.all_terminated),
            by_environment(2, steps.episode_done),
        )

    @property
    def bytes_per_step(self) -> int:
        """The bytes of a step of one environment."""
        return sum(leaf.nbytes for leaf in self.arrays) // self.episode_done.size

    def rows(self, e: int, begin: int, end: int | None) -> list[np.ndarray]:
        return [leaf[e, begin:end] for leaf in self.arrays]

    def joined(self, parts: list[list[np.ndarray]], last: tuple[int, int]) -> Any:
        """(observations [T + 1, ...], the rest [T, ...]) of T steps, by agent."""
        columns = [list(column) for column in zip(*parts, strict=True)]
        for column, reached in zip(columns, self.reached, strict=False):
            column.append(reached[last][None])
        return self.structure.unflatten([np.concatenate(column) for column in columns])
