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
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.ops.distributions import dist_inputs
from jaxrl.rollout.env_step import PolicyOutput, RolloutSpec
from jaxrl.rollout.episode_stats import EpisodeStats
from jaxrl.rollout.policy_map import Grouping
from jaxrl.run.inference.whole_episodes import PlayedBatch, PlaySpec, make_game, play_batches
from jaxrl.run.storage.checkpoint import named_arrays

Episode = SingleAgentEpisode | MultiAgentEpisode
ORIGIN = "origin"  # in an episode's `custom_data`: what plays it again


class Players(NamedTuple):
    """Policies and the environment that they play in."""

    algorithm: Algorithm
    weights: tuple[PolicyWeights, ...]  # by group, [N, ...]
    env_params: PyTree
    env: Mapping[str, Any]  # what makes it again, from `env_of`


def env_of(config: Any, env_args: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """What makes a configuration's environment again; the name is None where it is an object."""
    name = config.env if isinstance(config.env, str) else None
    return {"env": name, "env_args": {**dict(config.env_args), **env_args}}


@dataclass(frozen=True)
class EpisodeRange:
    """Which episodes of a seed, played how."""

    seed: int = 0
    first: int = 0
    number: int = 10
    explore: bool = False


class SampledBatch(NamedTuple):
    """Episodes that were played side by side."""

    episodes: list[Episode]
    finished: EpisodeStats  # [E], of the same


def sample_batches(players: Players, wanted: EpisodeRange) -> Iterator[SampledBatch]:
    """Plays whole episodes, those that `evaluate` counts, and makes objects of them."""
    spec = players.algorithm.rollout_spec
    params = named_arrays(strongly_typed(players.env_params))
    params = {name: leaf.tolist() for name, leaf in params.items()}
    number = wanted.first
    for batch in record_batches(players, wanted):
        episodes = list(_episodes_of(spec, batch))
        for episode in episodes:
            origin = {**players.env, "env_params": params, "seed": wanted.seed, "episode": number}
            episode.custom_data[ORIGIN] = origin
            number += 1
        yield SampledBatch(episodes, batch.finished)


def record_batches(players: Players, wanted: EpisodeRange) -> Iterator[PlayedBatch]:
    """Plays the episodes; `_RecordedStep`s in arrays."""
    game = make_game(players.weights, players.env_params, wanted.seed)
    play = PlaySpec(players.algorithm.rollout_spec, wanted.explore, _recorded_step)
    return play_batches(play, game, wanted.first, wanted.number)


class _GroupStep(NamedTuple):
    """What policies of one group did in a step, [E, N, M, ...]; in an episode [T, N, M, ...]."""

    obs: PyTree  # that the step reached
    action: PyTree
    outputs: dict[str, PyTree]


class _RecordedStep(NamedTuple):
    """A step of E environments, [E, ...]; of one episode, [T, ...]."""

    groups: tuple[_GroupStep, ...]
    reward: jax.Array  # f32[E, M]
    active: jax.Array  # bool[E, M]
    terminated: jax.Array  # bool[E, M]
    truncated: jax.Array  # bool[E, M]
    all_terminated: jax.Array  # bool[E]


def _recorded_step(spec: RolloutSpec, outputs: list[PolicyOutput], raw: RawStep) -> _RecordedStep:
    reached = spec.grouping.gather(raw.obs)
    groups = tuple(map(_group_step, spec.policy_specs, outputs, reached))
    return _RecordedStep(
        jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), groups),
        raw.reward,
        raw.active,
        raw.terminated,
        raw.truncated,
        raw.all_terminated,
    )


def _group_step(policy_spec: PolicySpec, output: PolicyOutput, obs: PyTree) -> _GroupStep:
    """[N, E, M, ...], under RLlib's names."""
    outputs = {
        "action_logp": output.distribution.log_prob(output.action),
        "vf_preds": output.value,
        "action_dist_inputs": dist_inputs(output.distribution),
    }
    env_action = policy_spec.to_env_action(output.action)
    if env_action is not output.action:
        outputs["actions_for_env"] = env_action
    if not isinstance(output.inputs.action_mask, tuple):
        outputs["action_mask"] = output.inputs.action_mask
    return _GroupStep(obs, output.action, outputs)


def _episodes_of(spec: RolloutSpec, batch: PlayedBatch) -> Iterator[Episode]:
    """The episodes of a batch as objects."""
    grouping = spec.grouping
    parts = [
        jax.tree.map(lambda leaf, count=count: leaf[:, :count], kept)
        for kept, count in zip(batch.kept, batch.num_steps, strict=True)
    ]
    steps = jax.tree.map(_joined, *parts)
    first = jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0)[:, None], batch.obs)
    obs = jax.tree.map(_joined, first, tuple(group.obs for group in steps.groups))
    # Flattened once: what is done for each episode is done thousands of times.
    flat = {
        agent: jax.tree.flatten(data) for agent, data in _by_agent(grouping, obs, steps).items()
    }
    facts = _facts(grouping)
    num_steps = len(steps.reward[0])
    for e, length in enumerate(batch.finished.length.tolist()):
        beyond = num_steps - length
        arrays = {}
        for agent, (leaves, structure) in flat.items():
            # Copies: an episode keeps its steps in memory, and nothing else of the batch.
            rows = [leaf[e, : leaf.shape[1] - beyond].copy() for leaf in leaves]
            arrays[agent] = structure.unflatten(rows)
        if isinstance(spec.env, Solo):
            (agent,) = grouping.agents
            yield single_agent_episode(arrays[agent], facts[agent])
        else:
            yield multi_agent_episode(arrays, facts, bool(steps.all_terminated[e, length - 1]))


def _joined(*parts: np.ndarray) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _by_agent(
    grouping: Grouping, obs: tuple[PyTree, ...], steps: _RecordedStep
) -> dict[AgentId, AgentArrays]:
    """Arrays of E episodes, [E, T, N, M, ...] by group, by agent in the environment's order."""
    by_group = {}
    for group, agents_obs, step in zip(grouping.groups, obs, steps.groups, strict=True):
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                only = lambda leaf, i=i, j=j: leaf[:, :, i, j]
                by_group[agent] = jax.tree.map(only, (agents_obs, step))
    by_agent = {}
    for place, agent in enumerate(grouping.agents):
        agents_obs, step = by_group[agent]
        by_agent[agent] = AgentArrays(
            agents_obs,
            step.action,
            steps.reward[..., place],
            steps.active[..., place],
            steps.terminated[..., place],
            steps.truncated[..., place],
            step.outputs,
        )
    return by_agent


def _facts(grouping: Grouping) -> dict[AgentId, AgentFacts]:
    facts = {}
    for group in grouping.groups:
        for policy, agents in zip(group.policies, group.agents, strict=True):
            for agent in agents:
                facts[agent] = AgentFacts(policy, group.observation_space, group.action_space)
    return facts
