"""Groups of policies of equal shape, whose arrays are stacked and updated by one program."""

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import MultiAgentEnvironment, is_stacked
from jaxrl.core.errors import unknown_name
from jaxrl.core.spaces import Space
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.rollout.policy_map import PolicyMap


@dataclass(frozen=True)
class PolicyGroup:
    """N policies equal in spaces, agents and structure: their arrays are stacked, [N, ...]."""

    policies: tuple[PolicyId, ...]  # N
    agents: tuple[tuple[AgentId, ...], ...]  # N x M
    observation_space: Space
    action_space: Space
    structure: Hashable  # whatever else has to be equal: the model, the learner's sizes

    def shape(self, num_envs: int) -> tuple[int, int, int]:
        """(N, E, M)."""
        return len(self.policies), num_envs, len(self.agents[0])

    def agent_ids(self, num_envs: int) -> jax.Array:
        """The index of each agent among those of its policy, from 0; i32[N, E, M]."""
        shape = self.shape(num_envs)
        return jax.lax.broadcasted_iota(jnp.int32, shape, dimension=2)


@dataclass(frozen=True)
class Grouping:
    """All groups of a run; values "by group" are tuples with [N, E, M, ...] for each."""

    agents: tuple[AgentId, ...]  # the environment's order
    policies: tuple[PolicyId, ...]  # the policy map's order
    groups: tuple[PolicyGroup, ...]
    stacked: bool  # the environment's values are arrays [E, M, ...], not dicts

    def gather(self, values: PyTree) -> tuple[PyTree, ...]:
        """Values of the environment, [E, M_all, ...] or a dict of [E, ...] by agent, by group."""
        return tuple(self._gather(group, values) for group in self.groups)

    def scatter(self, values: tuple[PyTree, ...]) -> PyTree:
        """Values by group in the environment's own form: the inverse of `gather`."""
        if not self.stacked:
            return {
                agent: jax.tree.map(lambda leaf, i=i, j=j: leaf[i, :, j], value)
                for group, value in zip(self.groups, values, strict=True)
                for i, agents in enumerate(group.agents)
                for j, agent in enumerate(agents)
            }
        order = [agent for group in self.groups for agents in group.agents for agent in agents]
        inverse = np.array([order.index(agent) for agent in self.agents])
        return jax.tree.map(
            lambda *leaves: jnp.concatenate([_rows(leaf) for leaf in leaves], 1)[:, inverse],
            *values,
        )

    @property
    def places(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The places of each policy's agents in `agents`, by group N x M; () of one policy."""
        if len(self.policies) == 1:
            return ()
        return tuple(
            tuple(tuple(map(self.agents.index, agents)) for agents in group.agents)
            for group in self.groups
        )

    def locate(self, policy: PolicyId) -> tuple[int, int]:
        """(index of its group, index within the group)."""
        for g, group in enumerate(self.groups):
            if policy in group.policies:
                return g, group.policies.index(policy)
        raise unknown_name("policy", policy, self.policies)

    def _gather(self, group: PolicyGroup, values: PyTree) -> PyTree:
        if not self.stacked and isinstance(values, dict):
            stacked = [
                jax.tree.map(lambda *x: jnp.stack(x, 1), *(values[a] for a in agents))
                for agents in group.agents
            ]
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *stacked)
        index = np.array(
            [[self.agents.index(agent) for agent in agents] for agents in group.agents]
        )
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf[:, index], 1, 0), values)


def group_policies(
    env: MultiAgentEnvironment,
    params: PyTree,
    policies: PolicyMap,
    structure: Callable[[PolicyId, Space, Space], Hashable],
) -> Grouping:
    """Groups policies of equal spaces, number of agents and `structure(policy, obs, action)`."""
    groups: dict[Hashable, PolicyGroup] = {}
    for policy, agents in policies.items():
        spaces = env.observation_space(agents[0], params), env.action_space(agents[0], params)
        likeness = structure(policy, *spaces)
        key = (len(agents), *spaces, likeness)
        group = groups.get(key, PolicyGroup((), (), *spaces, likeness))
        groups[key] = dataclasses.replace(
            group, policies=(*group.policies, policy), agents=(*group.agents, tuple(agents))
        )
    return Grouping(tuple(env.agents), tuple(policies), tuple(groups.values()), is_stacked(env))


def each_policy(function: Callable, in_axes: tuple[int | None, ...]) -> Callable:
    """`function` mapped over the N policies of a group, its results [N, ...].

    A policy alone is not mapped: the CPU takes longer for a batch of one product than for the
    product.
    """

    def mapped(*arguments):
        lengths = {
            leaf.shape[axis]
            for argument, axis in zip(arguments, in_axes, strict=True)
            for leaf in jax.tree.leaves(argument)
            if axis is not None
        }
        if lengths != {1}:
            return jax.vmap(function, in_axes)(*arguments)
        alone = map(_only, arguments, in_axes)
        return jax.tree.map(lambda leaf: leaf[None], function(*alone))

    return mapped


def _only(tree: PyTree, axis: int | None) -> PyTree:
    """The only entry along an axis."""
    if axis is None:
        return tree
    return jax.tree.map(lambda leaf: leaf[(slice(None),) * axis + (0,)], tree)


def _rows(leaf: jax.Array) -> jax.Array:
    """[N, E, M, ...] -> [E, N*M, ...]."""
    return jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1, *leaf.shape[3:])
