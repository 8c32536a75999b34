"""Rows of agents that wait between their actions: games of turns, and agents that join late.

An agent's rows are its own actions. In the step t of an action and its next one at n, or the end of
its episode:

    reward      r[t] + r[t+1] + ... + r[n-1], not discounted: gamma counts the agent's own actions
    next value  V(s[n]), of what it observes when it acts again; of its last observation where the
                clock ended the episode while it waited; none where it was terminated meanwhile

Rewards before an agent's first action belong to none, and are in its return alone. An action whose
outcome is still open when a rollout ends is not learned from there: the row goes over to the next
rollout, into the first step, in which its agent waits and has no row of its own. No reward is lost,
and none is counted twice.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.types import PyTree
from jaxrl.models.model import carried
from jaxrl.ops.collectives import over_axis
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, draw_randomness, step_envs

UNDECLARED_WAITS = "num_undeclared_waits"  # a metric of a policy, see `undeclared_waits`


class Row(struct.PyTreeNode):
    """The observation and action of an agent, [..., N, E, M, ...]."""

    obs: PyTree
    action: PyTree
    distribution: PyTree
    value: jax.Array
    inputs: PyTree


class Unfinished(struct.PyTreeNode):
    """Each agent's last action whose outcome was open when the rollout ended, [N, E, M, ...]."""

    there: jax.Array  # bool  whether there is one
    row: Row
    reward: jax.Array  # f32  that came for it so far
    carry: PyTree  # the model's, into it


class Steps(NamedTuple):
    """The results of T steps for the agents of a group, [T, N, E, M]; also for those who wait."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    active: jax.Array
    final_value: jax.Array  # V(s'[t]) where truncated


class Outcome(NamedTuple):
    """The outcome of an action, [T, N, E, M]."""

    reward: jax.Array  # f32  until the agent's next action
    next_value: jax.Array  # f32
    terminated: jax.Array  # bool
    done: jax.Array  # bool
    known: jax.Array  # bool  the agent acted again or its episode ended


def outcomes(
    steps: Steps, value: jax.Array, acted: jax.Array, bootstrap: jax.Array, acting: jax.Array
) -> Outcome:
    """The outcomes of the actions, found from the last step to the first.

    Args:
        value: f32[T, N, E, M], V(s[t]).
        acted: bool[T, N, E, M], which rows hold an action; the outcomes of the others mean nothing.
        bootstrap, acting: f32 and bool[N, E, M]: the value of the state after the last step, and
            who acts there.
    """

    def backward(later, step):
        steps, value, acted = step
        end = steps.terminated | steps.truncated
        ending = Outcome(
            reward=jnp.zeros_like(value),
            next_value=steps.final_value,
            terminated=steps.terminated,
            done=end,
            known=jnp.ones_like(end),
        )
        outcome = jax.tree.map(lambda at_end, after: jnp.where(end, at_end, after), ending, later)
        outcome = outcome._replace(reward=outcome.reward + steps.reward)
        begin = Outcome(
            jnp.zeros_like(value),
            value,
            jnp.zeros_like(end),
            jnp.zeros_like(end),
            jnp.ones_like(end),
        )
        before = jax.tree.map(lambda new, old: jnp.where(acted, new, old), begin, outcome)
        return before, outcome

    never = jnp.zeros_like(acting)
    last = Outcome(jnp.zeros_like(bootstrap), bootstrap, never, never, acting)
    return jax.lax.scan(backward, last, (steps, value, acted), reverse=True)[1]


def brought_over(unfinished: Unfinished, row: Row, steps: Steps) -> tuple[Row, Steps, jax.Array]:
    """(rows, steps, acted) [T, ...] with the last rollout's open action in the first step."""
    is_free = unfinished.there & ~steps.active[0]
    first = carried(is_free, unfinished.row, jax.tree.map(lambda leaf: leaf[0], row))
    row = jax.tree.map(lambda leaf, first: leaf.at[0].set(first), row, first)
    reward = steps.reward.at[0].add(jnp.where(is_free, unfinished.reward, 0.0))
    return row, steps._replace(reward=reward), steps.active.at[0].set(steps.active[0] | is_free)


def left_open(row: Row, outcome: Outcome, acted: jax.Array, carry: PyTree) -> Unfinished:
    """The actions of which nobody knows yet what they led to: of each agent its last one, if any.

    Args:
        carry: [N, E, M, ...], of the model into each agent's last action.
    """
    is_open = acted & ~outcome.known
    step = jnp.argmax(is_open, axis=0)

    def at_step(leaf):
        index = step.reshape(1, *step.shape, *[1] * (leaf.ndim - 1 - step.ndim))
        return jnp.take_along_axis(leaf, index, axis=0)[0]

    row, reward = jax.tree.map(at_step, (row, outcome.reward))
    return Unfinished(jnp.any(is_open, axis=0), row, reward, carry)


def nothing_open(
    spec: RolloutSpec, weights: tuple, envs: EnvBatch, env_params: PyTree
) -> tuple[Unfinished, ...]:
    """At the start of training, by group; none where agents never wait."""
    if not spec.waits:
        return ()

    def rows(weights, envs, env_params):
        keys = jax.vmap(jax.random.key)(jnp.arange(envs.episodes.length.shape[0]))
        randomness = jax.tree.map(lambda leaf: leaf[0], draw_randomness(spec, keys, 1))
        if spec.explores:
            randomness = randomness._replace(env_steps=jnp.float32(0))
        outputs, _ = step_envs(spec, weights, envs, randomness, env_params)
        return [
            Row(obs, output.action, output.distribution, output.value, output.inputs)
            for obs, output in zip(envs.obs, outputs, strict=True)
        ]

    def zeros(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)

    shapes = jax.eval_shape(rows, weights, envs, env_params)
    return tuple(
        Unfinished(
            zeros(row.value).astype(bool), zeros(row), zeros(row.value), zeros(policy_states.carry)
        )
        for row, policy_states in zip(shapes, envs.policy_states, strict=True)
    )


def undeclared_waits(
    spec: RolloutSpec, rollout: Any, group: int, axis_name: str | None
) -> dict[str, jax.Array]:
    """Number of waits begun or ended by agents, {name: f32[N]}; {} where that is allowed.

    Learning from such rows would be wrong: the environment must have `acting_agents`. Agents that
    are absent for a whole episode do not wait. A wait that begins exactly between two rollouts is
    not seen: whether the agent had ended before it is not kept.

    Args:
        rollout: a `Rollout`.
        axis_name: a mapped axis over which the environments are split.
    """
    if spec.always_active or spec.waits:
        return {}
    active, done = rollout.trajectories[group].active, rollout.trajectories[group].done
    stays_away = ~done[:-1] & ~active[1:] & ~rollout.episode_done[:-1, None, :, None]
    # Counted in the episode so far, so that the first step of a rollout needs no step before it.
    actions = jax.vmap(spec.grouping.gather)(rollout.reached.agent_steps)[group]
    steps = rollout.reached.length[:, None, :, None]
    joins_late = active & (actions == 1) & (steps > 1)
    kinds = (stays_away, joins_late)
    number = sum(jnp.sum(waits, axis=(0, 2, 3), dtype=jnp.float32) for waits in kinds)
    return {UNDECLARED_WAITS: over_axis(number, axis_name)}
