"""The episode of one agent: its observations, actions, rewards and what its model put out."""

from collections.abc import Hashable
from copy import deepcopy
from typing import Any

import numpy as np

from jaxrl.core.fields import flag, takes
from jaxrl.episodes.column import Column, Indices, Infos
from jaxrl.episodes.episode import STARTED, Episode, as_lookback, check_space
from jaxrl.episodes.errors import EpisodeError, unknown
from jaxrl.episodes.sample_batch import sample_batch
from jaxrl.episodes.values import (
    Nested,
    Space,
    as_flag,
    as_infos,
    as_reward,
    as_rewards,
    by_name,
    equal,
)

Steps = list | Nested  # a list of values, or arrays with the steps as first axis


class SingleAgentEpisode(Episode):
    """An episode of one agent, or a chunk of one, with RLlib's names.

    Step i is the action `actions[i]` on `observations[i]`, which gave `rewards[i]` and
    `observations[i + 1]`. So there is one observation (and info) more than there are steps.
    A chunk may begin with a lookback: the last steps of the chunk before, which index 0 and `len`
    leave out. See docs/episodes.md.

    Args:
        observations, infos: n + 1 values for n steps: a list, or arrays.
        actions, rewards: n values.
        extra_model_outputs: n values under each name, such as "action_logp".
        observation_space, action_space: of `jaxrl.core.spaces` or Gymnasium. Data must fit them.
        terminated, truncated: how the episode has ended.
        t_started: the step of the whole episode at which this chunk starts.
        len_lookback_buffer: how many of the given steps are lookback; "auto" means all.
        copy: whether the data are copied; False where nothing else changes them.
    """

    @takes(t_started=STARTED, copy=flag, observation_space=check_space, action_space=check_space)
    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Steps | None = None,
        observation_space: Space = None,
        infos: list[dict] | None = None,
        actions: Steps | None = None,
        action_space: Space = None,
        rewards: Steps | None = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Steps] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_id: Any = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
        copy: bool = True,
    ):
        super().__init__(id_)
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.is_terminated = as_flag("terminated", terminated)
        self.is_truncated = as_flag("truncated", truncated)
        self.t_started = t_started or 0
        self.observations = Column(observations, 0, observation_space, "observations", copy=copy)
        count = self.observations.len_incl_lookback()
        self.infos = Infos(as_infos(infos) or [None] * count, name="infos", copy=copy)
        self.actions = Column(actions, 0, action_space, "actions", copy=copy)
        self.rewards = Column(as_rewards(rewards), name="rewards", copy=copy)
        self.extra_model_outputs = {}
        for key, values in (by_name("extra_model_outputs", extra_model_outputs) or {}).items():
            self.extra_model_outputs[key] = output_column(key, values, copy=copy)
        if any(column.finalized for column in self._columns()):
            self.to_numpy()
        self.validate()
        self.set_lookback(len_lookback_buffer)

    def _columns(self) -> list[Column]:
        """The columns but the infos, which never become arrays."""
        return [self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()]

    def set_lookback(self, length: int | str) -> None:
        """Makes the first steps lookback, at most all of them; "auto" means all."""
        lookback = as_lookback(length, self.rewards.len_incl_lookback())
        for column in (*self._columns(), self.infos):
            column.lookback = lookback

    @property
    def t(self) -> int:
        """The step of the whole episode that was reached."""
        return self.t_started + len(self.rewards)

    @property
    def observation_space(self) -> Space:
        return self.observations.space

    @observation_space.setter
    def observation_space(self, space: Space) -> None:
        self.observations.space = space

    @property
    def action_space(self) -> Space:
        return self.actions.space

    @action_space.setter
    def action_space(self, space: Space) -> None:
        self.actions.space = space

    @property
    def is_reset(self) -> bool:
        """True if the episode has its first observation."""
        return self.observations.len_incl_lookback() > 0

    @property
    def begins_with_reset(self) -> bool:
        """True if step 0 is the first of the whole episode."""
        return self.t_started == 0 and not self.rewards.lookback

    @property
    def is_numpy(self) -> bool:
        """True if the data are arrays, since `to_numpy`."""
        return self.rewards.finalized

    def __len__(self) -> int:
        """The number of steps, without the lookback."""
        return len(self.rewards)

    def agent_steps(self) -> int:
        """The number of steps, as `env_steps`."""
        return len(self)

    def get_return(self) -> float:
        """The undiscounted sum of rewards, without the lookback."""
        return float(np.sum(self.rewards.view(), dtype=np.float64))

    # Recording

    def add_env_reset(self, observation: Nested, infos: dict | None = None) -> None:
        """Records what the environment's `reset` returned."""
        if self.is_reset or self.t_started:
            raise EpisodeError(f"episode {self.id_} has begun: add_env_reset comes first, and once")
        self._check_growing()
        self.observations.check(observation)
        self.observations.append(observation)
        self.infos.append(infos or None)
        self._tick(is_step=False)

    def add_env_step(
        self,
        observation: Nested,
        action: Nested,
        reward: float,
        infos: dict | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Nested] | None = None,
    ) -> None:
        """Records an action and what the environment's `step` returned to it.

        A refused step changes nothing.

        Args:
            extra_model_outputs: what the model put out with the action; the same names each time.
        """
        outputs = by_name("extra_model_outputs", extra_model_outputs) or {}
        ends = as_flag("terminated", terminated), as_flag("truncated", truncated)
        infos = by_name("infos", infos)
        self.check_step(observation, action, outputs)
        reward = as_reward(reward)
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        self.infos.append(infos or None)
        for key, value in outputs.items():
            if key not in self.extra_model_outputs:
                self.extra_model_outputs[key] = output_column(key)
            self.extra_model_outputs[key].append(value)
        self.is_terminated, self.is_truncated = ends
        self._tick()

    def check_step(self, observation: Nested, action: Nested, outputs: dict[str, Nested]) -> None:
        """Raises EpisodeError where a step does not fit the episode."""
        self._check_growing()
        if not self.is_reset:
            raise EpisodeError(f"episode {self.id_} has no first observation: call add_env_reset")
        self.observations.check(observation)
        self.actions.check(action)
        self._check_output_names(outputs)
        for key, value in outputs.items():
            if key in self.extra_model_outputs:
                self.extra_model_outputs[key].check(value)

    def _check_output_names(self, outputs: dict[str, Any]) -> None:
        earlier = self.extra_model_outputs.keys()
        if outputs.keys() != earlier and self.rewards.len_incl_lookback():
            names = f"{sorted(outputs)}, of earlier steps {sorted(earlier)}"
            raise EpisodeError(f"extra_model_outputs are {names}")

    def validate(self) -> None:
        """Raises EpisodeError where lengths, spaces or rewards do not fit together."""
        lengths = {column.name: column.len_incl_lookback() for column in self._columns()}
        observations = lengths.pop("observations")
        if observations != self.infos.len_incl_lookback():
            raise EpisodeError(
                f"episode {self.id_}: {observations} observations and "
                f"{self.infos.len_incl_lookback()} infos; each observation has one"
            )
        if set(lengths.values()) != {max(observations - 1, 0)}:
            counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise EpisodeError(
                f"episode {self.id_}: {observations} observations, {counts}; there must be one "
                "observation more than the others"
            )
        self.observations.check_all()
        self.actions.check_all()

    # Reading: each getter takes what `Column.get` takes

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Nested:
        """Observations; see `Column.get` for the arguments of all getters."""
        return self.observations.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_infos(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Infos: always a dict, or a list of them."""
        return self.infos.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Nested:
        """Actions."""
        return self.actions.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_rewards(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Rewards."""
        return self.rewards.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_extra_model_outputs(
        self,
        key: str,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nested:
        """The model's outputs under a name, such as "action_logp"."""
        return self._output(key).get(
            indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill
        )

    def _output(self, key: str) -> Column:
        if not isinstance(key, Hashable) or key not in self.extra_model_outputs:
            raise unknown("extra model output", key, self.extra_model_outputs)
        return self.extra_model_outputs[key]

    # Rewriting

    def set_observations(
        self,
        *,
        new_data: Steps,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites observations: one at an integer, else as many as the indices name."""
        self.observations.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_actions(
        self,
        *,
        new_data: Steps,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites actions."""
        self.actions.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_rewards(
        self,
        *,
        new_data: Steps,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites rewards."""
        is_number = np.ndim(new_data) == 0
        rewards = as_rewards([new_data] if is_number else new_data)
        self.rewards.set(
            rewards[0] if is_number else rewards,
            at_indices=at_indices,
            neg_index_as_lookback=neg_index_as_lookback,
        )

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Steps,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites what the model put out under a name that is there."""
        self._output(key).set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    # Chunks

    def to_numpy(self) -> "SingleAgentEpisode":
        """Makes arrays of the lists, with the steps as first axis; infos remain a list."""
        for column in self._columns():
            column.finalize()
        self._temporary.clear()
        return self

    def cut(self, len_lookback_buffer: int = 0) -> "SingleAgentEpisode":
        """The empty chunk that continues this one, from its last observation.

        Args:
            len_lookback_buffer: how many steps it may look back; fewer where there are fewer.
        """
        if self.is_done:
            raise EpisodeError(f"episode {self.id_} has ended: nothing follows to be cut off")
        successor = self.slice(slice(len(self), None), len_lookback_buffer=len_lookback_buffer)
        successor.custom_data = deepcopy(self.custom_data)
        successor._last_time = self._last_time
        return successor

    def slice(
        self, slice_: slice, *, len_lookback_buffer: int | None = None
    ) -> "SingleAgentEpisode":
        """A copy of the steps of a slice, with the observation after the last one.

        Args:
            len_lookback_buffer: the lookback in front, as far as the episode has it; None means
                as long as this episode's.
        """
        start, stop = self._bounds(slice_)
        before = self.rewards.lookback
        length = before if len_lookback_buffer is None else len_lookback_buffer
        lookback = as_lookback(length, before + start, "0 or more")
        return self.window(before + start - lookback, before + stop, lookback)

    def window(self, first: int, last: int, lookback: int) -> "SingleAgentEpisode":
        """A copy of the steps between two observations, counted from the lookback's first one."""
        steps = self.rewards.len_incl_lookback()
        return SingleAgentEpisode(
            self.id_,
            observations=self.observations.window(first, last + 1),
            observation_space=self.observation_space,
            infos=self.infos.window(first, last + 1),
            actions=self.actions.window(first, last),
            action_space=self.action_space,
            rewards=self.rewards.window(first, last),
            terminated=self.is_terminated and last == steps,
            truncated=self.is_truncated and last == steps,
            extra_model_outputs=self._windows_of_outputs(first, last),
            t_started=self.t_started - self.rewards.lookback + first + lookback,
            len_lookback_buffer=lookback,
            agent_id=self.agent_id,
            module_id=self.module_id,
            multi_agent_episode_id=self.multi_agent_episode_id,
            copy=False,
        )

    def _windows_of_outputs(self, first: int, last: int | None) -> dict[str, Steps]:
        columns = self.extra_model_outputs.items()
        return {key: column.window(first, last) for key, column in columns}

    def concat_episode(self, other: "SingleAgentEpisode") -> None:
        """Appends the chunk that follows this one, without its lookback."""
        self.check_concat(other)
        outputs = {}
        for key, column in other.extra_model_outputs.items():
            before = self.extra_model_outputs.get(key, Column(name=column.name))
            outputs[key] = before.followed_by(column.view())
        joined = {  # all of them before the first is put in place: a refused join changes nothing
            "observations": self.observations.followed_by(other.observations.view(1)),
            "infos": self.infos.followed_by(other.infos.view(1)),
            "actions": self.actions.followed_by(other.actions.view()),
            "rewards": self.rewards.followed_by(other.rewards.view()),
        }
        for name, column in joined.items():
            setattr(self, name, column)
        self.extra_model_outputs |= outputs
        self._take_on(other)

    def check_concat(self, other: "SingleAgentEpisode") -> None:
        """Raises EpisodeError if a chunk does not follow this one."""
        self._check_next_chunk(other, (self.t, getattr(other, "t_started", None)))
        if self.is_reset != other.is_reset:
            raise EpisodeError(f"episode {self.id_}: one of the two chunks has no observation")
        if self.is_reset and not equal(self.observations[-1], other.observations[0]):
            raise EpisodeError(
                f"episode {self.id_}: the last observation here is not the other chunk's first"
            )
        if len(other):
            self._check_output_names(other.extra_model_outputs)

    # State

    def get_sample_batch(self) -> dict[str, Any]:
        """The n steps as NumPy's columns under RLlib's names, [n, ...], without the lookback.

        They are obs, actions, rewards, new_obs, terminateds, truncateds, t, eps_id and what the
        model put out; `infos`, of the observations in obs, is a list.
        """
        return sample_batch(self)

    def get_state(self) -> dict[str, Any]:
        """The episode as a dict of lists, arrays and numbers, for `from_state`."""
        return {
            "id_": self.id_,
            "agent_id": self.agent_id,
            "module_id": self.module_id,
            "multi_agent_episode_id": self.multi_agent_episode_id,
            "observations": self.observations.window(0, None),
            "infos": [info or {} for info in self.infos.window(0, None)],
            "actions": self.actions.window(0, None),
            "rewards": self.rewards.window(0, None),
            "extra_model_outputs": self._windows_of_outputs(0, None),
            "len_lookback_buffer": self.rewards.lookback,
            "terminated": self.is_terminated,
            "truncated": self.is_truncated,
            "t_started": self.t_started,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "custom_data": deepcopy(self.custom_data),
            "duration_s": self._duration_s,
        }

    @staticmethod
    def from_state(state: dict[str, Any], *, copy: bool = True) -> "SingleAgentEpisode":
        """The episode of a state that `get_state` gave; `copy` as of the class."""
        try:
            arguments = dict(state)
            custom_data, duration_s = arguments.pop("custom_data"), arguments.pop("duration_s")
            episode = SingleAgentEpisode(**arguments, copy=copy)
        except (KeyError, TypeError) as error:
            raise EpisodeError(f"not the state of a SingleAgentEpisode: {error}") from None
        episode.custom_data = deepcopy(custom_data)
        episode._duration_s = duration_s
        return episode

    def __repr__(self):
        return (
            f"SingleAgentEpisode(id_={self.id_}, len={len(self)}, return={self.get_return():g}, "
            f"done={self.is_done})"
        )


def output_column(key: str, values: Steps | None = None, *, copy: bool = True) -> Column:
    """The column of a model's outputs under a name."""
    return Column(values, name=f"extra_model_outputs[{key!r}]", copy=copy)
