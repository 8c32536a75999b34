"""Learning from what an exploration plays, by policies that act little or never themselves.

    python benchmarks/behaviours.py
    python benchmarks/behaviours.py --explorations "random actions" --seeds 10 11 12

The settings are those of `PPOConfig.fast`; only who acts in training differs. At the end 100 new
episodes are played with sampled actions, and 100 with the likeliest ones, without any exploration.
In CartPole 500 is the most; in Pendulum about -150 is. The seeds train in one program.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
import report

from jaxrl import PPOConfig, make_train
from jaxrl.play.evaluate import evaluate_and_record
from jaxrl.play.host_episodes import EpisodeRange, Players

JUDGED = {"number": 100, "seed": 1}


def epsilon(value: float) -> dict[str, Any]:
    return {"type": "EpsilonGreedy", "initial_epsilon": value, "final_epsilon": value}


def noise(stddev: float) -> dict[str, Any]:
    kept = {"initial_scale": 1.0, "final_scale": 1.0, "random_timesteps": 0}
    return {"type": "GaussianNoise", "stddev": stddev, **kept}


class Case(NamedTuple):
    """Who acts in which environment, and for how long."""

    exploration: dict[str, Any] | None = None  # None: the policy itself
    env: str = "cartpole"
    steps: int = 150_000


PENDULUM = {"env": "gymnax:Pendulum-v1", "steps": 300_000}
CASES = {
    "the policy": Case(),
    "epsilon 0.1": Case(epsilon(0.1)),
    "epsilon 0.5": Case(epsilon(0.5)),
    "random actions": Case({"type": "Random"}),
    "Pendulum: the policy": Case(**PENDULUM),
    "Pendulum: its choice with noise of 0.5": Case(noise(0.5), **PENDULUM),
    "Pendulum: its choice with noise of 0.2": Case(noise(0.2), **PENDULUM),
}


def learn(exploration: str, seeds: list[int], total_env_steps: int | None) -> list[dict[str, Any]]:
    """A row for each seed."""
    case = CASES[exploration]
    config = PPOConfig.fast(case.env, total_env_steps=total_env_steps or case.steps)
    if case.exploration is not None:
        config = config.replace(exploration_config=case.exploration)
    keys = jax.vmap(jax.random.key)(np.asarray(seeds))
    begin = time.perf_counter()
    runners, _ = jax.block_until_ready(jax.jit(jax.vmap(make_train(config)))(keys))
    seconds = time.perf_counter() - begin
    algorithm, rows = config.build(), []
    for i, seed in enumerate(seeds):
        weights = algorithm.acting_weights(jax.tree.map(lambda leaf, i=i: leaf[i], runners))
        players = Players(algorithm, weights, algorithm.env_params)
        sampled, likeliest = (
            evaluate_and_record(players, EpisodeRange(explore=explore, **JUDGED))["env_runners"][
                "episode_return_mean"
            ]
            for explore in (True, False)
        )
        row = {"exploration": exploration, "seed": seed, "sampled": float(sampled)}
        rows.append({**row, "likeliest": float(likeliest), "s together": seconds})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for exploration in dict.fromkeys(row["exploration"] for row in rows):
        found = [row for row in rows if row["exploration"] == exploration]
        ends = [report.spread([row[how] for row in found]) for how in ("sampled", "likeliest")]
        lines.append([exploration, *ends, str(len(found))])
    return report.markdown(["who acts in training", "sampled", "likeliest", "seeds"], lines)


def main() -> None:
    smallest = {"explorations": report.first, "seeds": report.first, "steps": 1}
    parser = report.arguments_of("behaviours", __doc__, smallest)
    parser.add_argument("--explorations", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="environment steps; each case has its own")
    arguments = parser.parse_args()
    rows = []
    for exploration in arguments.explorations:
        learned = learn(exploration, arguments.seeds, arguments.steps)
        report.keep([{**row, **report.circumstances()} for row in learned], arguments.out)
        rows += learned
    print(table(rows))


if __name__ == "__main__":
    main()
