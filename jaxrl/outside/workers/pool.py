"""Worker processes that step copies of a Python environment in shared memory.

Each process holds several copies. A step costs a byte to each process and a byte back. The copies
are two halves, which step in turn: while one steps, the policies act in the other. A process that
dies or hangs is started again; the episodes of its copies are dropped.

Processes are spawned, in a session of their own, and end with their parent however that ends, and
with them what environments started in them (`family`). The shared memory has no name, so nothing of
it is left behind.
"""

import contextlib
import itertools
import logging
import os
import pickle
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from mmap import mmap
from typing import Any

import numpy as np

from jaxrl.core.errors import TooManyFaults, UsageError, brief, explained, one_line, reason_of
from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.types import AgentId, PyTree
from jaxrl.outside.workers import family, process
from jaxrl.outside.workers.arrays import EnvForm, StepArrays, size_of
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.process import CALL, INFOS, LENGTH, MESSAGE, RESET, RESTART, Layout
from jaxrl.outside.workers.sources import Source
from jaxrl.outside.workers.stepper import Fault
from jaxrl.outside.workers.vector import FaultCount, FirstObs, Results, spec_of

START_TIMEOUT_S = 300.0  # to import a simulator and to make the environments
CLOSE_TIMEOUT_S = 2.0
LOOK_EVERY_S = 1.0  # whether a process that says nothing is still there
# Several processes on few cores: a thread for each core in each of them slows all down.
FEW_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SAME_SETS = {"PYTHONHASHSEED": "0"}  # texts in a set have the same order in every process

log = logging.getLogger(__name__)


class Lost(Exception):
    """A worker process died, or hangs."""


class Worker:
    """A worker process, as its parent sees it.

    Attributes:
        rows: the copies that it steps, of each part.
        pending: the commands that it was sent and has not done.
        failure: why it cannot make its copies, or begin an episode in them.
    """

    def __init__(self, rows: tuple[range, ...]):
        self.rows, self.pending = rows, []
        self._popen: subprocess.Popen | None = None
        self._buffer, self.failure = bytearray(), ""
        self.answer = b""  # to INFOS and CALL, that it sent last
        self.function = b""  # of CALL

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.rows))

    def start(self, source: bytes, layout: Layout, memory: int) -> None:
        """Spawns the process."""
        self.pending, self._buffer, self.failure = [], bytearray(), ""
        pipes: list[int] = []
        try:
            with _within_limits():
                pipes += os.pipe()
                pipes += os.pipe()
                self._spawn([pipes[0], pipes[3], memory])
        except UsageError:
            for descriptor in pipes:
                os.close(descriptor)
            raise
        self._reports, self._commands = pipes[2], pipes[1]
        self._poll = select.poll()
        self._poll.register(self._reports, select.POLLIN)
        for descriptor in (pipes[0], pipes[3]):
            os.close(descriptor)
        self._write(process.with_length((sys.path, source, pickle.dumps(tuple(layout)))))

    def _spawn(self, descriptors: list[int]) -> None:
        self._mark = secrets.token_hex(8)
        self._popen = subprocess.Popen(
            [sys.executable, "-P", process.__file__, *map(str, (*descriptors, os.getpid()))],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
            env={**FEW_THREADS, **SAME_SETS, **os.environ, family.MARK: self._mark},
        )

    def send(self, command: bytes) -> None:
        self.pending.append(command)
        self._write(command + process.with_length(self.function) if command == CALL else command)

    def has_reports(self, timeout_s: float) -> bool:
        """Returns whether there is something to read, now or within a time."""
        return bool(self._poll.poll(timeout_s * 1000))

    def has_ended(self) -> bool:
        """Returns whether it has ended and all reports are read; a child may hold its pipes."""
        return self._popen.poll() is not None and not self.has_reports(0.0)

    def ending(self) -> str:
        """The reason why there will be no more reports."""
        try:
            return self.failure or f"its worker process died ({_exit(self._popen.wait(1.0))})"
        except subprocess.TimeoutExpired:
            return "its worker process has closed its pipe of results"

    def read(self) -> list[Fault]:
        """Reads reports; the commands that are done leave `pending`.

        Raises:
            Lost: the process has ended.
        """
        data = os.read(self._reports, 65536)
        if not data:
            raise Lost(self.ending())
        if data == self.pending[0] and not self._buffer:  # as nearly always
            del self.pending[0]
            return []
        self._buffer += data
        return self._parsed()

    def kill(self) -> None:
        """Ends the process, and those that its environments started."""
        if self._popen is None:
            return
        if left := family.end(self._popen.pid, self._mark):
            log.warning("processes that an environment started do not end: %s", left)
        self._popen.wait()
        self._popen = None
        for descriptor in (self._commands, self._reports):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def ask_to_end(self) -> None:
        """Closes the pipe of commands: the process closes its environments and ends."""
        if self._popen is not None:
            os.close(self._commands)
            self._commands = -1  # its number may be another file's from now on

    def wait_for_end(self, deadline: float) -> None:
        if self._popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(max(0.0, deadline - time.monotonic()))

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is dead, which `read` will say
            process.write_all(self._commands, data)

    def _parsed(self) -> list[Fault]:
        faults, buffer = [], self._buffer
        while buffer:
            if buffer[:1] != MESSAGE:
                self.pending.remove(bytes(buffer[:1]))
                del buffer[:1]
                continue
            head = 1 + LENGTH.size
            if len(buffer) < head or len(buffer) < head + LENGTH.unpack_from(buffer, 1)[0]:
                break
            end = head + LENGTH.unpack_from(buffer, 1)[0]
            message = pickle.loads(bytes(buffer[head:end]))
            del buffer[:end]
            if isinstance(message, str):
                self.failure = message
            elif isinstance(message, bytes):
                self.answer = message
            else:
                faults.append(Fault(*message))
        return faults


