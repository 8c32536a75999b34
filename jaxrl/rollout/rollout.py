"""E environments played for T steps by their policies, in one scan."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import acting_agents
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import carried
from jaxrl.models.policy_spec import PolicyInputs, PolicyState, PolicyWeights
from jaxrl.ops.control_flow import cond_any
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.packing import pack
from jaxrl.rollout.env_step import (
    EnvBatch,
    RolloutSpec,
    StepRandomness,
    draw_randomness,
    follow,
    next_policy_states,
    policy_inputs,
    step_envs,
)
from jaxrl.rollout.episode_stats import EpisodeStats
from jaxrl.rollout.policy_map import Grouping, each_policy
from jaxrl.rollout.turns import Row, Steps, Unfinished, brought_over, left_open, outcomes


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
    inputs: PolicyInputs = PolicyInputs()  # what the policy was told beside the observation
    waited: PyTree = ()  # bool  no row of the agent's: advantages pass it over; () where agents never wait (`turns`)
    carry: PyTree = ()  # [C, N, E, M, ...]  the model's into each of the parts that `PolicySpec.sequences` makes of T


class Rollout(struct.PyTreeNode):
    """T steps of all environments."""

    trajectories: tuple[Trajectory, ...]  # by group
    reached: EpisodeStats  # [T, E]  as each step left them
    over: jax.Array  # bool[T, E]  whether that step ended them
    agent_steps: jax.Array  # i32[M_all]  rows in which each agent acted
    hist_data: dict[str, jax.Array] = struct.field(
        default_factory=dict
    )  # {name: f32[T, E]}  of the callbacks


def play(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    key: Key,
    env_index: jax.Array,
    num_steps: int,
    env_params: PyTree,
) -> tuple[EnvBatch, Rollout]:
    """Plays `num_steps` steps.

    Args:
        weights: of those who act, by group, [N, ...].
        key: folded once with each environment's global index; all its draws follow as one block, so
            that the numbers do not depend on which environments share a device.
        env_index: i32[E].
    """

    lengths = [policy_spec.sequences(num_steps)[1] for policy_spec in spec.policy_specs]

    def step(state, randomness):
        # Written as few wide arrays: a loop on the CPU pays for each, however small.
        envs, carries, before_action = state
        carries = [
            _keep(*own, randomness.step)
            for own in zip(carries, envs.policy_states, lengths, strict=True)
        ]
        before = envs.policy_states
        envs, turns, ends = _step(spec, weights, envs, randomness, env_params)
        before_action = [
            carried(turn.active, policy_states.carry, carry)
            for turn, policy_states, carry in zip(turns, before, before_action, strict=spec.waits)
        ]
        packed = tuple(pack(turn, num_axes=3) for turn in turns)
        return (envs, carries, before_action), (packed, pack(ends, num_axes=1))

    env_keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(env_index)
    numbers = [policy_spec.sequences(num_steps)[0] for policy_spec in spec.policy_specs]
    carries = [
        jax.tree.map(
            lambda leaf, number=number: jnp.zeros((number, *leaf.shape), leaf.dtype), own.carry
        )
        for number, own in zip(numbers, envs.policy_states, strict=True)
    ]
    before_action = [own.carry for own in envs.unfinished]
    state, (turns, ends) = jax.lax.scan(
        step, (envs, carries, before_action), draw_randomness(spec, env_keys, num_steps)
    )
    envs, carries, before_action = state
    inputs = policy_inputs(spec, envs.state, envs.policy_states, env_params, masks=False)
    bootstrap = _values(spec, weights, envs.obs, envs.policy_states, inputs)
    turns = [turn.unpack() for turn in turns]
    if spec.waits:
        envs, trajectories = _trajectories_of_turns(
            spec, envs, turns, bootstrap, carries, before_action, env_params
        )
    else:
        by_group = zip(turns, bootstrap, carries, strict=True)
        trajectories = tuple(_trajectory(turn, values, carry) for turn, values, carry in by_group)
    reached, over, hist_data = ends.unpack()
    return envs, Rollout(trajectories, reached, over, _agent_steps(spec.grouping, turns), hist_data)


class _Turn(NamedTuple):
    """What the policies of one group did in a step, and what came of it: [N, E, M, ...]."""

    obs: PyTree
    action: PyTree
    distribution: Distribution
    value: jax.Array
    inputs: PolicyInputs
    final_value: jax.Array  # V(s'[t]) where the clock ended the episode
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    active: jax.Array


def _step(
    spec: RolloutSpec,
    weights: tuple,
    envs: EnvBatch,
    randomness: StepRandomness,
    env_params: PyTree,
):
    """(envs, turns by group, (reached, over, hist_data)) of one step of all environments."""
    grouping = spec.grouping
    acted, raw = step_envs(spec, weights, envs, randomness, env_params)
    policy_states = next_policy_states(spec, envs.policy_states, acted, raw)
    inputs = policy_inputs(spec, raw.state, policy_states, env_params, masks=False)
    final_values = _final_values(
        raw.truncated, spec, weights, grouping.gather(raw.obs), policy_states, inputs
    )
    following, reached, hist_data = follow(spec, envs, acted, raw, randomness, env_params)
    by_group = zip(
        *map(grouping.gather, (raw.reward, raw.terminated, raw.truncated, raw.active)), strict=True
    )
    turns = [
        _Turn(
            envs.obs[g],
            own.action,
            own.distribution,
            own.value,
            own.inputs,
            final_values[g],
            *group_values,
        )
        for g, (own, group_values) in enumerate(zip(acted, by_group, strict=True))
    ]
    return following, turns, (reached, raw.over, hist_data)


def _keep(carries: PyTree, policy_states: PolicyState, length: int, step: jax.Array) -> PyTree:
    """`carries` [C, ...] with that of `policy_states` where a part of `length` steps begins with this one."""
    part = step // length
    return jax.tree.map(
        lambda kept, now: kept.at[part].set(jnp.where(step % length == 0, now, kept[part])),
        carries,
        policy_states.carry,
    )


def _trajectory(turn: _Turn, bootstrap: jax.Array, carry: PyTree) -> Trajectory:
    """Turns [T, ...] with the values of the states that they reached; `bootstrap` f32[N, E, M] is of the last ones.

    V(s'[t]) is V(s[t+1]), computed anyway, but where the clock ended the episode and s[t+1] is
    another's first.
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
        inputs=turn.inputs,
        carry=carry,
    )


