"""Returns of `PPOConfig.fast` on many tasks, and its speed beside RLlib's defaults.

    python benchmarks/fast.py                   # every task, 5 seeds; then the speed of both
    python benchmarks/fast.py --tasks pendulum corridor --seeds 0 1
    python benchmarks/fast.py --only speed
    python benchmarks/fast.py --only learning --settings '{"center_values": true}'

Every task is trained by `PPOConfig.fast(env, total_env_steps=...)` as it is. A return is the mean
over the episodes that ended in the last 4 % of the iterations, with actions sampled as in training.

The marks: Gymnasium's reward thresholds for CartPole, Acrobot and MountainCarContinuous; for Catch
and Breakout-MinAtar the returns of the trained agents in gymnax's table of environments (1.0, less
0.02 for sampled actions, and 28); for Pendulum, which has no threshold, the -172 of PPO in
Stable-Baselines3's zoo; for the corridor, the example of docs/environments.md, 0.75, where its
shortest walks of two and three steps give 0.9 and 0.8.

Speed: both settings train on CartPole, in turns within one process; compile time is left out.
"""

import functools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import report


class Task(NamedTuple):
    env: str  # a name, or EXAMPLE
    total_env_steps: int
    mark: float


EXAMPLE = "docs/environments.md"
TASKS = {
    "cartpole": Task("cartpole", 500_000, 475.0),
    "acrobot": Task("gymnax:Acrobot-v1", 1_000_000, -100.0),
    "mountain-car-continuous": Task("gymnax:MountainCarContinuous-v0", 1_000_000, 90.0),
    "pendulum": Task("gymnax:Pendulum-v1", 1_000_000, -172.0),
    "catch": Task("gymnax:Catch-bsuite", 500_000, 0.98),
    "corridor": Task(EXAMPLE, 200_000, 0.75),
    "breakout": Task("gymnax:Breakout-MinAtar", 10_000_000, 28.0),
}
SMALLEST = {
    **{"tasks": ["corridor"], "seeds": [0], "total_env_steps": 8192, "only": None},
    **{"settings": {"center_values": True}, "read": None},
}
ROUNDS = 5  # turns of each setting in the comparison of speed


def environment(task: Task) -> Any:
    """The name, or the environment that the first block of the page makes."""
    if task.env != EXAMPLE:
        return task.env
    page = (Path(__file__).parents[1] / EXAMPLE).read_text(encoding="utf-8")
    names = {"__name__": "example"}
    exec(page.split("```python\n")[1].split("```")[0], names)
    return names["Corridor"]()


