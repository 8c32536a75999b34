"""An episode played to be looked at: every state of it, and who got which reward."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.env import MultiAgentEnvironment, strongly_typed
from jaxrl.core.errors import UsageError
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, next_policy_states, reset_envs, step_envs
from jaxrl.run.devices.mesh import on_host
from jaxrl.run.inference.evaluate import episode_keys, step_chance

STEPS_AT_ONCE = 100  # of an episode whose length nobody knows before
PICTURES_AT_ONCE = 8  # one of 500 x 500 pixels takes some 20 MB while it is painted


@dataclass(frozen=True)
class EpisodeRecording:
    """One episode of T steps."""

    agents: tuple[AgentId, ...]
    states: PyTree  # [T + 1, ...], on the host; the first is the reset's
    rewards: np.ndarray  # f32[T, M]; 0 where the agent was not active
    active: np.ndarray  # bool[T, M]
    end: (
        str  # "terminated": the world ended; "truncated": its clock ran out; "cut": `max_steps` did
    )

    @property
    def num_steps(self) -> int:
        return len(self.rewards)

    @property
    def running_returns(self) -> np.ndarray:
        """f64[T + 1, M]: the undiscounted return of each agent up to each state; zeros at first."""
        return np.concatenate(
            [np.zeros((1, len(self.agents))), np.cumsum(self.rewards, axis=0, dtype=np.float64)]
        )


def record_episode(
    algorithm: Algorithm,
    weights: tuple[PolicyWeights, ...],
    env_params: PyTree,
    *,
    seed: int = 0,
    episode: int = 0,
    explore: bool = False,
    max_steps: int = 2000,
) -> EpisodeRecording:
    """Plays one episode in one environment.

    Args:
        weights: by group, [N, ...].
        seed, episode: which game; it is the one that `evaluate` plays as that seed's episode of
        this number.
        explore: whether actions are sampled, or their distribution's mode.
    """
    spec, index, env_params = algorithm.rollout_spec, np.int32(episode), strongly_typed(env_params)
    reset_key, play_key = episode_keys(seed)
    envs = _start(spec, reset_key, index, env_params)
    first, chunks = jax.tree.map(on_host, envs.state), []
    for begin in range(0, max_steps, STEPS_AT_ONCE):
        envs, chunk = _play_on(
            spec, explore, weights, envs, play_key, index, np.int32(begin), env_params
        )
        chunks.append(jax.tree.map(on_host, chunk))
        if np.any(chunks[-1][-1]):
            break
    states, rewards, active, world_ended, over = jax.tree.map(_joined, *chunks)
    # What was played past the end is dropped.
    num_steps = min(int(np.argmax(over)) + 1 if np.any(over) else len(over), max_steps)
    states = jax.tree.map(lambda leaf, others: _joined(leaf, others[:num_steps]), first, states)
    last = num_steps - 1
    end = "cut" if not over[last] else "terminated" if world_ended[last] else "truncated"
    return EpisodeRecording(
        tuple(algorithm.grouping.agents), states, rewards[:num_steps], active[:num_steps], end
    )


def frames(
    replay: EpisodeRecording, env: MultiAgentEnvironment, env_params: PyTree, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """The environment's pictures u8[H, W, 3] of these states, painted a few at a time."""
    check_can_render(env)
    for begin in range(0, len(steps), PICTURES_AT_ONCE):
        wanted = np.asarray(steps[begin : begin + PICTURES_AT_ONCE])
        index = np.pad(
            wanted, (0, PICTURES_AT_ONCE - len(wanted)), mode="edge"
        )  # one shape, one compilation
        pictures = _paint(
            env, jax.tree.map(lambda leaf, index=index: leaf[index], replay.states), env_params
        )
        yield from np.asarray(pictures)[: len(wanted)]


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


@functools.partial(jax.jit, static_argnums=(0, 1))
def _play_on(
    spec: RolloutSpec,
    explore: bool,
    weights: tuple,
    envs: EnvBatch,
    key: Key,
    index,
    begin: jax.Array,
    env_params: PyTree,
) -> tuple[EnvBatch, tuple]:
    """The episode's steps begin, begin + 1, ... with no reset.

    Returns:
        (envs, (state, reward, active, world_ended, over)), what each step did [STEPS_AT_ONCE,
        ...].
    """

    def step(envs, time):
        # As `evaluate` draws them, so that what is shown is an episode that was counted there.
        randomness = step_chance(spec, key, index[None], time)
        acted, raw = step_envs(spec, weights, envs, randomness, env_params, explore=explore)
        did = raw.state, raw.reward, raw.active, raw.world_ended, raw.over
        obs, policy_states = (
            spec.grouping.gather(raw.obs),
            next_policy_states(spec, envs.policy_states, acted, raw),
        )
        envs = envs.replace(state=raw.state, obs=obs, policy_states=policy_states)
        return envs, jax.tree.map(lambda leaf: leaf[0], did)

    return jax.lax.scan(step, envs, begin + jnp.arange(STEPS_AT_ONCE, dtype=jnp.int32))


@functools.partial(jax.jit, static_argnums=0)
def _paint(env: MultiAgentEnvironment, states: PyTree, env_params: PyTree) -> jax.Array:
    return jax.vmap(lambda state: env.render(state, env_params))(states)


def _joined(*parts):
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else jnp.concatenate(parts)
