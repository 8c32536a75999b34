"""Recorded episodes as arrays: every step of each policy, for algorithms that learn from them."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.mask_parts import MASK
from jaxrl.core.number_types import NotHeldError, as_type
from jaxrl.core.program_spaces import countable
from jaxrl.core.spaces import Box, Space, beyond, parts_of, tree_of
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode, read_episodes
from jaxrl.episodes.by_agent import Episode
from jaxrl.episodes.files import episode_files
from jaxrl.models.policy_spec import PolicyInputs, PolicySpec
from jaxrl.ops.running_stats import RunningMeanStd
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.grouping import Grouping
from jaxrl.rollout.recorded_steps import ENV_ACTIONS


class Steps(struct.PyTreeNode):
    """Recorded steps of a policy, [...]."""

    obs: PyTree
    inputs: PolicyInputs  # what the policy was told beside the observation
    action: PyTree | None = None  # as the policy samples it
    # Only of data with returns:
    return_to_go: jax.Array | None = (
        None  # f32  discounted rewards from this step to the last one recorded
    )
    # f32  of the value after that: 0 where the episode terminated, else gamma^(steps to there)
    discount: jax.Array | None = None
    end: jax.Array | None = None  # i32  which of `PolicyData.ends` came after the last step


class Sources(struct.PyTreeNode):
    """The steps of each of S sources, which are drawn by their shares."""

    share: jax.Array  # f32[S]
    first: jax.Array  # i32[S]  among all steps
    count: jax.Array  # i32[S]


class PolicyData(struct.PyTreeNode):
    """All recorded steps of the policies of one group."""

    steps: Steps  # [N, R, ...], of which each policy has the first `count`
    count: jax.Array  # i32[N]
    # [N, F, ...]  with returns: the observations after the last steps of cut and truncated episodes
    ends: Steps | None = None
    filter: RunningMeanStd | None = None  # [N]  of all observations, where the policies have one
    sources: Sources | None = None  # [N, S]; None where all steps are drawn alike


class Recording(NamedTuple):
    """The episodes that were read from a run's input."""

    groups: tuple[PolicyData | None, ...]  # by group; None where the policies do not learn
    num_episodes: int
    num_steps: dict[PolicyId, int]
    mean_return: float  # undiscounted, of all agents together


KEPT: dict[Any, Recording] = {}  # the last one that was read, by what it depends on


def read_recording(
    config: AlgorithmConfig, rollout_spec: RolloutSpec, gamma: float | None = None
) -> Recording:
    """The episodes of `config.input`, which are read again once the files change.

    Args:
        gamma: the discount of returns; None: without returns.

    Raises:
        UsageError: there are none, or they do not fit the environment.
    """
    sources = [source for source, _ in config.sources]
    key = config.static(), gamma, tuple(map(_signature, sources))
    if key not in KEPT:
        reader = _Reader(rollout_spec, gamma)
        for source, share in config.sources:
            for episode in read_episodes(source):
                reader.add(episode)
            reader.end_source(source, share)
        recording = reader.recording(sources)
        KEPT.clear()
        KEPT[key] = recording
    return KEPT[key]


def _signature(source: str) -> tuple:
    """A value that changes with a folder's files; of a Minari dataset nothing does."""
    stats = [(file.name, file.stat()) for file in episode_files(source)]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def agents_of(grouping: Grouping, episode: Episode) -> dict[AgentId, SingleAgentEpisode]:
    """The episode of each agent, from that of them all, or of one of them.

    Raises:
        UsageError: there is no such agent, or it is not known whose episode it is.
    """
    alone = {
        policy: agents[0]
        for group in grouping.groups
        for policy, agents in zip(group.policies, group.agents, strict=True)
        if len(agents) == 1
    }
    if isinstance(episode, MultiAgentEpisode):
        found = episode.agent_episodes
    elif len(grouping.agents) == 1:
        found = {grouping.agents[0]: episode}
    elif episode.agent_id is not None:
        found = {episode.agent_id: episode}
    elif episode.module_id in alone:
        found = {alone[episode.module_id]: episode}
    else:
        raise UsageError(
            f"episode {episode.id_} is of a single agent, and the environment has "
            f"{', '.join(map(str, grouping.agents))}: set its agent_id, or a module_id that one "
            "agent has"
        )
    for agent in found:
        if agent not in grouping.agents:
            raise unknown_name("agent", agent, grouping.agents, f"in episode {episode.id_}")
    return found


