"""Optuna's proposals (TPE) beside random search, at equal environment steps.

    pip install -e ".[optuna]" && python benchmarks/search.py
    python benchmarks/search.py --envs cartpole --repeats 3

Both try as many settings from the same ranges, which are mostly bad, and train each with one seed
to the end. The setting of the best trial is then trained with new seeds, the same for both: the
score is the mean of their returns, of the last 100 episodes. A repeat has other draws and other
seeds. "best trial" is the return of the best trial itself, which may have been lucky.
"""

from typing import Any

import numpy as np
import report

import jaxrl

RANGES = {
    "lr": jaxrl.loguniform(1e-6, 1.0),
    "entropy_coeff": jaxrl.loguniform(1e-4, 1.0),
    "clip_param": jaxrl.uniform(0.02, 0.6),
    "gamma": jaxrl.choice([0.5, 0.8, 0.9, 0.95, 0.99, 0.995]),
}
CASES: dict[str, dict[str, Any]] = {  # of each trial
    "cartpole": {"total_env_steps": 40_960, "num_envs": 16, "rollout_length": 64},
    "arena": {"total_env_steps": 64_000, "num_envs": 16, "rollout_length": 100},
}
METHODS = ("random", "tpe")
SMALLEST = {"envs": report.first, "trials": 4, "repeats": 1, "judges": 1, "steps": 1024}
QUIET: dict[str, Any] = {"quiet": True, "loggers": (), "run_dir": None}


def found_by(method: str, config: Any, trials: int) -> tuple[dict[str, Any], float]:
    """(the settings of the best trial, its return)."""
    ways = {"random": {"num_samples": trials}, "tpe": {"search": "tpe", "trials": trials}}
    best = jaxrl.sweep(config, RANGES, **ways[method], **QUIET).best_trial()
    return best.trial.settings, best.score


def compared(env: str, repeat: int, arguments: Any) -> dict[str, Any]:
    config = jaxrl.PPOConfig.tuned(env, fcnet_hiddens=(64, 64), seed=1000 * repeat, **CASES[env])
    if arguments.steps is not None:
        config = config.replace(total_env_steps=arguments.steps)
    row: dict[str, Any] = {"env": env, "repeat": repeat, "trials": arguments.trials}
    found = []
    for method in METHODS:
        settings, row[f"{method}, best trial"] = found_by(method, config, arguments.trials)
        found.append(settings)
    seeds = range(1000 * repeat + 500, 1000 * repeat + 500 + arguments.judges)
    for method, settings in zip(METHODS, found, strict=True):
        row[f"{method}, settings"] = settings
        space = {name: [value] for name, value in settings.items()}
        row[method] = judged(config, space, seeds)
    print(row, flush=True)
    return row


def judged(config: Any, space: dict[str, list], seeds: range) -> float:
    """The mean return of trainings with these seeds; of a diverged one its last."""
    if len(seeds) == 1:
        values = {name: value for name, (value,) in space.items()}
        with jaxrl.Trainer(config.replace(seed=seeds[0], **values), **QUIET) as trainer:
            return trainer.fit()["env_runners"]["episode_return_mean"]
    done = jaxrl.sweep(config, space, seeds=seeds, **QUIET)
    scores = [outcome.score for outcome in done.outcomes if outcome.score is not None]
    return float(np.mean(scores))


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for env in dict.fromkeys(row["env"] for row in rows):
        here = [row for row in rows if row["env"] == env]
        better = sum(row["tpe"] > row["random"] for row in here)
        names = ("random", "tpe", "random, best trial", "tpe, best trial")
        spreads = [report.spread([row[name] for row in here], ".1f") for name in names]
        lines.append([env, *spreads, f"{better} of {len(here)}"])
    head = ["environment", "random search", "TPE", "random, best trial", "TPE, best trial"]
    return report.markdown([*head, "TPE better in"], lines)


def main() -> None:
    parser = report.arguments_of("search", __doc__, SMALLEST)
    parser.add_argument("--envs", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--judges", type=int, default=8, help="new seeds of the best setting")
    parser.add_argument("--steps", type=int, help="of each trial; default: each case's own")
    arguments = parser.parse_args()
    rows = []
    for env in arguments.envs:
        rows += [compared(env, i, arguments) for i in range(arguments.repeats)]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    print(table(rows))


if __name__ == "__main__":
    main()