class ProcessPool:
    """A `VectorEnv` whose copies step in worker processes.

    Args:
        env: the Source and the EnvForm.
        num_workers: processes, at most `num_envs`.
        step_timeout_s: how long a step or reset of one copy may take.
    """

    def __init__(
        self,
        env: tuple[Source, EnvForm],
        num_envs: int,
        num_workers: int,
        faults: FaultCount,
        step_timeout_s: float,
    ):
        source, self._form = env
        self.spec, self.num_envs = spec_of(source.name, self._form), num_envs
        self.num_restarts, self._timeout = 0, step_timeout_s
        self.parts = halves(num_envs)
        self._faults, self._source = faults, pickled(source, source.name)
        with _within_limits():
            self._memory = shared_memory(size_of(self._form, num_envs))
        self._arrays = StepArrays(self._form, num_envs, mmap(self._memory, 0))
        self._results = Results(self._arrays, self.parts)
        self._workers = [Worker(rows) for rows in shares(self.parts, num_workers)]
        self._end = weakref.finalize(self, _end, self._workers, self._memory)
        for index in range(num_workers):
            self._start(index)

    @property
    def num_faults(self) -> int:
        return self._faults.total

    def reset(self, seeds: np.ndarray) -> FirstObs:
        self._arrays.first_seed[:], self._arrays.episode[:] = seeds, 0
        for worker in self._workers:
            worker.send(RESET)
        for index in range(len(self._workers)):
            self._wait(index, RESET)
        self._arrays.restarted[:] = False
        return self._results.first()

    def send(self, part: int, actions: dict[AgentId, PyTree]) -> None:
        self._results.write_actions(self.parts[part], actions)
        for worker in self._workers:
            if worker.rows[part]:
                worker.send(bytes([part]))

    def receive(self, part: int) -> OutsideSteps:
        for index, worker in enumerate(self._workers):
            if worker.rows[part]:
                self._wait(index, bytes([part]))
        steps = self._results.steps[part]
        self._faults.see(steps)
        return steps

    def infos(self) -> dict[int, dict[AgentId, dict]]:
        found = {}
        for worker in self._workers:
            worker.send(INFOS)
        for index, worker in enumerate(self._workers):
            self._wait(index, INFOS)
            found |= _unpickled(worker.answer)
        return found

    def foreach_env(self, function: EnvFunction, seeds: np.ndarray | None) -> list[Any]:
        if seeds is not None:
            self._arrays.first_seed[:], self._arrays.episode[:] = seeds, 0
        with explained("the function cannot be sent to worker processes"):
            sent = dumped(function)
        for worker in self._workers:
            worker.function = sent
            worker.send(CALL)
        for index in range(len(self._workers)):
            self._wait(index, CALL)
        found = {}
        for worker in self._workers:
            with explained("what the function gives cannot be sent to this process"):
                answer = pickle.loads(worker.answer)
            if isinstance(answer, str):
                raise UsageError(answer)
            found |= answer
        return [found[row] for row in sorted(found)]

    def close(self) -> None:
        self._end()

    def _start(self, index: int) -> None:
        worker, self._arrays.current[index] = self._workers[index], -1
        layout = Layout(self._form, self.num_envs, index, worker.rows)
        worker.start(self._source, layout, self._memory)

    def _wait(self, index: int, command: bytes) -> None:
        """Returns when a worker has done a command, however often it must be started again."""
        worker, last_progress, since = self._workers[index], None, 0.0
        while command in worker.pending or RESTART in worker.pending:  # in place of a RESET
            try:
                if worker.has_reports(min(self._timeout / 10, LOOK_EVERY_S)):
                    for fault in worker.read():
                        self._faults.add(fault)
                elif worker.has_ended():
                    raise Lost(worker.ending())
                elif last_progress != (progress := self._progress(index)):
                    last_progress, since = progress, time.monotonic()
                elif time.monotonic() - since > (limit := self._patience(progress)):
                    raise Lost(f"no result within {limit:g} s")
            except Lost as error:
                if worker.failure and RESET in worker.pending:  # it has never worked
                    name, reason = f"environment {self.spec.name!r}", worker.failure
                    if not reason.startswith(name):
                        reason = f"{name}: {reason}"
                    raise TooManyFaults(reason) from None
                self._replace(index, str(error))
                last_progress = None

    def _progress(self, index: int) -> tuple[int, list[bytes]]:
        """(the copy that a worker steps, the commands that it has not done)."""
        return int(self._arrays.current[index]), list(self._workers[index].pending)

    def _patience(self, progress: tuple[int, list[bytes]]) -> float:
        """The number of seconds that a worker may take for a copy, or to start."""
        row, pending = progress
        is_starting = row < 0 and pending[:1] in ([RESET], [RESTART], [CALL])
        return START_TIMEOUT_S if is_starting else self._timeout

    def _replace(self, index: int, reason: str) -> None:
        """Starts a worker again, with new episodes, and repeats what it has not done.

        But not a call, which may have ended it, and would end it again.
        """
        worker, arrays = self._workers[index], self._arrays
        once = (RESET, RESTART, CALL)
        pending = [command for command in worker.pending if command not in once]
        has_begun = RESTART not in worker.pending and RESET not in worker.pending
        num_lost = worker.num_rows if has_begun else 0
        row = int(arrays.current[index])
        if CALL in worker.pending:
            copy = "" if row < 0 else f"copy {row}: "
            self._faults.lose(f"{copy}{reason}, in a call by the training", num_lost)
            said = f"{copy}{reason}; it was started again, with new episodes"
            worker.answer = pickle.dumps(said)
        else:
            if row < 0:
                row = next(rows[0] for rows in worker.rows if rows)
            step = int(arrays.step[row])
            action = brief(arrays.row(row).read_actions()) if step else ""
            self._faults.add(Fault(row, arrays.seed(row), step, action, reason), num_lost)
        worker.kill()  # not before: `add` may raise, and a later command finds it as it is
        self.num_restarts += 1
        self._start(index)
        for command in (RESTART, *pending):
            worker.send(command)


