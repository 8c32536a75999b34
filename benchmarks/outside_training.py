"""Training over environments outside JAX: what `outside.py` asks of `jaxrl.Trainer`.

`learning`: CartPole and the arena as Python environments beside the same ones in JAX, with the same
settings. CartPole is Gymnasium's, the arena is written from the same rules in plain Python.
`training`: steps/s of whole trainings, beside stepping the environment alone, and beside
Stable-Baselines3 where it is installed, at its settings. `parts`: where the time of these goes.
"""

import contextlib
import functools
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import report

import jaxrl

sys.path.append(str(Path(__file__).parents[1]))  # `tests`, with the plain arena
from tests.oracles.arena import AGENTS, PlainArena

POINTS = 10  # of a curve
TIMED_STEPS = 32_768  # of a training, at least
SMALLEST = {"num_envs": 2, "rollout_length": 32, "minibatch_size": 64, "num_epochs": 1}
INDEPENDENT = 0.9  # of what as many cores would be worth that share nothing
SPIN = """
import time
began, x = time.perf_counter(), 0
for i in range(5_000_000):
    x += i * i
print(time.perf_counter() - began)
"""
# Stable-Baselines3's PPO as its defaults have it.
SB3 = {
    "rollout_length": 2048,
    "minibatch_size": 64,
    "num_epochs": 10,
    "lr": 3e-4,
    "lambda_": 0.95,
    "clip_param": 0.2,
    "vf_loss_coeff": 0.5,
    "value_clip": None,
    "grad_clip": 0.5,
    "use_kl_loss": False,
    "fcnet_hiddens": (64, 64),
    "normalize_advantages": "minibatch",
}


class Slow(gymnasium.Wrapper):
    """An environment whose steps take a millisecond longer, of computing."""

    def step(self, action: Any) -> tuple:
        until = time.perf_counter() + 1e-3
        results = self.env.step(action)
        while time.perf_counter() < until:
            pass
        return results


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def slow_cartpole() -> gymnasium.Env:
    return Slow(cartpole())


# ---- learning


