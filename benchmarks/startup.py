"""Time to the first result: seconds from starting `scripts/train_ppo.py` until one is printed.

    python benchmarks/startup.py      # arena and CartPole; without, before and with a compile cache
    python benchmarks/startup.py --envs arena --rounds 1 --flags "--fcnet-hiddens 64 64"

Whole processes, one after another, the three kinds in turns so that a busy hour falls on all of
them. Every figure counts from the start of the process; "filled" is the first run with an empty
cache, which tests it as well, "loaded" the next one.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

SCRIPT = Path(__file__).parents[1] / "scripts" / "train_ppo.py"
ENVS = ("arena", "cartpole")
# What train_ppo.py prints first when a stage is over. Importing all that it needs takes about the
# time of `jaxrl`.
STAGES = {
    "planned_s": "environment ",
    "traced_s": "compiling ",
    "compiled_s": "compiled ",
    "first_result_s": "iter ",
}
SMALLEST = {"envs": ["cartpole"], "rounds": 1, "flags": "--fcnet-hiddens 8"}
COLUMNS = {
    "jaxrl imported": "imported_s",
    "planned": "planned_s",
    "traced": "traced_s",
    "compiled": "compiled_s",
}
COLUMNS |= {"first result": "first_result_s", "whole process, processor": "processor_s"}


def imported() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import jaxrl"], check=True)
    return time.perf_counter() - begin


def run(env: str, cache: str, more: list[str]) -> dict[str, float]:
    """One process of one iteration; the seconds from its start to the end of each stage."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "--env",
            env,
            "--run-dir",
            f"{folder}/run",
            "--stop",
            "training_iteration=1",
            "--pictures",
            "False",
        ]
        command = [sys.executable, "-u", str(SCRIPT), *flags, *more, "--compile-cache", cache]
        begin, before, seconds = time.perf_counter(), processor_seconds(), {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                now = time.perf_counter() - begin
                for spec, start in STAGES.items():
                    if line.startswith(start):
                        seconds.setdefault(spec, now)
        metadata = json.loads((Path(folder) / "run" / "metadata.json").read_text())
    machine = {
        "machine": metadata,
        "cores": report.CORES,
        "load": os.getloadavg()[0],
        "flags": report.flags(),
    }
    total = {"total_s": time.perf_counter() - begin, "processor_s": processor_seconds() - before}
    return {**seconds, **total, **machine}


def processor_seconds() -> float:
    """That the processes which have ended took, on all cores: what a busy machine changes least."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows_of_a_round(envs: list[str], number: int, more: list[str]) -> list[dict]:
    rows = []
    for env in envs:
        with tempfile.TemporaryDirectory() as folder:
            for cache, where in {"off": "off", "filled": folder, "loaded": folder}.items():
                rows.append(
                    {
                        "env": env,
                        "cache": cache,
                        "round": number,
                        "imported_s": imported(),
                        "more": more,
                        **run(env, where, more),
                    }
                )
                print(
                    env,
                    cache,
                    {name: round(rows[-1][name], 2) for name in COLUMNS.values()},
                    flush=True,
                )
    return rows


def table(rows: list[dict]) -> str:
    """Medians of seconds, and the range of the first result's."""
    lines = []
    for env, cache in dict.fromkeys((row["env"], row["cache"]) for row in rows):
        measured = [row for row in rows if (row["env"], row["cache"]) == (env, cache)]
        cells = [
            f"{statistics.median(row[name] for row in measured):.1f}" for name in COLUMNS.values()
        ]
        first = [row["first_result_s"] for row in measured]
        lines.append([env, cache, *cells, f"{min(first):.1f} to {max(first):.1f}"])
    return report.markdown(
        ["environment", "compile cache", *COLUMNS, "range of the first result"], lines
    )


def main() -> None:
    parser = report.arguments_of("startup", __doc__, SMALLEST)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", default="", help="more flags of the training, in one text")
    arguments = parser.parse_args()
    rows = []
    for number in range(arguments.rounds):
        new = rows_of_a_round(arguments.envs, number, arguments.flags.split())
        rows += new
        report.keep(new, arguments.out)
    print(table(rows))
    groups = {}
    for row in rows:
        groups.setdefault(row["env"], {}).setdefault(f"cache {row['cache']}", []).append(
            row["first_result_s"]
        )
    report.bars(
        arguments.out, "From the start of the process to the first result", "seconds", groups
    )


if __name__ == "__main__":
    main()
