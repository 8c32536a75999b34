"""A rollout of recorded steps: what others lived through, with the values that learning needs.

Recorded steps come from programs that own their loop. The policies are run over them once more, in
one scan, for the values of the states and the memory before each step. Actions are taken as they
were recorded, with their probabilities where those are known.
"""

import jax
import jax.numpy as jnp

from jaxrl.models.policy_spec import PolicyOutput, PolicySpec, PolicyWeights
from jaxrl.ops.control_flow import cond_any
from jaxrl.ops.distributions import Distribution
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.episode_stats import EpisodeStats
from jaxrl.rollout.grouping import PolicyGroup, each_policy
from jaxrl.rollout.rollout import Rollout, agent_steps_of
from jaxrl.rollout.steps import Steps, Trajectory


class Lanes(Steps):
    """Recorded steps of the policies of one group: E lanes of T rows for each agent, [T, N, E, M].

    A lane holds parts of episodes one after the other, and rows that are not `active` after the
    last. The last row of each part is `terminated`, or `truncated` where the episode was cut.
    """

    begins: jax.Array | None = None  # bool  the first row of a part
    action_mask: jax.Array | None = None  # bool[..., A]; None without masks
    dist_inputs: jax.Array | None = None  # f32[..., K]  of the distribution that it was drawn from
    has_dist_inputs: jax.Array | None = None  # bool
    has_log_prob: jax.Array | None = None  # bool
    return_before: jax.Array | None = None  # f32  discounted, of the episode; read where `begins`


def recorded_rollout(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    lanes: tuple[Lanes, ...],
    finished: EpisodeStats,
    episode_done: jax.Array,
) -> Rollout:
    """The rollout of `lanes`, by group.

    Probabilities that were not recorded are those of `weights`, as if these had acted.

    Args:
        finished: [T, E]  the episodes to report, where `episode_done`, bool[T, E], is set.
    """
    trajectories = tuple(map(_trajectory, spec.policy_specs, spec.grouping.groups, weights, lanes))
    agent_steps = agent_steps_of(spec.grouping, trajectories)
    return Rollout(trajectories, finished, episode_done, agent_steps)


def _trajectory(
    policy_spec: PolicySpec, group: PolicyGroup, weights: PolicyWeights, lanes: Lanes
) -> Trajectory:
    num_steps, _, num_envs = lanes.reward.shape[:3]
    apply = each_policy(policy_spec.apply, in_axes=(0, 0, 0, 0))
    agent_ids = group.agent_ids(num_envs)

    def values(obs, policy_state):
        inputs = policy_spec.inputs(policy_state, None, agent_ids)
        return apply(weights, obs, policy_state, inputs)[1]

    def no_values(obs, policy_state):
        return jnp.zeros(agent_ids.shape)

    def step(policy_state, row):
        policy_state = policy_spec.reset_where(row.begins, policy_state)
        inputs = policy_spec.inputs(policy_state, row.action_mask, agent_ids)
        applied = apply(weights, row.obs, policy_state, inputs)
        output = PolicyOutput(row.action, *applied, inputs)
        after = policy_spec.next_state(output, row.reward)
        final = cond_any(jnp.any(row.truncated), values, no_values, row.next_obs, after)
        return after, (output.distribution, output.value, final, inputs, policy_state.carry)

    state = policy_spec.initial_state(agent_ids.shape)
    _, rows = jax.lax.scan(step, state, lanes)
    distribution, value, final, inputs, carries = rows
    distribution = _as_recorded(distribution, lanes)
    log_prob = distribution.log_prob(lanes.action)
    _, length = policy_spec.sequences(num_steps)
    following = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    return Trajectory(
        obs=lanes.obs,
        action=lanes.action,
        distribution=distribution,
        value=value,
        next_value=jnp.where(lanes.truncated, final, following),
        reward=lanes.reward,
        terminated=lanes.terminated,
        done=lanes.terminated | lanes.truncated | ~lanes.active,
        active=lanes.active,
        inputs=inputs,
        carry=jax.tree.map(lambda leaf: leaf[::length], carries),
        log_prob=jnp.where(lanes.has_log_prob, lanes.log_prob, log_prob),
        return_before=jnp.where(lanes.begins, lanes.return_before, 0.0),
        next_obs=lanes.next_obs if policy_spec.rewards_itself else None,
    )


def _as_recorded(distribution: Distribution, lanes: Lanes) -> Distribution:
    """The distribution with its recorded numbers, the inverse of `dist_inputs`, where known."""
    leaves, structure = jax.tree.flatten(distribution)
    is_recorded, begin, recorded = lanes.has_dist_inputs[..., None], 0, []
    for leaf in leaves:
        end = begin + leaf.shape[-1]
        recorded.append(jnp.where(is_recorded, lanes.dist_inputs[..., begin:end], leaf))
        begin = end
    return structure.unflatten(recorded)
