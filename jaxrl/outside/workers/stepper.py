"""Stepping of several copies in one process, which drops the episodes that an error spoilt.

An environment that raises, or returns NaN or something of another shape, is made again, and its
copy begins a new episode with the next seed. This module must not import JAX.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from jaxrl.core.env_config import EnvConfig
from jaxrl.core.errors import brief, explained, reason_of
from jaxrl.core.value_copies import owned
from jaxrl.outside.workers import family
from jaxrl.outside.workers.arrays import RangeCheck, StepArrays
from jaxrl.outside.workers.copies import made_copy
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.shared_generators import Draws, SeededCopy
from jaxrl.outside.workers.sources import Source, close

MOST_RESETS = 3  # of a copy whose resets fail, before its process gives up


class Fault(NamedTuple):
    """An episode that was dropped, with what is needed to play it again."""

    row: int  # the copy
    seed: int  # of the episode
    step: int  # 0: the reset
    action: str
    reason: str

    def __str__(self):
        when = f"in step {self.step}, action {self.action}" if self.step else "in the reset"
        return f"copy {self.row}: {self.reason}; episode seed {self.seed}, {when}"


class BrokenEnvironment(RuntimeError):
    """No episode can be begun."""


class Stepper:
    """The copies of a range of rows.

    Args:
        report: called with each fault.
        worker: the number of the process, for `current`.
        draws: None: what the copies draw from is found.
    """

    def __init__(
        self,
        source: Source,
        arrays: StepArrays,
        rows: range,
        report: Callable[[Fault], None],
        worker: int = 0,
        draws: Draws | None = None,
    ):
        self._source, self._arrays, self.rows, self._report = source, arrays, rows, report
        part = slice(rows.start, rows.stop)
        self._episode_done, self._lost = arrays.episode_done[part], arrays.lost[part]
        self._restarted, self._steps = arrays.restarted[part], arrays.step[part]
        self._episodes = arrays.episode[part]
        self._begin_step = arrays.step_beginner(part)
        self._reached = RangeCheck(arrays, arrays.final_obs, rows)
        self._first = [RangeCheck(arrays, arrays.obs, range(row, row + 1)) for row in rows]
        pairs = zip(chain(*arrays.obs), chain(*arrays.final_obs), strict=True)
        self._blocks = [(block[part], final[part]) for block, final in pairs]
        self._current = memoryview(arrays.current)[worker : worker + 1]  # quicker than an array
        self._rows = [arrays.row(row) for row in rows]
        self._draws, self._copies = draws or Draws(), []
        self._gives_infos = False
        self.worker_index = 0  # in the contexts of environments

    def reset(self) -> None:
        """Begins the episodes that `first_seed` and `episode` say, first of all by making copies.

        Raises:
            UsageError: a copy cannot be made.
            BrokenEnvironment: an episode cannot be begun.
        """
        self._draws.alone(self._reset)

    def restart(self) -> None:
        """Begins new episodes where a process died; the next step of the copies reports them."""
        self._episodes += 1
        self.reset()
        self._restarted[:] = True

    def step(self) -> None:
        """One step of all copies; new episodes begin where one ended or was dropped."""
        self._draws.alone(self._step)

    def infos(self) -> dict[int, dict[str, dict]]:
        """{row: {agent: info}} of what the last reset or step of all copies gave."""
        self._gives_infos = True
        return {self.rows.start + i: row.named_infos() for i, row in enumerate(self._rows)}

    def foreach_env(self, function: EnvFunction) -> dict[int, Any]:
        """{row: what the function gives of its environment}; makes the copies if there are none.

        Raises:
            UsageError: a copy cannot be made, or a call failed.
        """
        if not self._copies:
            self._draws.alone(self._make_all)
        results = {}
        try:
            for number, copy in zip(self.rows, self._copies, strict=True):
                self._current[0] = number
                with explained(f"copy {number}"):
                    results[number] = function(copy.made, self._context(number))
        finally:
            self._current[0] = -1
        return results

    def close(self) -> None:
        for copy in self._copies:
            close(copy.env)

    def _reset(self) -> None:
        if not self._copies:
            self._make_all()
        self._restarted[:], self._gives_infos = False, False
        for index, row in enumerate(self._rows):
            self._begin(index)
            row.infos = row.first_infos
        self._current[0] = -1

    def _step(self) -> None:
        self._begin_step()
        self._steps += 1
        ended, spoilt, forks = [], {}, family.num_forks
        fresh = self._restarted.nonzero()[0].tolist()
        current, first = self._current, self.rows.start
        for index, (row, copy) in enumerate(zip(self._rows, self._copies, strict=True)):
            if fresh and index in fresh:
                continue
            current[0] = first + index
            try:
                try:
                    is_done = copy.step(row)
                finally:
                    if family.num_forks != forks:
                        family.end_child()
                if is_done:
                    ended.append(index)
            except BaseException as error:
                spoilt[index] = reason_to_drop(error)
        self._keep_obs(fresh)
        for index in self._reached.wrong_rows():
            if index not in fresh:
                spoilt.setdefault(index, self._reached.reason(index))
        for block, final in self._blocks:
            block[...] = final
        for index, reason in spoilt.items():
            self._drop(index, reason)
            self._begin_next(index)
        self._keep_obs(spoilt)
        for index in ended:
            if index not in spoilt:
                if self._gives_infos:  # before the reset changes arrays in them
                    self._rows[index].infos = owned(self._rows[index].infos)
                self._episode_done[index] = True
                self._begin_next(index)
        for index in (*fresh, *spoilt):
            self._lose(index)
        self._current[0] = -1

    def _make_all(self) -> None:
        self._copies = [self._make(index) for index in range(len(self.rows))]

    def _make(self, index: int) -> SeededCopy:
        number = self.rows.start + index
        seed = self._arrays.seed(number)
        copy = SeededCopy(lambda: made_copy(self._source, seed), self._draws, seed)
        if self._source.created is not None:
            self._source.created(copy.made, self._context(number))
        return copy

    def _context(self, number: int) -> EnvConfig:
        return self._source.context(number, self.worker_index)

    def _begin_next(self, index: int) -> None:
        self._episodes[index] += 1
        self._begin(index)

    def _begin(self, index: int) -> None:
        """Begins the copy's episode, or if its reset fails the one after."""
        row, number = self._rows[index], self.rows.start + index
        self._current[0] = number
        for _ in range(MOST_RESETS):
            self._steps[index] = 0
            try:
                family.in_one_process(self._copies[index].reset, row, self._arrays.seed(number))
                if not self._first[index].wrong_rows():
                    return
                reason = self._first[index].reason(0)
            except BaseException as error:
                reason = reason_to_drop(error)
            self._drop(index, reason)
            self._episodes[index] += 1
        raise BrokenEnvironment(f"{MOST_RESETS} resets in a row failed: {reason}")

    def _drop(self, index: int, reason: str) -> None:
        """Reports a fault, and makes the environment again."""
        number, step = self.rows.start + index, int(self._steps[index])
        action = brief(self._rows[index].read_actions()) if step else ""
        self._report(Fault(number, self._arrays.seed(number), step, action, reason))
        close(self._copies[index].env)
        self._copies[index] = self._make(index)

    def _lose(self, index: int) -> None:
        """Reports a step as lost, without results: its episode was dropped."""
        row = self._rows[index]
        self._lost[index], self._restarted[index], self._episode_done[index] = True, False, False
        self._steps[index] = 0
        for results in (row.reward, row.metrics, row.terminated, row.truncated, row.active):
            results[:] = 0

    def _keep_obs(self, indices: Iterable[int]) -> None:
        """Reports a new episode's first observations as those that the step reached."""
        for index in indices:
            for block, final in self._blocks:
                final[index] = block[index]


def reason_to_drop(error: BaseException) -> str:
    """The reason for which an episode is dropped; Ctrl-C is the user's wish, and is raised again.

    Others that are no `Exception` are the environment's own: `sys.exit`, or a panic in Rust.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    return reason_of(error)
