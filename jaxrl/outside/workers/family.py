"""Processes that environments start: which of them must end, and how they are found.

A child that an environment forks, and that comes back from the environment's code, would continue
as a second worker or trainer: `in_one_process` ends it. Where a call is too slow, `num_forks` is
compared with what it was.

What a worker's environments have started ends with the worker (`end`). It is known by its session,
by its parent, or by a mark among its environment variables, which programs inherit from those that
start them: so orphans are found too, and those that lead a session of their own. Where there is no
/proc, as on macOS, only the worker's process group is known. What nobody finds are orphans with a
session and variables of their own.

This module imports nothing but the standard library.
"""

import contextlib
import ctypes
import logging
import mmap
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

MARK = "JAXRL_WORKER"  # the environment variable
ENDED = (b"Z", b"X")  # states of processes that are gone but for their entry
PROCESSES = Path("/proc")
MAP_FIXED = 0x10  # of Linux and macOS

log = logging.getLogger(__name__)
num_forks = 0  # from the program's first process to this one
_has_said = mmap.mmap(-1, 1)  # shared with all forked children


def _count_fork() -> None:
    global num_forks
    num_forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def keep_from_children(memory: int, address: int, size: int) -> None:
    """Gives forked children a copy of shared memory from now on: what they write is their own.

    Args:
        memory: its descriptor.
        address: where it is mapped.
    """
    memory, place = os.dup(memory), ctypes.CDLL(None).mmap
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    place.restype = ctypes.c_void_p
    rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_FIXED
    os.register_at_fork(after_in_child=lambda: place(address, size, rights, flags, memory, 0))


def in_one_process(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an environment; a child that the call forks ends here, whatever its result."""
    before = num_forks
    try:
        return call(*arguments)
    finally:
        if num_forks != before:
            end_child()


def end(leader: int, mark: str) -> list[int]:
    """Ends a worker, which may be this process, and what its environments have started.

    Returns:
        The processes that this user may not end.
    """
    refused = end_others(leader, mark)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    return refused


def end_others(leader: int, mark: str) -> list[int]:
    """Ends processes like `end`, but not this one, and also where there is no /proc."""
    handled, refused = {os.getpid()}, []
    while found := _members(leader, mark) - handled:  # they may start others meanwhile
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                refused.append(pid)
        handled |= found
    return sorted(refused)


def _members(leader: int, mark: str) -> set[int]:
    """The living processes that belong to a worker, and itself."""
    variable, members, children = f"{MARK}={mark}".encode(), set(), {}
    for folder in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            state, parent, session = fields[0], int(fields[1]), int(fields[3])
            if state in ENDED:
                continue
            pid = int(folder.name)
            children.setdefault(parent, []).append(pid)
            if session == leader or variable in (folder / "environ").read_bytes().split(b"\0"):
                members.add(pid)
    waiting = list(members)
    while waiting:
        new = set(children.get(waiting.pop(), ())) - members
        members |= new
        waiting += new
    return members


def end_child() -> NoReturn:
    """Ends this process, with the code of a `sys.exit` that was on its way, or with a line."""
    code, error = 1, sys.exc_info()[1]
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif not _has_said[0]:
            _has_said[0] = 1
            log.warning(
                "an environment forked process %d, which came back from the environment's code and "
                "was ended: let such a child end with os._exit (further ones end without a word)",
                os.getpid(),
            )
    finally:
        os._exit(code & 0xFF)
