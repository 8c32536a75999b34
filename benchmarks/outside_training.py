"""Training over environments outside JAX: what `outside.py` asks of `jaxrl.Trainer`.

`learning`: CartPole and the arena as Python environments beside the same ones in JAX, with the same
settings. CartPole is Gymnasium's, the arena is written from the same rules in plain Python.
`training`: steps/s of whole trainings, beside stepping the environment alone, and beside
Stable-Baselines3 where it is installed, at its settings.
"""

import contextlib
import functools
import importlib.util
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
WAYS = {"in JAX": None, "Python, sync": {"sync": True}, "Python": {"sync": False}}


def learning(args: Any) -> tuple[list[dict], list[str], list[list[str]]]:
    """(rows, titles, lines): returns at equal steps, the median and range over the seeds."""
    rows, lines = [], []
    for name in args.twins:
        python, steps = TWINS[name]
        inside = jaxrl.PPOConfig.tuned(name, total_env_steps=steps)
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
    """(rows, titles, lines): steps/s of whole trainings at Stable-Baselines3's settings."""
    config = jaxrl.PPOConfig(**SB3, env="gym:CartPole-v1")
    slow = config.replace(env=slow_cartpole, rollout_length=256, train_batch_size=None)
    ways = {
        "CartPole, stepped alone": functools.partial(stepping, config),
        "CartPole, jaxrl": functools.partial(steps_per_s, config),
        "1 ms a step, stepped alone": functools.partial(stepping, slow),
        "1 ms a step, jaxrl": functools.partial(steps_per_s, slow),
    }
    if importlib.util.find_spec("stable_baselines3"):
        ways["CartPole, Stable-Baselines3"] = sb3
    rows, lines = [], []
    for way, run in ways.items():
        rates = run(args.turns)
        rows.append({"question": "training", "way": way, "steps": rates})
        lines.append([way, report.spread(rates)])
    return rows, ["way", "steps/s"], lines


def steps_per_s(config: Any, turns: int) -> list[float]:
    """Of each iteration but the first two, which compile."""
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        seconds = [trainer.train()["time_this_iter_s"] for _ in range(turns + 2)]
    return [config.train_batch_size / each for each in seconds[2:]]


def stepping(config: Any, turns: int) -> list[float]:
    """The same copies, stepped with fixed actions as a training by default steps them."""
    envs = config.setup().env.vector(config.num_envs)
    actions = {"default_agent": np.zeros(config.num_envs, np.int32)}
    of_part = [{name: rows[part] for name, rows in actions.items()} for part in envs.parts]
    rates = []
    with contextlib.closing(envs):
        envs.reset(np.arange(config.num_envs, dtype=np.uint32))
        for _ in range(turns + 1):
            began, steps = time.perf_counter(), 0
            for part, rows in enumerate(of_part):
                envs.send(part, rows)
            while time.perf_counter() - began < 1.0:
                for part, rows in enumerate(of_part):
                    envs.receive(part)
                    envs.send(part, rows)
                steps += config.num_envs
            for part in range(len(of_part)):
                envs.receive(part)
            rates.append(steps / (time.perf_counter() - began))
    return rates[1:]


def sb3(turns: int) -> list[float]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", SB3["num_envs"]), device="cpu")
    steps, rates = SB3["num_envs"] * SB3["rollout_length"], []
    for _ in range(turns):
        began = time.perf_counter()
        model.learn(steps, reset_num_timesteps=False)
        rates.append(steps / (time.perf_counter() - began))
    return rates
