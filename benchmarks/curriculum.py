"""Where a curriculum pays: a lock that is opened by 20 right choices of 5, one after the other.

    python benchmarks/curriculum.py
    python benchmarks/curriculum.py --cases plain levels --seeds 0 1

Each room has one right door, always the same; the others end the episode with nothing. The reward
is 1 behind the last door, and 0 elsewhere: a random walk from the first room earns it once in
5^20 episodes. `params.start` is the room that an episode begins in, and curricula change it. All
policies are judged from the first room, by the share of 200 episodes with sampled actions that they
solve.

    plain        starts in the first room
    random       domain randomisation: starts in any room
    levels       `LevelsBySuccess`: the last two rooms, then the last four, ... then all
    host         the same levels, by `env_task_fn` and the mean return of all environments
    prioritised  starts in the rooms from which an environment sometimes fails and sometimes not
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import report
from flax import struct

import jaxrl
from jaxrl.core.spaces import Discrete

ROOMS, DOORS = 20, 5
RIGHT = np.random.default_rng(0).integers(0, DOORS, ROOMS)
STARTS = tuple(range(ROOMS - 2, -1, -2))
JUDGED = {"episodes": 200, "explore": True}


class State(struct.PyTreeNode):
    room: jax.Array  # i32[]
    time: jax.Array  # i32[]


class Params(struct.PyTreeNode):
    start: int = 0  # the room that an episode begins in
    max_steps_in_episode: int = 2 * ROOMS


@dataclass(frozen=True)
class Lock(jaxrl.Environment):
    """Rooms in a row; the observation is the room's number."""

    default_params = Params()

    def observation_space(self, params=None):
        return Discrete(ROOMS)

    def action_space(self, params=None):
        return Discrete(DOORS)

    def reset_env(self, key, params):
        state = State(jnp.int32(params.start), jnp.int32(0))
        return state.room, state

    def step_env(self, key, state, action, params):
        is_right = action == jnp.asarray(RIGHT)[state.room]
        is_open = is_right & (state.room == ROOMS - 1)
        room = jnp.minimum(state.room + is_right, ROOMS - 1)
        state = State(room, state.time + 1)
        return room, state, jnp.float32(is_open), is_open | ~is_right, {}


@dataclass(frozen=True)
class PrioritisedLevels(jaxrl.Curriculum):
    """Prioritised level replay (Jiang et al. 2021) over the values of one field of `params`.

    A level's score is p (1 - p), with p the share of its episodes that were solved, as Rutherford
    et al. (2024) score how much can be learned from it; one of a policy's errors is not at hand
    here. Where nothing is known yet p is 1/2.
    """

    field: str
    values: tuple[float, ...]
    solved_at: float
    memory_of: float = 0.8  # of what was known of a level, after an episode of it
    random_share: float = 0.3  # of episodes whose level is drawn from all alike

    def init(self, params):
        return jnp.full(len(self.values), 0.5)

    def task(self, key, memory, params):
        score = memory * (1 - memory) + 1e-6
        chances = (1 - self.random_share) * score / score.sum() + self.random_share / score.size
        return {self.field: jax.random.choice(key, jnp.asarray(self.values), p=chances)}

    def after_episode(self, memory, episode, params):
        played = jnp.asarray(self.values) == episode.task[self.field]
        solved = jnp.float32(episode.episode_return >= self.solved_at)
        return jnp.where(played, self.memory_of * memory + (1 - self.memory_of) * solved, memory)


def next_start(result: dict[str, Any], task: Params) -> dict[str, int] | None:
    mastered = result["env_runners"]["this_iteration"].get("episode_return_mean", 0.0) > 0.8
    return {"start": max(int(task.start) - 2, 0)} if mastered else None


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "random": {"env_args": {"start": f"randint:0:{ROOMS}"}},
    "levels": {
        "curriculum": jaxrl.LevelsBySuccess(
            [{"start": start} for start in STARTS], threshold=0.8, window=10, solved_at=1.0
        )
    },
    "host": {"env_args": {"start": STARTS[0]}, "env_task_fn": next_start},
    "prioritised": {"curriculum": PrioritisedLevels("start", tuple(range(ROOMS)), 1.0)},
}


def learn(case: str, seed: int, steps: int) -> dict[str, Any]:
    """One training: the share of solved episodes from the first room, a quarter at a time."""
    jaxrl.register("lock", Lock)
    config = jaxrl.PPOConfig.fast(
        "lock", num_envs=64, rollout_length=32, total_env_steps=steps, **CASES[case]
    )
    config, shares, begin = config.replace(seed=seed), [], time.perf_counter()
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        for quarter in range(1, 5):
            trainer.fit({"training_iteration": config.num_updates * quarter // 4})
            judged = trainer.evaluate(env_args={"start": 0}, **JUDGED)["env_runners"]
            shares.append(judged["episode_return_mean"])
    seconds = time.perf_counter() - begin
    print(f"{case}, seed {seed}: {shares}, {seconds:.0f} s", flush=True)
    return {"case": case, "seed": seed, "solved": shares, "steps": steps}


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        quarters = zip(*(row["solved"] for row in rows if row["case"] == case), strict=True)
        lines.append([case, *(report.spread(shares, ".2f") for shares in quarters)])
    return report.markdown(["starts", *(f"after {i}/4" for i in range(1, 5))], lines)


def main() -> None:
    parser = report.arguments_of(
        "curriculum", __doc__, {"cases": ["host", "prioritised"], "seeds": [0], "steps": 8192}
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=300_000, help="environment steps")
    arguments = parser.parse_args()
    rows = []
    for case in arguments.cases:
        rows += [learn(case, seed, arguments.steps) for seed in arguments.seeds]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    print(table(rows))


if __name__ == "__main__":
    main()
