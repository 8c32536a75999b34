"""PPO's returns at RLlib's own settings, at equal environment steps, over several seeds.

    python benchmarks/learning.py     # all tasks, 5 seeds, RLlib as well where it is installed
    python benchmarks/learning.py --tasks cartpole --seeds 0 1 2
    python benchmarks/learning.py --tasks waterworld waterworld-tuned pursuit-tuned arena-tuned
    python benchmarks/learning.py --tasks breakout --variants jaxrl "jaxrl, convolutions"
    python benchmarks/learning.py --tasks waterworld-tuned --settings '{"gamma": 0.99}'

The return of an iteration is the mean over just the episodes that ended in it; marks are some
environment steps, and a quarter, half and the whole of each task's. A row for each (task, variant,
seed); `--read` makes the table and the pictures from rows made before.

Waterworld's settings are those of a user's RLlib log, which ends after 804,000 steps at a summed
return between -24 and -4.5; the tuned tasks train with the environment's own settings, and
arena-dense and waterworld-dense with the former ones, whose networks have dense layers alone.
"random play" draws its actions uniformly. Breakout-MinAtar is gymnax's, with PureJaxRL's settings
for MinAtar (examples/brax_minatar.ipynb there: an MLP that reads all cells as one row).
"""

import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path

import report

ARENA = {
    "env": "arena",
    "num_envs": 40,
    "rollout_length": 100,
    "per_policy": {"pol1": {"lr": 3e-4}, "pol2": {"lr": 4e-4}},
}
WATERWORLD = {
    "env": "waterworld",
    "num_envs": 8,
    "rollout_length": 500,
    "vf_loss_coeff": 0.005,
    "vf_share_layers": True,
}
WATERWORLD_DENSE = {  # tuned, before there was `jaxrl.envs.networks.ray_network`
    "env": "waterworld",
    "num_envs": 16,
    "rollout_length": 500,
    "minibatch_size": 2000,
    "num_epochs": 4,
    "lr": [[0, 5e-4], [4_000_000, 1e-4]],
    "lambda_": 0.95,
    "vf_clip_param": None,
    "vf_loss_coeff": 0.5,
    "entropy_coeff": 0.005,
    "fcnet_hiddens": (64, 64),
    "total_env_steps": 4_000_000,
}
CARTPOLE = {"env": "cartpole", "num_envs": 8, "rollout_length": 500, "lr": 3e-4, "num_epochs": 5}
BREAKOUT = {
    "env": "gymnax:Breakout-MinAtar",
    "num_envs": 64,
    "rollout_length": 128,
    "minibatch_size": 1024,
    "num_epochs": 4,
    "total_env_steps": 10_000_000,
    "lr": [[0, 5e-3], [10_000_000, 0.0]],
    "lambda_": 0.95,
    "clip_param": 0.2,
    "value_clip": "prediction",
    "vf_clip_param": 0.2,
    "vf_loss_coeff": 0.25,  # theirs is 0.5, of half the squared error
    "normalize_advantages": "minibatch",
    "entropy_coeff": 0.01,
    "kl_coeff": 0.0,
    "grad_clip": 0.5,
    "adam_epsilon": 1e-5,
    "fcnet_hiddens": (64, 64),
    "fcnet_activation": "relu",
}
TASKS = {
    "arena-30-epochs": {**ARENA, "num_epochs": 30, "total_env_steps": 64_000},
    "arena-5-epochs": {**ARENA, "num_epochs": 5, "total_env_steps": 80_000},
    "cartpole": {**CARTPOLE, "total_env_steps": 100_000},
    "cartpole-tuned": {"env": "cartpole", "tuned": True},
    "arena-tuned": {"env": "arena", "tuned": True},
    "arena-dense": {"env": "arena", "tuned": True, "fcnet_hiddens": (64, 64)},
    "waterworld": {**WATERWORLD, "total_env_steps": 800_000},
    "waterworld-tuned": {"env": "waterworld", "tuned": True},
    "waterworld-dense": WATERWORLD_DENSE,
    "pursuit-tuned": {"env": "pursuit", "tuned": True},
    "breakout": BREAKOUT,
}
USUAL_TASKS = ("arena-30-epochs", "arena-5-epochs", "cartpole")  # RLlib plays these as well
VARIANTS = {
    "jaxrl": {},  # orthogonal initialisation, our default
    "jaxrl, uniform": {
        "fcnet_kernel_initializer": "uniform"
    },  # PyTorch's initialisation, as RLlib has it
    "jaxrl, uniform, 10 x 400": {
        "fcnet_kernel_initializer": "uniform",
        "num_envs": 10,
        "rollout_length": 400,
    },
    "jaxrl, epsilon 1e-5": {"adam_epsilon": 1e-5},
    "jaxrl, convolutions": {
        "conv_filters": ((16, 3, 2),)
    },  # for pursuit and Breakout, whose observations are images
}
USUAL = (
    "jaxrl",
    "jaxrl, uniform",
)  # the others were tried on the arena, to find what lifts a curve
SHORT = (40_000, 64_000, 80_000, 100_000)  # environment steps at which the table reads the curves
LONG = (200_000, 400_000, 800_000, 1_600_000, 3_200_000)
MARKS = {task: SHORT if task in USUAL_TASKS else LONG for task in TASKS} | {
    "breakout": (1_000_000, 7_500_000)
}
THRESHOLD = {
    "cartpole": 475.0,
    "cartpole-tuned": 475.0,
    "waterworld-tuned": 100.0,
    "waterworld-dense": 100.0,
}
THRESHOLD |= {"arena-tuned": 30.0, "arena-dense": 30.0}
RANDOM = "random play"
SMALLEST = {
    **{"tasks": report.first, "seeds": [0], "total_env_steps": 1},  # one update
    **{"variants": lambda given: report.first(given or []) or [RANDOM, "jaxrl"]},
    "settings": lambda given: {**given, "num_epochs": 1},
}


