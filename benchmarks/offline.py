"""Learning from recorded episodes: how far cloning and MARWIL come, beside the data's own return.

    python benchmarks/offline.py                    # five seeds of all three tasks
    python benchmarks/offline.py --tasks cartpole-solved --seeds 0 1
    python benchmarks/offline.py --tasks cartpole-half --data DIR   # keeps the episodes, for
    python benchmarks/offline_rllib.py DIR/*                        # RLlib's BC and MARWIL on them

For each seed PPO trains up to the task's return and plays the episodes, actions sampled; BC and
MARWIL learn from these, each with the defaults of its configuration and PPO's network. All returns
but the data's are of other episodes, 200 with sampled actions and 200 with the likeliest ones.
Seconds are from the configuration to the first evaluation (every 20 iterations) of at least the
mark, compilation included.
"""

import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import report

from jaxrl import BCConfig, MARWILConfig, PPOConfig, Trainer
from jaxrl.episodes import EpisodeWriter
from jaxrl.run.results import RETURN

EVALUATED = f"evaluation/{RETURN}"
ALGORITHMS = {"BC": BCConfig, "MARWIL": MARWILConfig}
EPISODES = 200  # of an evaluation


@dataclass(frozen=True)
class Task:
    """What is recorded: PPO plays once it has reached a return."""

    title: str
    env: str
    stop_return: float
    episodes: int
    mark: float | None = None  # that a clone is to reach
    steps: int | None = None  # that BC and MARWIL draw; None: as many as by default

    def smallest(self) -> "Task":
        """Of an untrained policy's episodes, one update."""
        return replace(self, stop_return=float("-inf"), episodes=4, mark=None, steps=1)


TASKS = {
    "cartpole-solved": Task("CartPole, solved", "cartpole", 495.0, 100, 475.0),
    "cartpole-half": Task("CartPole, half-trained", "cartpole", 150.0, 500),
    "arena-half": Task("arena, half-trained", "arena", 15.0, 500),
}


def main() -> None:
    parser = report.arguments_of("offline", __doc__, {"tasks": report.first, "seeds": [0]})
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--data", type=Path, help="a folder to keep the episodes in")
    args = parser.parse_args()
    lines = []
    for name in args.tasks:
        rows, task = [], TASKS[name].smallest() if args.smoke else TASKS[name]
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as temporary:
                folder = temporary if args.data is None else args.data / f"{name}-{seed}"
                rows.append(row_of(task, seed, folder))
        report.keep([{"task": name} | row | report.circumstances() for row in rows], args.out)
        lines += lines_of(task, rows)
    titles = ["task", "", "sampled", "greedy", "sampled - data", "s to the mark"]
    print(report.markdown(titles, lines))


def row_of(task: Task, seed: int, folder: str | Path) -> dict:
    """Returns and seconds by who plays; the episodes are written to the folder."""
    ppo = PPOConfig.tuned(task.env, fcnet_hiddens=(64, 64), seed=seed)
    with Trainer(ppo, run_dir=None, quiet=True) as trainer:
        trainer.fit({RETURN: task.stop_return})
        episodes = trainer.sample(task.episodes, explore=True, seed=1)
        with EpisodeWriter(folder) as writer:
            for episode in episodes:
                writer.write(episode)
        mean = statistics.fmean(episode.get_return() for episode in episodes)
        row = {"seed": seed, "data": mean, "PPO": returns_of(trainer)}
    for name, config_class in ALGORITHMS.items():
        row[name] = learned(task, config_class, folder, ppo)
    return row


def learned(task: Task, config_class: type, folder: str | Path, ppo: PPOConfig) -> dict:
    began, seconds = time.perf_counter(), None
    network = {"fcnet_hiddens": ppo.fcnet_hiddens, "seed": ppo.seed}
    steps = {} if task.steps is None else {"total_env_steps": task.steps}
    config = config_class(env=task.env, input=folder, **network, **steps)
    with Trainer(config, run_dir=None, quiet=True) as trainer:
        if task.mark is not None:
            result = trainer.fit({EVALUATED: task.mark})
            reached = result["evaluation"]["env_runners"]["episode_return_mean"] >= task.mark
            seconds = time.perf_counter() - began if reached else None
        trainer.fit({"num_env_steps_sampled_lifetime": config.total_env_steps})
        return returns_of(trainer) | {"seconds": seconds}


def returns_of(trainer: Trainer) -> dict[str, float]:
    """Of other episodes than any that was recorded."""
    played = {
        name: trainer.evaluate(episodes=EPISODES, explore=explore, seed=2)
        for name, explore in (("sampled", True), ("greedy", False))
    }
    return {name: each["env_runners"]["episode_return_mean"] for name, each in played.items()}


def lines_of(task: Task, rows: list[dict]) -> list[list[str]]:
    lines = []
    for name in ("PPO", *ALGORITHMS):
        found = [row[name] for row in rows]
        margins = [row[name]["sampled"] - row["data"] for row in rows]
        seconds = [each["seconds"] for each in found if each.get("seconds") is not None]
        took = f"{report.spread(seconds, '.1f')}, {len(seconds)} of {len(rows)}" if seconds else ""
        lines.append(
            [
                task.title if name == "PPO" else "",
                name,
                *(
                    report.spread([each[how] for each in found], ".1f")
                    for how in ("sampled", "greedy")
                ),
                report.spread(margins, ".1f"),
                took,
            ]
        )
    return lines


if __name__ == "__main__":
    main()
