"""E environments played for T steps by their policies, in one scan."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.types import Key, PyTree
from jaxrl.loop.episodes import Episodes
from jaxrl.loop.policies import Grouping, each_policy
from jaxrl.loop.stage import Chance, Stage, Worlds, draw_chance, follow, take_turn
from jaxrl.models.player import Weights
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.packing import pack
from jaxrl.ops.seldom import if_needed


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

    def step(worlds, chance):
        # Written as few wide arrays: a loop on the CPU pays for each, however small.
        worlds, turns, ends = _step(stage, weights, worlds, chance, env_params)
        return worlds, (tuple(pack(turn, num_axes=3) for turn in turns), pack(ends, num_axes=1))

    env_keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(env_index)
    worlds, (turns, ends) = jax.lax.scan(step, worlds, draw_chance(stage, env_keys, num_steps))
    bootstrap = _values(stage, weights, worlds.obs)
    trajectories = tuple(_trajectory(turn.unpack(), values) for turn, values in zip(turns, bootstrap, strict=True))
    reached, over, hist_data = ends.unpack()
    return worlds, Rollout(trajectories, reached, over, _agent_steps(stage.grouping, trajectories), hist_data)


class _Turn(NamedTuple):
    """What the policies of one group did in a step, and what came of it: [N, E, M, ...]."""

    obs: PyTree
    action: PyTree
    distribution: Distribution
    value: jax.Array
    final_value: jax.Array  # V(s'[t]) where the clock ended the episode
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    active: jax.Array


def _step(stage: Stage, weights: tuple, worlds: Worlds, chance: Chance, env_params: PyTree):
    """(worlds, turns by group, (reached, over, hist_data)) of one step of all environments."""
    grouping = stage.grouping
    acted, raw = take_turn(stage, weights, worlds, chance, env_params)
    final_values = _final_values(stage, weights, grouping.gather(raw.obs), raw.truncated)
    following, reached, hist_data = follow(stage, worlds, acted, raw, chance, env_params)
    by_group = zip(*map(grouping.gather, (raw.reward, raw.terminated, raw.truncated, raw.active)), strict=True)
    turns = [_Turn(worlds.obs[g], *acted[g], final_values[g], *group_values) for g, group_values in enumerate(by_group)]
    return following, turns, (reached, raw.over, hist_data)


def _trajectory(turn: _Turn, bootstrap: jax.Array) -> Trajectory:
    """Turns [T, ...] with the values of the states that they reached; `bootstrap` f32[N, E, M] is of the last ones.

    V(s'[t]) is V(s[t+1]), computed anyway, but where the clock ended the episode and s[t+1] is another's first.
    """
    following = jnp.concatenate([turn.value[1:], bootstrap[None]])
    return Trajectory(
        obs=turn.obs,
        action=turn.action,
        distribution=turn.distribution,
        value=turn.value,
        next_value=jnp.where(turn.truncated, turn.final_value, following),
        reward=turn.reward,
        terminated=turn.terminated,
        ended=turn.terminated | turn.truncated | ~turn.active,
        active=turn.active,
    )


def _values(stage: Stage, weights: tuple, obs: tuple) -> tuple[jax.Array, ...]:
    """V by group, f32[N, E, M]."""
    return tuple(
        each_policy(player.apply, in_axes=(0, 0))(group_weights, group_obs)[1]
        for player, group_weights, group_obs in zip(stage.players, weights, obs, strict=True)
    )


def _final_values(stage: Stage, weights: tuple, obs: tuple, truncated: jax.Array) -> tuple[jax.Array, ...]:
    """V by group where the clock ended an episode, unspecified elsewhere: most steps have none."""
    shapes = jax.eval_shape(functools.partial(_values, stage), weights, obs)
    return if_needed(
        jnp.any(truncated),
        functools.partial(_values, stage),
        lambda weights, obs: tuple(jnp.zeros(shape.shape, shape.dtype) for shape in shapes),
        weights,
        obs,
    )


def _agent_steps(grouping: Grouping, trajectories: tuple[Trajectory, ...]) -> jax.Array:
    """How many rows each agent acted in, i32[M_all]."""
    counts = {}
    for group, trajectory in zip(grouping.groups, trajectories, strict=True):
        rows = jnp.sum(trajectory.active, axis=(0, 2), dtype=jnp.int32)  # [N, M]
        counts |= {agent: rows[i, j] for i, agents in enumerate(group.agents) for j, agent in enumerate(agents)}
    return jnp.stack([counts[agent] for agent in grouping.agents])
