"""An episode played to be looked at: every state of it, and who got which reward."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.env import MultiAgentEnvironment, RawStep, has_pictures
from jaxrl.core.errors import UsageError
from jaxrl.core.outside_env import is_outside
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.types import AgentId, PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicySpec, PolicyWeights
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.policy_map import Grouping
from jaxrl.run.devices.mesh import on_host
from jaxrl.run.inference.host_episodes import play_pictured
from jaxrl.run.inference.whole_episodes import Game, PlaySpec, make_game, play_out, start

PICTURES_AT_ONCE = 8  # one of 500 x 500 pixels takes some 20 MB while it is painted


class Decisions(NamedTuple):
    """The answers of an agent's policy in T steps; actions in the environment's units."""

    action: PyTree  # [T, *action_space.shape]
    value: np.ndarray  # f32[T]  the return that it expected, discounted
    # f32[T, A] of discrete actions, those of all integers concatenated; None without integers
    probabilities: np.ndarray | None
    # (mean - std, mean, mean + std) of a Box's actions, [T, *action_space.shape] each, or f32[T, d]
    # of all Boxes of an action in parts; None without numbers
    spread: tuple[np.ndarray, np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class EpisodeRecording:
    """One episode of T steps."""

    agents: tuple[AgentId, ...]
    states: PyTree | None  # [T + 1, ...], the first the reset's; None outside JAX
    rewards: np.ndarray  # f32[T, M]; 0 where the agent was not active
    active: np.ndarray  # bool[T, M]
    # "terminated": by the environment; "truncated": by its time limit; "cut": by `max_steps`
    end: str
    decisions: Mapping[AgentId, Decisions] = field(default_factory=dict)
    # [T + 1, ...] by agent, where the environment can neither draw nor render its states
    observations: Mapping[AgentId, PyTree] = field(default_factory=dict)
    # {step: u8[H, W, 3]} of an environment outside JAX, which is rendered while it plays
    pictures: Mapping[int, np.ndarray] = field(default_factory=dict)

    def shown(self, steps: np.ndarray) -> np.ndarray:
        """The nearest steps to these that there is a picture of."""
        if not self.pictures:
            return steps
        known = np.array(sorted(self.pictures))
        return np.unique(known[np.abs(known - steps[:, None]).argmin(axis=1)])

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
    """The choice of an episode: the one that `evaluate` plays as this seed's `episode`."""

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
    game = make_game(weights, env_params, choice.seed)
    if is_outside(algorithm.rollout_spec.env):
        return _record_outside(algorithm.rollout_spec, game, choice)
    spec, grouping = algorithm.rollout_spec.apart, algorithm.grouping
    begun = start(spec, game, np.array([choice.episode], np.int32))
    first_obs = jax.tree.map(lambda leaf: leaf[:, 0][None], _kept_obs(spec, begun.envs.obs))
    first, parts = jax.tree.map(on_host, (begun.envs.state, first_obs)), []
    play = PlaySpec(spec, choice.explore, _shown_step, counts=False)
    for _, count, kept in play_out(play, game, begun, choice.max_steps):
        parts.append(jax.tree.map(lambda leaf, count=count: on_host(leaf)[0, :count], kept))
    played = jax.tree.map(_joined, *parts)
    states, observations = jax.tree.map(_joined, first, (played.state, played.obs))
    return EpisodeRecording(
        tuple(grouping.agents),
        states,
        played.reward,
        played.active,
        _end_of(played),
        _by_agent(grouping, played.decisions),
        _by_agent(grouping, observations),
    )


