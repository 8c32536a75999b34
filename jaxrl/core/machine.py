"""The machine: cores, memory and open files that this process may use, and memory given back.

A container is a control group of Linux (version 1 or 2); the groups around it set limits too. This
module imports nothing but the standard library, and JAX where devices are asked.
"""

import contextlib
import ctypes
import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GROUPS = Path("/proc/self/cgroup")  # lines NUMBER:CONTROLLERS:PATH
MOUNT = Path("/sys/fs/cgroup")
MEMORY_INFO = Path("/proc/meminfo")
MIB, GIB, TIB = 2**20, 2**30, 2**40
M_ARENA_MAX = -8  # glibc's malloc.h
VARIABLE = "MALLOC_ARENA_MAX"  # glibc's own, for users, and its newer form:
TUNABLES, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.arena_max"


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


def in_units(number: int) -> str:
    """`7 MiB`, `3.4 GiB`, `2,000 TiB`."""
    if number >= 1024 * GIB:
        return f"{number / TIB:,.0f} TiB"
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{max(1, round(number / MIB)):,} MiB"


def most_memory() -> int | None:
    """Bytes of memory of all devices of all processes; None if unknown. Starts JAX's backends.

    Each CPU process counts as a machine with this one's memory, so that nothing that fits is
    rejected.
    """
    import jax

    if jax.default_backend() == "cpu":
        host = host_memory()
        return None if host is None else jax.process_count() * host
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if not all("bytes_limit" in stat for stat in stats):
        return None
    return jax.process_count() * sum(stat["bytes_limit"] for stat in stats)


def free_on_device() -> int | None:
    """Bytes that the first device still has; None if unknown. Starts JAX's backends."""
    import jax

    facts = jax.local_devices()[0].memory_stats() or {}
    if {"bytes_limit", "bytes_in_use"} <= set(facts):
        return facts["bytes_limit"] - facts["bytes_in_use"]
    return None


def process_memory() -> int | None:
    """Bytes that this process holds, where the system says so as Linux does."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return None


def require_descriptors(number: int) -> None:
    """Raises OSError where so many more files cannot be open at once.

    Some libraries end the process, or print many lines, where they cannot open theirs.
    """
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(open(os.devnull))


def limit_arenas() -> None:
    """Limits glibc to one arena per core. Call it before threads start: existing arenas stay.

    For its threads glibc has up to eight arenas a core, and each keeps what it once needed. In a
    training many threads come and go, and each time another arena grows: megabytes an hour, until
    all have grown. A limit that the user has set stands; with another C library nothing is done.
    """
    if VARIABLE in os.environ or TUNABLE in os.environ.get(TUNABLES, ""):
        return
    if (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(M_ARENA_MAX, os.cpu_count() or 1)


def give_back_memory() -> None:
    """Asks glibc to return its free memory to the system."""
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


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


@functools.cache
def _of_glibc(name: str) -> Any:
    """One of glibc's own functions; None in another C library."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, TypeError, AttributeError):  # Windows has no CDLL(None)
        return None
