"""An estimate of the memory of training at its peak, reported before it begins."""

import os
from pathlib import Path
from typing import Any

import jax

from jaxrl.core.machine import free_memory
from jaxrl.core.memory_limits import in_units


def peak_of(compiled: Any) -> int | None:
    """Bytes that a compiled program needs on each device: arguments, results and temporaries.

    As XLA planned them; None where it does not tell.
    """
    plan = compiled.memory_analysis()
    if plan is None:
        return None
    needed = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return needed - plan.alias_size_in_bytes


def memory_line(needed: int | None, devices: int) -> str:
    """Memory that training needs (`needed` by each device) and has; a warning if it is short."""
    if needed is None:
        return "memory: this backend does not tell beforehand"
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:
        needed, free = needed * devices // jax.process_count(), free_memory()
    else:
        free = free_on_device()
    what = "" if on_cpu else " on each device" if devices > 1 else " on the device"
    line = f"memory: {in_units(needed)}{what} at the peak of training"
    if on_cpu and (held := process_memory()) is not None:
        line += f", plus the process's own {in_units(held)}"
    if free is None:
        return line
    if needed > free:
        return (
            f"warning: {line}, but only {in_units(free)} are free; fewer environments or shorter "
            "rollouts need less"
        )
    return f"{line}; {in_units(free)} are free"


def process_memory() -> int | None:
    """Bytes that this process holds, where the system says so as Linux does."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return None


def free_on_device() -> int | None:
    """Bytes that the first device still has."""
    facts = jax.local_devices()[0].memory_stats() or {}
    if {"bytes_limit", "bytes_in_use"} <= set(facts):
        return facts["bytes_limit"] - facts["bytes_in_use"]
    return None
