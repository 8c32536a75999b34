"""E environments played for T steps by their policies, in one scan."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import MultiAgentEnvironment, RawStep, is_stacked, raw_reset, raw_step, restart, stack_agents
from jaxrl.core.types import Key, PyTree
from jaxrl.loop.callbacks import call_back, start_data
from jaxrl.loop.episodes import Episodes, advance, no_episodes
from jaxrl.loop.policies import Grouping
from jaxrl.models.player import Player, Weights
from jaxrl.ops.distributions import Distribution

RESETS_AT_ONCE = 8


class Worlds(struct.PyTreeNode):
    """The environments between two rollouts."""

    state: PyTree  # [E, ...]
    obs: tuple[PyTree, ...]  # by group, [N, E, M, ...]
    running: Episodes  # [E]
    data: tuple[PyTree, ...] = ()  # by callback, [E, ...]


class Trajectory(struct.PyTreeNode):
    """What the policies of one group did: [T, N, E, M, ...]."""

    obs: PyTree
    action: PyTree  # as sampled; the environment's own is made of it by the player
    distribution: Distribution  # that the action was drawn from
    value: jax.Array  # f32  V(s[t])
    next_value: jax.Array  # f32  V(s'[t]), s' before any reset; unspecified where `terminated`
    reward: jax.Array  # f32
    terminated: jax.Array  # bool
    ended: jax.Array  # bool  terminated or truncated
    active: jax.Array  # bool  the agent acted; rows without it count for nothing


class Rollout(struct.PyTreeNode):
    """T steps of all environments."""

    trajectories: tuple[Trajectory, ...]  # by group
    reached: Episodes  # [T, E]  as each step left them
    over: jax.Array  # bool[T, E]  whether that step ended them
    agent_steps: jax.Array  # i32[M_all]  rows in which each agent acted
    hist_data: dict[str, jax.Array] = struct.field(default_factory=dict)  # {name: f32[T, E]}  of the callbacks


class Stage(NamedTuple):
    """Who plays where: everything static that a rollout needs."""

    env: MultiAgentEnvironment
    grouping: Grouping
    players: tuple[Player, ...]  # by group
    metrics: tuple[str, ...]  # the names in info["metrics"]
    callbacks: tuple = ()  # in the order in which they chain
    custom_metrics: tuple[str, ...] = ()  # the names that callbacks add to those


def set_stage(
    env: MultiAgentEnvironment, params: PyTree, grouping: Grouping, players: tuple[Player, ...], callbacks: tuple = ()
) -> Stage:
    """The stage with the names of all metrics, found without computing anything.

    Raises:
        UsageError: callbacks that break their contract, or clash with each other or with the environment.
    """
    stage = Stage(env, grouping, players, episode_metrics(env, params), callbacks)
    if not callbacks:
        return stage

    def one_step(key):
        state, action, raw = _any_step(env, params, key)
        running = no_episodes(len(env.agents), stage.metrics)
        _, reached = advance(running, raw.reward, _metrics(stage, raw.info), raw.over)
        data = start_data(callbacks, state, params)
        return call_back(callbacks, env, params, data, reached, action, raw, raw.state)[1]

    return stage._replace(custom_metrics=tuple(jax.eval_shape(one_step, _shape_of_a_key())))


def episode_metrics(env: MultiAgentEnvironment, params: PyTree) -> tuple[str, ...]:
    """The names in the environment's info["metrics"], found without computing anything."""
    return tuple(jax.eval_shape(lambda key: _any_step(env, params, key)[2].info.get("metrics", {}), _shape_of_a_key()))


def open_worlds(stage: Stage, key: Key, env_index: jax.Array, env_params: PyTree) -> Worlds:
    """Every environment at the start of its first episode; `env_index` i32[E] are their global indices."""
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(env_index)
    obs, state = jax.vmap(lambda key: raw_reset(stage.env, key, env_params))(keys)
    running = no_episodes(len(stage.grouping.agents), stage.metrics, env_index.shape[0])
    data = jax.vmap(lambda state: start_data(stage.callbacks, state, env_params))(state)
    return Worlds(state, stage.grouping.gather(obs), running, data)


