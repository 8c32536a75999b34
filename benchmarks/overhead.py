"""What the comforts cost: training with logs, checkpoints, curves and a host callback beside `make_train`, in turns.

    python benchmarks/overhead.py                   # steps/s of both, and what a checkpoint costs
    python benchmarks/overhead.py --memory          # the process's memory over 10,000 iterations

Steps/s are environment steps by the wall clock from the end of the first iteration to the end of the last, everything
that the host does between chunks included; compilation and the pictures at the end are not.
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import jax

from jaxrl import Callbacks, PPOConfig, Trainer, make_train


class Clock(Callbacks):
    """Notes when the results of iterations come, and the memory meanwhile."""

    def __init__(self):
        self.times, self.memory = {}, {}

    def on_train_result(self, trainer, result):
        iteration = result["training_iteration"]
        self.times[iteration] = time.perf_counter()
        if iteration % 1000 == 0:
            self.memory[iteration] = resident_mib()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="arena")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--memory", action="store_true")
    args = parser.parse_args()
    if args.memory:
        measure_memory()
        return
    config = PPOConfig.tuned(args.env, total_env_steps=args.steps)
    pure = compiled_train(config)
    ways = {
        "make_train": pure,
        "Trainer, nothing written": lambda: trained(config, None),
        "Trainer, all defaults": lambda: trained(config, "run"),
        "Trainer, a checkpoint every second": lambda: trained(config, "run", checkpoint_interval_s=1.0),
    }
    for way in ways.values():  # compiles, and starts what is started once
        way()
    rates = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            rates[name].append(way())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(
        f"| {args.env}, {args.steps:,} steps, {args.rounds} rounds in turns | steps/s | of make_train's |\n"
        "|---|---|---|"
    )
    for name, values in rates.items():
        ratios = [ours / base for ours, base in zip(values, rates["make_train"], strict=True)]
        spread = f"[{min(values):,.0f}, {max(values):,.0f}]"
        print(f"| {name} | {medians[name]:,.0f} {spread} | {statistics.median(ratios):.3f} |")
    without, every_second = medians["Trainer, all defaults"], medians["Trainer, a checkpoint every second"]
    lost = 1 - every_second / without
    print(f"a checkpoint costs {lost * 1000:.0f} ms of training; once a minute {lost / 60:.2%}")


def compiled_train(config: PPOConfig):
    """A function that trains in one program and returns steps/s."""
    train = jax.jit(make_train(config)).lower(jax.random.key(0)).compile()

    def run() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(train(jax.random.key(0)))
        return config.num_updates * config.train_batch_size / (time.perf_counter() - begin)

    return run


def trained(config: PPOConfig, name: str | None, **settings) -> float:
    """Steps/s of a Trainer between its first result and its last."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        run_dir = None if name is None else Path(folder) / name
        trainer = Trainer(config.replace(callbacks=clock), run_dir=run_dir, quiet=True, **settings)
        trainer.train()
        first = time.perf_counter()
        trainer.fit()
        last = clock.times[config.num_updates]
        trainer.stop()
        return (config.num_updates - 1) * config.train_batch_size / (last - first)


def measure_memory() -> None:
    """A small arena for 10,000 iterations with everything on."""
    config = PPOConfig(
        env="arena", num_envs=8, rollout_length=32, minibatch_size=256, num_epochs=1, fcnet_hiddens=(16,)
    ).replace(total_env_steps=256 * 10_000)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            config.replace(callbacks=clock), run_dir=Path(folder) / "run", quiet=True, checkpoint_frequency=500
        )
        trainer.fit()
        trainer.stop()
        lines = len((Path(folder) / "run" / "metrics.jsonl").read_text().splitlines())
    print(json.dumps({"resident_mib": clock.memory, "lines": lines}))


def resident_mib() -> float:
    """Of this process now, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


if __name__ == "__main__":
    main()
