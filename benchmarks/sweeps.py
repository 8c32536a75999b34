"""Speed of a sweep: 64 trainings in one program, one after another, and in a process each.

    python benchmarks/sweeps.py                   # CartPole 4 x 128, 500,000 steps; 8 rates x 8
    python benchmarks/sweeps.py --members 1000    # so many small trainings, in batches that fit

The sweep is timed whole. Of the other two ways `--alone` trainings are timed, in turns with a part
of the sweep's work: one program called with other numbers, and `scripts/train_ppo.py` started
again, both compiled already as far as they can be: each process compiles for itself. Figures are
seconds for a training, and times the sweep's.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

SCRIPT = Path(__file__).parents[1] / "scripts" / "train_ppo.py"
RATES = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2]
SIZES = {
    "num_envs": 4,
    "rollout_length": 128,
    "minibatch_size": 128,
    "num_epochs": 4,
    "fcnet_hiddens": (64, 64),
}


SMALLEST = {"steps": 512, "seeds": 1, "alone": 1, "members": lambda given: given and 4}


def configuration(steps: int):
    from jaxrl import PPOConfig

    return PPOConfig(env="cartpole", **SIZES, lambda_=0.95, total_env_steps=steps)


def together(config, seeds: int) -> dict:
    """The whole sweep."""
    from jaxrl import sweep

    begin = time.perf_counter()
    done = sweep(config, {"lr": RATES}, seeds=seeds, run_dir=None)
    print(done.statistics_table(), flush=True)
    number, whole = len(done.outcomes), time.perf_counter() - begin
    return {"trials": number, "training_s": done.seconds / number, "whole_s": whole / number}


def alone_in_one_program(config, number: int) -> list[float]:
    """Seconds of each of so many trainings by one compiled function of the key and the numbers."""
    import jax

    from jaxrl import make_train

    key = jax.random.key(0)
    train = jax.jit(make_train(config)).lower(key, config.hypers()).compile()
    seconds = []
    for i in range(number):
        begin = time.perf_counter()
        jax.block_until_ready(train(jax.random.key(i), config.hypers(lr=RATES[i % len(RATES)])))
        seconds.append(time.perf_counter() - begin)
    return seconds


def alone_in_a_process(config, number: int) -> list[float]:
    """Seconds of whole processes, start and compilation included."""
    seconds = []
    for i in range(number):
        with tempfile.TemporaryDirectory() as folder:
            flags = {
                "env": "cartpole",
                "tuned": False,
                "seed": i,
                "lr": RATES[i % len(RATES)],
                "pictures": False,
            }
            flags |= {
                "lambda": config.lambda_,
                "total-env-steps": config.total_env_steps,
                "run-dir": f"{folder}/run",
            }
            flags |= {
                name.replace("_", "-"): value
                for name, value in SIZES.items()
                if name != "fcnet_hiddens"
            }
            words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
            command = [
                sys.executable,
                str(SCRIPT),
                *words,
                "--fcnet-hiddens",
                "64",
                "64",
                "--compile-cache",
                "off",
            ]
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - begin)
    return seconds


def many(members: int) -> dict:
    """The row of so many small trainings, which is printed as well."""
    from jaxrl import PPOConfig, sweep

    small = {
        **SIZES,
        "rollout_length": 32,
        "minibatch_size": 64,
        "num_epochs": 2,
        "fcnet_hiddens": (16,),
    }
    config = PPOConfig(env="cartpole", **small, lr=1e-3, total_env_steps=20_000)
    done = sweep(config, seeds=members, run_dir=None)
    steps = members * config.num_updates * config.train_batch_size
    row = {"trainings": len(done.outcomes), "steps": config.total_env_steps}
    row |= {"seconds": done.seconds, "compile_s": done.compile_seconds}
    row |= {"steps_per_s": steps / done.seconds}
    titles = ["trainings", "steps of each", "training, s", "compiling, s", "steps/s of all"]
    print(report.markdown(titles, [[f"{value:,.0f}" for value in row.values()]]))
    return row


def main() -> None:
    parser = report.arguments_of("sweeps", __doc__, SMALLEST)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--alone", type=int, default=4, help="trainings timed of each other way")
    parser.add_argument("--members", type=int, help="instead: so many small trainings")
    arguments = parser.parse_args()
    report.use_devices()
    if arguments.members:
        report.keep([many(arguments.members) | report.circumstances()], arguments.out)
        return
    config = configuration(arguments.steps)
    half = arguments.alone // 2
    after_another, process = alone_in_one_program(config, half), alone_in_a_process(config, half)
    swept = together(config, arguments.seeds)
    after_another += alone_in_one_program(config, arguments.alone - half)
    process += alone_in_a_process(config, arguments.alone - half)
    seconds = {
        f"one program, {swept['trials']} at once: training": [swept["training_s"]],
        f"one program, {swept['trials']} at once: all, compilation included": [swept["whole_s"]],
        "one program, one after another: training": after_another,
        "a process each: all": process,
    }
    base = {
        name: swept["training_s" if name.endswith("training") else "whole_s"] for name in seconds
    }
    lines = [
        [name, f"{statistics.median(values):.2f}", f"{statistics.median(values) / base[name]:.1f}"]
        for name, values in seconds.items()
    ]
    print(report.markdown(["way", "seconds for a training", "times the sweep's"], lines))
    report.keep(
        [
            {"way": name, "seconds": values, **report.circumstances()}
            for name, values in seconds.items()
        ],
        arguments.out,
    )
    report.bars(
        arguments.out,
        "Seconds for a training",
        "seconds",
        {"CartPole 4 x 128, 500,000 steps": seconds},
    )


if __name__ == "__main__":
    main()
