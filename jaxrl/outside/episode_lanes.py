"""Recorded episodes cut and packed into the rows of a learner's batch, in NumPy."""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.offline_data import MASK, agents_of, checked, flags_of
from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import action_to_program, countable, mask_length, sampled_space
from jaxrl.core.spaces import tree_of
from jaxrl.core.types import AgentId, PyTree
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.episodes.by_agent import Episode
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.distributions import num_logits
from jaxrl.outside.recorded_rollout import Lanes
from jaxrl.outside.recording_policy import POLICY_ACTIONS
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.episode_stats import EpisodeStats, LowerParts
from jaxrl.rollout.recorded_steps import ENV_ACTIONS

MOST_BEGUN = 10_000  # episodes that are followed at once: some never end, as those of lost clients
LOG_PROB, DIST_INPUTS = "action_logp", "action_dist_inputs"  # RLlib's names of model outputs


@dataclass
class Part:
    """Copies of steps of one agent without a gap, [n, ...]."""

    obs: PyTree  # [n + 1, ...]
    rows: dict[str, Any]  # by field of `Lanes`
    terminated: bool

    def __len__(self) -> int:
        return len(self.rows["reward"])

    def cut(self, count: int) -> tuple["Part", "Part"]:
        """The first `count` steps, and the rest."""
        first = jax.tree.map(lambda leaf: leaf[:count], self.rows)
        rest = jax.tree.map(lambda leaf: leaf[count:], self.rows)
        obs = jax.tree.map(lambda leaf: leaf[: count + 1], self.obs)
        rest_obs = jax.tree.map(lambda leaf: leaf[count:], self.obs)
        return Part(obs, first, False), Part(rest_obs, rest, self.terminated)


class Finished(NamedTuple):
    """An episode that has ended, or as far as it has come."""

    returns: dict[AgentId, float]
    length: int  # environment steps
    agent_steps: dict[AgentId, int]
    discounted: dict[AgentId, float]  # returns, where rewards are scaled by their deviation


