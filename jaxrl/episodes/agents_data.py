"""The data of several agents on the environment's clock: read and rewritten by agent."""

from bisect import bisect_left
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxrl.core.errors import brief
from jaxrl.episodes.column import Column, Indices, Positions, locate
from jaxrl.episodes.env_step import EVERYONE, Pending
from jaxrl.episodes.episode import Episode
from jaxrl.episodes.errors import EpisodeError, EpisodeIndexError, unknown
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode, Steps, output_column
from jaxrl.episodes.values import Nested

AgentID = Any
NO_STEP = "S"  # RLlib's mark of an environment step in which an agent has no observation
AFTER_STEPS = ("observations", "infos")  # columns with a value after the last step too
AgentIDs = AgentID | list[AgentID] | tuple[AgentID, ...] | set[AgentID] | None


@dataclass
class Timeline:
    """The places of an agent's data among the environment's steps."""

    times: list[int] = field(default_factory=list)  # the environment step of each observation
    pending: Pending | None = None  # its action since the last observation
    waiting_reward: float = 0.0  # its rewards since the last observation

    def get_state(self) -> dict[str, Any]:
        return {**vars(self), "times": list(self.times), "pending": deepcopy(self.pending)}

    @staticmethod
    def from_state(state: dict[str, Any]) -> "Timeline":
        return Timeline(list(state["times"]), deepcopy(state["pending"]), state["waiting_reward"])


