"""What a person waits for: seconds from starting `scripts/train_ppo.py` to its first result and to a given return.

    python benchmarks/time_to_return.py        # arena 30, CartPole 475, waterworld 100, pursuit 0; 5 seeds each
    python benchmarks/time_to_return.py --envs cartpole --seeds 0

Whole processes, imports and compilation included, no compile cache, with the environment's tuned settings; the return
is the mean of the last 100 episodes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOALS = {"arena": 30, "cartpole": 475, "waterworld": 100, "pursuit": 0}  # pursuit: random play has -369
SCRIPT = Path(__file__).parents[1] / "scripts" / "train_ppo.py"


def run(env: str, seed: int) -> dict:
    """One process; times in s from its start."""
    begin, first = time.perf_counter(), None
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--env", env, "--seed", str(seed), "--stop-return", str(GOALS[env]), "--run-dir", f"{folder}/run"]
        flags += ["--compile-cache", "off"]
        command = [sys.executable, "-u", str(SCRIPT), *flags]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if first is None and line.startswith("iter"):
                    first = time.perf_counter() - begin
        seconds = time.perf_counter() - begin
        last = json.loads((Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        metadata = json.loads((Path(folder) / "run" / "metadata.json").read_text())
    reached = last["env_runners"]["episode_return_mean"]
    return {
        "env": env,
        "seed": seed,
        "goal": GOALS[env],
        "reached": reached >= GOALS[env],
        "return_mean": reached,
        "env_steps": last["num_env_steps_sampled_lifetime"],
        "first_result_s": first,
        "total_s": seconds,
        "training_s": last["time_total_s"],
        "machine": metadata,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def table(rows: list[dict]) -> str:
    lines = ["| environment | goal | seeds | reached | first result, s | goal, s | of it training, s | steps |"]
    lines.append("|" + "---|" * 8)
    for env in dict.fromkeys(row["env"] for row in rows):
        own = [row for row in rows if row["env"] == env]
        cells = [_spread([row[name] for row in own], form) for name, form in COLUMNS.items()]
        reached = sum(row["reached"] for row in own)
        lines.append(f"| {env} | {GOALS[env]} | {len(own)} | {reached} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


COLUMNS = {"first_result_s": ".1f", "total_s": ".1f", "training_s": ".1f", "env_steps": ",.0f"}


def _spread(values: list[float], form: str) -> str:
    """median (least to most)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, help="append the rows to this file of JSON lines")
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        for env in arguments.envs:
            rows.append(run(env, seed))
            figures = {name: rows[-1][name] for name in ("return_mean", "first_result_s", "total_s", "env_steps")}
            print(env, f"seed {seed}", figures, flush=True)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
