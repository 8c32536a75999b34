"""A whole episode as it looked along the way, for those who follow one that has ended."""

from bisect import bisect_right
from collections.abc import Iterator

from jaxrl.episodes.agents_data import Timeline
from jaxrl.episodes.by_agent import Episode
from jaxrl.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode, output_column


def growth_of(whole: Episode) -> Iterator[Episode]:
    """One object that grows: it is given before the reset, after the reset and after each step.

    It has the `custom_data` of the whole episode, which must begin with its reset, and views of its
    arrays: after `to_numpy` a step costs nothing that grows with the episode.
    """
    if isinstance(whole, MultiAgentEpisode):
        part = MultiAgentEpisode(
            whole.id_,
            observation_space=whole.observation_space,
            action_space=whole.action_space,
            agent_module_ids={agent: whole.module_for(agent) for agent in whole.agent_episodes},
        )
        grow = _grow_together
    else:
        part, grow = _begun(whole), _grow
    part.custom_data = whole.custom_data
    yield part
    for steps in range(len(whole) + 1):
        grow(part, whole, steps)
        yield part


def _begun(whole: SingleAgentEpisode) -> SingleAgentEpisode:
    """The episode before its reset."""
    return SingleAgentEpisode(
        whole.id_,
        observation_space=whole.observation_space,
        action_space=whole.action_space,
        agent_id=whole.agent_id,
        module_id=whole.module_id,
        multi_agent_episode_id=whole.multi_agent_episode_id,
    )


def _grow(part: SingleAgentEpisode, whole: SingleAgentEpisode, steps: int) -> None:
    part.observations.data = whole.observations.view(0, steps + 1)
    part.actions.data = whole.actions.view(0, steps)
    part.rewards.data = whole.rewards.view(0, steps)
    for key, column in whole.extra_model_outputs.items():
        output = part.extra_model_outputs.setdefault(key, output_column(key))
        output.data = column.view(0, steps)
    part.infos.data += whole.infos.data[len(part.infos) : steps + 1]
    is_end = steps == len(whole)
    part.is_terminated = whole.is_terminated and is_end
    part.is_truncated = whole.is_truncated and is_end


def _grow_together(part: MultiAgentEpisode, whole: MultiAgentEpisode, steps: int) -> None:
    part.env_t = steps
    part._early_rewards = dict(whole._early_rewards) if steps else {}
    for agent, episode in whole.agent_episodes.items():
        times = whole._timelines[agent].times
        last = bisect_right(times, steps) - 1
        if last >= 0:
            if agent not in part.agent_episodes:
                part.agent_episodes[agent] = _begun(episode)
            _grow(part.agent_episodes[agent], episode, last)
            timeline = part._timelines.setdefault(agent, Timeline())
            timeline.times += times[len(timeline.times) : last + 1]
            timeline.pending, timeline.waiting_reward = whole.waiting_at(agent, last, steps)
    is_end = steps == len(whole)
    part.is_terminated = whole.is_terminated and is_end
    part.is_truncated = whole.is_truncated and is_end
