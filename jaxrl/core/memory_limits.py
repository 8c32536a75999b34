"""The memory of the machine and its devices, for what can be refused before anything is compiled."""

import os
from pathlib import Path

import jax

MIB, GIB, TIB = 2**20, 2**30, 2**40
CGROUP = Path("/sys/fs/cgroup/memory.max")  # the limit of a container


def in_units(number: int) -> str:
    """`7 MiB`, `3.4 GiB`, `2,000 TiB`."""
    if number >= 1024 * GIB:
        return f"{number / TIB:,.0f} TiB"
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{max(1, round(number / MIB)):,} MiB"


def host_memory() -> int | None:
    """Bytes of this machine's memory, or of its container's; None where the system does not tell."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(whole, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return whole


def most_memory() -> int | None:
    """Bytes of all devices of all processes; starts JAX's backends. None where they do not tell.

    Of CPU processes each counts as a machine of this one's memory, so that none is refused which
    would fit.
    """
    if jax.default_backend() == "cpu":
        host = host_memory()
        return None if host is None else jax.process_count() * host
    facts = [device.memory_stats() or {} for device in jax.local_devices()]
    if not all("bytes_limit" in fact for fact in facts):
        return None
    return jax.process_count() * sum(fact["bytes_limit"] for fact in facts)