def play(
    stage: Stage,
    weights: tuple[Weights, ...],
    worlds: Worlds,
    key: Key,
    env_index: jax.Array,
    num_steps: int,
    env_params: PyTree,
) -> tuple[Worlds, Rollout]:
    """Plays `num_steps` steps.

    Args:
        weights: of those who act, by group, [N, ...].
        key: folded once with each environment's global index; all its draws follow as one block, so that the numbers
            do not depend on which environments share a device.
        env_index: i32[E].
    """

    def step(worlds, keys):
        return _step(stage, weights, worlds, keys, env_params)

    env_keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(env_index)
    draws = jax.vmap(lambda key: jax.random.split(key, (num_steps, 2 + len(stage.grouping.agents))))(env_keys)
    worlds, (trajectories, truncated, reached, over, hist_data) = jax.lax.scan(step, worlds, jnp.moveaxis(draws, 1, 0))
    bootstrap = _values(stage, weights, worlds.obs)
    trajectories = tuple(map(_with_next_values, trajectories, truncated, bootstrap))
    return worlds, Rollout(trajectories, reached, over, _agent_steps(stage.grouping, trajectories), hist_data)


def _step(stage: Stage, weights: tuple, worlds: Worlds, keys: Key, env_params: PyTree):
    """One step of all environments; keys [E, 2 + M_all]: for the step, for the reset, for each agent's action."""
    grouping = stage.grouping
    acted, raw = take_turn(stage, weights, worlds, keys[:, 0], keys[:, 2:], env_params)
    final_obs = grouping.gather(raw.obs)
    following, reached, hist_data = follow(stage, worlds, acted, raw, keys[:, 1], env_params)
    by_group = map(grouping.gather, (raw.reward, raw.terminated, raw.truncated, raw.active))
    reward, terminated, truncated, active = by_group
    final_values = _values_where_any(stage, weights, final_obs, raw.truncated)
    trajectories = tuple(
        Trajectory(
            obs=worlds.obs[g],
            action=action,
            distribution=distribution,
            value=value,
            next_value=final_values[g],
            reward=reward[g],
            terminated=terminated[g],
            ended=terminated[g] | truncated[g] | ~active[g],
            active=active[g],
        )
        for g, (action, distribution, value) in enumerate(acted)
    )
    return following, (trajectories, truncated, reached, raw.over, hist_data)


def take_turn(
    stage: Stage, weights: tuple, worlds: Worlds, step_keys: Key, action_keys: Key, env_params: PyTree, *, explore=True
) -> tuple[list[tuple[PyTree, Distribution, jax.Array]], RawStep]:
    """Every agent acts and every environment steps once, with no reset.

    Args:
        step_keys, action_keys: [E] and [E, M_all].
        explore: whether actions are sampled, or their distribution's mode.

    Returns:
        (acted, raw): by group (action as the policy has it, distribution, value) [N, E, M, ...]; raw [E].
    """
    keys = stage.grouping.gather(action_keys)
    acted = [
        _act(player, *mine, explore) for player, *mine in zip(stage.players, weights, worlds.obs, keys, strict=True)
    ]
    raw = jax.vmap(lambda key, state, action: raw_step(stage.env, key, state, action, env_params))(
        step_keys, worlds.state, _in_environment(stage, acted)
    )
    return acted, raw


def follow(
    stage: Stage, worlds: Worlds, acted: list, raw: RawStep, reset_keys: Key, env_params: PyTree
) -> tuple[Worlds, Episodes, dict[str, jax.Array]]:
    """What a turn leads to: ended environments start again, statistics and the callbacks' data move on.

    Args:
        acted, raw: what `take_turn` gave for these worlds.
        reset_keys: [E].

    Returns:
        (worlds, reached, hist_data): the worlds to go on from; the Episodes [E] as this step left them, their metrics
        the environment's sums and what the callbacks' `on_episode_end` says of them; {name: f32[E]} of `hist_data`.
    """
    obs, state = restart_ended(stage.env, reset_keys, raw, env_params)
    running, reached = jax.vmap(advance)(worlds.running, raw.reward, _metrics(stage, raw.info), raw.over)
    data, hist_data = (), {}
    if stage.callbacks:
        call = functools.partial(call_back, stage.callbacks, stage.env, env_params)
        actions = _in_environment(stage, acted)
        data, custom, hist_data = jax.vmap(call)(worlds.data, reached, actions, raw, state)
        reached = reached.replace(metrics={**reached.metrics, **custom})
    return Worlds(state, stage.grouping.gather(obs), running, data), reached, hist_data


