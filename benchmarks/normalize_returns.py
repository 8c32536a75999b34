"""Where `normalize_returns` harms, and why: MPE's simple_spread, changed in one respect at a time.

    python benchmarks/normalize_returns.py
    python benchmarks/normalize_returns.py --cases normalised "plus 1, times 0.15" --seeds 0 1 2

Three agents cover three landmarks in a plane without walls (Lowe et al. 2017, by its rules, but
agents do not push each other). A step is paid minus the sum of the landmarks' distances to their
nearest agents, about -1 for each agent; the clock ends episodes after 25 steps. One shared policy
is trained by `PPOConfig.fast`.

The cases tell the causes apart: a constant factor has no statistics; a constant added to rewards
leaves every policy's rank as it is and moves only the level of the values.

Returns are those of the task itself for each 25 steps, summed over agents, whatever is learned
from. The seeds of a case train in one program.
"""

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import report
from flax import struct

from jaxrl import PPOConfig, make_train
from jaxrl.core.env import StackedEnvironment
from jaxrl.core.spaces import Box, Discrete

NUM_AGENTS = 3
DIRECTIONS = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
ACCELERATION, DAMPING, STEP = 5.0, 0.25, 0.1
COLLISION = 0.3  # distance of two agents
STEPS_OF_A_RETURN = 25


class State(struct.PyTreeNode):
    position: jax.Array  # f32[M, 2]
    velocity: jax.Array  # f32[M, 2]
    landmark: jax.Array  # f32[M, 2]
    time: jax.Array  # i32[]


class Params(struct.PyTreeNode):
    reward_factor: float = 1.0
    reward_added: float = 0.0  # before the factor
    wall: float = 1e6  # no agent gets farther from the centre along an axis
    max_steps_in_episode: int = 25


@dataclass(frozen=True)
class Spread(StackedEnvironment):
    """Agents and landmarks start anywhere in [-1, 1]^2; the metrics are the task's own return."""

    agents: tuple[str, ...] = tuple(f"agent_{i}" for i in range(NUM_AGENTS))

    @property
    def default_params(self) -> Params:
        return Params()

    def observation_space(self, agent, params=None) -> Box:
        return Box(-1e6, 1e6, (4 + 2 * NUM_AGENTS + 2 * (NUM_AGENTS - 1),))

    def action_space(self, agent, params=None) -> Discrete:
        return Discrete(len(DIRECTIONS))

    def reset_stacked(self, key, params):
        places = jax.random.uniform(key, (2, NUM_AGENTS, 2), minval=-1.0, maxval=1.0)
        state = State(places[0], jnp.zeros((NUM_AGENTS, 2)), places[1], jnp.int32(0))
        return self._observe(state), state

    def step_stacked(self, key, state, action, params):
        push = jnp.asarray(DIRECTIONS)[action] * ACCELERATION
        velocity = state.velocity * (1 - DAMPING) + push * STEP
        position = jnp.clip(state.position + velocity * STEP, -params.wall, params.wall)
        state = state.replace(position=position, velocity=velocity, time=state.time + 1)

        to_landmarks = jnp.linalg.norm(state.landmark[:, None] - position[None], axis=-1)
        to_agents = jnp.linalg.norm(position[:, None] - position[None], axis=-1)
        collisions = jnp.sum(to_agents < COLLISION, axis=1) - 1  # not with itself
        reward = -0.5 * jnp.sum(jnp.min(to_landmarks, axis=1)) - 0.5 * collisions
        learned_from = params.reward_factor * (reward + params.reward_added)
        metrics = {
            "task_return": jnp.sum(reward),
            "distance": jnp.mean(jnp.linalg.norm(position, axis=-1)),
        }
        never = jnp.zeros(NUM_AGENTS, bool)
        return self._observe(state), state, learned_from, never, {"metrics": metrics}

    def _observe(self, state):
        away = lambda places: places[None] - state.position[:, None]  # [M, M, 2]
        others = jnp.stack([jnp.delete(away(state.position)[i], i, axis=0) for i in range(3)])
        flat = lambda rows: rows.reshape(NUM_AGENTS, -1)
        parts = state.velocity, state.position, flat(away(state.landmark)), flat(others)
        return jnp.concatenate(parts, axis=-1)


