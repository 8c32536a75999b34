"""Training over environments outside JAX: what `outside.py` asks of `jaxrl.Trainer`.

`learning`: CartPole and the arena as Python environments beside the same ones in JAX, with the same
settings. CartPole is Gymnasium's, the arena is written from the same rules in plain Python.
`training`: steps/s of whole trainings, beside stepping the environment alone, and beside
Stable-Baselines3 where it is installed, at its settings.
"""

import contextlib
import functools
import importlib.util
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import report

import jaxrl

sys.path.append(str(Path(__file__).parents[1]))  # `tests`, with the plain arena
from tests.oracles.arena import AGENTS, PlainArena

POINTS = 10  # of a curve
SMALLEST = {"num_envs": 2, "rollout_length": 32, "minibatch_size": 64, "num_epochs": 1}
INDEPENDENT = 0.9  # of what as many cores would be worth that share nothing
SPIN = """
import time
began, x = time.perf_counter(), 0
for i in range(5_000_000):
    x += i * i
print(time.perf_counter() - began)
"""
# Stable-Baselines3's PPO as its defaults have it, with 16 environments.
SB3 = {
    "num_envs": 16,
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
TRAININGS = ("CartPole", "work 1 ms")
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
    for name, (config, ways) in trainings(args).items():
        if name not in args.trainings:
            continue
        rates, shared = {way: [] for way in ways}, []
        for _ in range(args.turns):
            before = cores_worth()
            for way, run in reversed(ways.items()):  # jaxrl first: beside `cores_worth`
                rates[way].append(run(config))
                print(f"{name}, {way}: {rates[way][-1]:,.0f} steps/s", flush=True)
                if way == "jaxrl":
                    shared.append(min(before, cores_worth()))
                    print(f"{report.CORES} cores are worth {shared[-1]:.2f}", flush=True)
        alone = [i for i, worth in enumerate(shared) if worth > INDEPENDENT * report.CORES]
        for way, found in rates.items():
            rows.append({"question": "training", "env": name, "way": way, "steps": found})
            rows[-1]["cores_worth"] = shared
            ratios = [fast / rate for fast, rate in zip(rates["jaxrl"], found, strict=True)]
            shown = [ratios, [ratios[i] for i in alone]]
            of_turns = [report.spread(each, ".2f") if each else "no turn" for each in shown]
            lines.append([name, way, report.spread(found), *of_turns])
    titles = ["environment", "way", "steps/s", "jaxrl's, times that"]
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


def trainings(args: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
    """{environment: (configuration, {way: function to its steps/s})}."""
    sizes, installed = SB3, importlib.util.find_spec("stable_baselines3") is not None
    if args.smoke:
        sizes, installed = {**SB3, **SMALLEST}, False
    config = jaxrl.PPOConfig(**sizes, env="gym:CartPole-v1")
    length = min(256, config.rollout_length)
    slow = config.replace(env=slow_cartpole, rollout_length=length, train_batch_size=None)
    ways = {
        "stepped alone": functools.partial(stepping, seconds=args.seconds),
        "stepped alone, Gymnasium's SyncVectorEnv": functools.partial(
            stepping_by_gymnasium, seconds=args.seconds
        ),
        "jaxrl, while the learner rests": collecting_speed,
        "jaxrl": training_speed,
    }
    peers = {"Stable-Baselines3": sb3} if installed else {}
    return dict(zip(TRAININGS, [(config, peers | ways), (slow, ways)], strict=True))


def training_speed(config: Any) -> float:
    """Of the third to eighth iteration; the first ones compile, and wait for the first rollout."""
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        seconds = [trainer.train()["time_this_iter_s"] for _ in range(8)]
    return 6 * config.train_batch_size / sum(seconds[2:])


def collecting_speed(config: Any) -> float:
    """Of collecting rollouts with one core, while the other ones rest; the median of six.

    What is left between this and stepping alone is choosing actions and keeping the steps.
    """
    with jaxrl.Trainer(config, run_dir=None, quiet=True, sync=True) as trainer:
        timers = [trainer.train()["timers"] for _ in range(8)]
    seconds = [each["env"] + each["inference"] for each in timers[2:]]
    return config.train_batch_size / statistics.median(seconds)


def stepping(config: Any, seconds: float) -> float:
    """The same copies for some seconds, stepped as a training by default steps them."""
    envs = config.setup().env.vector(config.num_envs)

    def actions(obs):
        return {"default_agent": upright(obs["default_agent"])}

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
    make = cartpole if isinstance(config.env, str) else config.env
    with contextlib.closing(gymnasium.vector.SyncVectorEnv([make] * config.num_envs)) as envs:
        obs, _ = envs.reset(seed=config.seed)
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            obs, *_ = envs.step(upright(obs))
            steps += config.num_envs
        return steps / (time.perf_counter() - began)


def upright(obs: np.ndarray) -> np.ndarray:
    """Actions that keep the poles up, i32[E].

    Episodes are as long as those of a policy that has learned: resets take time, and short
    episodes would flatter a training beside them.
    """
    _, speed, angle, turning = obs.T
    return (angle + 0.5 * turning + 0.05 * speed > 0).astype(np.int32)


def sb3(config: Any) -> float:
    """Of two iterations, after one."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", config.num_envs), device="cpu")
    model.learn(config.train_batch_size)
    began = time.perf_counter()
    model.learn(2 * config.train_batch_size, reset_num_timesteps=False)
    return 2 * config.train_batch_size / (time.perf_counter() - began)