class _Reader:
    """Sorts the steps of episodes by policy."""

    def __init__(self, rollout_spec: RolloutSpec, gamma: float | None):
        self._grouping = grouping = rollout_spec.grouping
        self._masked = rollout_spec.masked
        self._rows: dict[AgentId, _PolicyRows] = {}  # by agent; agents share their policy's
        self._places: dict[AgentId, int] = {}  # among the agents of its policy
        self._by_group: list[list[_PolicyRows]] = []
        for group in grouping.groups:
            policies = []
            for policy, agents in zip(group.policies, group.agents, strict=True):
                rows = _PolicyRows(policy, group.structure.policy_spec, gamma)
                self._rows |= dict.fromkeys(agents, rows)
                self._places |= {agent: place for place, agent in enumerate(agents)}
                policies.append(rows)
            self._by_group.append(policies if group.structure.trained else [])
        self._trained = {rows.policy for policies in self._by_group for rows in policies}
        self._returns: list[float] = []

    def add(self, episode: Episode) -> None:
        for agent, data in agents_of(self._grouping, episode).items():
            rows = self._rows[agent]
            if rows.policy in self._trained and len(data):
                rows.add(data, agent, self._places[agent])
        self._returns.append(episode.get_return())

    def end_source(self, source: str, share: float | None) -> None:
        """The episodes that were added since the last call are a source's, with its share."""
        if share is not None:
            for rows in itertools.chain(*self._by_group):
                rows.end_source(source, share)

    def recording(self, sources: Sequence[str]) -> Recording:
        where = ", ".join(sources)
        if not self._returns:
            raise UsageError(f"input={where} holds no episodes")
        for policies in self._by_group:
            for rows in policies:
                if not rows.num_steps:
                    raise UsageError(
                        f"input={where} holds no step of policy {rows.policy!r}: record its "
                        "agents, or leave it out of policies_to_train"
                    )
        return Recording(
            tuple(
                _stacked([rows.data(self._masked) for rows in policies]) if policies else None
                for policies in self._by_group
            ),
            len(self._returns),
            {rows.policy: rows.num_steps for policies in self._by_group for rows in policies},
            float(np.mean(self._returns)),
        )


class _PolicyRows:
    """The steps of one policy, episode by episode."""

    def __init__(self, policy: PolicyId, policy_spec: PolicySpec, gamma: float | None):
        self.policy, self.num_steps = policy, 0
        self._spec, self._gamma = policy_spec, gamma
        self._steps: list[Steps] = []
        self._ends: list[Steps] = []
        self._masks: list[np.ndarray] = []
        self._sources: list[Sources] = []

    def add(self, episode: SingleAgentEpisode, agent: AgentId, place: int) -> None:
        """Adds an agent's steps; `place` is its number among the policy's agents."""
        what = f"episode {episode.id_}, agent {agent!r}:"
        count, outputs = len(episode), episode.extra_model_outputs
        spec = self._spec
        obs, mask = spec.given_observation(episode.observations.arrays())
        obs = checked(spec.observation_space, obs, f"{what} observations")
        actions = outputs.get(ENV_ACTIONS, episode.actions).arrays()
        actions = checked(countable(spec.action_space), actions, f"{what} actions")
        agent_ids = np.full(count + 1, place, np.int32) if spec.inputs_spec.num_agents else None
        mask = outputs[MASK].arrays() if MASK in outputs else mask
        if mask is not None:
            self._masks.append(flags_of(mask[:count], f"{what} {MASK}"))
        first = lambda leaf: leaf[:count]
        steps = Steps(
            obs=jax.tree.map(first, obs),
            inputs=PolicyInputs(agent_id=jax.tree.map(first, agent_ids)),
            action=spec.action_form.from_env(actions),
        )
        if self._gamma is not None:
            last = lambda leaf: leaf[count:]
            steps = steps.replace(**self._returns(episode))
            if not episode.is_terminated:
                inputs = PolicyInputs(agent_id=jax.tree.map(last, agent_ids))
                self._ends.append(Steps(jax.tree.map(last, obs), inputs))
        self._steps.append(steps)
        self.num_steps += count

    def end_source(self, source: str, share: float) -> None:
        first = sum(before.count for before in self._sources)
        count = self.num_steps - first
        if not count:
            raise UsageError(
                f"input[{source!r}] holds no step of policy {self.policy!r}, which draws "
                f"{share:.4g} of its steps there"
            )
        self._sources.append(Sources(np.float32(share), np.int32(first), np.int32(count)))

    def _returns(self, episode: SingleAgentEpisode) -> dict[str, np.ndarray]:
        rewards = episode.rewards.view()
        returns, following = np.zeros(len(rewards), np.float32), 0.0
        for t in range(len(rewards) - 1, -1, -1):
            returns[t] = following = float(rewards[t]) + self._gamma * following
        steps_left = np.arange(len(rewards), 0, -1)
        discount = np.float32(0.0 if episode.is_terminated else self._gamma**steps_left)
        return {
            "return_to_go": returns,
            "discount": np.broadcast_to(discount, len(rewards)),
            "end": np.full(len(rewards), len(self._ends), np.int32),
        }

    def data(self, masked: bool) -> PolicyData:
        """All steps, [R, ...]; with masks if the environment has some and each episode has its."""
        steps = _joined(self._steps)
        if masked and len(self._masks) == len(self._steps):
            inputs = steps.inputs.replace(action_mask=np.concatenate(self._masks))
            steps = steps.replace(inputs=inputs)
        ends = None
        if self._gamma is not None:
            # One of zeros where every episode terminated: nothing reads it.
            some = jax.tree.map(lambda leaf: np.zeros_like(leaf[:1]), steps)
            ends = _joined(self._ends or [Steps(some.obs, some.inputs.replace(action_mask=None))])
            last = np.int32(len(jax.tree.leaves(ends)[0]) - 1)
            steps = steps.replace(end=np.minimum(steps.end, last))
        stats = self._spec.initial_filter()
        if isinstance(stats, RunningMeanStd):
            of_all = lambda moment: jax.tree.map(
                lambda leaf: np.float32(moment(np.asarray(leaf, np.float64), axis=0)),
                self._spec.seen_numbers(steps.obs, np),
            )
            stats = RunningMeanStd(np.float32(self.num_steps), of_all(np.mean), of_all(np.var))
        sources = None
        if self._sources:
            sources = jax.tree.map(lambda *parts: np.stack(parts), *self._sources)
        return PolicyData(steps, np.int32(self.num_steps), ends, stats, sources)