class EpisodeLanes:
    """Steps that wait to be learned from, by agent, in the order in which they came.

    Args:
        config: its `rollout_length` and `num_envs` are the rows of each agent in a batch.
        spec: of the configuration's algorithm.
    """

    def __init__(self, config: AlgorithmConfig, spec: RolloutSpec):
        self.spec, self.shape = spec, (config.rollout_length, config.num_envs)
        self._gammas = _discounts(config, spec)
        self.num_env_steps = 0  # that wait
        self._parts: dict[AgentId, deque[Part]] = {agent: deque() for agent in spec.grouping.agents}
        self._policy_specs: dict[AgentId, PolicySpec] = {}
        for group, policy_spec in zip(spec.grouping.groups, spec.policy_specs, strict=True):
            for agents in group.agents:
                self._policy_specs |= dict.fromkeys(agents, policy_spec)
        self._finished: deque[Finished] = deque()
        self._so_far: dict[str, Finished] = {}  # of episodes of which a chunk came, by id

    def add(self, episode: Episode) -> None:
        """Takes an episode, or a chunk of one.

        Raises:
            UsageError: an agent that there is not, or data that do not fit the spaces.
        """
        if not isinstance(episode, SingleAgentEpisode | MultiAgentEpisode):
            raise UsageError(
                "add takes jaxrl.episodes' SingleAgentEpisode or MultiAgentEpisode, not "
                f"{type(episode).__name__}"
            )
        parts = []
        for agent, data in agents_of(self.spec.grouping, episode).items():
            if len(data):
                parts.append((agent, self._part_of(agent, data)))
        before = self._so_far.pop(episode.id_, Finished({}, 0, {}, {}))
        after = self._count(before, len(episode), parts)
        for agent, part in parts:  # all of them are sound
            self._parts[agent].append(part)
        self.num_env_steps += len(episode)
        if episode.is_done:
            self._finished.append(after)
        else:
            self._so_far[episode.id_] = after
            if len(self._so_far) > MOST_BEGUN:
                del self._so_far[next(iter(self._so_far))]  # heard of least recently

    def take(self) -> tuple[tuple[Lanes, ...], EpisodeStats, np.ndarray]:
        """(lanes by group, finished episodes [T, E], which there are): a batch, of the oldest."""
        before = self._waiting()
        lanes = tuple(map(self._lanes, self.spec.grouping.groups, self.spec.policy_specs))
        share = 1.0 - self._waiting() / before if before else 1.0
        self.num_env_steps -= round(self.num_env_steps * share)
        return lanes, *self._take_finished()

    def _waiting(self) -> int:
        return sum(sum(map(len, parts)) for parts in self._parts.values())

    def _part_of(self, agent: AgentId, episode: SingleAgentEpisode) -> Part:
        policy_spec, what = self._policy_specs[agent], f"episode {episode.id_}, agent {agent!r}:"
        count, extras = len(episode), episode.extra_model_outputs
        outputs = {name: extras[name].arrays() for name in extras}
        space = policy_spec.observation_space
        obs, mask = policy_spec.given_observation(episode.observations.arrays())
        obs = checked(space, obs, f"{what} observations")
        rows = {
            "action": self._actions(policy_spec, episode, outputs, what),
            "reward": _as_floats(episode.rewards.view()),
        }
        if not np.isfinite(rows["reward"]).all():
            raise UsageError(f"{what} rewards must be finite numbers")
        for field, name in (("log_prob", LOG_PROB), ("dist_inputs", DIST_INPUTS)):
            if name in outputs:
                rows[field] = values = _as_floats(outputs[name])
                shape = (count,) if field == "log_prob" else (count, self._width(policy_spec))
                if values.shape != shape or not np.isfinite(values).all():
                    raise UsageError(
                        f"{what} {name} must be finite numbers {list(shape)}, not of "
                        f"{list(values.shape)}"
                    )
        if self.spec.masked:
            shape = (count, mask_length(policy_spec.action_space))
            mask = np.ones(shape, bool) if mask is None else mask[:count]
            mask = flags_of(outputs.get(MASK, mask), f"{what} {MASK}")
            if mask.shape != shape:
                raise UsageError(f"{what} {MASK} must be bool{list(shape)}")
            rows["action_mask"] = mask
        return Part(obs, rows, bool(episode.is_terminated))

    def _actions(
        self, policy_spec: PolicySpec, episode: SingleAgentEpisode, outputs: dict, what: str
    ) -> PyTree:
        """The policy's actions."""
        space, actions = policy_spec.action_space, episode.actions.arrays()
        is_policys = POLICY_ACTIONS in outputs or ENV_ACTIONS in outputs
        if is_policys:
            sampled = outputs.get(POLICY_ACTIONS, actions)
            sampled = checked(sampled_space(space), sampled, f"{what} {POLICY_ACTIONS}")
            return action_to_program(space, sampled)
        actions = checked(countable(space), actions, f"{what} actions")
        return policy_spec.action_form.from_env(actions)

    def _width(self, policy_spec: PolicySpec) -> int:
        return num_logits(policy_spec.action_space, policy_spec.action_distribution)

    def _lanes(self, group: Any, policy_spec: PolicySpec) -> Lanes:
        """The rows of a group, filled."""
        num_steps, num_envs = self.shape
        shape = (num_steps, *group.shape(num_envs))
        lanes = _empty(policy_spec, shape, masked=self.spec.masked)
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                for e in range(num_envs):
                    column = (slice(None), i, e, j)
                    _fill(lanes, column, self._parts[agent], whole=policy_spec.has_memory)
        return lanes

    def _count(self, before: Finished, length: int, parts: list[tuple[AgentId, Part]]) -> Finished:
        """An episode after a chunk of it; its parts get the returns that it had before."""
        returns, steps = dict(before.returns), dict(before.agent_steps)
        discounted = dict(before.discounted)
        for agent, part in parts:
            paid = float(part.rows["reward"].sum(dtype=np.float64))
            returns[agent] = returns.get(agent, 0.0) + paid
            steps[agent] = steps.get(agent, 0) + len(part)
            if agent in self._gammas:
                so_far = [discounted.get(agent, 0.0)]
                for reward in part.rows["reward"].tolist():
                    so_far.append(reward + self._gammas[agent] * so_far[-1])
                discounted[agent] = so_far.pop()
                part.rows["return_before"] = np.array(so_far, np.float32)
        return Finished(returns, before.length + length, steps, discounted)

    def _take_finished(self) -> tuple[EpisodeStats, np.ndarray]:
        (num_steps, num_envs), agents = self.shape, self.spec.grouping.agents
        returns = np.zeros((num_steps * num_envs, len(agents)))
        length, steps = np.zeros(len(returns), np.int32), np.zeros(returns.shape, np.int32)
        count = min(len(returns), len(self._finished))
        for row in range(count):
            finished = self._finished.popleft()
            length[row] = finished.length
            for i, agent in enumerate(agents):
                returns[row, i] = finished.returns.get(agent, 0.0)
                steps[row, i] = finished.agent_steps.get(agent, 0)
        fold = lambda leaf: leaf.reshape(num_steps, num_envs, *leaf.shape[1:])
        agent_steps = None if self.spec.always_active else fold(steps)
        rounded = returns.astype(np.float32)
        lower = LowerParts(fold((returns - rounded).astype(np.float32)), {})
        stats = EpisodeStats(fold(rounded), fold(length), {}, agent_steps, lower)
        return stats, fold(np.arange(len(returns)) < count)


