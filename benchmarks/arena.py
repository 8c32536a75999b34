"""What the arena's explorer has to remember: PPO with and without a memory of visited cells.

    python benchmarks/arena.py
    python benchmarks/arena.py --cases cells --against learning random --steps 5_000_000
    python benchmarks/arena.py --cases cells --settings '{"gamma": 0.99}'

agent1 knows, besides the two cells that are observed:

    nothing    dense layers, two of 64
    critic     nothing; its critic sees the visited cells and the time
    tour       nothing; at first it walks a closed tour of all cells, with 0.99 at each step
    lstm       what an LSTM of 64 learns to keep; sequences are whole episodes
    same       nothing; the network of `cells`, its memory always empty
    time       the same network, only the time
    cells      the cells that it has visited, and the time: `jaxrl.envs.networks.cell_memory`,
               the tuned settings' network

agent2 is one that learns, one that plays at random, or one that stays in its corner. All else is
equal. The numbers are of sampled actions, in the last 5% of the training's episodes.
"""

import json
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import report

from jaxrl import PPOConfig, make_train
from jaxrl.envs.arena import MultiAgentArena
from jaxrl.envs.networks.cell_memory import CellMemory

DOWN, LEFT, RIGHT, UP = 2, 3, 1, 0
CERTAINTY = 5.7  # of the tour: e^5.7 / (e^5.7 + 3) = 0.99


def tour(size: int = 10) -> np.ndarray:
    """The action in each cell on a closed tour: rows to and fro, back up the first column."""
    actions = np.full((size, size), RIGHT)
    actions[1::2] = LEFT
    actions[:-1:2, -1] = DOWN
    actions[1:-1:2, 1] = DOWN
    actions[1:, 0] = UP
    return actions.reshape(-1)


class FromTour(nn.Module):
    """A network without memory that begins as the tour and may leave it."""

    @nn.compact
    def __call__(self, obs):
        towards = CERTAINTY * jax.nn.one_hot(jnp.asarray(tour())[obs[..., 0]], 4)

        def network(num_outputs, scale):
            hidden = sum(nn.Embed(100, 64)(obs[..., i]) for i in (0, 1))
            hidden = nn.tanh(nn.Dense(64)(nn.tanh(hidden)))
            return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(scale))(hidden)

        return towards + network(4, 0.01), network(1, 1.0)[..., 0]


class Forgetful(nn.Module):
    """`CellMemory` that keeps some of its memory only: the same network, without the rest."""

    memory: CellMemory
    kept: tuple[str, ...] = ()

    def initial_carry(self, batch_shape):
        return self.memory.initial_carry(batch_shape)

    @nn.compact
    def __call__(self, obs, carry):
        logits, value, carry = self.memory(obs, carry)
        keep = {name: 1.0 if name in self.kept else 0.0 for name in carry}
        return logits, value, {name: keep[name] * carry[name] for name in carry}