def learn(task: str, variant: str, seeds: list[int], **changed):
    """Yields (seed, curve) of jaxrl.

    A curve is a list of {env_steps, seconds, return_mean, num_episodes}.

    `changed`: settings that are not the task's and the variant's.
    """
    import jax
    import numpy as np

    from jaxrl import PPOConfig, make_train

    settings = {**TASKS[task], **VARIANTS[variant], **changed}
    config = PPOConfig.tuned(**settings) if settings.pop("tuned", False) else PPOConfig(**settings)
    begin = time.perf_counter()
    train = jax.jit(make_train(config)).lower(jax.random.key(0)).compile()
    print(f"{task}, {variant}: compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    for seed in seeds:
        begin = time.perf_counter()
        _, metrics = jax.block_until_ready(train(jax.random.key(seed)))
        seconds = (time.perf_counter() - begin) / config.num_updates
        episodes = jax.tree.map(np.asarray, metrics.episodes.iteration)
        yield (
            seed,
            [
                {
                    "env_steps": (i + 1) * config.train_batch_size,
                    "seconds": (i + 1) * seconds,
                    "return_mean": float(episodes.episode_return.sum[i] / count) if count else None,
                    "num_episodes": int(count),
                    "metrics": {
                        name: float(spread.sum[i] / count) if count else None
                        for name, spread in episodes.custom_metrics.items()
                    },
                }
                for i, count in enumerate(episodes.count)
            ],
        )


def play_at_random(task: str, seeds: list[int], num_envs: int = 64):
    """Yields (seed, curve).

    One point, the means over the first episodes of `num_envs` environments.
    """
    import jax
    import jax.numpy as jnp

    from jaxrl import make
    from jaxrl.core.env import lift, raw_reset, raw_step

    env, params = make(TASKS[task]["env"])
    env = lift(env)

    def episode(key):
        def step(carry):
            state, key, _, length, total, metrics = carry
            key, action_key, step_key = jax.random.split(key, 3)
            sample = env.action_space(env.agents[0], params).sample
            raw = raw_step(
                env,
                step_key,
                state,
                jax.vmap(sample)(jax.random.split(action_key, len(env.agents))),
                params,
            )
            metrics = {
                name: metrics.get(name, 0.0) + value
                for name, value in raw.info.get("metrics", {}).items()
            }
            return (
                raw.state,
                key,
                raw.episode_done,
                length + 1,
                total + jnp.sum(raw.reward),
                metrics,
            )

        key, reset_key = jax.random.split(key)
        first = step((raw_reset(env, reset_key, params)[1], key, False, 0, 0.0, {}))
        *_, length, total, metrics = jax.lax.while_loop(lambda carry: ~carry[2], step, first)
        return length, total, metrics

    play = jax.jit(jax.vmap(episode))
    for seed in seeds:
        length, returns, metrics = play(jax.random.split(jax.random.key(seed), num_envs))
        means = {name: float(jnp.mean(value)) for name, value in metrics.items()}
        point = {
            "env_steps": int(jnp.sum(length)),
            "seconds": 0.0,
            "return_mean": float(jnp.mean(returns)),
        }
        yield seed, [{**point, "num_episodes": num_envs, "metrics": means}]


def learn_rllib(task: str, seeds: list[int]):
    """Yields (seed, curve) of RLlib's PPO on the same task."""
    import ray
    import rllib_peer

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for seed in seeds:
        yield seed, rllib_peer.learn(task, seed)
    ray.shutdown()


def measure(task: str, variant: str, seeds: list[int], out: Path, **changed) -> list[dict]:
    """The rows of one task and variant."""
    rows = []
    if variant == "RLlib":
        curves = learn_rllib(task, seeds)
    else:
        curves = (
            play_at_random(task, seeds)
            if variant == RANDOM
            else learn(task, variant, seeds, **changed)
        )
    for seed, curve in curves:
        row = {"task": task, "variant": variant, "seed": seed, "curve": curve}
        row |= {"settings": changed} if changed else {}
        row |= report.circumstances()
        rows.append(row)
        last = _last(curve)
        print(
            f"{task}, {variant}, seed {seed}: {_spread([last['return_mean']])} after "
            f"{curve[-1]['env_steps']:,} steps, "
            f"{curve[-1]['seconds']:.0f} s; {_metrics(last)}",
            flush=True,
        )
        report.keep([row], out)
    return rows


def table(rows: list[dict], window: int = 1) -> str:
    """Median and quartiles over seeds, by task and variant; a table for each row of marks.

    Args:
        window: iterations with ended episodes, up to the mark, that make the return there.
    """
    return "\n\n".join(
        _table([row for row in rows if MARKS[row["task"]] == marks], marks, window)
        for marks in dict.fromkeys(MARKS[row["task"]] for row in rows)
    )


def _table(rows: list[dict], marks: tuple[int, ...], window: int) -> str:
    quarters = ("25 %", "50 %", "at the end")
    titles = [
        "task",
        "who",
        "seeds",
        *(f"{mark:,} steps" for mark in marks),
        *quarters,
        "passes",
        "seconds",
    ]
    lines = []
    for task, variant in dict.fromkeys((row["task"], row["variant"]) for row in rows):
        curves = [row["curve"] for row in rows if (row["task"], row["variant"]) == (task, variant)]
        cells = [_spread([_at(curve, mark, window) for curve in curves]) for mark in marks]
        for part in (4, 2, 1):
            cells.append(
                _spread([_at(curve, curve[-1]["env_steps"] // part, window) for curve in curves])
            )
        names = _last(curves[0]).get("metrics", {})
        cells[-1] += "".join(
            f", {name} {_spread([_last(curve)['metrics'][name] for curve in curves])}"
            for name in names
        )
        passes = _passes(curves, THRESHOLD[task]) if task in THRESHOLD else ""
        seconds = _spread([curve[-1]["seconds"] for curve in curves])
        lines.append([task, variant, str(len(curves)), *cells, passes, seconds])
    return report.markdown(titles, lines)


def draw(rows: list[dict], out: Path) -> None:
    """A picture for each task: medians over seeds, in bands from the least to the most."""
    for task in dict.fromkeys(row["task"] for row in rows):
        curves = {}
        for row in rows:
            if row["task"] == task and len(row["curve"]) > 1:
                points = curves.setdefault(row["variant"], {})
                for point in row["curve"]:
                    if point["return_mean"] is not None:
                        points.setdefault(point["env_steps"], []).append(point["return_mean"])
        if curves:
            unit = ("environment steps", "return of the iteration")
            report.lines(out, task, unit, curves, name=task)


def _last(curve: list[dict]) -> dict:
    """The last iteration in which episodes ended; the last of all if none did."""
    return next((point for point in reversed(curve) if point["num_episodes"]), curve[-1])


def _metrics(point: dict) -> str:
    return ", ".join(
        f"{name} {value:.1f}"
        for name, value in point.get("metrics", {}).items()
        if value is not None
    )


def _at(curve: list[dict], mark: int, window: int) -> float | None:
    """The mean return of the episodes that ended last before `mark` steps, all in one iteration.

    Or in as many iterations as `window` says; None if the curve does not go so far.
    """
    reached = next((i for i, point in enumerate(curve) if point["env_steps"] >= mark), None)
    if reached is None:
        return None
    points = [point for point in curve[: reached + 1] if point["num_episodes"]][-window:]
    count = sum(point["num_episodes"] for point in points)
    return (
        sum(point["return_mean"] * point["num_episodes"] for point in points) / count
        if count
        else None
    )


def _spread(values: list[float | None]) -> str:
    """median [first quartile, third quartile]."""
    if not values or None in values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def _passes(curves: list[list[dict]], threshold: float) -> str:
    """How many seeds had an iteration at the threshold, and the median one's steps and seconds."""
    reached = []
    for curve in curves:
        passing = (point for point in curve if (point["return_mean"] or 0) >= threshold)
        if point := next(passing, None):
            reached.append(point)
    median = {
        name: statistics.median_low([point[name] for point in reached] or [0])
        for name in ("env_steps", "seconds")
    }
    where = f", median {median['env_steps']:,} steps, {median['seconds']:.1f} s" if reached else ""
    return f"{threshold:g}: {len(reached)} of {len(curves)}{where}"


def main() -> None:
    parser = report.arguments_of("learning", __doc__, SMALLEST)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(USUAL_TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS, RANDOM, "RLlib"], default=None)
    parser.add_argument(
        "--read", type=Path, nargs="+", help="measure nothing: the table of rows in these files"
    )
    parser.add_argument(
        "--total-env-steps", type=int, help="of ours, instead of the task's own; schedules stay"
    )
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="of ours, on top of the task's own, as JSON"
    )
    parser.add_argument(
        "--window", type=int, default=1, help="iterations with ended episodes that make a return"
    )
    arguments = parser.parse_args()
    changed = arguments.settings
    if arguments.total_env_steps:
        changed = {**changed, "total_env_steps": arguments.total_env_steps}
    rows = [{"variant": "RLlib", **row} for row in report.read(arguments.read or [])]
    if not arguments.read:
        # rllib_peer.py plays the plain arena of the tests, which lie beside this folder.
        sys.path.insert(0, str(Path(__file__).parents[1]))
        installed = importlib.util.find_spec("ray") is not None
        if not installed and set(arguments.tasks) & set(USUAL_TASKS):
            print("RLlib is not installed here, so it is missing from the table")
        for task in arguments.tasks:
            usual = (
                [*USUAL, *(["RLlib"] if installed else [])]
                if task in USUAL_TASKS
                else [RANDOM, "jaxrl"]
            )
            for variant in arguments.variants or usual:
                rows += measure(task, variant, arguments.seeds, arguments.out, **changed)
    print(table(rows, arguments.window))
    draw(rows, arguments.out)


if __name__ == "__main__":
    main()
