"""Processes of a soak, watched from outside: their memory, descriptors and threads over time."""

import contextlib
import csv
import statistics
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Sample(NamedTuple):
    """A program with all its children, at one moment; its own numbers begin with `main_`."""

    seconds: float
    main_megabytes: float  # anonymous and shared; what is mapped from files is the kernel's matter
    main_descriptors: int
    main_threads: int
    processes: int  # the children
    megabytes: float  # of the children
    descriptors: int
    threads: int


COUNTS = ("main_descriptors", "main_threads", "processes", "descriptors", "threads")


def parents() -> dict[int, int]:
    """The parent of each process that runs."""
    found = {}
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if status[0] != "Z":
                found[int(folder.name)] = int(status[1])
    return found


def descendants(pid: int) -> list[int]:
    """The children of a process that run, their children, and so on."""
    found, known = [], parents()
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, above in known.items() if above == parent]
        found += children
        waiting += children
    return found


def with_variable(name: str, value: str) -> list[int]:
    """The processes that were started with an environment variable, and run."""
    found, variable = [], f"{name}={value}".encode()
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def measure(pid: int) -> tuple[float, int, int]:
    """A process's megabytes, descriptors and threads; those of one that has gone are 0."""
    try:
        folder = PROC / str(pid)
        lines = (line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        status = dict(lines)
        kilobytes = sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))
        descriptors = len(list((folder / "fd").iterdir()))
        return kilobytes / 1024, descriptors, int(status["Threads"])
    except (OSError, KeyError):
        return 0.0, 0, 0


def sample(pid: int, seconds: float) -> Sample:
    children = descendants(pid)
    measured = [measure(child) for child in children] or [(0.0, 0, 0)]
    sums = [sum(column) for column in zip(*measured, strict=True)]
    return Sample(seconds, *measure(pid), len(children), *sums)


def watch(process, seconds: float, table: Path, every: float) -> list[Sample]:
    """Samples of a process that runs for so long, which are also written to a CSV file."""
    began, samples = time.monotonic(), []
    with table.open("w", buffering=1) as file:
        rows = csv.writer(file)
        rows.writerow(Sample._fields)
        while (passed := time.monotonic() - began) < seconds:
            assert process.poll() is None, f"it ended with {process.returncode} after {passed} s"
            samples.append(sample(process.pid, passed))
            rows.writerow([round(value, 3) for value in samples[-1]])
            time.sleep(every)
    return samples


def thirds(samples: list[Sample], field: str) -> tuple[list[float], list[float]]:
    """The values of the middle third and of the last one; the first third is for warming up."""
    values = [getattr(row, field) for row in samples]
    third = len(values) // 3
    return values[third : 2 * third], values[2 * third :]


def growth(samples: list[Sample], field: str) -> float:
    """The median of the last third of a soak less the median of its middle third."""
    middle, last = thirds(samples, field)
    return statistics.median(last) - statistics.median(middle)


def slope_an_hour(samples: list[Sample], field: str) -> float:
    """Theil and Sen's slope after the first third: the median of the slopes of pairs."""
    rows = samples[len(samples) // 3 :]
    rows = rows[:: max(1, len(rows) // 300)]
    slopes = [
        (getattr(b, field) - getattr(a, field)) / (b.seconds - a.seconds)
        for place, a in enumerate(rows)
        for b in rows[place + 1 :]
    ]
    return 3600 * statistics.median(slopes)


def summary(samples: list[Sample]) -> str:
    """A soak's figures in one line each."""
    lines = [f"{len(samples)} samples over {samples[-1].seconds:.0f} s"]
    for field in Sample._fields[1:]:
        middle, last = (statistics.median(values) for values in thirds(samples, field))
        slope = f"{slope_an_hour(samples, field):+.2f} an hour"
        lines.append(f"{field}: {middle:.1f}, then {last:.1f} ({slope})")
    return "\n".join(lines)
