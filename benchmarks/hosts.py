"""Training by several processes: a model of its time, beside what it takes.

    python benchmarks/hosts.py                                  # 1, 2 and 4 processes here
    python benchmarks/hosts.py --processes 1 2 --turns 5 --nice 19
    python benchmarks/hosts.py --computing-ms 15 --call-us 60 --gb-per-s 20   # of other machines

    seconds of an iteration = computing + calls x latency + bytes / bandwidth

computing   of an iteration with a process's share of the environments, as many processes side by
            side that do not talk to each other: this includes the cost of shared cores and caches
calls       arrays of an iteration that are summed over the processes or gathered from them, and
            their bytes, counted in XLA's text with the trips of its loops
latency     of a sum of 4 bytes between these processes, and the bandwidth of one of 4 MiB

What the model does not explain is the rest. While one process is ahead of the other, gloo's thread
in the slower one polls, on a core that it needs itself; --nice lowers the priority of that thread
(Linux). Each process has a core of its own, as far as there are cores. The three kinds take
turns; figures are medians. CartPole, 64 x 64, 4 epochs of 4 minibatches.
"""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report

ENVS, LENGTH, SUMS = 2048, 32, 200
TITLES = ["processes", "measured, ms", "model", "computing", "sums", "latency, us", "MB/s", "rest"]
SMALLEST = {"processes": [1, 2], "turns": 1}
SMALL, LARGE = 1, 2**20  # numbers of a sum: 4 bytes and 4 MiB
KINDS = ("together", "apart", "sums")


def main() -> None:
    parser = report.arguments_of("hosts", __doc__, SMALLEST)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--all-cores", action="store_true", help="for every process")
    parser.add_argument("--nice", type=int, default=0, help="of gloo's threads while training")
    parser.add_argument("--computing-ms", type=float, help="of an iteration, elsewhere")
    parser.add_argument("--call-us", type=float, default=60.0, help="of a small sum, elsewhere")
    parser.add_argument("--gb-per-s", type=float, default=20.0, help="of a large sum, elsewhere")
    parser.add_argument("--worker", help=report.argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return print(json.dumps(answer(**json.loads(arguments.worker))), flush=True)
    chosen = {name: getattr(arguments, name) for name in ("smoke", "all_cores", "nice")}
    rows = [
        {"processes": number, "kind": kind, **together({"number": number, "kind": kind, **chosen})}
        for _ in range(arguments.turns)
        for number in arguments.processes
        for kind in KINDS
        if number > 1 or kind == "together"
    ]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    print(report.markdown(TITLES, [line(rows, number) for number in arguments.processes]))
    counted = counts(rows, max(arguments.processes))
    if arguments.computing_ms is not None and counted["calls"]:
        calls, size = counted["calls"], counted["bytes"]
        sums = calls * arguments.call_us / 1e3 + size / arguments.gb_per_s / 1e6
        share = arguments.computing_ms / (arguments.computing_ms + sums)
        print(
            f"elsewhere: {calls} arrays, {size:,} bytes in all, take {sums:.1f} ms, so "
            f"{share:.2f} of what the devices would do by themselves"
        )


def line(rows: Sequence[dict], number: int) -> list[str]:
    """A row of the table, in milliseconds."""
    measured = [1e3 * row["seconds"] for row in rows if is_of(row, number, "together")]
    if number == 1:
        return ["1", report.spread(measured, ".0f"), *["" for _ in TITLES[2:]]]
    computing = 1e3 * median(rows, number, "apart", "seconds")
    latency = median(rows, number, "sums", "small")
    bandwidth = 4 * LARGE / max(1e-9, median(rows, number, "sums", "large") - latency)
    counted = counts(rows, number)
    sums = 1e3 * (counted["calls"] * latency + counted["bytes"] / bandwidth)
    rest = statistics.median(measured) - computing - sums
    parts = [f"{computing + sums:.0f}", f"{computing:.0f}", f"{sums:.0f} ({counted['calls']})"]
    rates = [f"{1e6 * latency:.0f}", f"{bandwidth / 1e6:.0f}"]
    return [str(number), report.spread(measured, ".0f"), *parts, *rates, f"{rest:.0f}"]


def is_of(row: dict, number: int, kind: str) -> bool:
    return row["processes"] == number and row["kind"] == kind


def median(rows: Sequence[dict], number: int, kind: str, name: str) -> float:
    return statistics.median(row[name] for row in rows if is_of(row, number, kind))


def counts(rows: Sequence[dict], number: int) -> dict[str, int]:
    """The arrays that an iteration exchanges, and their bytes."""
    return next(row for row in rows if is_of(row, number, "together"))


def together(facts: dict[str, Any]) -> dict[str, Any]:
    """The answers of `facts["number"]` processes at once, by the slowest."""
    number = facts["number"]
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as open_pipes:
        workers = [
            open_pipes.enter_context(
                subprocess.Popen(
                    [*command, json.dumps({**facts, "port": port, "index": i})], **pipes
                )
            )
            for i in range(number)
        ]
        for worker in workers:
            said(worker, "ready")
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        answers = [json.loads(said(worker, "{")) for worker in workers]
        if any(worker.wait() for worker in workers):
            raise SystemExit(f"{facts}: one of the processes failed")
    return {name: max(answer[name] for answer in answers) for name in answers[0]}


def said(worker: subprocess.Popen, begin: str) -> str:
    """The next line of a worker that begins so; gloo prints others."""
    for text in worker.stdout:
        if text.startswith(begin):
            return text
    raise SystemExit("a process ended before it was ready")


def answer(
    kind: str, number: int, index: int, port: int, *, smoke: bool, all_cores: bool, nice: int
) -> dict[str, Any]:
    """A worker's measurements, which begin when it is told to."""
    if hasattr(os, "sched_setaffinity") and not all_cores:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[index % report.CORES]})
    import jaxrl

    joins = kind != "apart" and number > 1
    if joins:
        jaxrl.join(f"localhost:{port}", number, index)
    if kind == "sums":
        return summed(number, smoke=smoke)
    num_envs = ENVS // number if kind == "apart" else ENVS
    return trained(number if joins else 1, num_envs, nice if joins else 0, smoke=smoke)


