"""PettingZoo's tutorial of Stable-Baselines3 as a peer: parameter sharing by SuperSuit.

    pip install stable-baselines3 supersuit "pettingzoo==1.24.3" "pymunk==6.2.0" scipy pygame
    python benchmarks/sb3_pettingzoo.py waterworld pursuit --seeds 0 --out rows.jsonl

The settings are those of `tutorials/SB3/waterworld/sb3_waterworld_vector.py` in PettingZoo's
repository: 8 copies, a learning rate of 0.001, batches of 256, MlpPolicy, 196,608 steps of agents
and on to the end of a rollout. Afterwards the policy plays with sampled actions. It needs nothing
of `jaxrl`.
"""

import argparse
import json
import time
from pathlib import Path

COPIES, AGENT_STEPS = 8, 196_608
SETTINGS = {"learning_rate": 1e-3, "batch_size": 256}


def made(name: str):
    from pettingzoo.sisl import pursuit_v4, waterworld_v4

    return {"waterworld": waterworld_v4, "pursuit": pursuit_v4}[name].parallel_env()


def trained(name: str, seed: int, agent_steps: int):
    import supersuit
    from stable_baselines3 import PPO

    env = made(name)
    env.reset(seed=seed)
    copies = supersuit.pettingzoo_env_to_vec_env_v1(env)
    copies = supersuit.concat_vec_envs_v1(copies, COPIES, base_class="stable_baselines3")
    model = PPO("MlpPolicy", copies, **SETTINGS)  # its `seed` asks for more than SuperSuit has
    model.learn(agent_steps)
    copies.close()
    return model


def played(name: str, model, episodes: int) -> list[float]:
    """The returns of whole episodes, summed over the agents."""
    env, returns = made(name), []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        total = 0.0
        while env.agents:
            actions = {agent: model.predict(obs[agent])[0] for agent in env.agents}
            obs, rewards, *_ = env.step(actions)
            total += sum(rewards.values())
        returns.append(total)
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=["waterworld", "pursuit"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--agent-steps", type=int, default=AGENT_STEPS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # two are slower
    for name in arguments.names:
        for seed in arguments.seeds:
            torch.manual_seed(seed)
            began = time.perf_counter()
            model = trained(name, seed, arguments.agent_steps)
            row = {"env": name, "seed": seed, "agent_steps": model.num_timesteps}
            row |= {"seconds": round(time.perf_counter() - began)}
            row |= {"returns": played(name, model, arguments.episodes)}
            row["mean"] = sum(row["returns"]) / len(row["returns"])
            print(json.dumps(row), flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
