"""An episode played to be looked at: every state of it, and who got which reward."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import numpy as np

from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.env import MultiAgentEnvironment, Solo, has_pictures
from jaxrl.core.errors import UsageError
from jaxrl.core.outside_env import is_outside
from jaxrl.core.types import AgentId, PyTree
from jaxrl.episodes.by_agent import Episode
from jaxrl.episodes.from_arrays import (
    AgentFacts,
    multi_agent_episode,
    set_infos,
    single_agent_episode,
)
from jaxrl.play.host_episodes import EpisodeRange, Players, play_episodes
from jaxrl.play.play_limit import PlayLimit
from jaxrl.play.played_steps import PROBABILITIES, SPREAD
from jaxrl.play.whole_episodes import PlayedBatch
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.grouping import Grouping
from jaxrl.rollout.recorded_steps import ENV_ACTIONS

MAX_SHOWN_STEPS = 2000  # of an episode, unless another number is asked for
PICTURES_AT_ONCE = 8  # one of 500 x 500 pixels takes some 20 MB while it is painted


class Decisions(NamedTuple):
    """The answers of an agent's policy in T steps; actions in the environment's units."""

    action: PyTree  # [T, *action_space.shape]
    value: np.ndarray | None  # f32[T]  the return that it expected, discounted; None: not recorded
    # f32[T, A] of discrete actions, those of all integers concatenated; None without integers
    probabilities: np.ndarray | None
    # (mean - std, mean, mean + std) of a Box's actions, [T, *action_space.shape] each, or f32[T, d]
    # of all Boxes of an action in parts; None without numbers
    spread: tuple[np.ndarray, np.ndarray, np.ndarray] | None

    @classmethod
    def of(cls, steps: AgentSteps) -> "Decisions":
        """The decisions in an agent's steps, [T, ...]."""
        outputs, spread = steps.outputs, steps.outputs.get(SPREAD)
        return cls(
            outputs.get(ENV_ACTIONS, steps.action),
            outputs.get("vf_preds"),
            outputs.get(PROBABILITIES),
            None if spread is None else tuple(np.moveaxis(spread, 1, 0)),
        )


@dataclass(frozen=True)
class EpisodeRecording:
    """One episode of T steps, all that was seen and done: of it episodes and pictures are made."""

    env: MultiAgentEnvironment
    env_params: PyTree
    facts: Mapping[AgentId, AgentFacts]
    # [T, ...], with observations [T + 1, ...]; in the environment's order
    steps: Mapping[AgentId, AgentSteps]
    # "terminated": by the environment; "truncated": by its time limit; "cut": by `max_steps`
    end: str
    states: PyTree | None = None  # [T + 1, ...], the first the reset's; None: not kept
    # {step: u8[H, W, 3]} of an environment outside JAX, which is rendered while it plays
    pictures: Mapping[int, np.ndarray] = field(default_factory=dict)
    # {agent: info} of the reset and of each step, outside JAX; () where nobody keeps them
    infos: Sequence[Mapping[AgentId, dict]] = ()

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return tuple(self.steps)

    @property
    def num_steps(self) -> int:
        return len(self.active)

    @property
    def rewards(self) -> np.ndarray:
        """f32[T, M]; 0 where the agent was not active, or it waits for its turn."""
        return self._by_step("reward")

    @property
    def active(self) -> np.ndarray:
        """bool[T, M]."""
        return self._by_step("active")

    @property
    def observations(self) -> dict[AgentId, PyTree]:
        """{agent: [T + 1, ...]}."""
        return {agent: steps.obs for agent, steps in self.steps.items()}

    @property
    def decisions(self) -> dict[AgentId, Decisions]:
        return {agent: Decisions.of(steps) for agent, steps in self.steps.items()}

    @property
    def running_returns(self) -> np.ndarray:
        """f64[T + 1, M]: the undiscounted return of each agent up to each state; zeros at first."""
        return np.concatenate(
            [np.zeros((1, len(self.agents))), np.cumsum(self.rewards, axis=0, dtype=np.float64)]
        )

    @property
    def episode(self) -> Episode:
        """The episode as an object, to be stored or judged; only of one that has ended."""
        episode = make_episode(self.env, self.steps, self.facts, self.end == "terminated")
        if self.infos:
            set_infos(episode, self.infos)
        return episode

    def shown(self, steps: np.ndarray) -> np.ndarray:
        """The nearest steps to these that there is a picture of."""
        if not self.pictures:
            return steps
        pictured_steps = np.array(sorted(self.pictures))
        return np.unique(pictured_steps[np.abs(pictured_steps - steps[:, None]).argmin(axis=1)])

    def _by_step(self, name: str) -> np.ndarray:
        return np.stack([getattr(steps, name) for steps in self.steps.values()], axis=1)


def episodes_to_show(
    seed: int = 0,
    first: int = 0,
    number: int = 1,
    explore: bool = False,
    max_steps: int = MAX_SHOWN_STEPS,
) -> EpisodeRange:
    """The episodes that `evaluate` plays as this seed's `first` and those after it.

    No line is printed where one is cut at `max_steps`: its recording says so.
    """
    limit = PlayLimit(max_steps, say=lambda text: None)
    return EpisodeRange(seed, first, number, explore, limit)


