"""Episodes made at once of whole arrays: what each agent saw and did in T environment steps.

The arrays become the episode's own, and are not copied.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.agent_steps import AgentSteps
from jaxrl.episodes.agents_data import AgentID
from jaxrl.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl.episodes.values import Space, map_nested


class AgentFacts(NamedTuple):
    """Facts that are the same in all episodes of an agent."""

    module_id: str
    observation_space: Space = None
    action_space: Space = None


def single_agent_episode(arrays: AgentSteps, facts: AgentFacts) -> SingleAgentEpisode:
    """A whole episode of an agent that acted in each step."""
    episode = SingleAgentEpisode(
        observations=arrays.obs,
        actions=arrays.action,
        rewards=arrays.reward,
        terminated=arrays.terminated[-1],
        truncated=arrays.truncated[-1],
        extra_model_outputs=arrays.outputs,
        len_lookback_buffer=0,
        copy=False,
    )
    _set_spaces(episode, facts)
    return episode


def multi_agent_episode(
    arrays: Mapping[AgentID, AgentSteps], facts: Mapping[AgentID, AgentFacts], terminated: bool
) -> MultiAgentEpisode:
    """A whole episode of several agents.

    An agent has an observation wherever it acts, and a last one where it ends, or where the episode
    does. Of one that never acts there is nothing but its rewards.

    Args:
        terminated: how the episode ended: terminated, or else truncated.
    """
    id_, agents, timelines, early_rewards = uuid.uuid4().hex, {}, {}, {}
    for agent, data in arrays.items():
        acted = np.flatnonzero(data.active)
        early = data.reward[: acted[0]] if len(acted) else data.reward
        if early.any():
            early_rewards[agent] = float(early.sum(dtype=np.float64))
        if len(acted):
            times, state = _agents_steps(data, acted, terminated)
            names = {"agent_id": agent, "multi_agent_episode_id": id_}
            agents[agent] = state | names | {"module_id": facts[agent].module_id}
            timelines[agent] = {"times": times, "pending": None, "waiting_reward": 0.0}
    modules, observation_spaces, action_spaces = {}, {}, {}
    for agent, of_agent in facts.items():
        modules[agent] = of_agent.module_id
        observation_spaces[agent] = of_agent.observation_space
        action_spaces[agent] = of_agent.action_space
    episode = MultiAgentEpisode.from_state(
        {
            "id_": id_,
            "observation_space": observation_spaces,
            "action_space": action_spaces,
            "env_t_started": 0,
            "env_t": len(data.reward),
            "len_lookback_buffer": 0,
            "terminated": terminated,
            "truncated": not terminated,
            "agent_episodes": agents,
            "timelines": timelines,
            "early_rewards": early_rewards,
            "agent_module_ids": modules,
            "agent_to_module_mapping_fn": None,
            "custom_data": {},
            "duration_s": 0.0,
        },
        copy=False,
    )
    for agent, data in episode.agent_episodes.items():
        _set_spaces(data, facts[agent])
    return episode


def set_infos(
    episode: SingleAgentEpisode | MultiAgentEpisode, infos: Sequence[Mapping[AgentID, dict]]
) -> None:
    """Gives a whole episode the infos of its reset and of each step, by agent."""
    if isinstance(episode, MultiAgentEpisode):
        for agent, data in episode.agent_episodes.items():
            times = episode.observation_times(agent)
            data.infos.data = [infos[time].get(agent) or None for time in times]
        return
    episode.infos.data = [next(iter(of_step.values()), None) or None for of_step in infos]


def rewards_of_actions(rewards: np.ndarray, acted: np.ndarray) -> np.ndarray:
    """An agent's reward from each of its actions until before the next, in the same type.

    Args:
        rewards: of all steps, [T].
        acted: the steps of its actions, [K].
    """
    return np.add.reduceat(rewards, acted, dtype=np.float64).astype(rewards.dtype)


def _set_spaces(episode: SingleAgentEpisode, facts: AgentFacts) -> None:
    """Sets the spaces without a check: the outputs of the compiled program fit."""
    episode.observation_space, episode.action_space = facts.observation_space, facts.action_space


def _agents_steps(
    data: AgentSteps, acted: np.ndarray, terminated: bool
) -> tuple[list[int], dict[str, Any]]:
    """(the environment steps of an agent's observations, the state of its episode)."""
    last, is_terminated = len(data.reward), terminated
    ends = np.flatnonzero(data.terminated | data.truncated)
    if len(ends):
        last, is_terminated = int(ends[0]) + 1, bool(data.terminated[ends[0]])
    steps, rewards = acted, rewards_of_actions(data.reward, acted)
    times = np.append(acted, last)
    if acted[0] == 0 and len(acted) == last:  # it acted in each step: no copy is needed
        steps, times, rewards = slice(0, last), slice(0, last + 1), data.reward[:last]
    state = {
        "id_": None,
        "observations": map_nested(lambda leaf: leaf[times], data.obs),
        "actions": map_nested(lambda leaf: leaf[steps], data.action),
        "rewards": rewards,
        "extra_model_outputs": map_nested(lambda leaf: leaf[steps], data.outputs),
        "terminated": is_terminated,
        "truncated": not is_terminated,
        "len_lookback_buffer": 0,
        "custom_data": {},
        "duration_s": 0.0,
    }
    return [*acted.tolist(), last], state
