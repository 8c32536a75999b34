"""A user's sweep with RLlib: CartPole, minibatches of 128, 200 and 256 rows, 150 iterations each.

    pip install -e ".[ray]" && python benchmarks/users_sweep.py    # all three ways
    python benchmarks/users_sweep.py --ways native                 # needs no Ray

native      `scripts/sweep.py`, the command as a person types it, which is printed
tune        Ray Tune's Tuner with `jaxrl.adapters.to_ray_tune.trainable`, a trial for each core
rllib       RLlib's rate on this machine: `--iterations` of each size (the first one apart), 150
            times the median

Settings are RLlib's defaults but 5 epochs and an lr that falls from 3e-4 to 0: their log says
neither, and with those of rllib_peer.py's CartPole (3e-4 throughout) an iteration takes RLlib what
it took there. A trial's seconds are of training; "all three" is the wall clock around everything,
start and compilation (`--compile-cache off`) included. Returns are means of the last 100 episodes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import report

SCRIPTS = Path(__file__).parents[1] / "scripts"
SIZES, ITERATIONS, BATCH = (128, 200, 256), 150, 4000
THEIRS = {
    128: (399.0, 493.8),
    200: (369.0, 492.1),
    256: (358.0, 480.3),
}  # {minibatch size: (seconds, return)}
RETURN = "env_runners/episode_return_mean"
Trials = dict  # {minibatch size: (seconds, return)}


def settings_of(updates: int) -> dict[str, Any]:
    sizes = {"num_envs": 8, "rollout_length": 500, "num_epochs": 5}
    steps = updates * BATCH
    return {**sizes, "total_env_steps": steps, "lr": [[0, 3e-4], [steps, 0.0]]}


def native(arguments) -> tuple[Trials, float]:
    settings = settings_of(arguments.updates)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    words = [
        "--env=cartpole",
        "--tuned=False",
        *flags,
        "--grid",
        f"minibatch_size={','.join(map(str, arguments.sizes))}",
    ]
    print(f"python scripts/sweep.py {' '.join(words)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPTS / "sweep.py"), *words, f"--run-dir={folder}/sweep"]
        begin = time.perf_counter()
        subprocess.run([*command, "--compile-cache=off"], check=True)
        seconds = time.perf_counter() - begin
        rows = [
            json.loads(line)
            for line in Path(folder, "sweep", "results.jsonl").read_text().splitlines()
        ]
    trials = {row["settings"]["minibatch_size"]: row["result"] for row in rows}
    return {size: _figures(result, arguments) for size, result in trials.items()}, seconds


def tune(arguments) -> tuple[Trials, float]:
    from ray import tune

    from jaxrl import PPOConfig
    from jaxrl.adapters import to_ray_tune

    begin = time.perf_counter()
    _start_ray(report.CORES)
    config = PPOConfig(env="cartpole", **settings_of(arguments.updates))
    trainable = to_ray_tune.trainable(config, compile_cache="off")
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            trainable,
            param_space={"minibatch_size": tune.grid_search(arguments.sizes)},
            run_config=tune.RunConfig(
                storage_path=folder, stop={"training_iteration": arguments.updates}, verbose=0
            ),
        )
        results = tuner.fit()
        seconds = time.perf_counter() - begin
        table = results.get_dataframe()[
            ["config/minibatch_size", "training_iteration", RETURN, "time_total_s"]
        ]
        print(table.to_string(index=False), flush=True)
    return {
        result.config["minibatch_size"]: _figures(result.metrics, arguments) for result in results
    }, seconds


def rllib(arguments) -> tuple[Trials, float]:
    import rllib_peer

    _start_ray(1)
    trials = {}
    for size in arguments.sizes:
        algorithm = (
            rllib_peer.make_config(rllib_peer.TASKS["cartpole"], 0)
            .training(minibatch_size=size)
            .build_algo()
        )
        algorithm.train()
        seconds = []
        for _ in range(arguments.iterations):
            started = time.perf_counter()
            algorithm.train()
            seconds.append(time.perf_counter() - started)
        algorithm.stop()
        trials[size] = arguments.updates * statistics.median(seconds), None
        print(
            f"RLlib, minibatch size {size}: {report.spread(seconds, '.2f')} s for an iteration",
            flush=True,
        )
    return trials, sum(seconds for seconds, _ in trials.values())


WAYS = {"native": native, "tune": tune, "rllib": rllib}
NAMES = {
    "native": "ours, sweep.py",
    "tune": "ours by Ray Tune",
    "rllib": "RLlib here",
    "theirs": "the users' log",
}


def _start_ray(cores: int) -> None:
    import ray

    ray.shutdown()
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def _figures(result: dict, arguments) -> tuple[float, float]:
    assert result["training_iteration"] == arguments.updates, result["training_iteration"]
    return result["time_total_s"], result["env_runners"]["episode_return_mean"]


def table(trials: dict[str, Trials], whole: dict[str, float]) -> str:
    """Every way beside the others, a line for each trial."""
    titles = [
        "minibatch size",
        *(f"{NAMES[way]}: {what}" for way in trials for what in ("s", "return")),
    ]
    lines = []
    for size in list(trials.values())[-1]:
        figures = [by_size[size] for by_size in trials.values()]
        cells = [
            cell
            for seconds, end in figures
            for cell in (f"{seconds:,.0f}", "" if end is None else f"{end:.1f}")
        ]
        lines.append([str(size), *cells])
    lines.append(["all together", *(cell for way in trials for cell in (f"{whole[way]:,.0f}", ""))])
    return report.markdown(titles, lines)


def main() -> None:
    parser = report.arguments_of(
        "users_sweep", __doc__, {"ways": report.first, "updates": 1, "sizes": [128, 200]}
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--updates", type=int, default=ITERATIONS, help="iterations of a trial")
    parser.add_argument(
        "--iterations", type=int, default=10, help="of RLlib that are timed for each size"
    )
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(SCRIPTS.parent), os.environ.get("PYTHONPATH")))
    )
    sys.path.insert(0, str(SCRIPTS.parent))
    trials, whole, rows = (
        {"theirs": THEIRS},
        {"theirs": sum(seconds for seconds, _ in THEIRS.values())},
        [],
    )
    try:
        for way in arguments.ways:
            load = os.getloadavg()[0]
            trials[way], whole[way] = WAYS[way](arguments)
            print(f"{NAMES[way]}: {whole[way]:.1f} s, load {load:.1f} before", flush=True)
            rows.append({"way": way, "trials": trials[way], "whole_s": whole[way], "load": load})
    finally:
        # Not before: it starts JAX, beside whose threads Ray should not fork.
        report.keep([{**report.circumstances(), **row} for row in rows], arguments.out)
    print(table(trials, whole))
    seconds = {NAMES[way]: {NAMES[way]: [whole[way]]} for way in trials}
    report.bars(
        arguments.out,
        "CartPole, minibatch sizes 128, 200 and 256, 150 iterations",
        "seconds",
        seconds,
    )


if __name__ == "__main__":
    main()
