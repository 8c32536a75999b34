"""Environments in other libraries' interfaces: steps/s, and what Stable-Baselines3 learns on them.

    python benchmarks/adapters_out.py            # CartPole beside Gymnasium's own environments
    python benchmarks/adapters_out.py --learn    # SB3's PPO, evaluated on Gymnasium's CartPole
    python benchmarks/adapters_out.py --rllib    # the arena in RLlib's interface, and its sampling

Steps/s are those of a Python loop with fixed actions; the ways take turns in one process, and
compilation is not in them. Learning has SB3's tuned settings for CartPole (rl-baselines3-zoo), for
environments of jaxrl and for Gymnasium's. In RLlib's interface the arena's copies step together, by
`to_rllib_vector`, or one by one in RLlib's own `SyncVectorMultiAgentEnv`; by each, RLlib's env
runner samples with an untrained policy for each agent.
"""

import functools
import time
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
import report

import jaxrl

NUM_ENVS = (1, 16, 256, 4096)
TURN_S = 0.4
WAYS = {
    "jaxrl": functools.partial(jaxrl.to_gymnasium_vector, "cartpole"),
    "jaxrl, copy=False": functools.partial(jaxrl.to_gymnasium_vector, "cartpole", copy=False),
    "Gymnasium, NumPy": functools.partial(
        gymnasium.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point"
    ),
    "Gymnasium, sync": functools.partial(
        gymnasium.make_vec, "CartPole-v1", vectorization_mode="sync"
    ),
}
RLLIB_NUM_ENVS = (1, 16, 64, 256)
MAX_SYNC = 256
MARK = 475