@contextlib.contextmanager
def _within_limits() -> Iterator[None]:
    """Names the limits of the system that worker processes need."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"worker processes cannot be started: {one_line(error)}; allow more processes, open "
            "files and memory (ulimit -u, -n), or give fewer workers"
        ) from error


def halves(num_envs: int) -> tuple[slice, ...]:
    """Two halves of the copies, or all where there is only one."""
    if num_envs == 1:
        return (slice(0, 1),)
    return slice(0, num_envs // 2), slice(num_envs // 2, num_envs)


def shares(parts: tuple[slice, ...], num_workers: int) -> list[tuple[range, ...]]:
    """The rows of each part, for each worker.

    A worker has copies of every part, so that it always has something to step, unless there are too
    few copies for that.
    """
    sizes = [part.stop - part.start for part in parts]
    if num_workers <= min(sizes):
        split = [_split(range(part.start, part.stop), num_workers) for part in parts]
        return list(zip(*split, strict=True))
    rows_of_workers = []
    for rows in _split(range(parts[0].start, parts[-1].stop), num_workers):
        rows_of_workers.append(tuple(_within(rows, part) for part in parts))
    return rows_of_workers


def _split(rows: range, count: int) -> list[range]:
    bounds = [rows.start + len(rows) * i // count for i in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]


def _within(rows: range, part: slice) -> range:
    start, stop = max(rows.start, part.start), min(rows.stop, part.stop)
    return range(start, max(start, stop))


def pickled(value: Any, name: str, where: str = "worker processes") -> bytes:
    """A pickle that makes an environment elsewhere, also from a script's or notebook's classes."""
    try:
        return dumped(value)
    except Exception as error:
        raise UsageError(
            f"environment {name!r} cannot be sent to {where} ({reason_of(error)}): give the "
            "function or class that makes it, or step it in this process with workers=0"
        ) from error


def dumped(value: Any) -> bytes:
    """A pickle of a value, by cloudpickle where that is installed."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = pickle
    return cloudpickle.dumps(value)


def shared_memory(size: int) -> int:
    """A descriptor of new memory that processes can map; it has no name in the file system."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("jaxrl")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _end(workers: list[Worker], memory: int) -> None:
    for worker in workers:
        worker.ask_to_end()
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for worker in workers:
        worker.wait_for_end(deadline)
        worker.kill()
    os.close(memory)


def _unpickled(infos: bytes) -> dict[int, dict[AgentId, dict]]:
    """The infos of copies; none where a class of theirs cannot be found in this process."""
    try:
        return pickle.loads(infos)
    except Exception:  # of many kinds
        return {}


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