class PythonArena:
    """The arena as a PettingZoo environment, of the rules in plain Python."""

    possible_agents = agents = AGENTS

    def __init__(self):
        self._arena, self._random = PlainArena(), np.random.default_rng()

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.MultiDiscrete((100, 100))

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._random = np.random.default_rng(seed)
        return self._arena.reset(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        first = 1 + self._random.integers(2)
        moves = int(actions["agent1"]), int(actions["agent2"])
        obs, rewards, _, truncated = self._arena.step(*moves, first)
        flags = lambda value: dict.fromkeys(self.agents, value)
        return obs, rewards, flags(False), flags(truncated), flags({})

    def close(self) -> None:
        """Nothing is open."""


TWINS = {  # with the environment steps of a training
    "cartpole": ("gym:CartPole-v1", 100_000),
    "arena": (PythonArena, 128_000),
}
# What a training changes of these: RL Baselines3 Zoo's settings of CartPole, whose rollouts are
# short, or the environment. The steps of one take a millisecond.
TRAININGS: dict[str, dict[str, Any]] = {
    "CartPole": {},
    "CartPole, zoo": {
        **{"rollout_length": 32, "minibatch_size": 256, "num_epochs": 20, "lr": 1e-3},
        **{"gamma": 0.98, "lambda_": 0.8},
    },
    "work 1 ms": {"rollout_length": 256, "env": slow_cartpole},
    "HalfCheetah": {"env": "gym:HalfCheetah-v5"},
}
WAYS = {"in JAX": None, "Python, sync": {"sync": True}, "Python": {"sync": False}}


def learning(args: Any) -> tuple[list[dict], list[str], list[list[str]]]:
    """(rows, titles, lines): returns at equal steps, the median and range over the seeds."""
    rows, lines = [], []
    for name in args.twins:
        python, steps = TWINS[name]
        inside = jaxrl.PPOConfig.tuned(name, fcnet_hiddens=(64, 64), total_env_steps=steps)
        if args.smoke:
            inside = inside.replace(**SMALLEST, total_env_steps=POINTS * 64)
            steps = inside.total_env_steps
        policies = inside.setup().policies
        outside = inside.replace(env=python, policies=policies if len(policies) > 1 else None)
        curves = {}
        for way, settings in WAYS.items():
            config = inside if settings is None else outside
            settings = {} if settings is None else {"workers": 0, **settings}
            curves[way] = [curve(config.replace(seed=seed), settings) for seed in range(args.seeds)]
            rows += [
                {"question": "learning", "env": name, "way": way, "seed": seed, "curve": points}
                for seed, points in enumerate(curves[way])
            ]
        by_way = {way: _by_step(found, steps) for way, found in curves.items()}
        title = f"{name}: the median return of {args.seeds} seeds, and the range"
        out = args.out.with_name(f"outside-{name}")
        report.lines(out, title, ("environment steps", "return"), by_way)
        lines += [
            [
                name,
                f"{step:,.0f}",
                *(report.spread(points[step], ".1f") for points in by_way.values()),
                _overlapping([points[step] for points in by_way.values()]),
            ]
            for step in list(by_way["in JAX"])[1::2]
        ]
    return rows, ["environment", "steps", *WAYS, "ranges overlap"], lines


def _by_step(curves: list[list[float]], steps: int) -> dict[float, list[float]]:
    """{environment steps: the return of each seed}."""
    return {steps * (i + 1) / POINTS: [points[i] for points in curves] for i in range(POINTS)}


def _overlapping(ways: list[list[float]]) -> str:
    """Whether the range of the first overlaps with that of each other way."""
    inside, *others = ways
    overlaps = [min(other) <= max(inside) and min(inside) <= max(other) for other in others]
    return "yes" if all(overlaps) else "no"


def curve(config: Any, settings: dict[str, Any]) -> list[float]:
    """The mean return of the last 100 episodes, at `POINTS` equal distances."""
    points = []
    with jaxrl.Trainer(config, run_dir=None, quiet=True, **settings) as trainer:
        for iteration in range(1, config.num_updates + 1):
            result = trainer.train()
            if iteration * POINTS // config.num_updates > len(points):
                points.append(result["env_runners"].get("episode_return_mean", float("nan")))
    return points


# ---- training


def training(args: Any) -> tuple[list[dict], list[str], list[list[str]]]:
    """(rows, titles, lines): steps/s of whole trainings at Stable-Baselines3's settings.

    All take turns. A ratio is that of a turn, to jaxrl's training in the same turn. It is shown for
    all turns, and for those in which the cores did not share their speed with others.
    """
    rows, lines = [], []
    for name in args.trainings:
        for copies in args.copies:
            config = at_sb3s_settings(name, copies, args)
            rates, shared = {way: [] for way in ways(name, args)}, []
            for _ in range(args.turns):
                before = cores_worth()
                for way, run in reversed(ways(name, args).items()):  # jaxrl beside `cores_worth`
                    rates[way].append(run(config))
                    print(f"{name}, {way}: {rates[way][-1]:,.0f} steps/s", flush=True)
                    if way == "jaxrl":
                        shared.append(min(before, cores_worth()))
                        print(f"{report.CORES} cores are worth {shared[-1]:.2f}", flush=True)
            alone = [i for i, worth in enumerate(shared) if worth > INDEPENDENT * report.CORES]
            for way, found in rates.items():
                rows.append({"question": "training", "env": name, "copies": copies, "way": way})
                rows[-1] |= {"steps": found, "cores_worth": shared}
                ratios = [fast / rate for fast, rate in zip(rates["jaxrl"], found, strict=True)]
                shown = [ratios, [ratios[i] for i in alone]]
                of_turns = [report.spread(each, ".2f") if each else "no turn" for each in shown]
                lines.append([name, f"{copies}", way, report.spread(found), *of_turns])
    titles = ["environment", "copies", "way", "steps/s", "jaxrl's, times that"]
    return rows, [*titles, "in turns with cores of their own"], lines


def cores_worth() -> float:
    """How many times the work of one core all of them do together.

    Less than their number where they share a core of the machine below, or its owner's others do.
    """

    def seconds(count: int) -> list[float]:
        command = [sys.executable, "-S", "-c", SPIN]
        spins = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
        return [float(spin.communicate()[0]) for spin in spins]

    (by_itself,) = seconds(1)
    return sum(by_itself / each for each in seconds(report.CORES))


def at_sb3s_settings(name: str, copies: int, args: Any) -> jaxrl.PPOConfig:
    settings = {**SB3, "env": "gym:CartPole-v1", "num_envs": copies, **TRAININGS[name]}
    config = jaxrl.PPOConfig(**settings)
    return config.replace(**{**SMALLEST, "num_envs": copies}) if args.smoke else config


def ways(name: str, args: Any) -> dict[str, Any]:
    """{way: function of a configuration to its steps/s}, jaxrl's training last."""
    found = {}
    installed = not args.smoke and importlib.util.find_spec("stable_baselines3") is not None
    if installed and name != "work 1 ms":
        for threads in sorted({1, report.CORES}):
            way = f"Stable-Baselines3, {threads} thread{'s' if threads > 1 else ''}"
            found[way] = functools.partial(sb3, threads=threads)
    by_gymnasium = functools.partial(stepping_by_gymnasium, seconds=args.seconds)
    return found | {
        "stepped alone": functools.partial(stepping, seconds=args.seconds),
        "stepped alone, Gymnasium's SyncVectorEnv": by_gymnasium,
        "jaxrl, while the learner rests": collecting_speed,
        "jaxrl": training_speed,
    }


def training_speed(config: Any) -> float:
    """Of the iterations from the third on."""
    seconds = [result["time_this_iter_s"] for result in iterations(config)]
    return len(seconds) * config.train_batch_size / sum(seconds)


def collecting_speed(config: Any) -> float:
    """Of collecting rollouts with one core, while the other ones rest; the median.

    What is left between this and stepping alone is choosing actions and keeping the steps.
    """
    results = iterations(config, sync=True)
    seconds = [result["timers"]["env_runner_sampling_timer"] for result in results]
    return config.train_batch_size / statistics.median(seconds)


def iterations(config: Any, **settings: Any) -> list[dict]:
    """Results from the third on: the first two compile, and wait for the first rollout."""
    count = num_iterations(config)
    config = config.replace(total_env_steps=(2 + count) * config.train_batch_size)
    with jaxrl.Trainer(config, run_dir=None, quiet=True, **settings) as trainer:
        return [trainer.train() for _ in range(2 + count)][2:]


def num_iterations(config: Any) -> int:
    return max(6, TIMED_STEPS // config.train_batch_size)


def stepping(config: Any, seconds: float) -> float:
    """The same copies for some seconds, stepped as a training by default steps them."""
    envs = config.setup().env.vector(config.num_envs)

    rule = rule_of(config)

    def actions(obs):
        return {"default_agent": rule(obs["default_agent"])}

    with contextlib.closing(envs):
        first = envs.reset(np.arange(config.num_envs, dtype=np.uint32))
        for i, part in enumerate(envs.parts):
            envs.send(i, actions({name: rows[part] for name, rows in first.obs.items()}))
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for i, _ in enumerate(envs.parts):
                envs.send(i, actions(envs.receive(i).obs))
            steps += config.num_envs
        took = time.perf_counter() - began
        for i, _ in enumerate(envs.parts):
            envs.receive(i)
    return steps / took


def stepping_by_gymnasium(config: Any, seconds: float) -> float:
    """The same environments for some seconds, as Gymnasium steps them in one process."""
    rule, copies = rule_of(config), [functools.partial(made, config)] * config.num_envs
    with contextlib.closing(gymnasium.vector.SyncVectorEnv(copies)) as envs:
        obs, _ = envs.reset(seed=config.seed)
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            obs, *_ = envs.step(rule(obs))
            steps += config.num_envs
        return steps / (time.perf_counter() - began)


def made(config: Any) -> gymnasium.Env:
    """One copy, as Gymnasium makes it."""
    if not isinstance(config.env, str):
        return config.env()
    return gymnasium.make(config.env.removeprefix("gym:"), disable_env_checker=True)


def rule_of(config: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Who acts where nobody learns: `upright` in CartPole, elsewhere chance."""
    if config.env != TRAININGS["HalfCheetah"]["env"]:
        return upright
    draw, space = np.random.default_rng(0).uniform, made(config).action_space
    return lambda obs: draw(space.low, space.high, (len(obs), *space.shape)).astype(space.dtype)


def upright(obs: np.ndarray) -> np.ndarray:
    """Actions that keep the poles up, i32[E].

    Episodes are as long as those of a policy that has learned: resets take time, and short
    episodes would flatter a training beside them.
    """
    _, speed, angle, turning = obs.T
    return (angle + 0.5 * turning + 0.05 * speed > 0).astype(np.int32)


def sb3(config: Any, threads: int) -> float:
    """Of the iterations after the first."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    envs = make_vec_env(config.env.removeprefix("gym:"), config.num_envs)
    steps = config.train_batch_size
    settings = {"n_steps": config.rollout_length, "batch_size": config.minibatch_size}
    settings |= {"n_epochs": config.num_epochs, "gamma": config.gamma}
    settings |= {"gae_lambda": config.lambda_, "learning_rate": config.lr}
    model = PPO("MlpPolicy", envs, device="cpu", **settings)
    model.learn(steps)
    count, began = max(2, TIMED_STEPS // steps), time.perf_counter()
    model.learn(count * steps, reset_num_timesteps=False)
    return count * steps / (time.perf_counter() - began)


# ---- parts


def parts(args: Any) -> tuple[list[dict], list[str], list[list[str]]]:
    """(rows, titles, lines): the microseconds of a step of all copies, by what they go into.

    Of trainings that learn and collect one after the other (`sync`). `the rest of stepping` is what
    stepping takes beyond the environments, each of them stepped by itself in a loop.
    """
    rows, lines = [], []
    for name in args.trainings:
        for copies in args.copies:
            config = at_sb3s_settings(name, copies, args)
            # As by default.
            workers = min(copies, report.CORES) if config.env is slow_cartpole else 0
            timers = [result["timers"] for result in iterations(config, workers=workers, sync=True)]
            microseconds = {
                part: 1e6 * statistics.median(each[part] for each in timers) / config.rollout_length
                for part in ("env", "inference", "recording", "learning")
            }
            loops = statistics.median(in_a_loop(config, args.seconds) for _ in range(args.turns))
            alone = 1e6 * loops * copies / max(1, workers)
            found = {"environments": alone, "the rest of stepping": microseconds["env"] - alone}
            found |= {part: microseconds[part] for part in ("inference", "recording", "learning")}
            rows.append({"question": "parts", "env": name, "copies": copies, "us": found})
            shown = (f"{us:.1f}" for us in found.values())
            lines.append([name, f"{copies}", f"{workers}", *shown])
    return rows, ["environment", "copies", "workers", *found], lines


def in_a_loop(config: Any, seconds: float) -> float:
    """The seconds of a step of one environment, its resets among them, and nothing else."""
    env, rule = made(config), rule_of(config)
    obs, _ = env.reset(seed=config.seed)
    took, steps, end = 0.0, 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        action = rule(obs[None])[0]
        began = time.perf_counter()
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
        took += time.perf_counter() - began
        steps += 1
    return took / steps
