"""Cost of logs, checkpoints, curves and a host callback, beside `make_train`, in turns.

    python benchmarks/overhead.py                   # steps/s of both, and what a checkpoint costs
    python benchmarks/overhead.py --memory          # the process's memory over 10,000 iterations

The two take turns of about a second within one process: after each chunk of a Trainer, as many
updates in the one program of `make_train`. A chunk's time is by the wall clock, from the end of the
plain turn before it to the beginning of the next, with all that the host does, the writing of its
logs and checkpoints waited for. Compilation and the pictures at the end are not in it.
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import report

from jaxrl import Callbacks, PPOConfig, Trainer, make_train

WAYS = {
    "nothing written": {"run_dir": None},
    "all defaults": {},
    "a checkpoint every second": {"checkpoint_interval_s": 1.0},
}


class PolicyState(Callbacks):
    """Notes the memory in use, every so many iterations."""

    def __init__(self, every: int):
        self.every, self.memory = every, {}

    def on_train_result(self, trainer, result):
        if result["training_iteration"] % self.every == 0:
            self.memory[result["training_iteration"]] = resident_mib()


class Turns(Callbacks):
    """After each chunk of a Trainer lets `make_train` run for about as long, and times both."""

    def __init__(self, plain: Callable[[], float]):
        self.plain, self.turns = (
            plain,
            [],
        )  # (seconds for an update of the trainer's, of make_train's)
        self.began = self.iteration = None

    def on_train_result(self, trainer, result):
        reached = (
            trainer.lifetime.training_iteration
        )  # where the chunk ended; its results come one by one
        if reached == self.iteration:
            return
        if trainer.keeping.recorder is not None:
            trainer.keeping.recorder.wait()
        if self.began is not None:
            seconds = (time.perf_counter() - self.began) / (reached - self.iteration)
            self.turns.append((seconds, self.plain()))
        self.began, self.iteration = time.perf_counter(), reached


def main() -> None:
    parser = report.arguments_of(
        "overhead", __doc__, {"env": "cartpole", "turns": 4, "iterations": 100}
    )
    parser.add_argument("--env", default="arena")
    parser.add_argument("--turns", type=int, default=60, help="of each way")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--iterations", type=int, default=10_000, help="with --memory")
    args = parser.parse_args()
    if args.memory:
        report.keep([measure_memory(args.iterations) | report.circumstances()], args.out)
        return
    config = PPOConfig.tuned(args.env, fcnet_hiddens=(64, 64))
    plain = plain_turn(config)
    lines, shares, groups = [], {}, {}
    for name, settings in WAYS.items():
        turns = turns_of(config, plain, args.turns, **settings)
        groups[name] = statistics.quantiles([plain / seconds for seconds, plain in turns], n=4)
        low, shares[name], high = groups[name]
        lines.append([name, f"{shares[name]:.3f} [{low:.3f}, {high:.3f}]", str(len(turns))])
        row = {"env": args.env, "trainer_with": name, "seconds": turns, "share": shares[name]}
        report.keep([row | report.circumstances()], args.out)
    titles = [
        f"{args.env}: Trainer with",
        "its steps/s as a share of make_train's, median [quartiles]",
        "turns",
    ]
    print(report.markdown(titles, lines))
    lost = 1 - shares["a checkpoint every second"] / shares["all defaults"]
    print(f"a checkpoint costs {lost:.1%} of a second's training; once a minute {lost / 60:.2%}")
    report.bars(
        args.out,
        "What the comforts leave",
        "share of make_train's steps/s, quartiles",
        {args.env: groups},
    )


def plain_turn(config: PPOConfig) -> Callable[[], float]:
    """A function that trains for about a second in one program; returns the seconds an update."""
    few, seconds = 8, compiled(config, 8)()
    return compiled(config, max(few, round(1 / seconds)))


def compiled(config: PPOConfig, updates: int) -> Callable[[], float]:
    """A function that trains for so many updates and returns the seconds for one."""
    train = jax.jit(make_train(config.replace(total_env_steps=updates * config.train_batch_size)))
    train = train.lower(jax.random.key(0)).compile()

    def turn() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(train(jax.random.key(0)))
        return (time.perf_counter() - begin) / updates

    turn()  # warms up
    return turn


def turns_of(
    config: PPOConfig, plain: Callable[[], float], count: int, **settings
) -> list[tuple[float, float]]:
    """(seconds for an update of a Trainer's, of make_train's) in each turn."""
    turns = Turns(plain)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"run_dir": Path(folder) / "run", **settings}
        config = config.replace(
            callbacks=turns, total_env_steps=config.train_batch_size * 1_000_000
        )
        trainer = Trainer(config, quiet=True, **settings)
        trainer.fit(stop={"time_total_s": float(count)})
        trainer.stop()
    return turns.turns


def measure_memory(iterations: int) -> dict:
    """A small arena with everything on."""
    config = PPOConfig(
        env="arena",
        num_envs=8,
        rollout_length=32,
        minibatch_size=256,
        num_epochs=1,
        fcnet_hiddens=(16,),
    ).replace(total_env_steps=256 * iterations)
    memory = PolicyState(iterations // 10)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            config.replace(callbacks=memory),
            run_dir=Path(folder) / "run",
            quiet=True,
            checkpoint_frequency=500,
        )
        trainer.fit()
        trainer.stop()
        lines = len((Path(folder) / "run" / "metrics.jsonl").read_text().splitlines())
    shown = [[f"{iteration:,}", f"{mib}"] for iteration, mib in memory.memory.items()]
    print(report.markdown(["iteration", "MiB"], shown), f"\n\n{lines:,} lines of metrics")
    return {"resident_mib": memory.memory, "lines": lines}


def resident_mib() -> float:
    """Of this process now, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


if __name__ == "__main__":
    main()
