"""Memory of the machine and its devices, to reject what cannot fit before compiling."""

from jaxrl.core.machine import host_memory

MIB, GIB, TIB = 2**20, 2**30, 2**40


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