def restart_ended(env: MultiAgentEnvironment, keys: Key, raw: RawStep, params: PyTree) -> tuple[PyTree, PyTree]:
    """(obs, state) [E, ...] that E environments go on from after a raw step, each with a key of its own.

    A reset may cost as much as ten steps, and most steps end few episodes or none: then those alone are reset, a few
    at a time. Where many ended together, resetting all of them costs less than picking them out. Under vmap both are
    computed, the second with nothing left to do where the first is used.
    """
    num_envs, reached = keys.shape[0], (raw.obs, raw.state)
    reset = jax.vmap(lambda key: raw_reset(env, key, params))
    few = min(RESETS_AT_ONCE, num_envs)

    def some(carry):
        over, reached = carry
        index = jnp.nonzero(over, size=few, fill_value=num_envs)[0]  # those beyond the last are dropped below
        fresh = reset(keys[jnp.minimum(index, num_envs - 1)])
        reached = jax.tree.map(lambda old, new: old.at[index].set(new.astype(old.dtype), mode="drop"), reached, fresh)
        return over.at[index].set(False, mode="drop"), reached

    many = jnp.sum(raw.over, dtype=jnp.int32) > max(few, num_envs // 64)
    return jax.lax.cond(
        many,
        lambda: jax.vmap(restart)(raw.over, reset(keys), reached),
        lambda: jax.lax.while_loop(lambda carry: jnp.any(carry[0]), some, (raw.over & ~many, reached))[1],
    )


def _in_environment(stage: Stage, acted: list) -> PyTree:
    """The actions as the environment takes them, [E, ...]."""
    return stage.grouping.scatter(
        tuple(player.in_environment(action) for player, (action, _, _) in zip(stage.players, acted, strict=True))
    )


def _any_step(env: MultiAgentEnvironment, params: PyTree, key: Key) -> tuple[PyTree, PyTree, RawStep]:
    """(state, action, what it led to) of a first step, to be traced for its shapes."""
    _, state = raw_reset(env, key, params)
    action = {agent: env.action_space(agent, params).sample(key) for agent in env.agents}
    action = stack_agents(env, action) if is_stacked(env) else action
    return state, action, raw_step(env, key, state, action, params)


def _shape_of_a_key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _act(player: Player, weights: Weights, obs: PyTree, keys: Key, explore: bool):
    """(action, distribution, value), each [N, E, M, ...]; keys [N, E, M]."""
    distribution, value = jax.vmap(player.apply)(weights, obs)
    if not explore:
        return distribution.mode(), distribution, value
    sample = jax.vmap(jax.vmap(jax.vmap(lambda key, distribution: distribution.sample(key))))
    return sample(keys, distribution), distribution, value


def _values(stage: Stage, weights: tuple, obs: tuple) -> tuple[jax.Array, ...]:
    """V by group, f32[N, E, M]."""
    return tuple(
        jax.vmap(player.apply)(group_weights, group_obs)[1]
        for player, group_weights, group_obs in zip(stage.players, weights, obs, strict=True)
    )


def _values_where_any(stage: Stage, weights: tuple, obs: tuple, needed: jax.Array) -> tuple[jax.Array, ...]:
    """V by group if any entry of `needed` is set, else zeros: most steps end no episode by the clock."""
    shapes = jax.eval_shape(lambda: _values(stage, weights, obs))
    return jax.lax.cond(
        jnp.any(needed),
        lambda: _values(stage, weights, obs),
        lambda: tuple(jnp.zeros(shape.shape, shape.dtype) for shape in shapes),
    )


def _with_next_values(trajectory: Trajectory, truncated: jax.Array, bootstrap: jax.Array) -> Trajectory:
    """V(s'[t]) is V(s[t+1]), computed anyway, but where the clock ended the episode and s[t+1] is another's first."""
    following = jnp.concatenate([trajectory.value[1:], bootstrap[None]])
    return trajectory.replace(next_value=jnp.where(truncated, trajectory.next_value, following))


def _metrics(stage: Stage, info: dict) -> dict[str, jax.Array]:
    return {name: info["metrics"][name].astype(jnp.float32) for name in stage.metrics}


def _agent_steps(grouping: Grouping, trajectories: tuple[Trajectory, ...]) -> jax.Array:
    """How many rows each agent acted in, i32[M_all]."""
    counts = {}
    for group, trajectory in zip(grouping.groups, trajectories, strict=True):
        rows = jnp.sum(trajectory.active, axis=(0, 2), dtype=jnp.int32)  # [N, M]
        counts |= {agent: rows[i, j] for i, agents in enumerate(group.agents) for j, agent in enumerate(agents)}
    return jnp.stack([counts[agent] for agent in grouping.agents])