def record_episodes(players: Players, shown: EpisodeRange) -> Iterator[EpisodeRecording]:
    """Plays episodes to be looked at, one by one, each in an environment alone."""
    for number in range(shown.first, shown.first + shown.number):
        (batch,) = play_episodes(players, replace(shown, first=number, number=1), to_look_at=True)
        yield from recordings_of(players.algorithm.rollout_spec, players.env_params, batch)


def recordings_of(
    spec: RolloutSpec, env_params: PyTree, batch: PlayedBatch
) -> Iterator[EpisodeRecording]:
    """The episodes of a batch whose steps were kept, one by one, with those that were cut."""
    steps, facts = batch.steps, facts_of(spec.grouping)
    # Flattened once: what is done for each episode is done thousands of times.
    flat = {}
    for agent, data in by_agent(spec.grouping, steps.groups).items():
        flat[agent] = jax.tree.flatten(data)
    lengths = np.where(batch.done, steps.episode_done.argmax(axis=1) + 1, batch.num_steps).tolist()
    for e, length in enumerate(lengths):
        beyond = batch.num_steps - length

        def rows_of(leaf, e=e, beyond=beyond):
            rows = leaf[e, : leaf.shape[1] - beyond]
            # Copies: an episode keeps its steps in memory, and nothing else of the batch.
            return rows.copy() if isinstance(rows, np.ndarray) else rows

        agents = {}
        for agent, (leaves, tree) in flat.items():
            agents[agent] = tree.unflatten(map(rows_of, leaves))
        end, states = "cut", jax.tree.map(rows_of, steps.state)
        if batch.done[e]:
            end = "terminated" if steps.all_terminated[e, length - 1] else "truncated"
        infos = [of_step.get(e, {}) for of_step in batch.infos[: length + 1]]
        of_run = spec.env, env_params, facts
        yield EpisodeRecording(*of_run, agents, end, states, batch.pictures, infos)


def by_agent(grouping: Grouping, by_group: tuple[PyTree, ...]) -> dict[AgentId, PyTree]:
    """The values of each agent, in the environment's order, [E, T, ...], from [E, T, N, M, ...]."""
    found = {}
    for group, values in zip(grouping.groups, by_group, strict=True):
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                found[agent] = jax.tree.map(lambda leaf, i=i, j=j: leaf[:, :, i, j], values)
    return {agent: found[agent] for agent in grouping.agents}


def facts_of(grouping: Grouping) -> dict[AgentId, AgentFacts]:
    """The facts that are the same in all episodes, by agent in the environment's order."""
    facts = {}
    for group in grouping.groups:
        for policy, agents in zip(group.policies, group.agents, strict=True):
            for agent in agents:
                facts[agent] = AgentFacts(policy, group.observation_space, group.action_space)
    return {agent: facts[agent] for agent in grouping.agents}


def make_episode(
    env: MultiAgentEnvironment,
    steps: Mapping[AgentId, AgentSteps],
    facts: Mapping[AgentId, AgentFacts],
    terminated: bool,
) -> Episode:
    """A whole episode of what its agents saw and did.

    Args:
        terminated: how it ended: terminated, or else truncated.
    """
    if isinstance(env, Solo):
        (agent,) = steps
        return single_agent_episode(steps[agent], facts[agent])
    return multi_agent_episode(steps, facts, terminated)


def frames(recording: EpisodeRecording, steps: Sequence[int]) -> Iterator[np.ndarray]:
    """The environment's pictures u8[H, W, 3] of these states, painted a few at a time."""
    check_can_render(recording.env)
    if recording.pictures:
        yield from (recording.pictures[int(step)] for step in steps)
        return
    for begin in range(0, len(steps), PICTURES_AT_ONCE):
        batch = np.asarray(steps[begin : begin + PICTURES_AT_ONCE])
        # One shape, one compilation.
        index = np.pad(batch, (0, PICTURES_AT_ONCE - len(batch)), mode="edge")
        states = jax.tree.map(lambda leaf, index=index: leaf[index], recording.states)
        painted = _paint(recording.env, states, recording.env_params)
        yield from np.asarray(painted)[: len(batch)]


def check_can_render(env: MultiAgentEnvironment) -> None:
    """Raises UsageError for an environment without pictures."""
    if is_outside(env) and not has_pictures(env):
        raise UsageError(
            f"environment {env.name} renders no pictures: make it with "
            "--env-args render_mode=rgb_array, if it knows that; a page of what the agents saw and "
            "did: jaxrl render RUN --out episode.html"
        )
    if not has_pictures(env):
        raise UsageError(
            f"environment {env.name} has no render(state, params), so there is no picture of an "
            "episode; a page of what the agents saw and did: jaxrl render RUN --out episode.html"
        )


@functools.partial(jax.jit, static_argnums=0)
def _paint(env: MultiAgentEnvironment, states: PyTree, env_params: PyTree) -> jax.Array:
    return jax.vmap(lambda state: env.render(state, env_params))(states)
