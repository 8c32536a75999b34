"""Steps of environments outside JAX: NumPy arrays of the host, as compiled calls take them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import RawStep
from jaxrl.core.outside_env import OutsideState, OutsideSteps
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, choose_actions, reset_envs
from jaxrl.rollout.grouping import Grouping


def first_envs(
    spec: RolloutSpec, weights: tuple[PolicyWeights, ...], first: Any, env_params: PyTree
) -> EnvBatch:
    """Copies at the start of their episodes, of a `FirstObs`."""
    obs = gather_on_host(spec.grouping, first.obs)
    copies = np.arange(len(jax.tree.leaves(first.obs)[0]), dtype=np.int32)
    state = OutsideState(copies, first.acting, first.action_mask, first.critic)
    return _fresh_envs(spec, weights, obs, state, env_params)


def by_group(spec: RolloutSpec, steps: OutsideSteps) -> OutsideSteps:
    """A step with its observations by group, [N, E, M, ...]; nothing is shared."""
    steps = jax.tree.map(np.array, steps)
    gather = functools.partial(gather_on_host, spec.grouping)
    return steps._replace(obs=gather(steps.obs), final_obs=gather(steps.final_obs))


def gather_on_host(
    grouping: Grouping, values: dict[str, PyTree], stack: Callable[..., Any] = np.stack
) -> tuple[PyTree, ...]:
    """Arrays [E, ...] by agent, as [N, E, M, ...] by group: a view of an agent alone.

    Args:
        stack: `jnp.stack` where they are traced.
    """
    by_group = []
    for group in grouping.groups:
        if len(group.agents) == len(group.agents[0]) == 1:
            view = lambda leaf: leaf[None, :, None]
            by_group.append(jax.tree.map(view, values[group.agents[0][0]]))
            continue
        rows = []
        for agents in group.agents:
            row = [values[agent] for agent in agents]
            rows.append(jax.tree.map(lambda *leaves: stack(leaves, 1), *row))
        by_group.append(jax.tree.map(lambda *leaves: stack(leaves), *rows))
    return tuple(by_group)


def scatter_on_host(
    grouping: Grouping, values: tuple[PyTree, ...], num_leading: int = 0
) -> dict[str, PyTree]:
    """The inverse of `gather_on_host`, as views.

    Args:
        num_leading: axes before [N, E, M, ...], which stay.
    """
    leading, by_agent = (slice(None),) * num_leading, {}
    for group, tree in zip(grouping.groups, values, strict=True):
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                place = (*leading, i, slice(None), j)
                by_agent[agent] = jax.tree.map(lambda leaf, place=place: leaf[place], tree)
    return by_agent


@functools.partial(jax.jit, static_argnums=0)
def _fresh_envs(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    obs: tuple[PyTree, ...],
    state: OutsideState,
    env_params: PyTree,
) -> EnvBatch:
    """Copies at the start of their episodes."""
    envs = reset_envs(spec, jax.random.key(0), state.copy, env_params, weights)
    return envs.replace(obs=obs, state=state)


def act(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    draws: tuple,
    env_params: PyTree,
) -> tuple[list[PolicyOutput], tuple[PyTree, ...]]:
    """The outputs of the policies, and the environment's actions, by group.

    Args:
        draws: (noise, env_steps) as of `choose_actions`.
    """
    noise, env_steps = draws
    outputs = choose_actions(spec, weights, envs, noise, env_params, env_steps)
    actions = []
    for policy_spec, output in zip(spec.policy_specs, outputs, strict=True):
        actions.append(policy_spec.to_env_action(output.action))
    return outputs, tuple(actions)


def raw_step_of(spec: RolloutSpec, steps: OutsideSteps, copies: jax.Array) -> RawStep:
    """The step as one of JAX would have it; its observations are not read.

    Args:
        copies: the numbers of the copies, i32[E].
    """
    reported = steps.active, steps.terminated, steps.truncated
    active, terminated, truncated = (flags & ~steps.lost[:, None] for flags in reported)
    reward = jnp.where(steps.lost[:, None], 0.0, steps.reward)
    if not spec.waits:  # who is away is neither paid nor ended
        terminated, truncated = terminated & active, truncated & active
        reward = jnp.where(active, reward, 0.0)
    truncated = truncated & ~terminated
    episode_done = steps.episode_done & ~steps.lost
    return RawStep(
        obs=None,
        state=OutsideState(copies, steps.acting, steps.action_mask, steps.critic),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        active=active,
        all_terminated=episode_done & ~jnp.any(truncated, axis=1),
        episode_done=episode_done,
        info={"metrics": steps.metrics} if spec.metrics else {},
    )


def reached(envs: EnvBatch, steps: OutsideSteps) -> tuple[tuple[PyTree, ...], PyTree | None]:
    """(observations by group, critic's) that a step of `envs` reached, before any reset.

    Of a copy that ended, and of which nobody says what it reached, they are those that its agents
    acted on.
    """
    final = steps.final_obs, steps.final_critic
    if steps.final_known is None:
        return final
    unknown = steps.episode_done & ~steps.final_known

    def choose(axis, before, after):
        shape = [1] * after.ndim
        shape[axis] = len(unknown)
        return jnp.where(unknown.reshape(shape), before, after)

    obs = jax.tree.map(functools.partial(choose, 1), envs.obs, final[0])
    return obs, jax.tree.map(functools.partial(choose, 0), envs.state.critic, final[1])


def with_new_episodes(raw: RawStep, lost: jax.Array) -> RawStep:
    """A lost episode makes place for a new one as if it had ended, and is not counted."""
    return raw._replace(episode_done=raw.episode_done | lost)