def _trajectories_of_turns(
    spec: RolloutSpec,
    envs: EnvBatch,
    turns: list[_Turn],
    bootstrap: tuple[jax.Array, ...],
    carries: list[PyTree],
    before_action: list[PyTree],
    env_params: PyTree,
) -> tuple[EnvBatch, tuple[Trajectory, ...]]:
    """The trajectories of agents that may wait, and the environments with what is left open in them.

    Args:
        before_action: by group, [N, E, M, ...], the model's carry into each agent's last action.
    """
    acting = jax.vmap(lambda state: acting_agents(spec.env, state, env_params))(envs.state)
    by_group = zip(
        turns, bootstrap, carries, before_action, spec.grouping.gather(acting), strict=True
    )
    found = [
        _trajectory_of_turns(unfinished, *own)
        for unfinished, own in zip(envs.unfinished, by_group, strict=True)
    ]
    trajectories, unfinished = zip(*found, strict=True)
    return envs.replace(unfinished=unfinished), trajectories


def _trajectory_of_turns(
    unfinished: Unfinished,
    turn: _Turn,
    bootstrap: jax.Array,
    carry: PyTree,
    before_action: PyTree,
    acting: jax.Array,
) -> tuple[Trajectory, Unfinished]:
    """(the trajectory of one group, whose rows are the agents' own actions; what is left open)."""
    steps = Steps(turn.reward, turn.terminated, turn.truncated, turn.active, turn.final_value)
    row = Row(turn.obs, turn.action, turn.distribution, turn.value, turn.inputs)
    row, steps, acted = brought_over(unfinished, row, steps)
    is_first = acted[0] & ~turn.active[0]
    carry = jax.tree.map(
        lambda all, into: all.at[0].set(into),
        carry,
        carried(is_first, unfinished.carry, jax.tree.map(lambda leaf: leaf[0], carry)),
    )
    outcome = outcomes(steps, row.value, acted, bootstrap, acting)
    is_known = acted & outcome.known
    trajectory = Trajectory(
        obs=row.obs,
        action=row.action,
        distribution=row.distribution,
        value=row.value,
        next_value=outcome.next_value,
        reward=jnp.where(is_known, outcome.reward, 0.0),
        terminated=is_known & outcome.terminated,
        ended=turn.terminated | turn.truncated | (is_known & outcome.ended),
        active=is_known,
        inputs=row.inputs,
        waited=~is_known,
        carry=carry,
    )
    return trajectory, left_open(row, outcome, acted, before_action)


def _values(spec: RolloutSpec, *by_group: tuple) -> tuple[jax.Array, ...]:
    """V by group, f32[N, E, M], of (weights, observations, memories, contexts)."""
    return tuple(
        each_policy(policy_spec.apply, in_axes=(0, 0, 0, 0))(*own)[1]
        for policy_spec, *own in zip(spec.policy_specs, *by_group, strict=True)
    )


def _final_values(
    truncated: jax.Array, spec: RolloutSpec, *by_group: tuple
) -> tuple[jax.Array, ...]:
    """V by group where the clock ended an episode, unspecified elsewhere: most steps have none."""
    shapes = jax.eval_shape(functools.partial(_values, spec), *by_group)
    return cond_any(
        jnp.any(truncated),
        functools.partial(_values, spec),
        lambda *by_group: tuple(jnp.zeros(shape.shape, shape.dtype) for shape in shapes),
        *by_group,
    )


def _agent_steps(grouping: Grouping, turns: list[_Turn]) -> jax.Array:
    """How many steps each agent acted in, i32[M_all]."""
    counts = {}
    for group, turn in zip(grouping.groups, turns, strict=True):
        rows = jnp.sum(turn.active, axis=(0, 2), dtype=jnp.int32)  # [N, M]
        counts |= {
            agent: rows[i, j]
            for i, agents in enumerate(group.agents)
            for j, agent in enumerate(agents)
        }
    return jnp.stack([counts[agent] for agent in grouping.agents])
