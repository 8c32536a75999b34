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

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import acting_agents
from jaxrl.core.types import PyTree
from jaxrl.models.model import carried
from jaxrl.models.policy_spec import PolicyOutput
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, draw_randomness, step_envs
from jaxrl.rollout.feature import Begin, Feature
from jaxrl.rollout.steps import Steps, Trajectory


class Unfinished(struct.PyTreeNode):
    """Each agent's last action whose outcome was open when the rollout ended, [N, E, M, ...]."""

    there: jax.Array  # bool  whether there is one
    row: Steps  # as it was chosen
    reward: jax.Array  # f32  that came for it so far
    carry: PyTree  # the model's, into it


class Outcome(NamedTuple):
    """The outcome of an action, [T, N, E, M]."""

    reward: jax.Array  # f32  until the agent's next action
    next_value: jax.Array  # f32
    terminated: jax.Array  # bool
    done: jax.Array  # bool
    is_known: jax.Array  # bool  the agent acted again or its episode ended


def outcomes(steps: Steps, acted: jax.Array, bootstrap: jax.Array, acting: jax.Array) -> Outcome:
    """The outcomes of the actions, found from the last step to the first.

    Args:
        steps: [T, ...], also of those who wait.
        acted: bool[T, N, E, M], which rows hold an action; the outcomes of the others mean nothing.
        bootstrap, acting: f32 and bool[N, E, M]: the value of the state after the last step, and
            who acts there.
    """

    def backward(later, step):
        steps, acted = step
        end, value = steps.terminated | steps.truncated, steps.value
        ending = Outcome(
            reward=jnp.zeros_like(value),
            next_value=steps.next_value,
            terminated=steps.terminated,
            done=end,
            is_known=jnp.ones_like(end),
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
    results = Steps(
        value=steps.value,
        next_value=steps.next_value,
        reward=steps.reward,
        terminated=steps.terminated,
        truncated=steps.truncated,
    )
    return jax.lax.scan(backward, last, (results, acted), reverse=True)[1]


def as_chosen(chosen: Steps | PolicyOutput, obs: PyTree) -> Steps:
    """The actions for these observations alone, before anything came of them."""
    return Steps(
        obs=obs,
        action=chosen.action,
        distribution=chosen.distribution,
        value=chosen.value,
        inputs=chosen.inputs,
    )


def brought_over(unfinished: Unfinished, steps: Steps) -> tuple[Steps, jax.Array]:
    """(steps, acted) [T, ...] with the last rollout's open action in the first step."""
    is_free, chosen = unfinished.there & ~steps.active[0], as_chosen(steps, steps.obs)
    first = carried(is_free, unfinished.row, jax.tree.map(lambda leaf: leaf[0], chosen))
    chosen = jax.tree.map(lambda leaf, first: leaf.at[0].set(first), chosen, first)
    steps = steps.replace(
        obs=chosen.obs,
        action=chosen.action,
        distribution=chosen.distribution,
        value=chosen.value,
        inputs=chosen.inputs,
        reward=steps.reward.at[0].add(jnp.where(is_free, unfinished.reward, 0.0)),
    )
    return steps, steps.active.at[0].set(steps.active[0] | is_free)


def left_open(steps: Steps, outcome: Outcome, acted: jax.Array, carry: PyTree) -> Unfinished:
    """The actions of which nobody knows yet what they led to: of each agent its last one, if any.

    Args:
        carry: [N, E, M, ...], of the model into each agent's last action.
    """
    is_open = acted & ~outcome.is_known
    step = jnp.argmax(is_open, axis=0)

    def at_step(leaf):
        index = step.reshape(1, *step.shape, *[1] * (leaf.ndim - 1 - step.ndim))
        return jnp.take_along_axis(leaf, index, axis=0)[0]

    row, reward = jax.tree.map(at_step, (as_chosen(steps, steps.obs), outcome.reward))
    return Unfinished(jnp.any(is_open, axis=0), row, reward, carry)


@dataclasses.dataclass(frozen=True)
class Waits(Feature):
    """Rows are agents' own actions. Its slice is `Unfinished` of each group."""

    name = "unfinished"
    env_axis = 1
    is_for_learning = True
    makes_rows = True

    @classmethod
    def of(cls, spec: RolloutSpec, config: Any, env_params: PyTree) -> Self | None:
        return cls() if spec.waits else None

    def start(self, spec: RolloutSpec, envs: EnvBatch, begin: Begin) -> tuple[Unfinished, ...]:
        """Nothing is open."""

        def rows(weights, envs, env_params):
            keys = jax.vmap(jax.random.key)(jnp.arange(envs.episodes.length.shape[0]))
            randomness = jax.tree.map(lambda leaf: leaf[0], draw_randomness(spec, keys, 1))
            if spec.explores:
                randomness = randomness._replace(env_steps=jnp.float32(0))
            outputs, _ = step_envs(spec, weights, envs, randomness, env_params)
            return [as_chosen(output, obs) for obs, output in zip(envs.obs, outputs, strict=True)]

        def zeros(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)

        shapes = jax.eval_shape(rows, begin.weights, envs, begin.env_params)
        unfinished = []
        for row, policy_states in zip(shapes, envs.policy_states, strict=True):
            there, carry = zeros(row.value).astype(bool), zeros(policy_states.carry)
            unfinished.append(Unfinished(there, zeros(row), zeros(row.value), carry))
        return tuple(unfinished)

    def carries(self, unfinished: tuple[Unfinished, ...]) -> list[PyTree]:
        """The model's carries into the last actions, by group."""
        return [last_action.carry for last_action in unfinished]

    def without(
        self, unfinished: tuple[Unfinished, ...], lost: jax.Array
    ) -> tuple[Unfinished, ...]:
        stays = ~lost[None, :, None]
        return tuple(action.replace(there=action.there & stays) for action in unfinished)

    def rows(
        self, spec: RolloutSpec, envs: EnvBatch, played: tuple, env_params: PyTree
    ) -> tuple[EnvBatch, tuple[Trajectory, ...]]:
        """The trajectories, and the environments with open actions.

        Args:
            envs: after the last step.
            played: (steps by group, values of the states after the last step, carries).
        """
        by_group, bootstrap, carries = played
        acting = jax.vmap(lambda state: acting_agents(spec.env, state, env_params))(envs.state)
        acting = spec.grouping.gather(acting)
        trajectories, left = [], []
        for g, unfinished in enumerate(envs.features[self.name]):
            steps, acted = brought_over(unfinished, by_group[g])
            was_open = acted[0] & ~steps.active[0]
            carry = _with_first(carries.parts[g], was_open, unfinished.carry)
            outcome = outcomes(steps, acted, bootstrap[g], acting[g])
            trajectories.append(_trajectory_of_actions(steps, outcome, acted, carry))
            left.append(left_open(steps, outcome, acted, carries.last_action[g]))
        features = {**envs.features, self.name: tuple(left)}
        return envs.replace(features=features), tuple(trajectories)


def _with_first(carry: PyTree, was_open: jax.Array, into_last_action: PyTree) -> PyTree:
    """The carries [C, ...] with those into open actions, where there were some, as the first."""
    first = jax.tree.map(lambda leaf: leaf[0], carry)
    first = carried(was_open, into_last_action, first)
    return jax.tree.map(lambda parts, first: parts.at[0].set(first), carry, first)


def _trajectory_of_actions(
    steps: Steps, outcome: Outcome, acted: jax.Array, carry: PyTree
) -> Trajectory:
    """The trajectory of one group, whose rows are the agents' own actions with a known outcome."""
    is_known = acted & outcome.is_known
    fields = {
        "next_value": outcome.next_value,
        "reward": jnp.where(is_known, outcome.reward, 0.0),
        "terminated": is_known & outcome.terminated,
        "truncated": None,
        "active": is_known,
        "done": steps.terminated | steps.truncated | (is_known & outcome.done),
        "waited": ~is_known,
        "carry": carry,
    }
    return Trajectory(**vars(steps) | fields)