def main() -> None:
    parser = report.arguments_of(
        "adapters_out", __doc__, {"turns": 1, "num_envs": [2], "seeds": 1, "steps": 256}
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--num-envs", nargs="+", type=int, help="copies that step together")
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--rllib", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000, help="of a training")
    args = parser.parse_args()
    if args.learn:
        rows, lines = learn(args.seeds, args.steps)
        titles = ["environments", "seed", f"steps to {MARK}", "return at the end", "training, s"]
    elif args.rllib:
        ways = {**rllib_steps(), **rllib_samples()}
        numbers = args.num_envs or RLLIB_NUM_ENVS
        rows, lines = measure(ways, numbers, args.turns)
        titles = ["steps/s", *(f"{num_envs:,}" for num_envs in numbers)]
    else:
        ways = {name: functools.partial(loop_of, make) for name, make in WAYS.items()}
        numbers = args.num_envs or NUM_ENVS
        rows, lines = measure(ways, numbers, args.turns)
        titles = ["steps/s", *(f"{num_envs:,}" for num_envs in numbers)]
    report.keep([row | report.circumstances() for row in rows], args.out)
    print(report.markdown(titles, lines))


def measure(
    ways: dict[str, Callable], numbers: Sequence[int], turns: int
) -> tuple[list[dict], list[list[str]]]:
    """Steps/s of ways to step environments; a way makes of their number a function that does."""
    rates: dict[str, dict[int, list[float]]] = {name: {} for name in ways}
    for num_envs in numbers:
        loops = {
            name: make(num_envs)
            for name, make in ways.items()
            if num_envs <= MAX_SYNC or "sync" not in name
        }
        for _ in range(turns):
            for name, loop in loops.items():
                rates[name].setdefault(num_envs, []).append(loop())
    rows = [{"way": name, "steps_per_s": by_number} for name, by_number in rates.items()]
    lines = [
        [name, *(report.spread(by_number[n]) if n in by_number else "" for n in numbers)]
        for name, by_number in rates.items()
    ]
    return rows, lines


def loop_of(make: Callable, num_envs: int) -> Callable[[], float]:
    """A function that steps environments for a turn and returns their steps/s."""
    envs = make(num_envs=num_envs)
    envs.reset(seed=0)
    actions = [np.full(num_envs, action) for action in (0, 1)]
    return stepping(lambda count: envs.step(actions[count % 2]), num_envs)


def stepping(step: Callable[[int], object], num_envs: int) -> Callable[[], float]:
    """A function that calls `step(count)` for a turn and returns steps/s; one call before."""
    step(0)

    def loop() -> float:
        began, count = time.perf_counter(), 0
        while (seconds := time.perf_counter() - began) < TURN_S:
            step(count)
            count += 1
        return count * num_envs / seconds

    return loop


def rllib_steps() -> dict[str, Callable]:
    """Ways to step the arena in RLlib's interface with fixed actions."""
    from ray.rllib.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv

    def in_turn(num_envs: int):
        return SyncVectorMultiAgentEnv([lambda: jaxrl.to_rllib("arena")] * num_envs)

    def steps(make: Callable, num_envs: int) -> Callable[[], float]:
        envs = make(num_envs)
        envs.reset(seed=0)
        actions = [[{"agent1": way, "agent2": 3 - way}] * num_envs for way in (0, 1)]
        return stepping(lambda count: envs.step(actions[count % 2]), num_envs)

    together = functools.partial(jaxrl.to_rllib_vector, "arena")
    return {
        "together": functools.partial(steps, together),
        "one by one (sync)": functools.partial(steps, in_turn),
    }


def rllib_samples() -> dict[str, Callable]:
    """Ways in which RLlib's env runner samples the arena with untrained policies."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import FlattenObservations
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
    from ray.tune.registry import register_env

    register_env("arena", lambda _: jaxrl.to_rllib("arena"))
    policies = {"agent1": "pol1", "agent2": "pol2"}

    def samples(runner: type, num_envs: int) -> Callable[[], float]:
        config = (
            PPOConfig()
            .environment("arena")
            .env_runners(
                num_env_runners=0,
                num_envs_per_env_runner=num_envs,
                env_to_module_connector=lambda *_: FlattenObservations(multi_agent=True),
            )
            .multi_agent(
                policies=list(policies.values()),
                policy_mapping_fn=lambda agent, *_, **__: policies[agent],
            )
        )
        sampler = runner(config=config, worker_index=0)
        return stepping(lambda _: sampler.sample(num_timesteps=num_envs), num_envs)

    return {
        "sampling, together": functools.partial(samples, jaxrl.rllib_env_runner()),
        "sampling, one by one (sync)": functools.partial(samples, MultiAgentEnvRunner),
    }


def learn(seeds: int, steps: int) -> tuple[list[dict], list[list[str]]]:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecMonitor

    ways = {
        "jaxrl.to_sb3_vec": lambda: VecMonitor(jaxrl.to_sb3_vec("cartpole", 8)),
        "Gymnasium, DummyVecEnv": lambda: make_vec_env("CartPole-v1", 8),
    }
    rows = [
        {"way": name, "seed": seed, **train(make, seed, steps)}
        for seed in range(seeds)
        for name, make in ways.items()
    ]
    lines = [
        [
            row["way"],
            str(row["seed"]),
            f"{row['steps_to_mark']:,}" if row["steps_to_mark"] else "never",
            f"{row['returns'][-1]:.0f}",
            f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]
    return rows, lines


def train(make: Callable, seed: int, steps: int) -> dict:
    """SB3's PPO, evaluated ten times by 20 episodes of Gymnasium's CartPole."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
    rates = {
        "learning_rate": lambda share: 1e-3 * share,
        "clip_range": lambda share: 0.2 * share,
    }
    model = PPO("MlpPolicy", make(), device="cpu", seed=seed, **settings, **rates)
    returns, seconds, judge = [], 0.0, make_vec_env("CartPole-v1", 1, seed=1000)
    parts = np.linspace(0, steps, 11)[1:]

    def judged(local, _) -> bool:
        nonlocal seconds, began
        if len(returns) < len(parts) - 1 and model.num_timesteps >= parts[len(returns)]:
            seconds += time.perf_counter() - began
            returns.append(float(evaluate_policy(model, judge, 20)[0]))
            began = time.perf_counter()
        return True

    began = time.perf_counter()
    model.learn(steps, callback=judged)
    seconds += time.perf_counter() - began
    returns.append(float(evaluate_policy(model, judge, 20)[0]))
    reached = [int(part) for part, value in zip(parts, returns, strict=True) if value >= MARK]
    return {
        "returns": returns,
        "steps_to_mark": reached[0] if reached else None,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
