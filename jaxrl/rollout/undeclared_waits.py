"""Waits of agents in an environment that does not declare them, counted."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.ops.collectives import over_axis

UNDECLARED_WAITS = "num_undeclared_waits"  # a metric of a policy, see `undeclared_waits`


def undeclared_waits(
    spec: Any, rollout: Any, group: int, axis_name: str | None
) -> dict[str, jax.Array]:
    """Number of waits begun or ended by agents where that is not allowed, {name: f32[N]}.

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
