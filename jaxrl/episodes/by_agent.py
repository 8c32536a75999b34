"""Episodes of one agent and of several, read alike: each agent's steps, and when they were."""

import numpy as np

from jaxrl.episodes.agents_data import AgentID
from jaxrl.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode

Episode = SingleAgentEpisode | MultiAgentEpisode
ALONE: AgentID = "default_agent"


def agents_of(episode: Episode) -> dict[AgentID, tuple[SingleAgentEpisode, np.ndarray]]:
    """{agent: (its data, the environment steps of its k + 1 observations, i64[k + 1])}."""
    if isinstance(episode, SingleAgentEpisode):
        return {ALONE: (episode, np.arange(len(episode) + 1))}
    agents = {}
    for agent, data in episode.agent_episodes.items():
        agents[agent] = data, np.array(episode.observation_times(agent))
    return agents
