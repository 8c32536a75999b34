"""Steps of agents: the one record of what they saw and did and what came of it; and their waits."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicyInputs
from jaxrl.ops.collectives import over_axis
from jaxrl.ops.distributions import Distribution

UNDECLARED_WAITS = "num_undeclared_waits"  # a metric of a policy, see `undeclared_waits`


class Steps(struct.PyTreeNode):
    """The steps of one group's policies, [..., N, E, M, ...]; arrays of JAX or NumPy.

    A field is None where the steps have none of it.
    """

    obs: PyTree = None
    action: PyTree = None  # as sampled; the environment's own is made of it by the player
    distribution: Distribution | None = None  # that it was drawn from; `Explored` where it explores
    value: jax.Array | None = None  # f32  V(s[t])
    # f32  V(s'[t]), s' before any reset; unspecified where `terminated`. Without `done` specified
    # only where `truncated`
    next_value: jax.Array | None = None
    reward: jax.Array | None = None  # f32
    terminated: jax.Array | None = None  # bool
    truncated: jax.Array | None = None  # bool
    done: jax.Array | None = None  # bool  in trajectories, which have no `truncated`
    active: jax.Array | None = None  # bool  the agent acted; rows without it count for nothing
    inputs: PolicyInputs = PolicyInputs()  # what the policy was told beside the observation
    # f32  of the action when it was chosen; None where that is the distribution's
    log_prob: jax.Array | None = None
    next_obs: PyTree = None  # that the step reached, before any reset, where anybody reads it
    env_action: PyTree = None  # as the environment got it, of steps that are recorded


class Trajectory(Steps):
    """The steps of one group's policies as they are learned from, [T, N, E, M, ...].

    An agent is `done` where it terminated, was truncated or did not act.
    """

    # bool  no row of the agent: advantages pass over it; None where agents never wait (`turns`)
    waited: jax.Array | None = None
    # [C, N, E, M, ...]  the model's carry into each part that `PolicySpec.sequences` makes of T
    carry: PyTree | None = None
    # f32  discounted, before rows that continue an episode of an earlier batch; None without those
    return_before: jax.Array | None = None
    # f32  probability of the action by the policy that learns, over that by which it was drawn, at
    # most 1 (`jaxrl.algorithms.ppo.behaviour`); None where rows are not weighted
    importance: jax.Array | None = None
    # the behaviour that acted, where the policy's choice with its noise learns; None elsewhere
    noise: Distribution | None = None
    # whether it may have been played by older weights than those that learn from it
    is_stale: bool = struct.field(pytree_node=False, default=False)


def undeclared_waits(
    spec: Any, rollout: Any, group: int, axis_name: str | None
) -> dict[str, jax.Array]:
    """Number of waits of agents in an environment that does not declare them, {name: f32[N]}.

    Learning from such rows would be wrong: the environment must have `acting_agents`. Agents that
    are absent for a whole episode do not wait. A wait that begins exactly between two rollouts is
    not seen: whether the agent had ended before it is not kept.

    Args:
        spec, rollout: a `RolloutSpec` and a `Rollout`.
        axis_name: a mapped axis over which the environments are split.
    """
    active, done = rollout.trajectories[group].active, rollout.trajectories[group].done
    stays_away = ~done[:-1] & ~active[1:] & ~rollout.episode_done[:-1, None, :, None]
    # Counted in the episode so far, so that the first step of a rollout needs no step before it.
    actions = jax.vmap(spec.grouping.gather)(rollout.reached.agent_steps)[group]
    steps = rollout.reached.length[:, None, :, None]
    joins_late = active & (actions == 1) & (steps > 1)
    kinds = (stays_away, joins_late)
    number = sum(jnp.sum(waits, axis=(0, 2, 3), dtype=jnp.float32) for waits in kinds)
    return {UNDECLARED_WAITS: over_axis(number, axis_name)}
