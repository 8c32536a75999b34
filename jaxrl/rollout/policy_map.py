"""Policy mapping: which policy plays which agents, and groups of policies of equal shape."""

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import MultiAgentEnvironment, is_stacked
from jaxrl.core.errors import UsageError, brief, one_line, unknown_name
from jaxrl.core.spaces import Space
from jaxrl.core.types import DEFAULT_POLICY, AgentId, PolicyId, PyTree

PolicyMap = dict[PolicyId, tuple[AgentId, ...]]


def resolve_policies(
    env: MultiAgentEnvironment,
    policies: str
    | Mapping[PolicyId, tuple]
    | tuple[PolicyId, ...]
    | Callable[[AgentId], PolicyId]
    | None,
    params: PyTree = None,
) -> PolicyMap:
    """The map of policies to the agents that they play.

    Args:
        policies: None (the environment's own choice), "shared" (one policy for all), "per-agent"
            (one each, named as its agent), a mapping {policy: agents}, a function from agent to
            policy, asked once for each agent, or names alone, which must be those of the
            environment's own policies, or its agents, or one for all.
        params: that the spaces are of; default: the environment's own.

    Raises:
        UsageError: an agent forgotten, named twice, or unknown; agents of different spaces in one
            policy.
    """
    if policies is None:
        policies = env.default_policies
    elif policies == "shared":
        policies = {DEFAULT_POLICY: env.agents}
    elif policies == "per-agent":
        policies = {agent: (agent,) for agent in env.agents}
    elif callable(policies):
        policies = _ask(policies, env.agents)
    elif is_names(policies):
        policies = _named(policies, env)
    elif not isinstance(policies, Mapping):
        allowed = "'shared', 'per-agent', {policy: agents}, a function"
        raise UsageError(f"policies={brief(policies)}: allowed are {allowed}")
    resolved = {str(policy): _agent_tuple(policy, agents) for policy, agents in policies.items()}
    _check_cover(env, resolved)
    for policy, agents in resolved.items():
        _check_spaces(env, params, policy, agents)
    return resolved


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


def is_names(policies: Any) -> bool:
    """Returns whether these are policies' names alone, as in RLlib beside a mapping function."""
    return (
        isinstance(policies, tuple)
        and policies != ()
        and all(isinstance(policy, str) for policy in policies)
    )


def _named(policies: tuple[PolicyId, ...], env: MultiAgentEnvironment) -> Mapping[PolicyId, tuple]:
    """The agents of each policy, where the policies' names determine them."""
    if set(policies) == set(env.default_policies):
        return env.default_policies
    if set(policies) == set(env.agents):
        return {agent: (agent,) for agent in env.agents}
    if len(policies) == 1:
        return {policies[0]: env.agents}
    raise UsageError(
        f"policies={list(policies)} do not say which agents they play: give {{policy: [agents]}}, "
        "or a function from "
        f"agent to policy (RLlib's policy_mapping_fn); the agents are {', '.join(env.agents)}"
    )


def policies_that_learn(
    chosen: tuple[PolicyId, ...] | Callable[..., Any] | None, policies: PolicyMap
) -> tuple[PolicyId, ...]:
    """The policies that learn: all (None), those named, or those that a function says yes to.

    Args:
        chosen: a function takes the policy's name alone, or as RLlib's a batch as well, which is
            None.
    """
    if chosen is None:
        return tuple(policies)
    if not callable(chosen):
        return chosen
    try:
        rest = () if _takes(chosen, "policy") else (None,)
        return tuple(policy for policy in policies if chosen(policy, *rest))
    except Exception as error:
        raise UsageError(
            f"policies_to_train: the function raises {type(error).__name__}: {one_line(error)}; it "
            "takes a policy's "
            "name"
        ) from None


def _takes(function: Callable, *arguments: Any) -> bool:
    """Returns whether a function can be called with these; True for one without a signature."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _ask(mapping: Callable, agents: tuple[AgentId, ...]) -> dict[PolicyId, list[AgentId]]:
    """The policy of each agent from the user's function, asked once."""
    if not _takes(mapping, agents[0]):
        raise UsageError(
            f"policy mapping function {getattr(mapping, '__name__', mapping)!r} must take the "
            "agent id alone: the map "
            "is part of the compiled program, so there is no episode to ask"
        )
    policies: dict[PolicyId, list[AgentId]] = {}
    for agent in agents:
        try:
            policy = mapping(agent)
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise UsageError(
                f"policies: the mapping function raises {reason}, for agent {agent!r}"
            ) from None
        if not isinstance(policy, str | int):
            raise UsageError(
                f"policies: the mapping function gives {brief(policy)} for agent {agent!r}, not a "
                "name"
            )
        policies.setdefault(policy, []).append(agent)
    return policies


def _agent_tuple(policy: PolicyId, agents) -> tuple[AgentId, ...]:
    if not isinstance(agents, list | tuple) or not agents:
        raise UsageError(
            f"policies: policy {policy!r} must name a list of one or more agents, not "
            f"{brief(agents)}"
        )
    return tuple(agents)


def _check_cover(env: MultiAgentEnvironment, policies: PolicyMap) -> None:
    """Every agent in exactly one policy, and no other names."""
    owner: dict[AgentId, PolicyId] = {}
    for policy, agents in policies.items():
        for agent in agents:
            if agent not in env.agents:
                raise unknown_name("agent", agent, env.agents, f"in policy {policy!r}")
            if agent in owner:
                raise UsageError(
                    f"agent {agent!r} is named twice: in policy {owner[agent]!r} and in {policy!r}"
                )
            owner[agent] = policy
    forgotten = [agent for agent in env.agents if agent not in owner]
    if forgotten:
        raise UsageError(
            f"no policy plays agent {', '.join(map(repr, forgotten))}; the policies are {policies}"
        )


def _check_spaces(
    env: MultiAgentEnvironment, params: PyTree, policy: PolicyId, agents: tuple[AgentId, ...]
) -> None:
    for what in ("observation_space", "action_space"):
        first, *rest = agents
        for agent in rest:
            space, other = getattr(env, what)(first, params), getattr(env, what)(agent, params)
            if space != other:
                raise UsageError(
                    f"policy {policy!r} joins agents of different {what}: {first!r} has {space}, "
                    f"{agent!r} has {other}"
                )
