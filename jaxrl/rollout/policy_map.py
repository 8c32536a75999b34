"""Policy mapping: which policy plays which agents, and which policies learn."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.core.env import MultiAgentEnvironment
from jaxrl.core.errors import UsageError, brief, one_line, unknown_name
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
    """The map of policies to the agents that they play; without those that play nobody.

    Args:
        policies: None (the environment's own choice), "shared" (one policy for all), "per-agent"
            (one each, named as its agent), a mapping {policy: agents}, a function from agent to
            policy, asked once for each agent, or names alone, which must be those of the
            environment's own policies, or its agents, perhaps among others, or one for all.
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
    resolved = {policy: agents for policy, agents in resolved.items() if agents}
    _check_cover(env, resolved)
    for policy, agents in resolved.items():
        _check_spaces(env, params, policy, agents)
    return resolved


def is_names(policies: Any) -> bool:
    """Returns whether these are policies' names alone, as in RLlib beside a mapping function."""
    return (
        isinstance(policies, tuple)
        and policies != ()
        and all(isinstance(policy, str) for policy in policies)
    )


def _named(policies: tuple[PolicyId, ...], env: MultiAgentEnvironment) -> Mapping[PolicyId, tuple]:
    """The agents of each policy, where the policies' names determine them."""
    if set(policies) >= set(env.default_policies):
        return env.default_policies
    if set(policies) >= set(env.agents):
        return {agent: (agent,) for agent in env.agents}
    if len(policies) == 1:
        return {policies[0]: env.agents}
    raise UsageError(
        f"policies={list(policies)} do not say which agents they play: give {{policy: [agents]}}, "
        "or a function from "
        f"agent to policy (RLlib's policy_mapping_fn); the agents are {', '.join(env.agents)}"
    )


def idle_policies(policies: Any, played: PolicyMap) -> tuple[PolicyId, ...]:
    """The policies that a configuration names and that play nobody; they have no spaces."""
    named = policies if is_names(policies) or isinstance(policies, Mapping) else ()
    return tuple(policy for policy in map(str, named) if policy not in played)


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
    if not isinstance(agents, list | tuple):
        raise UsageError(
            f"policies: policy {policy!r} must name a list of agents, not {brief(agents)}"
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
