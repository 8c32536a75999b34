"""Environments outside JAX: steps/s, beside Gymnasium's own vectorisation, and learning.

    python benchmarks/outside.py --only pool                      # stepping, with fixed actions
    python benchmarks/outside.py --only pool --envs 16 --turns 3  # shorter
    python benchmarks/outside.py --only training                  # whole trainings, in steps/s
    python benchmarks/outside.py --only training --trainings CartPole
    python benchmarks/outside.py --only parts                     # where their time goes
    python benchmarks/outside.py --only learning                  # beside the same ones in JAX

A step is that of one copy, and resets are part of it. The ways take turns in one process. "One
environment in a loop" is the environment itself on one core, without any vectorisation. `work`
computes for so many milliseconds in each step, `sleep` waits for them, as for another machine.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import report
from outside_training import TRAININGS, learning, parts, training
from report import CORES

from jaxrl.outside.workers.python_env import make_vector_env

AGENT = "default_agent"


class Slow(gymnasium.Wrapper):
    """An environment that also computes or sleeps in every step."""

    def __init__(self, env: gymnasium.Env, work_s: float = 0.0, sleep_s: float = 0.0):
        super().__init__(env)
        self._work_s, self._sleep_s = work_s, sleep_s

    def step(self, action: Any) -> tuple:
        until = time.perf_counter() + self._work_s
        results = self.env.step(action)
        while time.perf_counter() < until:
            pass
        if self._sleep_s:
            time.sleep(self._sleep_s)
        return results


def cartpole(work_s: float = 0.0, sleep_s: float = 0.0) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    return Slow(env, work_s, sleep_s) if work_s or sleep_s else env


ENVIRONMENTS = {
    "CartPole": cartpole,
    "work 1 ms": functools.partial(cartpole, work_s=1e-3),
    "sleep 2 ms": functools.partial(cartpole, sleep_s=2e-3),
}


# ---- the ways: each gives a function that steps for a while and returns the number of steps


def alone(make: Callable[[], gymnasium.Env], num_envs: int) -> Callable[[float], int]:
    env, seed = make(), iter(range(10**9))
    env.reset(seed=next(seed))
    actions = np.random.default_rng(0).integers(0, 2, 1000).tolist()

    def run(seconds: float) -> int:
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            _, _, terminated, truncated, _ = env.step(actions[count % 1000])
            if terminated or truncated:
                env.reset(seed=next(seed))
            count += 1
        return count

    return run


def of_gymnasium(kind: type, make: Callable[[], gymnasium.Env], num_envs: int):
    envs = kind([make] * num_envs)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (100, num_envs))

    def run(seconds: float) -> int:
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            envs.step(actions[count % 100])
            count += 1
        return count * num_envs

    run.close = envs.close
    return run


def of_jaxrl(num_workers: int, make: Callable[[], gymnasium.Env], num_envs: int):
    envs = make_vector_env(make, num_envs, num_workers=num_workers)
    envs.reset(np.arange(num_envs, dtype=np.uint32))
    actions = np.random.default_rng(0).integers(0, 2, (100, num_envs))
    parts = list(enumerate(envs.parts))

    def run(seconds: float) -> int:
        end, count = time.perf_counter() + seconds, 0
        for number, part in parts:
            envs.send(number, {AGENT: actions[0, part]})
        while time.perf_counter() < end:
            for number, part in parts:
                envs.receive(number)
                envs.send(number, {AGENT: actions[count % 100, part]})
            count += 1
        for number, _ in parts:
            envs.receive(number)
        return (count + 1) * num_envs

    run.close = envs.close
    return run


WAYS = {
    "one environment in a loop": alone,
    "Gymnasium, sync": functools.partial(of_gymnasium, gymnasium.vector.SyncVectorEnv),
    "Gymnasium, async": functools.partial(of_gymnasium, gymnasium.vector.AsyncVectorEnv),
    "jaxrl, this process": functools.partial(of_jaxrl, 0),
    **{
        f"jaxrl, {count} processes": functools.partial(of_jaxrl, count)
        for count in sorted({2, CORES, 2 * CORES})
    },
}


def pool(args: Any) -> tuple[list[dict], list[str], list[list[str]]]:
    """(rows, titles, lines): steps/s of each way, for each environment and number of copies."""
    rows, lines = [], []
    for name in args.environments:
        for num_envs in args.envs:
            found = in_turns(ENVIRONMENTS[name], num_envs, args)
            rows += [
                {"question": "pool", "env": name, "num_envs": num_envs, "way": way, "steps": rates}
                for way, rates in found.items()
            ]
            lines += [
                [name, f"{num_envs}", way, report.spread(rates)] for way, rates in found.items()
            ]
    return rows, ["environment", "copies", "way", "steps/s"], lines


def in_turns(make: Callable[[], gymnasium.Env], num_envs: int, args: Any) -> dict[str, list]:
    """{way: steps/s of each turn}."""
    runs = {name: way(make, num_envs) for name, way in WAYS.items()}
    rates = {name: [] for name in runs}
    for run in runs.values():
        run(args.seconds / 5)
    for _ in range(args.turns):
        for name, run in runs.items():
            began = time.perf_counter()
            count = run(args.seconds)
            rates[name].append(count / (time.perf_counter() - began))
    for run in runs.values():
        getattr(run, "close", lambda: None)()
    return rates


SMALLEST = {
    **{"environments": report.first, "trainings": report.first, "twins": report.first},
    **{"envs": [2], "copies": [2], "turns": 1, "seconds": 0.05, "seeds": 1},
}
QUESTIONS = {"pool": pool, "training": training, "parts": parts, "learning": learning}


def main() -> None:
    parser = report.arguments_of("outside", __doc__, SMALLEST)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    environments = {"choices": ENVIRONMENTS, "default": list(ENVIRONMENTS)}
    parser.add_argument("--environments", nargs="+", **environments, help="of --only pool")
    parser.add_argument("--envs", nargs="+", type=int, default=[4, 16, 64], help="of --only pool")
    of_trainings = "copies of --only training and parts"
    parser.add_argument("--copies", nargs="+", type=int, default=[8, 16], help=of_trainings)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn of stepping")
    parser.add_argument("--seeds", type=int, default=5, help="of --only learning")
    parser.add_argument("--twins", nargs="+", default=["cartpole", "arena"], help="of learning")
    trainings = {"choices": TRAININGS, "default": [*TRAININGS][:3]}
    mujoco = 'HalfCheetah needs "gymnasium[mujoco]"'
    parser.add_argument("--trainings", nargs="+", **trainings, help=mujoco)
    args = parser.parse_args()
    for question in args.only:
        rows, titles, lines = QUESTIONS[question](args)
        report.keep([row | report.circumstances() for row in rows], args.out)
        print(f"\n{question}, load {report.circumstances()['load']:.1f}, {CORES} cores\n")
        print(report.markdown(titles, lines), flush=True)


if __name__ == "__main__":
    main()
