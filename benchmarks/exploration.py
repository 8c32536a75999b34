"""Where an intrinsic reward pays: MountainCar by PPO alone and with random network distillation.

    python benchmarks/exploration.py
    python benchmarks/exploration.py --cases centered --seeds 10 11 --steps 300_000

Both are the settings of examples/random_network_distillation.py, the one with a bonus of 0. A step
costs 1 until the car is at the top, so a return is minus the number of steps, at most 200. The best
policy takes 98 on average (value iteration), and the mark of a solved MountainCar is 110.

Values begin at 0, which is more than any state is worth here, so what was never seen looks best,
and PPO explores by that already. The cases say what is learned from:

    as they are           the rewards
    normalised            `normalize_returns`
    centered              `center_values`: unseen states look like the others
    normalised, centered  both
    at the top            1 for the top and 0 otherwise: 0 is what a state is worth at first

Policies are judged at the end by 200 new episodes with sampled actions, and 200 with the likeliest
ones. The seeds of a case train in one program, with and without the bonus.
"""

import importlib.util
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import report

from jaxrl import PPOConfig, make, make_train
from jaxrl.adapters.from_gymnax import GymnaxEnvironment
from jaxrl.play.evaluate import evaluate_and_record
from jaxrl.play.host_episodes import EpisodeRange, Players

EXAMPLE = Path(__file__).parents[1] / "examples" / "random_network_distillation.py"
SOLVED = 110  # steps
JUDGED = {"number": 200, "seed": 1}
ALONE, WITH_RND = "PPO alone", "with RND"


class PaidAtTheTop(GymnaxEnvironment):
    def __init__(self):
        super().__init__(make("gymnax:MountainCar-v0")[0].env, "MountainCar-v0 paid at the top")

    def step_env(self, key, state, action, params):
        obs, state, _, terminated, info = super().step_env(key, state, action, params)
        return obs, state, jnp.float32(terminated), terminated, info


AS_THEY_ARE = {"normalize_returns": False, "center_values": False}
CASES: dict[str, dict[str, Any]] = {
    "as they are": AS_THEY_ARE,
    "normalised": {"normalize_returns": True, "center_values": False},
    "centered": {"normalize_returns": False, "center_values": True},
    "normalised, centered": {"normalize_returns": True, "center_values": True},
    "at the top": {"env": PaidAtTheTop, **AS_THEY_ARE},
}


def configuration(case: str, total_env_steps: int) -> PPOConfig:
    found = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    settings = dict(CASES[case])
    env = settings.pop("env", None)
    config = example.mountain_car(total_env_steps=total_env_steps, **settings)
    return config if env is None else config.replace(env=env())


def learn(case: str, seeds: list[int], total_env_steps: int) -> list[dict[str, Any]]:
    """A row for each seed, without and with the bonus."""
    config = configuration(case, total_env_steps)
    nothing = [[0, 0.0], [1, 0.0]]
    numbers = {
        ALONE: config.hypers(intrinsic_reward_coeff=nothing),
        WITH_RND: config.hypers(),
    }
    members = [(arm, seed) for arm in numbers for seed in seeds]
    keys = jax.vmap(jax.random.key)(np.asarray([seed for _, seed in members]))
    hypers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(numbers[arm] for arm, _ in members))
    begin = time.perf_counter()
    runners, metrics = jax.jit(jax.vmap(make_train(config)))(keys, hypers)
    episodes = jax.device_get(metrics.episodes.iteration)
    seconds = time.perf_counter() - begin
    algorithm, rows = config.build(), []
    for i, (arm, seed) in enumerate(members):
        weights = algorithm.acting_weights(jax.tree.map(lambda leaf, i=i: leaf[i], runners))
        players = Players(algorithm, weights, algorithm.env_params)
        sampled, likeliest = (
            evaluate_and_record(players, EpisodeRange(explore=explore, **JUDGED))["env_runners"][
                "episode_len_mean"
            ]
            for explore in (True, False)
        )
        quarters = zip(
            np.array_split(episodes.episode_len.sum[i], 4),
            np.array_split(episodes.count[i], 4),
            strict=True,
        )
        steps = [float(sums.sum() / count.sum()) for sums, count in quarters]
        row = {"case": case, "arm": arm, "seed": seed, "quarters": steps}
        rows.append({**row, "sampled": sampled, "likeliest": likeliest, "s together": seconds})
    print(f"{case}: {[round(row['sampled'], 1) for row in rows]}, {seconds:.0f} s", flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for case, arm in dict.fromkeys((row["case"], row["arm"]) for row in rows):
        found = [row for row in rows if (row["case"], row["arm"]) == (case, arm)]
        halves = [report.spread([row["quarters"][i] for row in found]) for i in (0, 1)]
        ends = [
            report.spread([row[how] for row in found], ".1f") for how in ("sampled", "likeliest")
        ]
        solved = sum(max(row["sampled"], row["likeliest"]) <= SOLVED for row in found)
        lines.append([case, arm, *halves, *ends, f"{solved} of {len(found)}"])
    titles = ["rewards", "", "first quarter", "second quarter", "at the end, sampled", "likeliest"]
    return report.markdown([*titles, f"both at most {SOLVED}"], lines)


def main() -> None:
    parser = report.arguments_of(
        "exploration", __doc__, {"cases": ["at the top"], "seeds": [10], "steps": 65_536}
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12, 13, 14])
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps")
    arguments = parser.parse_args()
    rows = []
    for case in arguments.cases:
        of_case = learn(case, arguments.seeds, arguments.steps)
        report.keep([{**row, **report.circumstances()} for row in of_case], arguments.out)
        rows += of_case
    print(table(rows))


if __name__ == "__main__":
    main()