def flags_of(values: Any, what: str) -> np.ndarray:
    """A copy of flags, which may be 0 and 1, as bool."""
    try:
        return np.array(as_type(values, bool))
    except NotHeldError as error:
        raise UsageError(f"{what} holds {error}") from None


def checked(space: Space, values: PyTree, what: str) -> PyTree:
    """Copies of values [T, ...] of a space, in its types.

    Raises:
        UsageError: other parts or shapes, numbers that are not finite, that their type does not
            hold, or integers beyond the space.
    """
    try:
        parts = list(parts_of(space, values))
    except ValueError:
        raise UsageError(f"{what} do not have the parts of the environment's {space}") from None
    found = []
    for name, part, leaf in parts:
        called = f"{what} {name!r}" if name else what
        leaf = np.asarray(leaf)
        if leaf.shape[1:] != tuple(part.shape):
            raise UsageError(
                f"{called} have the shape {leaf.shape[1:]}; the environment's are {part}"
            )
        if not np.issubdtype(leaf.dtype, np.number) and leaf.dtype != bool:
            raise UsageError(f"{called} are no numbers, but {brief(leaf.flat[0])}")
        if isinstance(part, Box):
            wrong = ~np.isfinite(leaf) if np.issubdtype(leaf.dtype, np.floating) else None
        else:
            wrong = beyond(part, leaf) | (leaf % 1 != 0)
        if wrong is not None and wrong.any():
            raise UsageError(f"{called} hold {leaf[wrong][0]:g}; the environment's are {part}")
        try:
            cast = as_type(leaf, jax.dtypes.canonicalize_dtype(part.dtype))
        except NotHeldError as error:
            raise UsageError(f"{called} hold {error}; the environment's are {part}") from None
        found.append(cast.copy() if cast is leaf else cast)
    return jax.tree.structure(tree_of(space)).unflatten(found)


def _joined(parts: list[Steps]) -> Steps:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _stacked(policies: list[PolicyData]) -> PolicyData:
    """The data of several policies, [N, ...], the shorter ones filled up with zeros."""

    def stack(*leaves):
        longest = max(leaf.shape[0] if leaf.ndim else 0 for leaf in leaves)
        return np.stack([_lengthened(leaf, longest) for leaf in leaves])

    return jax.tree.map(stack, *policies)


def _lengthened(leaf: np.ndarray, length: int) -> np.ndarray:
    if not leaf.ndim or len(leaf) == length:
        return leaf
    return np.concatenate([leaf, np.zeros((length - len(leaf), *leaf.shape[1:]), leaf.dtype)])
