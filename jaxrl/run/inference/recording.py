"""An episode played to be looked at: every state of it, and who got which reward."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.env import MultiAgentEnvironment, strongly_typed
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.rollout.env_step import (
    EnvBatch,
    PolicyOutput,
    RolloutSpec,
    next_policy_states,
    reset_envs,
    step_envs,
)
from jaxrl.rollout.policy_map import Grouping
from jaxrl.run.devices.mesh import on_host
from jaxrl.run.inference.evaluate import episode_keys, step_chance

STEPS_AT_ONCE = 100  # of an episode whose length nobody knows before
PICTURES_AT_ONCE = 8  # one of 500 x 500 pixels takes some 20 MB while it is painted


class Decisions(NamedTuple):
    """The answers of an agent's policy in T steps; actions in the environment's units."""

    action: np.ndarray  # [T, *action_space.shape]
    value: np.ndarray  # f32[T]  the return that it expected, discounted
    # f32[T, A] of discrete actions, the entries of MultiDiscrete ones concatenated; else None
    probabilities: np.ndarray | None
    # of a Box's actions (mean - std, mean, mean + std), [T, *action_space.shape] each; else None
    spread: tuple[np.ndarray, np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class EpisodeRecording:
    """One episode of T steps."""

    agents: tuple[AgentId, ...]
    states: PyTree  # [T + 1, ...], on the host; the first is the reset's
    rewards: np.ndarray  # f32[T, M]; 0 where the agent was not active
    active: np.ndarray  # bool[T, M]
    # "terminated": by the environment; "truncated": by its time limit; "cut": by `max_steps`
    end: str
    decisions: Mapping[AgentId, Decisions] = field(default_factory=dict)
    # [T + 1, ...] by agent, where the environment can neither draw nor render its states
    observations: Mapping[AgentId, PyTree] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.rewards)

    @property
    def running_returns(self) -> np.ndarray:
        """f64[T + 1, M]: the undiscounted return of each agent up to each state; zeros at first."""
        return np.concatenate(
            [np.zeros((1, len(self.agents))), np.cumsum(self.rewards, axis=0, dtype=np.float64)]
        )


class EpisodeChoice(NamedTuple):
    """Which episode is played: the one that `evaluate` plays as this seed's `episode`."""

    seed: int = 0
    episode: int = 0
    explore: bool = False  # whether actions are sampled, or their distribution's mode
    max_steps: int = 2000


FIRST_EPISODE = EpisodeChoice()


def record_episode(
    algorithm: Algorithm,
    weights: tuple[PolicyWeights, ...],
    env_params: PyTree,
    choice: EpisodeChoice = FIRST_EPISODE,
) -> EpisodeRecording:
    """Plays one episode in one environment; `weights` by group, [N, ...]."""
    spec, index = algorithm.rollout_spec, np.int32(choice.episode)
    reset_key, play_key = episode_keys(choice.seed)
    game = _Game(weights, strongly_typed(env_params), play_key, index)
    envs = _start(spec, reset_key, index, game.env_params)
    first_obs = jax.tree.map(lambda leaf: leaf[None], _kept_obs(spec, envs.obs))
    first, chunks = jax.tree.map(on_host, (envs.state, first_obs)), []
    for begin in range(0, choice.max_steps, STEPS_AT_ONCE):
        envs, chunk = _play_on(spec, choice.explore, game, envs, np.int32(begin))
        chunks.append(jax.tree.map(on_host, chunk))
        if np.any(chunks[-1].episode_done):
            break
    played = jax.tree.map(_joined, *chunks)
    ends = np.flatnonzero(played.episode_done[: choice.max_steps])
    num_steps = ends[0] + 1 if len(ends) else choice.max_steps  # what was played past it is dropped
    played = jax.tree.map(lambda leaf: leaf[:num_steps], played)
    end = "cut"
    if len(ends):
        end = "terminated" if played.all_terminated[-1] else "truncated"
    states, observations = jax.tree.map(_joined, first, (played.state, played.obs))
    grouping = algorithm.grouping
    return EpisodeRecording(
        tuple(grouping.agents),
        states,
        played.reward,
        played.active,
        end,
        _by_agent(grouping, played.decisions),
        _by_agent(grouping, observations),
    )