class AgentsData(Episode):
    """An episode's agents, each with a `SingleAgentEpisode`, and where their steps are in time."""

    agent_episodes: dict[AgentID, SingleAgentEpisode]
    env_t_started: int  # the environment step of index 0
    env_t: int  # the environment step that was reached
    _lookback: int  # environment steps before index 0
    _timelines: dict[AgentID, Timeline]
    _early_rewards: dict[AgentID, float]  # before an agent's first observation

    # Sizes and flags

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have had an observation."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        """The id of each agent's `SingleAgentEpisode`."""
        return {agent: episode.id_ for agent, episode in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        """The number of steps that each agent had taken before this chunk."""
        return {agent: episode.t_started for agent, episode in self.agent_episodes.items()}

    @property
    def is_reset(self) -> bool:
        """True if an agent has an observation."""
        return bool(self.agent_episodes)

    @property
    def begins_with_reset(self) -> bool:
        """True if step 0 is the first of the whole episode."""
        return self.env_t_started == 0 and not self._lookback

    @property
    def is_numpy(self) -> bool:
        """True if the agents' data are arrays, since `to_numpy`."""
        episodes = self.agent_episodes.values()
        return bool(episodes) and all(episode.is_numpy for episode in episodes)

    def __len__(self) -> int:
        """The number of environment steps, without the lookback."""
        return self.env_t - self.env_t_started

    def agent_steps(self) -> int:
        """The sum of the agents' steps."""
        return sum(map(len, self.agent_episodes.values()))

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """The sum of all agents' rewards in completed steps.

        Args:
            include_hanging_rewards: those too that belong to no step: an agent's since its last
                observation, and before its first.
        """
        rewards = [episode.get_return() for episode in self.agent_episodes.values()]
        if include_hanging_rewards:
            rewards += [timeline.waiting_reward for timeline in self._timelines.values()]
            rewards += self._early_rewards.values()
        return sum(rewards)

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Flags that say whether each agent has terminated, and "__all__"."""
        flags = {agent: episode.is_terminated for agent, episode in self.agent_episodes.items()}
        return flags | {EVERYONE: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Flags that say whether each agent was truncated, and "__all__"."""
        flags = {agent: episode.is_truncated for agent, episode in self.agent_episodes.items()}
        return flags | {EVERYONE: self.is_truncated}

    def get_agents_that_stepped(self) -> set[AgentID]:
        """The agents that have an observation of the last environment step."""
        return {
            agent for agent, timeline in self._timelines.items() if timeline.times[-1] == self.env_t
        }

    def observation_times(self, agent_id: AgentID) -> list[int]:
        """The environment steps of all of an agent's observations; 0 is the reset."""
        self._episode_of(agent_id)
        return list(self._timelines[agent_id].times)

    @property
    def env_t_to_agent_t(self) -> Mapping[AgentID, tuple[int | str, ...]]:
        """The number of each agent's own step at every environment step, without the lookback.

        "S" stands where it has no observation, as in RLlib. A copy, to be read alone.
        """
        found = {}
        for agent, episode in self.agent_episodes.items():
            times = self._timelines[agent].times
            agent_t = dict(zip(times, count(episode.t_started - episode.rewards.lookback)))
            steps = range(self.env_t_started, self.env_t + 1)
            found[agent] = tuple(agent_t.get(step, NO_STEP) for step in steps)
        return MappingProxyType(found)

    def get_agents_to_act(self) -> set[AgentID]:
        """The agents that have an observation of the last environment step and go on."""
        stepped = self.get_agents_that_stepped()
        return {agent for agent in stepped if not self.agent_episodes[agent].is_done}

    # Reading

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> dict | list[dict]:
        """Observations by agent. The arguments of all getters:

        Args:
            indices: an integer, a list of integers or a slice, as `Column.get` takes them; None
                means all after the lookback.
            agent_ids: an agent or several; None means all.
            env_steps: whether the indices are environment steps. Agents without a value there are
                left out, or have `fill`. If False, they are each agent's own steps.
            neg_index_as_lookback, fill, one_hot_discrete: see `Column.get`.
            return_list: a list of dicts by agent, one for each environment step, instead of a dict
                of each agent's values; the dict of a step outside of the episode is empty.
        """
        options = _options(neg_index_as_lookback, fill, one_hot_discrete)
        columns = self._columns("observations", agent_ids)
        return self._read(columns, indices, env_steps, return_list, options)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> dict | list[dict]:
        """Infos by agent; see `get_observations` for the arguments."""
        columns = self._columns("infos", agent_ids)
        options = _options(neg_index_as_lookback, fill)
        return self._read(columns, indices, env_steps, return_list, options)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> dict | list[dict]:
        """Actions by agent, those too that wait; see `get_observations` for the arguments."""
        options = _options(neg_index_as_lookback, fill, one_hot_discrete)
        columns = self._columns("actions", agent_ids)
        return self._read(columns, indices, env_steps, return_list, options)

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> dict | list[dict]:
        """Rewards by agent, at their actions; see `get_observations` for the arguments."""
        columns = self._columns("rewards", agent_ids)
        options = _options(neg_index_as_lookback, fill)
        return self._read(columns, indices, env_steps, return_list, options)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> dict | list[dict]:
        """The models' outputs under a name, or under each name if it is None, by agent."""
        names, options = self._output_names(agent_ids), _options(neg_index_as_lookback, fill)

        def read(name):
            columns = self._columns(name, agent_ids, is_output=True)
            return self._read(columns, indices, env_steps, return_list, options)

        if key is not None:
            if key not in names:
                raise unknown("extra model output", key, names)
            return read(key)
        found = {name: read(name) for name in names}
        if not return_list:
            return _by_agent_then_name(found)
        steps = zip(*found.values(), strict=True)
        return [_by_agent_then_name(dict(zip(found, step, strict=True))) for step in steps]

    def _chosen(self, agent_ids: AgentIDs) -> list[AgentID]:
        if agent_ids is None:
            return list(self.agent_episodes)
        several = isinstance(agent_ids, list | tuple | set | frozenset)
        chosen = list(agent_ids) if several else [agent_ids]
        for agent in chosen:
            self._episode_of(agent)
        return chosen

    def _episode_of(self, agent: AgentID) -> SingleAgentEpisode:
        if agent not in self.agent_episodes:
            raise unknown("agent", agent, self.agent_episodes)
        return self.agent_episodes[agent]

    def _output_names(self, agent_ids: AgentIDs) -> list[str]:
        names = {}
        for agent in self._chosen(agent_ids):
            pending = self._timelines[agent].pending
            names |= dict.fromkeys(self.agent_episodes[agent].extra_model_outputs)
            names |= dict.fromkeys(pending.outputs if pending else ())
        return list(names)

    def _columns(
        self, what: str, agent_ids: AgentIDs, is_output: bool = False
    ) -> dict[AgentID, Column]:
        """A kind of data by agent, with that of an action that waits."""
        columns = {}
        for agent in self._chosen(agent_ids):
            episode, timeline = self.agent_episodes[agent], self._timelines[agent]
            pending, last = timeline.pending, None
            column = episode.extra_model_outputs.get(what) if is_output else getattr(episode, what)
            if pending is not None:
                if is_output:
                    last = pending.outputs.get(what)
                elif what == "actions":
                    last = pending.action
                elif what == "rewards":
                    last = timeline.waiting_reward
            if column is None and last is not None:
                column = output_column(what)
            if column is not None:
                columns[agent] = column if last is None else column.followed_by([last])
        return columns

    def _read(
        self,
        columns: dict[AgentID, Column],
        indices: Indices,
        env_steps: bool,
        return_list: bool,
        options: dict[str, Any],
    ) -> dict | list[dict]:
        is_several = indices is None or isinstance(indices, slice) or np.ndim(indices) > 0
        if return_list and not (is_several and env_steps):
            raise EpisodeError("return_list needs env_steps=True, and a list or slice of indices")
        if not env_steps:
            values = {agent: column.get(indices, **options) for agent, column in columns.items()}
            return {agent: value for agent, value in values.items() if not _is_empty_list(value)}
        if not self.is_reset:
            return [] if return_list else {}
        positions = self._env_positions(indices, columns, options, is_open=return_list)
        if not is_several:
            return self._at_env_step(columns, positions, options)
        if return_list:
            return [self._at_env_step(columns, position, options) for position in positions]
        found = {}
        for agent, column in columns.items():
            rows = self._rows(agent, column, positions)
            if options["fill"] is None:
                rows = [row for row in rows if row is not None]
            if rows:
                found[agent] = _take(column, rows, options)
        return found

    def _env_positions(
        self,
        indices: Indices,
        columns: dict[AgentID, Column],
        options: dict[str, Any],
        is_open: bool,
    ) -> Positions:
        """The positions of environment steps, counted from the beginning of the lookback.

        Args:
            is_open: whether they may be outside of the episode, where `fill` is not given either.
        """
        is_after = any(column.name in AFTER_STEPS for column in columns.values())
        total = self._lookback + len(self) + is_after
        is_open = is_open or options["fill"] is not None
        positions = locate(
            indices,
            self._lookback,
            total,
            neg_index_as_lookback=options["neg_index_as_lookback"],
            extend=is_open,
        )
        is_outside = positions is None or (isinstance(positions, list) and None in positions)
        if is_outside and not is_open:
            raise EpisodeIndexError(
                f"episode {self.id_} has no environment step {brief(indices)}: "
                f"{total - self._lookback} are there, and {self._lookback} in the lookback"
            )
        return positions

    def _at_env_step(
        self, columns: dict[AgentID, Column], position: int | None, options: dict[str, Any]
    ) -> dict[AgentID, Nested]:
        found = {}
        for agent, column in columns.items():
            row = self._row(agent, column, position)
            if row is not None or options["fill"] is not None:
                found[agent] = _take(column, row, options)
        return found

    def _row(self, agent: AgentID, column: Column, position: int | None) -> int | None:
        """The row of a column that belongs to an environment step; None if there is none."""
        if position is None:
            return None
        times = self._timelines[agent].times
        time = self.env_t_started - self._lookback + position
        row = bisect_left(times, time)
        if row < min(len(times), column.len_incl_lookback()) and times[row] == time:
            return row
        return None

    def _rows(
        self, agent: AgentID, column: Column, positions: list[int | None] | range
    ) -> list[int | None]:
        """`_row` of each of many environment steps."""
        begin = self.env_t_started - self._lookback
        times = self._timelines[agent].times[: column.len_incl_lookback()]
        row_at = {time - begin: row for row, time in enumerate(times)}
        return [row_at.get(position) for position in positions]

    # Rewriting: the indices are each agent's own steps

    def set_observations(self, *, new_data: dict[AgentID, Steps], **where: Any) -> None:
        """Overwrites observations of agents; `where` as `SingleAgentEpisode.set_observations`."""
        for episode, data in self._with_new(new_data):
            episode.set_observations(new_data=data, **where)

    def set_actions(self, *, new_data: dict[AgentID, Steps], **where: Any) -> None:
        """Overwrites actions of agents."""
        for episode, data in self._with_new(new_data):
            episode.set_actions(new_data=data, **where)

    def set_rewards(self, *, new_data: dict[AgentID, Steps], **where: Any) -> None:
        """Overwrites rewards of agents."""
        for episode, data in self._with_new(new_data):
            episode.set_rewards(new_data=data, **where)

    def set_extra_model_outputs(
        self, *, key: str, new_data: dict[AgentID, Steps], **where: Any
    ) -> None:
        """Overwrites what the models put out under a name."""
        for episode, data in self._with_new(new_data):
            episode.set_extra_model_outputs(key=key, new_data=data, **where)

    def _with_new(self, new_data: dict[AgentID, Steps]) -> list[tuple[SingleAgentEpisode, Steps]]:
        return [(self._episode_of(agent), data) for agent, data in new_data.items()]


def _options(neg_index_as_lookback: bool, fill: Any, one_hot_discrete: bool = False) -> dict:
    return {
        "neg_index_as_lookback": neg_index_as_lookback,
        "fill": fill,
        "one_hot_discrete": one_hot_discrete,
    }


def _take(column: Column, positions: Positions, options: dict[str, Any]) -> Nested:
    return column.take(positions, options["fill"], options["one_hot_discrete"])


def _is_empty_list(value: list | Nested) -> bool:
    return isinstance(value, list) and not value


def _by_agent_then_name(by_name: dict[str, dict[AgentID, Any]]) -> dict[AgentID, dict[str, Any]]:
    by_agent: dict[AgentID, dict[str, Any]] = {}
    for name, values in by_name.items():
        for agent, value in values.items():
            by_agent.setdefault(agent, {})[name] = value
    return by_agent