def trained(devices: int, num_envs: int, nice: int, *, smoke: bool) -> dict[str, Any]:
    """Seconds of an iteration, and the sums that it takes."""
    import jax
    from engine import configuration
    from kernels import launches

    import jaxrl

    iterations = 1 if smoke else 20
    config = configuration(num_envs // 64 if smoke else num_envs, LENGTH, 10_000)
    trainer = jaxrl.Trainer(config, run_dir=None, quiet=True, devices=devices)
    trainer.train()
    lower(nice)
    counted = launches(trainer.executable.chunk_program.as_text())
    arguments = trainer.runner, trainer.hypers, trainer.env_params, trainer.data, iterations
    wait_to_begin()
    begin = time.perf_counter()
    jax.block_until_ready(trainer.executable.chunk(*arguments)[0])
    seconds = (time.perf_counter() - begin) / iterations
    return {"seconds": seconds, "calls": counted.exchanges, "bytes": counted.exchanged_bytes}


def lower(nice: int) -> None:
    """The priority of this process's threads but XLA's: gloo's, and those that only wait."""
    threads = Path("/proc/self/task").glob("[0-9]*") if nice else []
    for thread in threads:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if not (thread / "comm").read_text().startswith("tf_XLA"):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


def summed(devices: int, *, smoke: bool) -> dict[str, float]:
    """Seconds of a small and a large sum over all processes."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from jaxrl.run.devices.mesh import AXIS, mesh_of

    times = 2 if smoke else SUMS

    def body(i, value):
        return jax.lax.psum(value, AXIS) / devices

    def sums(value):
        return jax.lax.fori_loop(0, times, body, value)

    whole = PartitionSpec()
    mesh = mesh_of(devices)
    mapped = jax.jit(
        jax.shard_map(sums, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    )
    values = {"small": jnp.ones(SMALL), "large": jnp.ones(LARGE)}
    for value in values.values():
        jax.block_until_ready(mapped(value))
    wait_to_begin()
    seconds = {}
    for name, value in values.items():
        begin = time.perf_counter()
        jax.block_until_ready(mapped(value))
        seconds[name] = (time.perf_counter() - begin) / times
    return seconds


def wait_to_begin() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
