"""Steps of environments outside JAX: NumPy arrays of the host, as compiled calls take them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import MultiAgentEnvironment, RawStep, Solo, agents_may_wait
from jaxrl.core.outside_env import OutsideState
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.rollout.env_step import (
    EnvBatch,
    RolloutSpec,
    choose_actions,
    reset_envs,
)
from jaxrl.rollout.policy_map import Grouping


class Reached(NamedTuple):
    """The result of a step of a part's copies, as a compiled call takes it."""

    obs: tuple[PyTree, ...]  # by group, [N, E, M, ...], to continue from
    final_obs: tuple[PyTree, ...]  # by group, before any reset
    state: OutsideState  # [E]  of `obs`
    reward: np.ndarray  # f32[E, M_all]
    terminated: np.ndarray  # bool[E, M_all]
    truncated: np.ndarray  # bool[E, M_all]
    active: np.ndarray  # bool[E, M_all]
    episode_done: np.ndarray  # bool[E]
    lost: np.ndarray  # bool[E]  a fault took the episode: none of its rows counts
    metrics: dict[str, np.ndarray]  # {name: f32[E]}


def first_envs(
    spec: RolloutSpec, weights: tuple[PolicyWeights, ...], first: Any, env_params: PyTree
) -> EnvBatch:
    """Copies at the start of their episodes, of a `FirstObs`."""
    obs = gather_on_host(spec.grouping, first.obs)
    copies = np.arange(len(jax.tree.leaves(first.obs)[0]), dtype=np.int32)
    return _fresh_envs(spec, weights, obs, told_state(spec, first, copies), env_params)


def told_of(spec: RolloutSpec, steps: Any, copies: np.ndarray | None) -> Reached:
    """A part's `VectorSteps`; observations are still by agent, [E, ...].

    Args:
        copies: their numbers, i32[E]; None where they are known.
    """
    return Reached(
        obs=steps.obs,
        final_obs=steps.final_obs,
        state=told_state(spec, steps, copies),
        reward=steps.reward,
        terminated=steps.terminated,
        truncated=steps.truncated,
        active=steps.active,
        episode_done=steps.episode_done,
        lost=steps.lost,
        metrics={name: steps.metrics[name] for name in spec.metrics},
    )


def reached_of(spec: RolloutSpec, steps: Any, copies: np.ndarray) -> Reached:
    """A part's `VectorSteps`, of the copies with these numbers, i32[E]; nothing is shared."""
    told = jax.tree.map(np.array, told_of(spec, steps, copies))
    obs, final_obs = (gather_on_host(spec.grouping, each) for each in (told.obs, told.final_obs))
    return told._replace(obs=obs, final_obs=final_obs)


def gather_on_host(grouping: Grouping, values: dict[str, PyTree]) -> tuple[PyTree, ...]:
    """NumPy arrays [E, ...] by agent, as [N, E, M, ...] by group: a view of an agent alone."""
    by_group = []
    for group in grouping.groups:
        rows = [[values[agent] for agent in agents] for agents in group.agents]
        if len(rows) == len(rows[0]) == 1:
            (alone,) = rows[0]
            view = lambda leaf: leaf[None, :, None]
            # Most observations are one array, which needs no walk through a tree in every step.
            by_group.append(
                view(alone) if isinstance(alone, np.ndarray) else jax.tree.map(view, alone)
            )
            continue
        stacked = [jax.tree.map(lambda *leaves: np.stack(leaves, 1), *row) for row in rows]
        by_group.append(jax.tree.map(lambda *leaves: np.stack(leaves), *stacked))
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


def told_state(spec: RolloutSpec, told: Any, copies: np.ndarray | None) -> OutsideState:
    """The copies' states for a program, in the form that the environment declares."""
    acting = masks = None
    waits, masked = _tells(spec.env)
    if waits:
        agents = enumerate(spec.grouping.agents)
        acting = {agent: told.acting[:, i] for i, agent in agents}
    if masked:
        masks = told.action_mask
        masks = next(iter(masks.values())) if isinstance(spec.env, Solo) else dict(masks)
    return OutsideState(copies, acting, masks)


@functools.lru_cache(maxsize=64)
def _tells(env: MultiAgentEnvironment) -> tuple[bool, bool]:
    """Returns whether an environment says who acts, and what is possible; asked in every step."""
    return agents_may_wait(env), hasattr(env, "action_mask")


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
    now: tuple,
    env_params: PyTree,
) -> tuple[list[PolicyOutput], tuple[PyTree, ...]]:
    """The outputs of the policies, and the environment's actions, by group.

    Args:
        now: (noise, env_steps) as of `choose_actions`.
    """
    noise, env_steps = now
    outputs = choose_actions(spec, weights, envs, noise, env_params, env_steps)
    actions = tuple(
        policy_spec.to_env_action(output.action)
        for policy_spec, output in zip(spec.policy_specs, outputs, strict=True)
    )
    return outputs, actions


def raw_step_of(spec: RolloutSpec, reached: Reached) -> RawStep:
    """The step as one of JAX would have it; its observations are not read."""
    told = reached.active, reached.terminated, reached.truncated
    active, terminated, truncated = (flags & ~reached.lost[:, None] for flags in told)
    reward = jnp.where(reached.lost[:, None], 0.0, reached.reward)
    if not spec.waits:  # who is away is neither paid nor ended
        terminated, truncated = terminated & active, truncated & active
        reward = jnp.where(active, reward, 0.0)
    truncated = truncated & ~terminated
    episode_done = reached.episode_done & ~reached.lost
    return RawStep(
        obs=None,
        state=reached.state,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        active=active,
        all_terminated=episode_done & ~jnp.any(truncated, axis=1),
        episode_done=episode_done,
        info={"metrics": reached.metrics} if spec.metrics else {},
    )


def with_new_episodes(raw: RawStep, reached: Reached) -> RawStep:
    """A lost episode makes place for a new one as if it had ended, and is not counted."""
    return raw._replace(episode_done=raw.episode_done | reached.lost)