def _record_outside(spec: RolloutSpec, game: Game, choice: EpisodeChoice) -> EpisodeRecording:
    """An episode outside JAX, where no state can be kept: pictures are taken on the way."""
    play = PlaySpec(spec, choice.explore, _shown_step, counts=False)
    episode = play_pictured(play, game, choice.episode, choice.max_steps)
    (played,) = jax.tree.map(lambda leaf: leaf[0], episode.played.kept)
    num_steps = [*np.flatnonzero(played.episode_done) + 1, len(played.reward)][0]
    played = jax.tree.map(lambda leaf: leaf[:num_steps], played)
    first_obs = jax.tree.map(lambda leaf: leaf[:, 0][None], _kept_obs(spec, episode.played.obs))
    observations = jax.tree.map(_joined, first_obs, played.obs)
    return EpisodeRecording(
        tuple(spec.grouping.agents),
        None,
        played.reward,
        played.active,
        _end_of(played),
        _by_agent(spec.grouping, played.decisions),
        _by_agent(spec.grouping, observations),
        episode.pictures,
    )


def _end_of(played: "_ShownStep") -> str:
    if not played.episode_done[-1]:
        return "cut"
    return "terminated" if played.all_terminated[-1] else "truncated"


def frames(
    replay: EpisodeRecording, env: MultiAgentEnvironment, env_params: PyTree, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """The environment's pictures u8[H, W, 3] of these states, painted a few at a time."""
    check_can_render(env)
    if replay.pictures:
        yield from (replay.pictures[int(step)] for step in steps)
        return
    for begin in range(0, len(steps), PICTURES_AT_ONCE):
        wanted = np.asarray(steps[begin : begin + PICTURES_AT_ONCE])
        # One shape, one compilation.
        index = np.pad(wanted, (0, PICTURES_AT_ONCE - len(wanted)), mode="edge")
        states = jax.tree.map(lambda leaf, index=index: leaf[index], replay.states)
        yield from np.asarray(_paint(env, states, env_params))[: len(wanted)]


def check_can_render(env: MultiAgentEnvironment) -> None:
    """Raises UsageError for an environment without pictures."""
    if is_outside(env) and not has_pictures(env):
        raise UsageError(
            f"environment {env.name} renders no pictures: make it with "
            "--env-args render_mode=rgb_array, if it knows that; a page of what the agents saw and "
            "did: jaxrl render RUN --out episode.html"
        )
    if not has_pictures(env):
        raise UsageError(
            f"environment {env.name} has no render(state, params), so there is no picture of an "
            "episode; a page of what the agents saw and did: jaxrl render RUN --out episode.html"
        )


class _ShownStep(NamedTuple):
    """The part of a step that a page shows, [E, ...]; of a whole episode [T, ...]."""

    state: PyTree  # that it reached
    obs: tuple[PyTree, ...]  # by group, [E, N, M, ...]; empty where they are not kept
    decisions: tuple[Decisions, ...]  # by group, [E, N, M, ...]
    reward: jax.Array  # f32[E, M]
    active: jax.Array  # bool[E, M]
    all_terminated: jax.Array  # bool[E]
    episode_done: jax.Array  # bool[E]


def _shown_step(spec: RolloutSpec, outputs: list[PolicyOutput], raw: RawStep) -> _ShownStep:
    by_env = lambda tree: jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), tree)
    return _ShownStep(
        state=raw.state,
        obs=by_env(_kept_obs(spec, spec.grouping.gather(raw.obs))),
        decisions=by_env(tuple(map(_decisions, spec.policy_specs, outputs))),
        reward=raw.reward,
        active=raw.active,
        all_terminated=raw.all_terminated,
        episode_done=raw.episode_done,
    )


def _decisions(policy_spec: PolicySpec, output: PolicyOutput) -> Decisions:
    """The decisions of one group in a step, [N, E, M, ...]."""
    probabilities = None
    if mask_length(policy_spec.action_space):
        probabilities = output.distribution.probabilities()
    action = policy_spec.to_env_action(output.action)
    return Decisions(action, output.value, probabilities, policy_spec.spread(output.distribution))


def _kept_obs(spec: RolloutSpec, obs: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
    """Observations by group, where there is no other picture."""
    return () if hasattr(spec.env, "draw") or has_pictures(spec.env) else obs


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
