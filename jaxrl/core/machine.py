"""The cores, memory and open files that this process may use, within its container's limits.

A container is a control group of Linux (version 1 or 2); the groups around it set limits too. This
module imports nothing but the standard library.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")  # lines NUMBER:CONTROLLERS:PATH
MOUNT = Path("/sys/fs/cgroup")
MEMORY_INFO = Path("/proc/meminfo")


def num_cores() -> int:
    """The processor cores that this process may use, by its affinity and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    number = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min((number, *map(math.ceil, _quotas()))))


def host_memory() -> int | None:
    """Bytes of memory of this machine or its container; None if unknown."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return min((whole, *(limit for limit, _ in _memory())))


def free_memory() -> int | None:
    """Bytes that processes here may still take, where the system tells (Linux)."""
    try:
        lines = dict(line.split(":", 1) for line in MEMORY_INFO.read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    return max(0, min((available, *(limit - used for limit, used in _memory()))))


def require_descriptors(number: int) -> None:
    """Raises OSError where so many more files cannot be open at once.

    Some libraries end the process, or print many lines, where they cannot open theirs.
    """
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(open(os.devnull))


def _memory() -> Iterator[tuple[int, int]]:
    """(limit, in use) in bytes of each group with a limit; files that may be dropped are not."""
    for folder in _groups("memory"):
        is_new = (folder / "memory.max").exists()
        names = ("max", "current") if is_new else ("limit_in_bytes", "usage_in_bytes")
        with contextlib.suppress(OSError, ValueError, KeyError):  # "max": there is no limit
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in names)
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield limit, used - int(stat["inactive_file" if is_new else "total_inactive_file"])


def _quotas() -> Iterator[float]:
    """The cores' worth of time that each group with a quota has."""
    for folder in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            if (folder / "cpu.max").exists():
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quota, period = (int((folder / name).read_text()) for name in names)
            if quota > 0:
                yield quota / period


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those around it, where they can be seen."""
    try:
        lines = [line.split(":", 2) for line in GROUPS.read_text().splitlines()]
    except OSError:  # not Linux
        return
    for _, controllers, path in lines:
        if controllers and controller not in controllers.split(","):
            continue
        mount = MOUNT / controller if controllers else MOUNT
        group = Path(path.lstrip("/"))
        yield from (mount / part for part in (group, *group.parents) if (mount / part).is_dir())
