"""A peer trains until a return is reached, in a process of its own: what time_to_return.py times.

    python benchmarks/peer_until.py RLlib cartpole 475 --seed 0 --threads 1

RLlib at the settings of rllib_peer.py (the arena with 5 epochs), Stable-Baselines3 with its
defaults or with RL Baselines3 Zoo's settings; all stop by the mean return of the last 100 episodes.
A line "first" after the first result, and a line of JSON at the end.
"""

import argparse
import functools
import json
import os
import sys
from pathlib import Path

MOST_STEPS = 400_000
EPISODES = 100


def rllib(env: str, goal: float, seed: int, threads: int) -> dict:
    import ray
    import rllib_peer
    import torch

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    task = rllib_peer.TASKS["arena-5-epochs" if env == "arena" else env]
    config = rllib_peer.make_config(task, seed).reporting(
        metrics_num_episodes_for_smoothing=EPISODES
    )
    algorithm, steps, mean = config.build_algo(), 0, float("-inf")
    torch.set_num_threads(threads)  # building may have set it
    while mean < goal and steps < MOST_STEPS:
        metrics = algorithm.train()["env_runners"]
        if not steps:
            print("first", flush=True)
        steps = int(metrics["num_env_steps_sampled_lifetime"])
        mean = float(metrics.get("episode_return_mean", "-inf"))
    return {"env_steps": steps, "return_mean": mean}


def sb3(env: str, goal: float, seed: int, threads: int, *, zoo: bool = False) -> dict:
    import peer_stacks
    from stable_baselines3.common.callbacks import BaseCallback

    class Until(BaseCallback):
        """Looks whenever a rollout is over, as SB3's own log does."""

        mean = float("-inf")

        def _on_step(self):
            return self.mean < goal

        def _on_rollout_end(self):
            if self.num_timesteps == self.model.n_steps * self.model.n_envs:
                print("first", flush=True)
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            self.mean = sum(returns) / max(1, len(returns))

    until = Until()
    model = peer_stacks.sb3_cartpole(threads, zoo, seed, stats_window_size=EPISODES)
    model.learn(peer_stacks.ZOO_STEPS if zoo else MOST_STEPS, callback=until)
    return {"env_steps": model.num_timesteps, "return_mean": until.mean}


PEERS = {"RLlib": rllib, "SB3": sb3, "SB3, zoo": functools.partial(sb3, zoo=True)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("env", choices=("cartpole", "arena"))
    parser.add_argument("goal", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    arguments = parser.parse_args()
    sys.path.insert(
        0, str(Path(__file__).parents[1])
    )  # `tests`, with the plain arena, is beside this folder
    train = PEERS[arguments.peer]
    reached = train(arguments.env, arguments.goal, arguments.seed, arguments.threads)
    print(json.dumps(reached), flush=True)
    os._exit(0)  # ray takes seconds to say goodbye, which nobody waits for


if __name__ == "__main__":
    main()
