"""Jobs of a run's host that are done in order on a thread of their own, beside training."""

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class JobQueue:
    """A worker thread and the jobs that wait for it.

    An exception of a job is raised again by the call that meets its end.

    Args:
        name: of the thread.
        most_waiting: jobs that may wait; a slow disk then slows training down rather than filling
            the memory.
    """

    def __init__(self, name: str, most_waiting: int):
        self.most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._jobs: deque[Future] = deque()
        _queues.add(self)

    def __len__(self) -> int:
        """The number of jobs that nobody has met the end of."""
        return len(self._jobs)

    def submit(self, job: Callable[..., Any], *arguments: Any) -> Future:
        """Has a job done after all others; waits while too many wait already."""
        while len(self._jobs) >= self.most_waiting or (self._jobs and self._jobs[0].done()):
            self._jobs.popleft().result()
        self._jobs.append(self._thread.submit(job, *arguments))
        return self._jobs[-1]

    def result_of(self, job: Callable[[], Any]) -> Any:
        """The result of a job, done after all that wait; may be called from another thread."""
        return self._thread.submit(job).result()

    def wait(self) -> None:
        """Returns when all jobs are done."""
        while self._jobs:
            self._jobs.popleft().result()

    def close(self) -> None:
        """Waits for all jobs, and ends the thread."""
        self.wait()
        self._thread.shutdown()


_queues: "weakref.WeakSet[JobQueue]" = weakref.WeakSet()


def _finish() -> None:
    """Waits for the jobs of queues that a program which ends has not closed."""
    for queue in list(_queues):
        with contextlib.suppress(Exception):  # nobody is there to meet it; jobs tell what failed
            queue.wait()


# Before the threads that jobs themselves ask for can no longer be started; `atexit` is too late.
getattr(threading, "_register_atexit", atexit.register)(_finish)
