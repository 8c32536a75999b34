"""What the engine gains: training beside the same PPO written plainly (plain.py), and on one device or all cores.

    python benchmarks/engine.py               # CartPole: 2048 x 32, 4 x 128, 8 seeds of the latter; 5 turns each
    python benchmarks/engine.py --devices     # one device and all cores, over the rows of a minibatch

All programs of a row take turns in one process; figures are medians [least, most] of steps/s, compilation apart.
Networks of 64 x 64, 4 epochs of 4 minibatches, Adam; ours also keeps its statistics, KL and clipped shares.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
from plain import Settings, make_plain_train

from jaxrl import PPOConfig, make_train
from jaxrl.run.devices import AXIS, mesh_of
from jaxrl.run.folder import metadata
from jaxrl.run.program import program_of

CORES = len(os.sched_getaffinity(0))
WORK = {  # environments, steps of a rollout, updates in a turn, seeds
    "2048 x 32": (2048, 32, 4, 1),
    "4 x 128": (4, 128, 200, 1),
    "8 seeds of 4 x 128": (4, 128, 60, 8),
}
ROWS = (1024, 2048, 4096, 16384)


def configuration(num_envs: int, rollout_length: int, updates: int) -> PPOConfig:
    """The plain program's settings."""
    batch = num_envs * rollout_length
    return PPOConfig(
        env="cartpole",
        num_envs=num_envs,
        rollout_length=rollout_length,
        minibatch_size=batch // 4,
        num_epochs=4,
        fcnet_hiddens=(64, 64),
        lr=2.5e-4,
        lambda_=0.95,
        clip_param=0.2,
        entropy_coeff=0.01,
        vf_loss_coeff=0.5,
        value_clip="prediction",
        vf_clip_param=0.2,
        use_kl_loss=False,
        grad_clip=0.5,
        adam_epsilon=1e-5,
        normalize_advantages="minibatch",
        total_env_steps=batch * updates,
    )


def whole(train: Callable, seeds: int, devices: int = 1) -> Callable[[], None]:
    """A turn of a training compiled as one function of its key, or of many keys, split over some devices."""
    key = jax.random.key(0)
    if seeds > 1:
        train, key = jax.vmap(train), jax.random.split(key, seeds)
    if devices > 1:
        split = jax.sharding.PartitionSpec(AXIS)
        train = jax.shard_map(train, mesh=mesh_of(devices), in_specs=split, out_specs=split, check_vma=False)
    compiled = jax.jit(train).lower(key).compile()
    return lambda: jax.block_until_ready(compiled(key))


def chunked(config: PPOConfig, devices: int) -> Callable[[], None]:
    """A turn of the Trainer's program, over some devices."""
    setup, hypers, key = config.setup(), config.hypers(), jax.random.key(0)
    executable = program_of(config.static(), setup.env, devices).executable(key, hypers, setup.env_params)
    executable.compile(start=True)
    runner = executable.start(key, hypers, setup.env_params)
    return lambda: executable.chunk(runner, hypers, setup.env_params, config.num_updates)


def in_turns(programs: dict[str, Callable[[], None]], steps: int, turns: int) -> dict[str, list[float]]:
    """Steps/s of each program in each turn."""
    rates = {name: [] for name in programs}
    for turn in range(turns + 1):
        for name, program in programs.items():
            begin = time.perf_counter()
            program()
            if turn:  # the first warms up
                rates[name].append(steps / (time.perf_counter() - begin))
    return rates


def beside_plain(turns: int) -> list[dict]:
    rows = []
    print("| CartPole | program | steps/s | times the plain one |\n|---|---|---|---|")
    for work, (num_envs, length, updates, seeds) in WORK.items():
        config = configuration(num_envs, length, updates)
        devices = config.devices_worth_using(CORES)
        programs = {
            "plain": whole(make_plain_train(Settings(num_envs, length, updates)), seeds),
            "make_train": whole(make_train(config), seeds),
        }
        if devices > 1:
            programs[f"Trainer, {devices} devices"] = chunked(config, devices)
        if seeds % CORES == 0 and CORES > 1:
            programs[f"make_train, {CORES} devices"] = whole(make_train(config), seeds, CORES)
        rows += report(work, in_turns(programs, seeds * updates * config.train_batch_size, turns))
    return rows


def over_devices(turns: int) -> list[dict]:
    rows = []
    print("| rows of a minibatch | devices | steps/s | times one device |\n|---|---|---|---|")
    for size in ROWS:
        config = configuration(size // 8, 32, max(4, 65_536 // size))
        programs = {str(devices): chunked(config, devices) for devices in sorted({1, CORES})}
        rows += report(f"{size:,}", in_turns(programs, config.total_env_steps, turns))
    return rows


def report(work: str, rates: dict[str, list[float]]) -> list[dict]:
    """Prints a line for each program; ratios are medians of each turn's own, to the first program."""
    rows, first = [], next(iter(rates.values()))
    for name, values in rates.items():
        ratio = statistics.median(ours / base for ours, base in zip(values, first, strict=True))
        print(
            f"| {work} | {name} | {statistics.median(values):,.0f} [{min(values):,.0f}, {max(values):,.0f}] | "
            f"{ratio:.2f} |",
            flush=True,
        )
        rows.append({"work": work, "program": name, "steps_per_s": values, "ratio": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", action="store_true", help="one device and all cores, by the size of minibatches")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="append the rows to this file of JSON lines")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", CORES)
    rows = (over_devices if arguments.devices else beside_plain)(arguments.turns)
    if arguments.out is not None:
        where = {"machine": metadata(), "cores": CORES, "load": os.getloadavg()[0]}
        with arguments.out.open("a") as file:
            file.writelines(json.dumps({**row, **where}) + "\n" for row in rows)


if __name__ == "__main__":
    main()