def learn(
    name: str, seeds: list[int], steps: int | None, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row for each seed, all trained in one program."""
    import jax
    import numpy as np

    from jaxrl import PPOConfig, make_train

    task = TASKS[name]
    steps = steps or task.total_env_steps
    config = PPOConfig.fast(environment(task), total_env_steps=steps, **settings)
    train = jax.jit(jax.vmap(make_train(config)))
    keys = jax.vmap(jax.random.key)(np.asarray(seeds))
    begin = time.perf_counter()
    _, metrics = jax.block_until_ready(train(keys))
    seconds = time.perf_counter() - begin
    episodes = jax.tree.map(np.asarray, metrics.episodes.iteration)
    rows = []
    for member, seed in enumerate(seeds):
        sums, counts = episodes.episode_return.sum[member], episodes.count[member]
        returns = {str(part): _mean_before(sums, counts, part) for part in (0.25, 0.5, 1.0)}
        row = {"task": name, "seed": seed, "steps": steps, "returns": returns}
        rows.append({**row, "settings": settings, "seconds_together": seconds})
        print(f"{name}, seed {seed}: {returns}", flush=True)
    return rows


def _mean_before(sums: Any, counts: Any, part: float) -> float | None:
    """The mean return over the 4 % of the iterations that end at `part` of the training."""
    end = max(1, round(part * len(sums)))
    window = slice(max(0, end - max(1, len(sums) // 25)), end)
    ended = counts[window].sum()
    return float(sums[window].sum() / ended) if ended else None


def speed(rounds: int, updates_of_fast: int, env: str = "cartpole") -> list[dict[str, Any]]:
    """Environment steps a second of RLlib's defaults and of `fast`, in turns."""
    import jax

    from jaxrl import PPOConfig, make_train

    programs = {}
    for name, config in {
        "RLlib's defaults": PPOConfig(env),
        "PPOConfig.fast": PPOConfig.fast(env),
    }.items():
        few = min(updates_of_fast, 8000 // config.train_batch_size)
        updates = few if name == "RLlib's defaults" else updates_of_fast
        config = config.replace(total_env_steps=updates * config.train_batch_size)
        programs[name] = config, jax.jit(make_train(config)).lower(jax.random.key(0)).compile()
    rows = []
    for turn in range(rounds):
        for name, (config, train) in programs.items():
            begin = time.perf_counter()
            jax.block_until_ready(train(jax.random.key(turn)))
            steps = config.num_updates * config.train_batch_size
            rows.append(
                {"speed": name, "env": env, "steps_per_s": steps / (time.perf_counter() - begin)}
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Median, least and most over seeds; how many seeds end at the mark."""
    lines = []
    for name in dict.fromkeys(row["task"] for row in rows if "task" in row):
        task, of_task = TASKS[name], [row for row in rows if row.get("task") == name]
        cells = [
            _spread([row["returns"][part] for row in of_task]) for part in ("0.25", "0.5", "1.0")
        ]
        reached = sum(_or_least(row["returns"]["1.0"]) >= task.mark for row in of_task)
        lines.append(
            [
                task.env,
                f"{of_task[0].get('steps', task.total_env_steps):,}",
                *cells,
                f"{task.mark:g}",
                f"{reached} of {len(of_task)}",
            ]
        )
    titles = ["environment", "steps", "25 %", "50 %", "at the end", "mark", "seeds at the mark"]
    return report.markdown(titles, lines)


def _spread(returns: list[float | None]) -> str:
    if not any(value is not None for value in returns):
        return "no episode ended"
    return report.spread([_or_least(value) for value in returns], ",.2f")


def _or_least(value: float | None) -> float:
    return -math.inf if value is None else value  # None: no episode ended


def speed_table(rows: list[dict[str, Any]]) -> str:
    by_name: dict[str, list[float]] = {}
    for row in rows:
        if "speed" in row:
            by_name.setdefault(row["speed"], []).append(row["steps_per_s"])
    slow = statistics.median(by_name["RLlib's defaults"])
    lines = [
        [name, report.spread(values), f"{statistics.median(values) / slow:.1f}"]
        for name, values in by_name.items()
    ]
    return report.markdown(["settings", "steps/s on CartPole", "times"], lines)


def main() -> None:
    parser = report.arguments_of("fast", __doc__, SMALLEST)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="of PPOConfig, on top of fast; JSON"
    )
    parser.add_argument("--total-env-steps", type=int, help="instead of each task's own")
    parser.add_argument("--only", choices=("learning", "speed"))
    parser.add_argument(
        "--read", type=Path, nargs="+", help="measure nothing: the tables of rows in these files"
    )
    arguments = parser.parse_args()
    rows = report.read(arguments.read or [])
    if not arguments.read:
        seeds, settings = arguments.seeds, arguments.settings
        steps = arguments.total_env_steps
        learning = [
            functools.partial(learn, name, seeds, steps, settings) for name in arguments.tasks
        ]
        both = functools.partial(speed, *((1, 1) if arguments.smoke else (ROUNDS, 50)))
        measures = {"learning": learning, "speed": [both], None: [*learning, both]}[arguments.only]
        for measure in measures:
            some = measure()
            report.keep([{**row, **report.circumstances()} for row in some], arguments.out)
            rows += some
    if any("task" in row for row in rows):
        print(table(rows))
    if any("speed" in row for row in rows):
        print(f"\n{speed_table(rows)}")


if __name__ == "__main__":
    main()
