"""Population-based training beside random search, at equal environment steps.

    python benchmarks/pbt.py
    python benchmarks/pbt.py --envs cartpole --repeats 3

Both begin with the same members: the same seeds, and numbers drawn from ranges that are mostly bad.
Random search trains each with its numbers to the end; the population copies and changes them. The
member with the best return of recent episodes is then judged by 100 new episodes with sampled
actions. A repeat has other draws and other seeds.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import report

import jaxrl

BAD_RANGES = {
    "lr": jaxrl.loguniform(1e-6, 1.0),
    "entropy_coeff": jaxrl.loguniform(1e-4, 1.0),
    "gamma": [0.5, 0.8, 0.9, 0.95, 0.99, 0.995],
}
CASES: dict[str, dict[str, Any]] = {  # of each member
    "cartpole": {"total_env_steps": 122_880, "num_envs": 16, "rollout_length": 64},
    "arena": {"total_env_steps": 768_000},
}
ROUNDS = 15  # of copying
SMALLEST = {"envs": report.first, "members": 4, "repeats": 1, "rounds": 1, "steps": 4096}
NEVER = 10**9
EPISODES = 100


def judged(
    env: str, repeat: int, members: int, rounds: int, steps: int | None
) -> tuple[float, float]:
    """(return of the best member in new episodes, seconds); no rounds: random search."""
    config = jaxrl.PPOConfig.tuned(env, fcnet_hiddens=(64, 64), seed=1000 * repeat, **CASES[env])
    config = config if steps is None else config.replace(total_env_steps=steps)
    interval = config.num_updates // (rounds + 1) if rounds else NEVER
    pbt = jaxrl.PopulationBasedTraining(
        perturbation_interval=interval, hyperparam_mutations=BAD_RANGES
    )
    with tempfile.TemporaryDirectory() as folder:
        path, begin = Path(folder) / "sweep", time.perf_counter()
        done = jaxrl.sweep(
            config, num_samples=members, scheduler=pbt, run_dir=path, loggers=(), quiet=True
        )
        seconds = time.perf_counter() - begin - done.compile_seconds
        best = done.best_trial()
        result = jaxrl.evaluate(best.folder, episodes=EPISODES, explore=True)
    return result["env_runners"]["episode_return_mean"], seconds


def compared(env: str, repeat: int, arguments: Any) -> dict[str, Any]:
    members, steps = arguments.members, arguments.steps
    row: dict[str, Any] = {"env": env, "repeat": repeat, "members": members}
    for name, rounds in (("random search", 0), ("population", arguments.rounds)):
        row[name], row[f"{name}, s"] = judged(env, repeat, members, rounds, steps)
    print(
        {key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()}
    )
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for env in dict.fromkeys(row["env"] for row in rows):
        here = [row for row in rows if row["env"] == env]
        better = sum(row["population"] > row["random search"] for row in here)
        returns = [
            report.spread([row[name] for row in here], ".1f")
            for name in ("random search", "population")
        ]
        lines.append([env, *returns, f"{better} of {len(here)}"])
    return report.markdown(["environment", "random search", "population", "better in"], lines)


def main() -> None:
    parser = report.arguments_of("pbt", __doc__, SMALLEST)
    parser.add_argument("--envs", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of copying")
    parser.add_argument("--steps", type=int, help="of each member; default: each case's own")
    arguments = parser.parse_args()
    rows = []
    for env in arguments.envs:
        rows += [compared(env, i, arguments) for i in range(arguments.repeats)]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    print(table(rows))


if __name__ == "__main__":
    main()
