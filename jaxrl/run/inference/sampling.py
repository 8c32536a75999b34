"""Episodes as objects out of the compiled program, which records them in arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.env import RawStep, Solo, strongly_typed
from jaxrl.core.types import AgentId, PyTree
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.episodes.from_arrays import (
    AgentArrays,
    AgentFacts,
    multi_agent_episode,
    single_agent_episode,
)
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.policy_map import Grouping
from jaxrl.rollout.recorded_steps import GroupSteps, RecordedSteps, model_outputs
from jaxrl.run.inference.host_episodes import EvaluationCopies, play_episodes
from jaxrl.run.inference.play_limit import DEFAULT_LIMIT, PlayLimit
from jaxrl.run.inference.whole_episodes import PlayedBatch, PlaySpec, make_game
from jaxrl.run.storage.checkpoint import named_arrays

Episode = SingleAgentEpisode | MultiAgentEpisode
ORIGIN = "origin"  # in an episode's `custom_data`: what plays it again


class Players(NamedTuple):
    """Policies and the environment that they play in."""

    algorithm: Algorithm
    weights: tuple[PolicyWeights, ...]  # by group, [N, ...]
    env_params: PyTree
    env: Mapping[str, Any]  # what makes it again, from `env_of`
    copies: EvaluationCopies | None = None  # of one outside JAX, where they are kept


def env_of(config: Any, env_args: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The arguments that make a configuration's environment; the name is None for an object."""
    name = config.env if isinstance(config.env, str) else None
    return {"env": name, "env_args": {**dict(config.env_args), **env_args}}


def plain_params(env_params: PyTree) -> dict[str, Any]:
    """An environment's numbers as JSON holds them, by name."""
    named = named_arrays(strongly_typed(env_params))
    return {name: leaf.tolist() for name, leaf in named.items()}


@dataclass(frozen=True)
class EpisodeRange:
    """The episodes of a seed, and the way in which they are played."""

    seed: int = 0
    first: int = 0
    number: int = 10
    explore: bool = False
    limit: PlayLimit = DEFAULT_LIMIT


class SampledBatch(NamedTuple):
    """Episodes that were played side by side."""

    episodes: list[Episode]  # those that ended
    played: PlayedBatch  # [E], with those that were cut


def sample_batches(players: Players, wanted: EpisodeRange) -> Iterator[SampledBatch]:
    """Plays whole episodes, those that `evaluate` counts, and makes objects of them."""
    spec = players.algorithm.rollout_spec
    params = plain_params(players.env_params)
    number = wanted.first
    for batch in record_batches(players, wanted):
        episodes = []
        for place, episode in _episodes_of(spec, batch):
            origin = {**players.env, "env_params": params, "seed": wanted.seed}
            episode.custom_data[ORIGIN] = {**origin, "episode": number + place}
            episodes.append(episode)
        number += len(batch.done)
        yield SampledBatch(episodes, batch)


def record_batches(players: Players, wanted: EpisodeRange) -> Iterator[PlayedBatch]:
    """Plays the episodes; `RecordedSteps` in arrays."""
    game = make_game(players.weights, players.env_params, wanted.seed)
    play = PlaySpec(players.algorithm.rollout_spec, wanted.explore, _recorded_step)
    which = wanted.first, wanted.number
    return play_episodes(play, game, *which, players.copies, wanted.limit)


def _recorded_step(spec: RolloutSpec, outputs: list[PolicyOutput], raw: RawStep) -> RecordedSteps:
    """A step, [E, N, M, ...], without the observations before it: the last step reached those."""
    results = raw.obs, raw.reward, raw.active, raw.terminated, raw.truncated
    by_group = map(spec.grouping.gather, results)
    groups = []
    for policy_spec, output, reached, *rest in zip(
        spec.policy_specs, outputs, *by_group, strict=True
    ):
        sampled, env_action = policy_spec.recorded(output.action)
        kept = model_outputs(output, env_action)
        groups.append(GroupSteps(None, reached, sampled, kept, *rest))
    by_env = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), tuple(groups))
    return RecordedSteps(by_env, raw.all_terminated, raw.episode_done)


def _episodes_of(spec: RolloutSpec, batch: PlayedBatch) -> Iterator[tuple[int, Episode]]:
    """The episodes of a batch that ended, as objects, with their places in it."""
    grouping = spec.grouping
    parts = [
        jax.tree.map(lambda leaf, count=count: leaf[:, :count], kept)
        for kept, count in zip(batch.kept, batch.num_steps, strict=True)
    ]
    steps = jax.tree.map(_joined, *parts)
    first = jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0)[:, None], batch.obs)
    obs = jax.tree.map(_joined, first, tuple(group.reached for group in steps.groups))
    # Flattened once: what is done for each episode is done thousands of times.
    flat = {
        agent: jax.tree.flatten(arrays_of(agents_obs, agents_steps))
        for agent, (agents_obs, agents_steps) in by_agent(grouping, (obs, steps.groups)).items()
    }
    facts = facts_of(grouping)
    num_steps = len(steps.episode_done[0])
    lengths = batch.finished.length.tolist()
    for e in np.flatnonzero(batch.done).tolist():
        beyond = num_steps - lengths[e]
        arrays = {}
        for agent, (leaves, structure) in flat.items():
            # Copies: an episode keeps its steps in memory, and nothing else of the batch.
            rows = [leaf[e, : leaf.shape[1] - beyond].copy() for leaf in leaves]
            arrays[agent] = structure.unflatten(rows)
        yield e, make_episode(spec, arrays, facts, bool(steps.all_terminated[e, lengths[e] - 1]))


def make_episode(
    spec: RolloutSpec,
    arrays: Mapping[AgentId, AgentArrays],
    facts: Mapping[AgentId, AgentFacts],
    terminated: bool,
) -> Episode:
    """A whole episode of what its agents saw and did.

    Args:
        facts: of `facts_of`.
        terminated: how it ended: terminated, or else truncated.
    """
    if isinstance(spec.env, Solo):
        (agent,) = arrays
        return single_agent_episode(arrays[agent], facts[agent])
    return multi_agent_episode(arrays, facts, terminated)


def _joined(*parts: np.ndarray) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def by_agent(grouping: Grouping, by_group: tuple[PyTree, ...]) -> dict[AgentId, tuple]:
    """The values of each agent, in the environment's order, [E, T, ...], from [E, T, N, M, ...]."""
    found = {}
    for group, *values in zip(grouping.groups, *by_group, strict=True):
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                only = lambda leaf, i=i, j=j: leaf[:, :, i, j]
                found[agent] = jax.tree.map(only, tuple(values))
    return {agent: found[agent] for agent in grouping.agents}


def arrays_of(observations: PyTree, steps: GroupSteps) -> AgentArrays:
    """The arrays of one agent's steps."""
    return AgentArrays(
        observations,
        steps.action,
        steps.reward,
        steps.active,
        steps.terminated,
        steps.truncated,
        steps.outputs,
    )


def facts_of(grouping: Grouping) -> dict[AgentId, AgentFacts]:
    """The facts that are the same in all episodes, by agent in the environment's order."""
    facts = {}
    for group in grouping.groups:
        for policy, agents in zip(group.policies, group.agents, strict=True):
            for agent in agents:
                facts[agent] = AgentFacts(policy, group.observation_space, group.action_space)
    return {agent: facts[agent] for agent in grouping.agents}