ENV = MultiAgentArena()
MEMORY = CellMemory(ENV.observation_space(), ENV.action_space(), height=10, width=10)
CASES: dict[str, dict[str, Any]] = {  # settings of agent1's policy
    "nothing": {},
    "critic": {"critic_observation": "state"},
    "tour": {"model": FromTour()},
    "lstm": {"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 100},
    "same": {"model": Forgetful(MEMORY), "max_seq_len": 1},
    "time": {"model": Forgetful(MEMORY, ("time",)), "max_seq_len": 1},
    "cells": {"model": MEMORY, "max_seq_len": 1},
}


def stay(obs, key):
    """agent2 begins in the last corner, where down leads nowhere."""
    return jnp.full_like(obs[..., 0], DOWN)


AGENT2: dict[str, dict[str, Any]] = {
    "learning": {},
    "random": {"policies_to_train": ["pol1"], "opponents": {"fixed": {"random": "random"}}},
    "still": {"policies_to_train": ["pol1"], "opponents": {"fixed": {"still": stay}}},
}


SMALLEST = {  # ten updates, in each of which two episodes end
    **{"cases": ["tour", "time"], "against": ["still"], "seeds": [0], "steps": 2000},
    "settings": lambda given: {
        **{"num_envs": 2, "rollout_length": 100, "minibatch_size": 200, "num_epochs": 1},
        **given,
    },
}


def configuration(case: str, against: str, steps: int, changed: dict[str, Any]) -> PPOConfig:
    config = PPOConfig(
        env="arena",
        num_envs=64,
        rollout_length=100,
        minibatch_size=640,
        num_epochs=4,
        lr=[[0, 2e-3], [steps, 0.0]],
        gamma=0.997,
        lambda_=0.95,
        clip_param=0.2,
        value_clip=None,
        vf_loss_coeff=0.5,
        entropy_coeff=[[0, 0.01], [steps, 0.0]],
        use_kl_loss=False,
        grad_clip=0.5,
        fcnet_hiddens=(64, 64),
        total_env_steps=steps,
        per_policy={"pol1": CASES[case]},
        **AGENT2[against],
    )
    return config.replace(**changed)


def learn(case: str, against: str, seeds: list[int], config: PPOConfig) -> list[dict[str, Any]]:
    """A row for each seed, of one compiled program."""
    train = jax.jit(make_train(config)).lower(jax.random.key(0)).compile()
    rows = []
    for seed in seeds:
        begin = time.perf_counter()
        _, metrics = train(jax.random.key(seed))
        episodes = jax.device_get(metrics.episodes.iteration)
        seconds = time.perf_counter() - begin
        tenths = np.array_split(episodes.episode_return.sum / episodes.count, 10)
        last = slice(-max(1, config.num_updates // 20), None)
        count = episodes.count[last].sum()
        agent1, agent2 = episodes.agent_returns.sum[last].sum(0) / count
        by_name = {
            name: float(spread.sum[last].sum() / count)
            for name, spread in episodes.custom_metrics.items()
        }
        row = {"case": case, "against": against, "seed": seed, "seconds": seconds}
        row |= {"steps": config.num_updates * config.train_batch_size}
        row |= {"sum": float(agent1 + agent2), "agent1": float(agent1), "agent2": float(agent2)}
        row |= {"curve": [float(tenth.mean()) for tenth in tenths], **by_name}
        shown = ", ".join(f"{value:.1f}" for value in row["curve"])
        print(
            f"{case}, {against}, seed {seed}: {shown}; {row['sum']:.1f}, {seconds:.0f} s",
            flush=True,
        )
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    columns = ("sum", "agent1", "agent2", "new_fields_discovered", "num_collisions")
    lines = []
    for case, against in dict.fromkeys((row["case"], row["against"]) for row in rows):
        found = [row for row in rows if (row["case"], row["against"]) == (case, against)]
        spreads = [report.spread([row[name] for row in found], ".1f") for name in columns]
        steps = ", ".join(sorted({f"{row['steps']:,}" for row in found}))
        lines.append([case, against, steps, str(len(found)), *spreads])
    titles = ["agent1 knows besides", "agent2", "steps", "seeds", "summed return", *columns[1:]]
    return report.markdown(titles, lines)


def main() -> None:
    parser = report.arguments_of("arena", __doc__, SMALLEST)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--against", nargs="+", choices=AGENT2, default=list(AGENT2))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=3_000_000, help="environment steps")
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="of PPOConfig, instead of ours; JSON"
    )
    arguments = parser.parse_args()
    rows = []
    for case in arguments.cases:
        for against in arguments.against:
            config = configuration(case, against, arguments.steps, arguments.settings)
            found = learn(case, against, arguments.seeds, config)
            setting = {"settings": arguments.settings, **report.circumstances()}
            report.keep([{**row, **setting} for row in found], arguments.out)
            rows += found
    print(table(rows))


if __name__ == "__main__":
    main()
