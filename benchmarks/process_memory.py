"""Memory of a training's process, stage by stage: imports, the compiler, buffers. Linux alone.

    python benchmarks/process_memory.py
    python benchmarks/process_memory.py --envs arena --iterations 20 --turns 1

Every figure is of a fresh process, without a compile cache, that trains an environment with its
tuned settings on one device and writes no files; MiB, medians over `--turns` processes. After each
stage the process reads what Linux says of it (/proc/self/status):

resident   the memory that it holds (VmRSS); its parts are
heap       what no file holds: Python's objects, the compiler's data, compiled code, arrays
libraries  pages of files, above all of the libraries' code, jaxlib's with XLA and LLVM among them:
           processes that run at the same time share them
arrays     JAX's, between programs; they are a part of the heap

"compiling" is what the process holds when the programs are compiled, "memory given back" what is
left when glibc has returned what the compiler freed: the compiled code, what LLVM and XLA keep, and
pages of which a part is still in use. The first computation starts XLA and LLVM, so it belongs to
the compiler. The first chunk makes the initial state and trains one iteration; what training adds
counts as buffers, though some of it is Python's, for results. The second table adds up the stages
of each kind. The peak is the process's (VmHWM); "the program" is what XLA plans for a chunk of
iterations: arguments, results and temporaries.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import report

HERE = Path(__file__).resolve().parent
ENVS = ("cartpole", "arena")
KINDS = {  # of the stages of memory_stages.py: what the memory that they add is for
    "Python": "Python",
    "import jax": "imports",
    "first computation": "compiler",
    "import jaxrl": "imports",
    "environment and configuration": "imports",
    "tracing": "tracing",
    "compiling": "compiler",
    "memory given back": "compiler",
    "first chunk": "buffers",
    "all iterations": "buffers",
}
COLUMNS = {"heap": "heap", "files": "libraries", "arrays": "arrays"}
SMALLEST = {"envs": ["cartpole"], "iterations": 2, "turns": 1, "settings": {"fcnet_hiddens": [8]}}


def measured(env: str, settings: dict, iterations: int) -> dict:
    """The memory after each stage of a process of its own, and what XLA plans."""
    words = [env, json.dumps(settings), str(iterations)]
    command = [sys.executable, "-P", str(HERE / "memory_stages.py"), *words]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # the Trainer would keep its programs there
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def median(rows: list[dict], stage: str, column: str) -> float:
    return statistics.median(row["stages"][stage][column] for row in rows)


def added(rows: list[dict]) -> dict[str, float]:
    """The resident memory that each stage adds; less than nothing where it gives back."""
    resident = [median(rows, stage, "resident") for stage in KINDS]
    pairs = zip(resident, [0.0, *resident], strict=False)
    return dict(zip(KINDS, (after - before for after, before in pairs), strict=True))


def stage_lines(rows: list[dict]) -> Iterator[list[str]]:
    """A line for each stage."""
    for stage, more in added(rows).items():
        resident = report.spread([row["stages"][stage]["resident"] for row in rows], ",.1f")
        parts = [f"{median(rows, stage, column):,.1f}" for column in COLUMNS]
        yield [rows[0]["env"], stage, KINDS[stage], resident, f"{more:+,.1f}", *parts]


def kind_line(rows: list[dict]) -> list[str]:
    """The memory of each kind at the end, and the peak."""
    by_stage, totals = added(rows), dict.fromkeys(KINDS.values(), 0.0)
    for stage, kind in KINDS.items():
        totals[kind] += by_stage[stage]
    *_, last = KINDS
    planned = rows[0]["planned"]
    return [
        rows[0]["env"],
        *(f"{total:,.1f}" for total in totals.values()),
        f"{median(rows, last, 'resident'):,.1f}",
        f"{-by_stage['memory given back']:,.1f}",
        f"{median(rows, last, 'peak'):,.1f}",
        "" if planned is None else f"{planned:,.2f}",
    ]


def main() -> None:
    parser = report.arguments_of("process_memory", __doc__, SMALLEST)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--iterations", type=int, default=100, help="of a training")
    parser.add_argument("--turns", type=int, default=3, help="processes for each environment")
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="of PPOConfig, beside the tuned ones; JSON"
    )
    arguments = parser.parse_args()
    if not Path("/proc/self/status").exists():
        raise SystemExit("process_memory.py reads /proc/self/status, which this system has not got")
    rows = []
    for _ in range(arguments.turns):
        for env in arguments.envs:
            found = measured(env, arguments.settings, arguments.iterations)
            facts = {"iterations": arguments.iterations, "settings": arguments.settings}
            rows.append({"env": env, **found, **facts, **report.circumstances()})
            report.keep(rows[-1:], arguments.out)
    by_env = [[row for row in rows if row["env"] == env] for env in arguments.envs]
    titles = ["environment", "after", "kind", "resident, MiB", "added", *COLUMNS.values()]
    lines = itertools.chain.from_iterable(map(stage_lines, by_env))
    print(f"{report.markdown(titles, lines)}\n")
    titles = ["environment", *dict.fromkeys(KINDS.values()), "resident at the end, MiB"]
    titles += ["given back", "peak", "the program"]
    print(report.markdown(titles, map(kind_line, by_env)))


if __name__ == "__main__":
    main()
