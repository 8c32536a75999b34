"""The episode of several agents, which may act at different times, join late and leave early."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from jaxrl.core.errors import brief
from jaxrl.episodes.agents_data import AgentID, AgentsData, Timeline
from jaxrl.episodes.column import Column
from jaxrl.episodes.env_step import (
    EVERYONE,
    AgentStep,
    EnvStep,
    Pending,
    agent_step,
    as_flags,
    steps_of_lists,
    with_ends,
)
from jaxrl.episodes.episode import STARTED, as_lookback
from jaxrl.episodes.errors import EpisodeError
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl.episodes.values import Space, by_name


class MultiAgentEpisode(AgentsData):
    """An episode of several agents, or a chunk of one, with RLlib's names.

    Each agent has a `SingleAgentEpisode` in `agent_episodes`, whose steps are its own: from one
    of its observations to the next. An action is at the environment step of the observation that
    it answers. While an agent waits for its next observation its rewards add up, and count with
    that action. See docs/episodes.md.

    Args:
        observations, infos: n + 1 dicts by agent for n environment steps; agents that have no
            observation in a step are left out.
        actions, rewards, extra_model_outputs: n dicts by agent; `actions[i]` answer
            `observations[i]`. With n + 1 of them nobody has observed anything after the last.
        observation_space, action_space: spaces by agent.
        terminateds, truncateds: how agents have ended, and "__all__"; or a bool for all. An agent
            that no longer acts, while others go on, has terminated.
        env_t_started, agent_t_started: the step at which this chunk starts; for each agent.
        len_lookback_buffer: how many of the environment steps are lookback; "auto" means all.
        agent_to_module_mapping_fn: `(agent, episode) -> module`; without it, and for agents that
            `agent_module_ids` leaves out, "default_policy".
    """

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: list[dict] | None = None,
        observation_space: Space = None,
        infos: list[dict] | None = None,
        actions: list[dict] | None = None,
        action_space: Space = None,
        rewards: list[dict] | None = None,
        terminateds: dict[AgentID, bool] | bool = False,
        truncateds: dict[AgentID, bool] | bool = False,
        extra_model_outputs: list[dict] | None = None,
        env_t_started: int | None = None,
        agent_t_started: dict[AgentID, int] | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_episode_ids: dict[AgentID, str] | None = None,
        agent_module_ids: dict[AgentID, str] | None = None,
        agent_to_module_mapping_fn: Callable[[AgentID, "MultiAgentEpisode"], str] | None = None,
    ):
        super().__init__(id_)
        STARTED("env_t_started", env_t_started)
        by_name("agent_t_started", agent_t_started)
        self.observation_space = _by_agent(observation_space)
        self.action_space = _by_agent(action_space)
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self.agent_episodes = {}
        self.is_terminated = self.is_truncated = False
        self._modules = dict(agent_module_ids or {})
        self._timelines = {}
        self._early_rewards = {}
        steps = steps_of_lists(observations, infos, actions, rewards, extra_model_outputs)
        self._lookback = as_lookback(len_lookback_buffer, max(len(steps) - 1, 0))
        self.env_t_started = env_t_started or 0
        self.env_t = self.env_t_started - self._lookback
        ends = as_flags("terminateds", terminateds), as_flags("truncateds", truncateds)
        self._record(steps, *ends)
        for agent, episode in self.agent_episodes.items():
            before = bisect_left(self._timelines[agent].times, self.env_t_started)
            episode.set_lookback(before)
            episode.t_started = (agent_t_started or {}).get(agent, 0)
            episode.id_ = (agent_episode_ids or {}).get(agent, episode.id_)

    def _record(self, steps: list[EnvStep], terminateds: dict, truncateds: dict) -> None:
        """Records whole lists; the flags tell how agents ended, and the lists when."""
        if not steps:
            self.is_terminated = terminateds.get(EVERYONE, False)
            self.is_truncated = truncateds.get(EVERYONE, False)
            return
        steps = with_ends(steps, terminateds, truncateds)
        self._begin(steps[0])
        for step in steps[1:]:
            self._step(step)
        last = steps[-1]
        self._end(last.terminateds.get(EVERYONE, False), last.truncateds.get(EVERYONE, False))

    def module_for(self, agent_id: AgentID) -> str:
        """The module (policy) of an agent, which stays the same for the episode."""
        if agent_id not in self._modules:
            mapping = self.agent_to_module_mapping_fn
            self._modules[agent_id] = mapping(agent_id, self) if mapping else "default_policy"
        return self._modules[agent_id]

    # Recording

    def add_env_reset(self, *, observations: dict, infos: dict | None = None) -> None:
        """Records what the environment's `reset` returned, by agent."""
        self._check_growing()
        if self.is_reset or self.env_t != 0 or self.env_t_started != 0:
            raise EpisodeError(f"episode {self.id_} has begun: add_env_reset comes first, and once")
        self._begin(EnvStep(observations, None, None, infos).present())
        self._tick(is_step=False)

    def _begin(self, step: EnvStep) -> None:
        for agent, observation in step.observations.items():
            self._space_check(agent, observation)
        for agent, observation in step.observations.items():
            self._join(agent, AgentStep("joins", 0.0, observation, step.infos.get(agent)))

    def add_env_step(
        self,
        observations: dict,
        actions: dict,
        rewards: dict,
        infos: dict | None = None,
        *,
        terminateds: dict[AgentID, bool] | None = None,
        truncateds: dict[AgentID, bool] | None = None,
        extra_model_outputs: dict[AgentID, dict] | None = None,
    ) -> None:
        """Records the agents' actions and what the environment's `step` returned to them.

        A refused step changes nothing.

        Args:
            terminateds, truncateds: by agent; "__all__" ends the episode for all. It ends too when
                no agent is left.
            extra_model_outputs: a dict by name for each agent that acts.
        """
        self._check_growing()
        step = EnvStep(
            observations, actions, rewards, infos, terminateds, truncateds, extra_model_outputs
        ).present()
        self._step(step)
        self._end(step.terminateds.get(EVERYONE, False), step.truncateds.get(EVERYONE, False))
        self._tick()

    def _step(self, step: EnvStep) -> None:
        everyone = step.terminateds.get(EVERYONE) or step.truncateds.get(EVERYONE)
        named = dict.fromkeys(self.agent_episodes) if everyone else {}
        for part in (step.observations, step.actions, step.rewards):
            named |= dict.fromkeys(part)
        named |= dict.fromkeys([*step.terminateds, *step.truncateds])
        named.pop(EVERYONE, None)
        found = {}
        for agent in named:
            pending = self._timelines[agent].pending if agent in self._timelines else None
            found[agent] = agent_step(agent, step, self.agent_episodes.get(agent), pending)
            if found[agent].kind == "joins":
                self._space_check(agent, found[agent].observation)
        self.env_t += 1
        for agent, agents_step in found.items():
            self._apply(agent, agents_step)

    def _apply(self, agent: AgentID, step: AgentStep) -> None:
        if step.kind in ("absent", "joins"):
            if step.reward:
                self._early_rewards[agent] = self._early_rewards.get(agent, 0.0) + step.reward
            if step.kind == "joins":
                self._join(agent, step)
            return
        episode, timeline = self.agent_episodes[agent], self._timelines[agent]
        timeline.pending = step.pending
        timeline.waiting_reward += step.reward
        if step.kind == "steps":
            self._complete(agent, step.observation, step.info)
        episode.is_terminated, episode.is_truncated = step.terminated, step.truncated

    def _complete(self, agent: AgentID, observation: Any, info: dict | None) -> None:
        """Ends the step of an agent that waits by its observation of this environment step."""
        timeline = self._timelines[agent]
        self.agent_episodes[agent].add_env_step(
            observation,
            timeline.pending.action,
            timeline.waiting_reward,
            info,
            extra_model_outputs=timeline.pending.outputs,
        )
        timeline.times.append(self.env_t)
        timeline.pending, timeline.waiting_reward = None, 0.0

    def _join(self, agent: AgentID, step: AgentStep) -> None:
        episode = SingleAgentEpisode(
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=self.observation_space.get(agent),
            action_space=self.action_space.get(agent),
        )
        episode.add_env_reset(step.observation, step.info)
        self.agent_episodes[agent] = episode
        self._timelines[agent] = Timeline([self.env_t])

    def _space_check(self, agent: AgentID, observation: Any) -> None:
        Column(None, 0, self.observation_space.get(agent), "observations").check(observation)

    def _end(self, terminated: bool, truncated: bool) -> None:
        """Sets the flags of the episode, which ends as well when its last agent has."""
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        episodes = self.agent_episodes.values()
        if not self.is_done and episodes and all(episode.is_done for episode in episodes):
            self.is_terminated = any(episode.is_terminated for episode in episodes)
            self.is_truncated = not self.is_terminated

    def validate(self) -> None:
        """Raises EpisodeError where the data of an agent do not fit together."""
        for agent, episode in self.agent_episodes.items():
            episode.validate()
            times, count = self._timelines[agent].times, episode.observations.len_incl_lookback()
            if len(times) != count or times != sorted(set(times)) or times[-1] > self.env_t:
                raise EpisodeError(
                    f"agent {agent!r}: {count} observations at environment steps {brief(times)}"
                )

    # Chunks

    def to_numpy(self) -> "MultiAgentEpisode":
        """Makes arrays of the agents' lists, with their steps as first axis."""
        for episode in self.agent_episodes.values():
            episode.to_numpy()
        self._temporary.clear()
        return self

    def cut(self, len_lookback_buffer: int = 0) -> "MultiAgentEpisode":
        """The empty chunk that continues this one.

        Actions that wait for an observation go along, with their rewards so far.

        Args:
            len_lookback_buffer: how many environment steps it may look back: fewer where there are
                fewer, more where an agent that goes on had its last observation earlier.
        """
        if self.is_done:
            raise EpisodeError(f"episode {self.id_} has ended: nothing follows to be cut off")
        going_on = (agent for agent, episode in self.agent_episodes.items() if not episode.is_done)
        last = min((self._timelines[agent].times[-1] for agent in going_on), default=self.env_t)
        length = self._wanted_lookback(len_lookback_buffer)
        lookback = max(min(length, self._lookback + len(self)), self.env_t - last)
        successor = self._window(self.env_t, self.env_t, lookback)
        successor.custom_data = deepcopy(self.custom_data)
        successor._last_time = self._last_time
        return successor

    def slice(
        self, slice_: slice, *, len_lookback_buffer: int | None = None
    ) -> "MultiAgentEpisode":
        """A copy of the environment steps of a slice, with the observations after the last one.

        An agent's step that begins in the slice and ends after it waits in the copy, with all of
        its reward; one that begins before the slice and its lookback is left out.

        Args:
            len_lookback_buffer: the lookback in front, in environment steps, as far as the episode
                has it; None means as long as this episode's.
        """
        start, stop = self._bounds(slice_)
        length = self._wanted_lookback(len_lookback_buffer)
        lookback = min(length, self._lookback + start)
        return self._window(self.env_t_started + start, self.env_t_started + stop, lookback)

    def _wanted_lookback(self, length: int | None) -> int:
        lookback = self._lookback if length is None else length
        if not isinstance(lookback, int) or lookback < 0:
            raise EpisodeError(f"len_lookback_buffer is 0 or more, not {brief(length)}")
        return lookback

    def _window(self, start: int, stop: int, lookback: int) -> "MultiAgentEpisode":
        """A copy of what happened from one environment step to another."""
        chunk = MultiAgentEpisode(
            self.id_,
            observation_space=self.observation_space,
            action_space=self.action_space,
            env_t_started=start,
            agent_module_ids=self._modules,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
        )
        chunk.env_t, chunk._lookback = stop, lookback
        if start == self.env_t_started and stop > start:
            chunk._early_rewards = dict(self._early_rewards)
        if stop == self.env_t:
            chunk.is_terminated, chunk.is_truncated = self.is_terminated, self.is_truncated
        for agent, episode in self.agent_episodes.items():
            times = self._timelines[agent].times
            first, last = bisect_left(times, start - lookback), bisect_right(times, stop) - 1
            part = episode.window(first, last, 0) if first <= last else None
            if part is None or (part.is_done and first == last and times[last] <= start):
                continue  # no observation, or only the end of what was before
            before = min(bisect_left(times, start) - first, last - first)
            part.set_lookback(before)
            part.t_started += before
            chunk.agent_episodes[agent] = part
            waiting = self.waiting_at(agent, last, stop)
            chunk._timelines[agent] = Timeline(times[first : last + 1], *waiting)
        return chunk

    def waiting_at(self, agent: AgentID, last: int, stop: int) -> tuple[Pending | None, float]:
        """The action on an agent's observation `last`, and its rewards, as they wait at `stop`."""
        episode, timeline = self.agent_episodes[agent], self._timelines[agent]
        if last + 1 == len(timeline.times):
            is_now = stop == self.env_t or timeline.times[-1] < stop
            return (timeline.pending, timeline.waiting_reward) if is_now else (None, 0.0)
        if timeline.times[last] == stop:
            return None, 0.0
        outputs = {key: col.take(last) for key, col in episode.extra_model_outputs.items()}
        pending = Pending(episode.actions.take(last), outputs)
        return pending, float(episode.rewards.take(last))

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Appends the chunk that follows this one, without its lookback.

        It may be made by `cut` or by `slice`: `episode[:k]` and `episode[k:]` give `episode`.
        """
        self._check_next_chunk(other, (self.env_t, getattr(other, "env_t_started", None)))
        joined = {}
        for agent, episode in other.agent_episodes.items():
            had_ended = episode.is_done and not len(episode)
            if agent in self.agent_episodes:
                had_ended = self.agent_episodes[agent].is_done
            if not had_ended:
                joined[agent] = self._joined(agent, other)
        for agent, (episode, timeline) in joined.items():
            self.agent_episodes[agent], self._timelines[agent] = episode, timeline
        for agent, reward in other._early_rewards.items():
            self._early_rewards[agent] = self._early_rewards.get(agent, 0.0) + reward
        self.env_t = other.env_t
        self._modules |= other._modules
        self._take_on(other)

    def _joined(
        self, agent: AgentID, other: "MultiAgentEpisode"
    ) -> tuple[SingleAgentEpisode, Timeline]:
        """An agent's data of both chunks."""
        added, later = other.agent_episodes[agent], other._timelines[agent]
        new_times = later.times[added.rewards.lookback :]
        earlier = self._timelines.get(agent)
        if earlier is None:
            first = added.rewards.lookback
            last = added.rewards.len_incl_lookback()
            return added.window(first, last, 0), Timeline(
                new_times, later.pending, later.waiting_reward
            )
        episode = self.agent_episodes[agent]
        episode = episode.window(0, episode.rewards.len_incl_lookback(), episode.rewards.lookback)
        if earlier.pending is not None and added.t_started == episode.t + 1:
            episode.add_env_step(  # its end is where the other chunk begins
                added.observations[0],
                earlier.pending.action,
                earlier.waiting_reward,
                added.infos[0],
                extra_model_outputs=earlier.pending.outputs,
            )
        else:
            new_times = new_times[1:]
        episode.concat_episode(added)
        times = [*earlier.times, *new_times]
        return episode, Timeline(times, later.pending, later.waiting_reward)

    # State

    def get_sample_batch(self) -> dict[AgentID, dict[str, Any]]:
        """The columns of `SingleAgentEpisode.get_sample_batch` of each agent that has a step."""
        agents = self.agent_episodes.items()
        return {agent: episode.get_sample_batch() for agent, episode in agents if len(episode)}

    def get_state(self) -> dict[str, Any]:
        """The episode as a dict for `from_state`: lists, arrays and numbers, to be pickled.

        The spaces, the mapping function and actions without an outcome are Python objects in it.
        """
        agents = {agent: episode.get_state() for agent, episode in self.agent_episodes.items()}
        return {**self.get_facts(), "agent_episodes": agents}

    def get_facts(self) -> dict[str, Any]:
        """`get_state` without the agents' own data."""
        return {
            "id_": self.id_,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "env_t_started": self.env_t_started,
            "env_t": self.env_t,
            "len_lookback_buffer": self._lookback,
            "terminated": self.is_terminated,
            "truncated": self.is_truncated,
            "timelines": {agent: line.get_state() for agent, line in self._timelines.items()},
            "early_rewards": dict(self._early_rewards),
            "agent_module_ids": dict(self._modules),
            "agent_to_module_mapping_fn": self.agent_to_module_mapping_fn,
            "custom_data": deepcopy(self.custom_data),
            "duration_s": self._duration_s,
        }

    @staticmethod
    def from_state(state: dict[str, Any], *, copy: bool = True) -> "MultiAgentEpisode":
        """The episode of a state that `get_state` gave; `copy` as of `SingleAgentEpisode`."""
        try:
            episode = MultiAgentEpisode(
                state["id_"],
                observation_space=state["observation_space"],
                action_space=state["action_space"],
                env_t_started=state["env_t_started"],
                agent_module_ids=state["agent_module_ids"],
                agent_to_module_mapping_fn=state["agent_to_module_mapping_fn"],
            )
            episode.env_t, episode._lookback = state["env_t"], state["len_lookback_buffer"]
            episode.is_terminated, episode.is_truncated = state["terminated"], state["truncated"]
            for agent, agent_state in state["agent_episodes"].items():
                episode.agent_episodes[agent] = SingleAgentEpisode.from_state(
                    agent_state, copy=copy
                )
                episode._timelines[agent] = Timeline.from_state(state["timelines"][agent])
            episode._early_rewards = dict(state["early_rewards"])
            episode.custom_data = deepcopy(state["custom_data"])
            episode._duration_s = state["duration_s"]
        except (KeyError, TypeError) as error:
            raise EpisodeError(f"not the state of a MultiAgentEpisode: {error}") from None
        episode.validate()
        return episode

    def print(self) -> None:
        """Prints a table of the agents' observations: a row for each agent, x where it has one."""
        begin = self.env_t_started - self._lookback
        steps = range(begin, self.env_t + 1)
        cell = len(str(self.env_t)) + 1
        label = max(map(len, ["env_t", *map(str, self.agent_episodes)]))
        print(f"{'env_t':<{label}}" + "".join(f"{step:>{cell}}" for step in steps))
        for agent, timeline in self._timelines.items():
            marks = "".join(f"{'x' if step in timeline.times else '.':>{cell}}" for step in steps)
            print(f"{agent!s:<{label}}{marks}")

    def __repr__(self):
        returns = {agent: episode.get_return() for agent, episode in self.agent_episodes.items()}
        return (
            f"MultiAgentEpisode(id_={self.id_}, len={len(self)}, returns={returns}, "
            f"done={self.is_done})"
        )


def _by_agent(spaces: Space) -> dict[AgentID, Space]:
    """A Dict space, or a dict of spaces, as a dict."""
    spaces = getattr(spaces, "spaces", spaces)
    if spaces is not None and not isinstance(spaces, Mapping):
        raise EpisodeError(f"the spaces of several agents are a dict by agent, not {brief(spaces)}")
    return dict(spaces or {})