def _as_floats(values: Any) -> np.ndarray:
    """A copy in float32; what that cannot hold is infinite, which is refused as such."""
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


def _discounts(config: AlgorithmConfig, spec: RolloutSpec) -> dict[AgentId, float]:
    """gamma of the agents whose rewards are divided by the deviation of the discounted return."""
    found = {}
    for group in spec.grouping.groups:
        for policy, agents in zip(group.policies, group.agents, strict=True):
            settings = config.for_policy(policy)
            if getattr(settings, "normalize_returns", False):
                found |= dict.fromkeys(agents, settings.gamma)
    return found


def _empty(policy_spec: PolicySpec, shape: tuple[int, ...], *, masked: bool) -> Lanes:
    """Rows in which nobody acts."""
    zeros = lambda: np.zeros(shape, np.float32)
    flags = lambda: np.zeros(shape, bool)
    zeros_of = lambda part: np.zeros(
        (*shape, *part.shape), jax.dtypes.canonicalize_dtype(part.dtype)
    )
    obs = lambda: jax.tree.map(zeros_of, tree_of(policy_spec.observation_space))
    space = policy_spec.action_space
    width = num_logits(space, policy_spec.action_distribution)
    return Lanes(
        obs=obs(),
        next_obs=obs(),
        action=jax.tree.map(np.array, policy_spec.zero_action(shape)),
        action_mask=np.ones((*shape, mask_length(space)), bool) if masked else None,
        dist_inputs=np.ones((*shape, width), np.float32),
        log_prob=zeros(),
        reward=zeros(),
        return_before=zeros(),
        has_dist_inputs=flags(),
        has_log_prob=flags(),
        terminated=flags(),
        truncated=flags(),
        active=flags(),
        begins=flags(),
    )


def _fill(lanes: Lanes, column: tuple, parts: deque[Part], *, whole: bool) -> None:
    """Moves parts into a column of T rows, the last one cut where it does not fit.

    Args:
        whole: a part that fits into a column of its own is not cut, since memory begins with it.
    """
    num_steps, begin = lanes.reward.shape[0], 0
    while parts and begin < num_steps:
        part, room = parts.popleft(), num_steps - begin
        if len(part) > room:
            if whole and begin and len(part) <= num_steps:
                parts.appendleft(part)
                return
            part, rest = part.cut(room)
            parts.appendleft(rest)
        _write(lanes, (slice(begin, begin + len(part)), *column[1:]), part)
        begin += len(part)


def _write(lanes: Lanes, place: tuple, part: Part) -> None:
    def put(rows, values):
        rows[place] = values

    last = (place[0].stop - 1, *place[1:])
    jax.tree.map(put, lanes.obs, jax.tree.map(lambda leaf: leaf[:-1], part.obs))
    jax.tree.map(put, lanes.next_obs, jax.tree.map(lambda leaf: leaf[1:], part.obs))
    for name, values in part.rows.items():
        getattr(lanes, name)[place] = values
        if name in ("log_prob", "dist_inputs"):
            getattr(lanes, f"has_{name}")[place] = True
    lanes.active[place] = True
    lanes.begins[(place[0].start, *place[1:])] = True
    (lanes.terminated if part.terminated else lanes.truncated)[last] = True
