"""RLlib as a peer: learning curves of its PPO (new API stack), to hold ours against.

    python benchmarks/rllib_peer.py --task arena-5-epochs --seeds 0 1 2 --out rows.jsonl

It needs `ray[rllib]` and `torch` (measured with ray 2.60 and torch 2.13 on the CPU), nothing of
`jaxrl`. The arena is the plain-Python reference of `tests/oracles/arena.py`. Everything runs in one
process, samples too.
"""

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import NamedTuple

BATCH_SIZE = 4000  # environment steps an iteration, whatever the number of agents
NUM_ARENAS = 20  # 200 steps of each make a batch: two whole episodes, none cut
NUM_CARTPOLES = 8  # 500 steps of each make a batch; episodes are cut at its end


class Task(NamedTuple):
    """What to train, and for how long."""

    env: str
    learning_rates: dict  # by policy; a single-agent task has only "default_policy"
    num_epochs: int
    num_env_steps: int


ARENA_RATES = {"pol1": 3e-4, "pol2": 4e-4}
TASKS = {
    "arena-30-epochs": Task("arena", ARENA_RATES, num_epochs=30, num_env_steps=64_000),
    "arena-5-epochs": Task("arena", ARENA_RATES, num_epochs=5, num_env_steps=80_000),
    "cartpole": Task("cartpole", {"default_policy": 3e-4}, num_epochs=5, num_env_steps=100_000),
}


def make_arena_class():
    """Return PlainArena as an RLlib MultiAgentEnv.

    A fair coin of its own decides who moves first.
    """
    import numpy as np
    from gymnasium.spaces import Discrete, MultiDiscrete
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

    from tests.oracles.arena import AGENTS, PlainArena

    class RLlibArena(MultiAgentEnv):
        def __init__(self, config=None):
            super().__init__()
            self.arena, self.coin = PlainArena(), random.Random()
            self.agents = self.possible_agents = list(AGENTS)
            num_cells = self.arena.height * self.arena.width
            self.observation_spaces = {
                agent: MultiDiscrete([num_cells, num_cells]) for agent in AGENTS
            }
            self.action_spaces = {agent: Discrete(4) for agent in AGENTS}

        def reset(self, *, seed=None, options=None):
            if seed is not None:
                self.coin.seed(seed)
            return self._as_arrays(self.arena.reset()), {}

        def step(self, actions):
            first = self.coin.choice((1, 2))
            observations, rewards, _, truncated = self.arena.step(
                actions["agent1"], actions["agent2"], first
            )
            return (
                self._as_arrays(observations),
                rewards,
                {"__all__": False},
                {"__all__": truncated},
                {},
            )

        def _as_arrays(self, observations):
            return {agent: np.array(cells) for agent, cells in observations.items()}

    return RLlibArena


def make_config(task, seed):
    """Return the PPOConfig of `task`; whatever is not set here is RLlib's default.

    Its default network is what we compare with: 256 and 256 tanh units, with an encoder of its own
    for the values (`vf_share_layers` False). It is set by a dict, because a `DefaultModelConfig`
    object would bring that class's own default for `vf_share_layers`, True.
    """
    from ray.rllib.algorithms.ppo import PPOConfig

    config = (
        PPOConfig()
        .training(train_batch_size=BATCH_SIZE, minibatch_size=128, num_epochs=task.num_epochs)
        .rl_module(model_config={"fcnet_hiddens": [256, 256], "fcnet_activation": "tanh"})
        # Sub-environment i is seeded by seed + i: far apart, so that no two runs share a coin.
        .debugging(seed=1000 * seed, log_level="ERROR")
        # The returned means are over the iteration's last so many episodes (100 by default, fewer
        # than an early CartPole iteration has). Nothing is carried over from earlier iterations, so
        # that a window no iteration can fill makes them the means over just the episodes that
        # finished in it.
        .reporting(metrics_num_episodes_for_smoothing=BATCH_SIZE)
    )
    return _arena_config(config, task) if task.env == "arena" else _cartpole_config(config, task)


def _arena_config(config, task):
    """Two agents with a policy each.

    The cells reach the network as two one-hot vectors, 200 numbers.
    """
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import FlattenObservations

    rates = {policy: PPOConfig.overrides(lr=rate) for policy, rate in task.learning_rates.items()}
    return (
        config.environment(make_arena_class())
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=NUM_ARENAS,
            # RLlib has no default network for MultiDiscrete: this is the connector that its users
            # add.
            env_to_module_connector=lambda env, spaces, device: FlattenObservations(
                multi_agent=True
            ),
        )
        .multi_agent(
            policies=set(task.learning_rates),
            policy_mapping_fn=lambda agent, episode, **_: agent.replace("agent", "pol"),
            algorithm_config_overrides_per_module=rates,
            count_steps_by="env_steps",
        )
    )


def _cartpole_config(config, task):
    return (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_CARTPOLES)
        .training(lr=task.learning_rates["default_policy"])
    )


def learn(task, seed):
    """Train RLlib's PPO on the task of that name.

    Returns:
        One dict per training iteration: `env_steps` since the start, `seconds` of wall clock since
        the first iteration began (building the algorithm is not in them), `return_mean`, over the
        episodes that finished in this iteration, of the return summed over agents (None if none
        finished), `num_episodes`, how many those were, and `agent_return_means`, the same mean by
        agent id.
    """
    task = TASKS[task]
    algorithm = make_config(task, seed).build_algo()
    rows, begin = [], time.perf_counter()
    while not rows or rows[-1]["env_steps"] < task.num_env_steps:
        metrics = algorithm.train()["env_runners"]
        rows.append(_row(metrics, time.perf_counter() - begin))
        print(
            "  {env_steps:>7} steps  {seconds:6.1f} s  return {return_mean}".format(**rows[-1]),
            flush=True,
        )
    algorithm.stop()
    return rows


def _row(metrics, seconds):
    num_episodes = int(metrics.get("num_episodes", 0))
    agent_means = metrics.get("agent_episode_returns_mean", {}) if num_episodes else {}
    return {
        "env_steps": int(metrics["num_env_steps_sampled_lifetime"]),
        "seconds": round(seconds, 3),
        "return_mean": float(metrics["episode_return_mean"]) if num_episodes else None,
        "num_episodes": num_episodes,
        "agent_return_means": {agent: float(mean) for agent, mean in agent_means.items()},
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines are appended: one per seed"
    )
    arguments = parser.parse_args()
    sys.path.insert(
        0, str(Path(__file__).parents[1])
    )  # a script's path is its own folder; `tests` is beside it
    try:
        import ray
    except ImportError:
        sys.exit("rllib_peer.py needs RLlib: pip install 'ray[rllib]==2.60.0' torch")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for seed in arguments.seeds:
        print(f"{arguments.task}, seed {seed}", flush=True)
        line = {
            "task": arguments.task,
            "seed": seed,
            "ray": ray.__version__,
            "curve": learn(arguments.task, seed),
        }
        with arguments.out.open("a") as rows:
            rows.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # one thread; torch reads this when it is imported
    main()
