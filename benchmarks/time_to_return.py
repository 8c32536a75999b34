"""Time to a return: seconds from starting a process to its first result and to a given return.

    python benchmarks/time_to_return.py        # arena, CartPole, waterworld, pursuit; 5 seeds each
    python benchmarks/time_to_return.py --goals cartpole=475 --who jaxrl RLlib SB3 --seeds 0 1 2
    python benchmarks/time_to_return.py --goals arena=15 --flags "--fcnet-hiddens 64 64"

Whole processes, imports and compilation included: ours is `scripts/train_ppo.py` with the
environment's tuned settings and without compile cache, or with a filled one ("jaxrl, cache"); RLlib
and Stable-Baselines3 are those of peer_until.py, where they are installed: the first seed with one
thread and with all, the others with the number that was faster. The return is the mean of the last
100 episodes. Whoever takes part takes turns, seed by seed.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import report

GOALS = (
    "arena=15",
    "arena=30",
    "cartpole=475",
    "waterworld=100",
    "pursuit=0",
)  # pursuit: random play has -369
HERE = Path(__file__).parent
OURS, CACHED = "jaxrl", "jaxrl, cache"
PEERS = {  # with the package, and the environments that peer_until.py has
    "RLlib": ("ray", ("cartpole", "arena")),
    **dict.fromkeys(("SB3", "SB3, zoo"), ("stable_baselines3", ("cartpole",))),
}
SMALLEST = {"goals": ["cartpole=10"], "seeds": [0], "who": [OURS, CACHED], "flags": ""}
COLUMNS = {"first_result_s": ".1f", "total_s": ".1f", "env_steps": ",.0f"}


def run_jaxrl(env: str, goal: float, seed: int, cache: str, more: list[str]) -> dict:
    """One process of ours; times in s from its start."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "--env",
            env,
            "--seed",
            str(seed),
            "--stop-return",
            str(goal),
            "--run-dir",
            f"{folder}/run",
        ]
        flags += [
            "--compile-cache",
            cache,
            "--pictures",
            "False",
        ]  # which come after, and the peers draw none
        command = [str(HERE.parent / "scripts" / "train_ppo.py"), *flags, *more]
        times, _ = timed(command, first="iter")
        last = json.loads((Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    reached = last["env_runners"]["episode_return_mean"]
    return {**times, "return_mean": reached, "env_steps": last["num_env_steps_sampled_lifetime"]}


def run_peer(who: tuple[str, int], env: str, goal: float, seed: int) -> dict:
    """One process of a peer's with so many threads."""
    words = [*who[:1], env, goal, "--seed", seed, "--threads", who[1]]
    times, lines = timed([str(HERE / "peer_until.py"), *map(str, words)], first="first")
    return {**times, **json.loads(lines[-1])}


def timed(command: list[str], first: str) -> tuple[dict, list[str]]:
    """({first_result_s, total_s}, the lines that it said).

    `first` is how the first result's line begins.
    """
    begin, lines, times = time.perf_counter(), [], {}
    with subprocess.Popen(
        [sys.executable, "-u", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        for line in process.stdout:
            lines.append(line)
            if line.startswith(first):
                times.setdefault("first_result_s", time.perf_counter() - begin)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with status {process.returncode}")
    return {**times, "total_s": time.perf_counter() - begin}, lines


def entrants(names: list[str] | None) -> list[str]:
    """Who takes part: those named, or ours and what is installed."""
    missing = [
        name for name, (package, _) in PEERS.items() if importlib.util.find_spec(package) is None
    ]
    for name in missing:
        if names is None or name in names:
            print(f"{name} is not installed here, so it is missing from the table")
    return [name for name in names or [OURS, CACHED, *PEERS] if name not in missing]


def measure(
    goals: list[str], seeds: list[int], who: list[str], more: list[str], out: Path
) -> list[dict]:
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for goal in goals:
            env, _, least = goal.partition("=")
            if CACHED in who:
                run_jaxrl(env, -1e9, 0, cache, more)  # fills it
            here = [name for name in who if name not in PEERS]
            peers = [name for name in who if name in PEERS and env in PEERS[name][1]]
            entered = [(name, threads) for name in peers for threads in sorted({1, report.CORES})]
            for seed in seeds:
                found = {}
                for name in here:
                    where = cache if name == CACHED else "off"
                    found[name] = {"more": more, **run_jaxrl(env, float(least), seed, where, more)}
                for name, threads in entered:
                    title = f"{name}, {threads} thread{'s' * (threads > 1)}"
                    found[title] = run_peer((name, threads), env, float(least), seed)
                    found[title] |= {"peer": name, "threads": threads}
                for name, row in found.items():
                    row |= {"goal": goal, "who": name, "seed": seed}
                    row["reached"] = row["return_mean"] >= float(least)
                    print(
                        goal, name, f"seed {seed}", {key: row[key] for key in COLUMNS}, flush=True
                    )
                    report.keep([row | report.circumstances()], out)
                    rows.append(row)
                entered = [fastest(found.values(), name) for name in peers]
    return rows


def fastest(rows: Iterable[dict], peer: str) -> tuple[str, int]:
    """(the peer, its number of threads) of the row that reached the return first."""
    of_peer = [row for row in rows if row.get("peer") == peer]
    row = min(of_peer, key=lambda row: (not row["reached"], row["total_s"]))
    return peer, row["threads"]


def table(rows: list[dict]) -> str:
    """Medians; "ours sooner" is the ratio of medians to that of ours without a cache."""
    lines = []
    for goal, who in dict.fromkeys((row["goal"], row["who"]) for row in rows):
        measured = [row for row in rows if (row["goal"], row["who"]) == (goal, who)]
        base = [row["total_s"] for row in rows if (row["goal"], row["who"]) == (goal, OURS)]
        sooner = (
            statistics.median(row["total_s"] for row in measured) / statistics.median(base)
            if base
            else None
        )
        cells = [
            report.spread([row[name] for row in measured], form) for name, form in COLUMNS.items()
        ]
        ratio = f"{sooner:.1f}" if sooner and "peer" in measured[0] else ""
        lines.append(
            [
                goal,
                who,
                f"{sum(row['reached'] for row in measured)} of {len(measured)}",
                *cells,
                ratio,
            ]
        )
    titles = [
        "goal",
        "who",
        "seeds that reached it",
        "first result, s",
        "goal, s",
        "environment steps",
        "ours sooner",
    ]
    return report.markdown(titles, lines)


def main() -> None:
    parser = report.arguments_of("time_to_return", __doc__, SMALLEST)
    parser.add_argument(
        "--goals", nargs="+", default=list(GOALS), metavar="ENV=RETURN", help=", ".join(GOALS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--who", nargs="+", choices=[OURS, CACHED, *PEERS], help="default: what is installed"
    )
    parser.add_argument("--flags", default="", help="more flags of ours, in one text")
    arguments = parser.parse_args()
    more = arguments.flags.split()
    rows = measure(arguments.goals, arguments.seeds, entrants(arguments.who), more, arguments.out)
    print(table(rows))
    groups = {}
    for row in rows:
        groups.setdefault(row["goal"], {}).setdefault(row["who"], []).append(row["total_s"])
    report.bars(arguments.out, "From the start of the process to a mean return", "seconds", groups)


if __name__ == "__main__":
    main()