class Case(NamedTuple):
    settings: Mapping[str, Any] = MappingProxyType({})
    env_args: Mapping[str, Any] = MappingProxyType({})


AS_THEY_ARE, CENTERED = {"normalize_returns": False}, {"center_values": True}
CASES = {
    "as they are": Case(AS_THEY_ARE),
    "normalised": Case(),
    "normalised, center_values": Case(CENTERED),
    "normalised, gamma 0.95": Case({"gamma": 0.95}),
    "times 0.15": Case(AS_THEY_ARE, {"reward_factor": 0.15}),
    "times 5": Case(AS_THEY_ARE, {"reward_factor": 5.0}),
    "plus 1, times 0.15": Case(AS_THEY_ARE, {"reward_factor": 0.15, "reward_added": 1.0}),
    "plus 3, times 0.15": Case(AS_THEY_ARE, {"reward_factor": 0.15, "reward_added": 3.0}),
    "as they are, 200 steps": Case(AS_THEY_ARE, {"max_steps_in_episode": 200}),
    "normalised, 200 steps": Case({}, {"max_steps_in_episode": 200}),
    "normalised, center_values, 200 steps": Case(CENTERED, {"max_steps_in_episode": 200}),
    "as they are, walls": Case(AS_THEY_ARE, {"wall": 1.0}),
    "normalised, walls": Case({}, {"wall": 1.0}),
    "normalised, center_values, walls": Case(CENTERED, {"wall": 1.0}),
}


def configuration(case: Case, total_env_steps: int) -> PPOConfig:
    settings = {"num_envs": 128, "rollout_length": 25, "policies": "shared", **case.settings}
    return PPOConfig.fast(Spread(), total_env_steps=total_env_steps, **settings)


@functools.cache
def program(normalize_returns: bool, center_values: bool, total_env_steps: int) -> Any:
    """The training of [S] seeds; gamma and what an environment's numbers say are its arguments."""
    case = Case({"normalize_returns": normalize_returns, "center_values": center_values})
    train = make_train(configuration(case, total_env_steps))
    return jax.jit(jax.vmap(train, in_axes=(0, None, None)))


def learn(name: str, seeds: list[int], total_env_steps: int) -> list[dict[str, Any]]:
    """A row for each seed: returns and distances by the quarter of training."""
    case = CASES[name]
    config = configuration(case, total_env_steps)
    train = program(config.normalize_returns, config.center_values, total_env_steps)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    begin = time.perf_counter()
    _, metrics = train(keys, config.hypers(), Params(**case.env_args))
    episodes = jax.device_get(metrics.episodes.iteration)
    quarters = lambda sums: sums.reshape(len(seeds), 4, -1).sum(axis=-1)
    whole = 4 * (config.num_updates // 4)
    steps = quarters(episodes.episode_len.sum[:, :whole])
    of = {
        name: quarters(sums.sum[:, :whole]) / steps
        for name, sums in episodes.custom_metrics.items()
    }
    rows = []
    for i, seed in enumerate(seeds):
        returns = (STEPS_OF_A_RETURN * of["task_return"][i]).tolist()
        distances = of["distance"][i].tolist()
        rows.append({"case": name, "seed": seed, "returns": returns, "distances": distances})
    seconds = time.perf_counter() - begin
    print(f"{name}: {[round(row['returns'][-1], 1) for row in rows]}, {seconds:.0f} s", flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for name in dict.fromkeys(row["case"] for row in rows):
        of_case = [row for row in rows if row["case"] == name]
        returns = [
            report.spread([row["returns"][quarter] for row in of_case], ".0f") for quarter in (1, 3)
        ]
        distance = report.spread([row["distances"][3] for row in of_case], ".1f")
        lines.append([name, *returns, distance])
    titles = ["rewards", "second quarter", "last quarter", "distance from the centre"]
    return report.markdown(titles, lines)


def main() -> None:
    parser = report.arguments_of(
        "normalize_returns", __doc__, {"cases": report.first, "seeds": [0], "steps": 12_800}
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=102_400, help="environment steps")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.cases:
        of_case = learn(name, arguments.seeds, arguments.steps)
        report.keep([{**row, **report.circumstances()} for row in of_case], arguments.out)
        rows += of_case
    print(table(rows))


if __name__ == "__main__":
    main()