def frames(
    replay: EpisodeRecording, env: MultiAgentEnvironment, env_params: PyTree, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """The environment's pictures u8[H, W, 3] of these states, painted a few at a time."""
    check_can_render(env)
    for begin in range(0, len(steps), PICTURES_AT_ONCE):
        wanted = np.asarray(steps[begin : begin + PICTURES_AT_ONCE])
        # One shape, one compilation.
        index = np.pad(wanted, (0, PICTURES_AT_ONCE - len(wanted)), mode="edge")
        states = jax.tree.map(lambda leaf, index=index: leaf[index], replay.states)
        yield from np.asarray(_paint(env, states, env_params))[: len(wanted)]


def check_can_render(env: MultiAgentEnvironment) -> None:
    """Raises UsageError for an environment without the optional `render(state, params)`."""
    if not hasattr(env, "render"):
        raise UsageError(
            f"environment {env.name} has no render(state, params), so there is no picture of an "
            "episode"
        )


@functools.partial(jax.jit, static_argnums=0)
def _start(spec: RolloutSpec, key: Key, index: jax.Array, env_params: PyTree) -> EnvBatch:
    return reset_envs(spec, key, index[None], env_params)


class _Game(NamedTuple):
    """What stays the same in all steps of an episode."""

    weights: tuple[PolicyWeights, ...]
    env_params: PyTree
    play_key: Key
    index: jax.Array  # i32[]  the episode's number


class _PlayedSteps(NamedTuple):
    """What steps of an episode did, [T, ...]."""

    state: PyTree
    obs: tuple[PyTree, ...]  # by group, [T, N, M, ...]; () where they are not kept
    decisions: tuple[Decisions, ...]  # by group, [T, N, M, ...]
    reward: jax.Array  # f32[T, M]
    active: jax.Array  # bool[T, M]
    all_terminated: jax.Array  # bool[T]
    episode_done: jax.Array  # bool[T]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _play_on(
    spec: RolloutSpec, explore: bool, game: _Game, envs: EnvBatch, begin: jax.Array
) -> tuple[EnvBatch, _PlayedSteps]:
    """The episode's steps begin, begin + 1, ..., STEPS_AT_ONCE in number, with no reset."""
    weights, env_params = game.weights, game.env_params

    def step(envs, time):
        # As `evaluate` draws them, so that what is shown is an episode that was counted there.
        randomness = step_chance(spec, game.play_key, game.index[None], time)
        outputs, raw = step_envs(spec, weights, envs, randomness, env_params, explore=explore)
        obs = spec.grouping.gather(raw.obs)
        policy_states = next_policy_states(spec, envs.policy_states, outputs, raw)
        envs = envs.replace(state=raw.state, obs=obs, policy_states=policy_states)
        only = lambda values: jax.tree.map(lambda leaf: leaf[0], values)
        return envs, _PlayedSteps(
            state=only(raw.state),
            obs=_kept_obs(spec, obs),
            decisions=tuple(map(_decisions, spec.policy_specs, outputs)),
            reward=raw.reward[0],
            active=raw.active[0],
            all_terminated=raw.all_terminated[0],
            episode_done=raw.episode_done[0],
        )

    return jax.lax.scan(step, envs, begin + jnp.arange(STEPS_AT_ONCE, dtype=jnp.int32))


def _decisions(policy_spec: PolicySpec, output: PolicyOutput) -> Decisions:
    """Those of one group in a step of one environment, [N, M, ...]."""
    probabilities = spread = None
    if isinstance(policy_spec.action_space, Box):
        spread = tuple(map(policy_spec.to_env_action, output.distribution.spread()))
    else:
        probabilities = output.distribution.probabilities()
    action = policy_spec.to_env_action(output.action)
    decisions = Decisions(action, output.value, probabilities, spread)
    return jax.tree.map(lambda leaf: leaf[:, 0], decisions)


def _kept_obs(spec: RolloutSpec, obs: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
    """Observations of one environment by group, [N, M, ...], where there is no other picture."""
    if hasattr(spec.env, "draw") or hasattr(spec.env, "render"):
        return ()
    return jax.tree.map(lambda leaf: leaf[:, 0], obs)


def _by_agent(grouping: Grouping, values: tuple[PyTree, ...]) -> dict[AgentId, PyTree]:
    """Values by group, [T, N, M, ...], as {agent: [T, ...]}; {} for none."""
    found = {}
    for group, value in zip(grouping.groups, values, strict=False):
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                found[agent] = jax.tree.map(lambda leaf, i=i, j=j: leaf[:, i, j], value)
    return found


@functools.partial(jax.jit, static_argnums=0)
def _paint(env: MultiAgentEnvironment, states: PyTree, env_params: PyTree) -> jax.Array:
    return jax.vmap(lambda state: env.render(state, env_params))(states)


def _joined(*parts):
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else jnp.concatenate(parts)
