"""Stepping of several copies in one process, which drops the episodes that an error spoilt.

An environment that raises, or returns NaN or something of another shape, is made again, and its
copy begins a new episode with the next seed. This module must not import JAX.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from jaxrl.core.errors import brief, reason_of
from jaxrl.workers.arrays import StepArrays
from jaxrl.workers.copies import Copy, copy_of
from jaxrl.workers.sources import Source, close, make_copy
from jaxrl.workers.space_forms import bad_rows

MOST_RESETS = 3  # of a copy whose resets fail, before its process gives up
INVALID = "an observation holds NaN, or an integer out of its range"


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
    """

    def __init__(
        self,
        source: Source,
        arrays: StepArrays,
        rows: range,
        report: Callable[[Fault], None],
        worker: int = 0,
    ):
        self._source, self._arrays, self.rows, self._report = source, arrays, rows, report
        self._slice = slice(rows.start, rows.stop)
        self._current = arrays.current[worker : worker + 1]
        self._copies = [self._make() for _ in rows]

    def reset(self) -> None:
        """Begins the episodes that `first_seed` and `episode` say."""
        self._arrays.restarted[self._slice] = False
        for row in self.rows:
            self._begin(row)
        self._current[0] = -1

    def restart(self) -> None:
        """Begins new episodes where a process died; the next step of the copies reports them."""
        self._arrays.episode[self._slice] += 1
        self.reset()
        self._arrays.restarted[self._slice] = True

    def step(self) -> None:
        """One step of all copies; new episodes begin where one ended or was dropped."""
        arrays = self._arrays
        arrays.episode_done[self._slice] = arrays.lost[self._slice] = False
        arrays.step[self._slice] += 1
        ended, spoilt, fresh = [], {}, []
        for row, copy in zip(self.rows, self._copies, strict=True):
            if arrays.restarted[row]:
                fresh.append(row)
                continue
            self._current[0] = row
            try:
                if copy.step(arrays, row):
                    ended.append(row)
            except (Exception, SystemExit) as error:
                spoilt[row] = reason_of(error)
        self._keep_obs(fresh)
        for row in invalid_rows(arrays, arrays.final_obs, self.rows):
            if row not in spoilt and row not in fresh:
                spoilt[row] = INVALID
        self._go_on_from_final_obs()
        for row, reason in spoilt.items():
            self._drop(row, reason)
            arrays.episode[row] += 1
            self._begin(row)
            self._keep_obs([row])
        for row in set(ended) - set(spoilt):
            arrays.episode_done[row] = True
            arrays.episode[row] += 1
            self._begin(row)
        for row in (*fresh, *spoilt):
            self._lose(row)
        self._current[0] = -1

    def close(self) -> None:
        for copy in self._copies:
            close(copy.env)

    def _make(self) -> Copy:
        return copy_of(make_copy(self._source), self._source.name)

    def _begin(self, row: int) -> None:
        """Begins the copy's episode, or if its reset fails the one after."""
        arrays, index = self._arrays, row - self.rows.start
        self._current[0] = row
        for _ in range(MOST_RESETS):
            arrays.step[row] = 0
            try:
                self._copies[index].reset(arrays, row, arrays.seed(row))
                if not invalid_rows(arrays, arrays.obs, range(row, row + 1)):
                    return
                reason = INVALID
            except (Exception, SystemExit) as error:
                reason = reason_of(error)
            self._drop(row, reason)
            arrays.episode[row] += 1
        raise BrokenEnvironment(f"{MOST_RESETS} resets in a row failed: {reason}")

    def _drop(self, row: int, reason: str) -> None:
        """Reports a fault, and makes the environment again."""
        arrays, index = self._arrays, row - self.rows.start
        step = int(arrays.step[row])
        action = brief(arrays.read_actions(row)) if step else ""
        self._report(Fault(row, arrays.seed(row), step, action, reason))
        close(self._copies[index].env)
        self._copies[index] = self._make()

    def _lose(self, row: int) -> None:
        """The results of a step whose episode was dropped."""
        arrays = self._arrays
        arrays.lost[row], arrays.restarted[row], arrays.episode_done[row] = True, False, False
        arrays.reward[row], arrays.metrics[row], arrays.step[row] = 0, 0, 0
        for flags in (arrays.terminated, arrays.truncated, arrays.active):
            flags[row] = False

    def _keep_obs(self, rows: Iterable[int]) -> None:
        """A new episode's first observations as those that the step reached."""
        for block, final in self._blocks():
            for row in rows:
                final[row] = block[row]

    def _go_on_from_final_obs(self) -> None:
        for block, final in self._blocks():
            block[self._slice] = final[self._slice]

    def _blocks(self) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        for group, final in zip(self._arrays.obs, self._arrays.final_obs, strict=True):
            yield from zip(group, final, strict=True)


def invalid_rows(
    arrays: StepArrays, blocks: list[list[np.ndarray]], rows: range | None = None
) -> list[int]:
    """Those of the rows whose observations hold NaN, or integers out of range."""
    rows, found = range(arrays.num_envs) if rows is None else rows, set()
    for group, leaves in zip(arrays.observed, blocks, strict=True):
        bad = bad_rows(group.form, [leaf[rows.start : rows.stop] for leaf in leaves])
        found.update((np.flatnonzero(bad) + rows.start).tolist())
    return sorted(found)
