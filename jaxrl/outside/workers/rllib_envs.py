"""RLlib's `MultiAgentEnv` as a PettingZoo `ParallelEnv`, whose copies step as all others do.

Ray need not be installed: the class is recognised by its methods. An agent acts next if its
observation was given, and else waits; flags of "__all__" end the episode of all. Older forms are
read as well: a reset without a seed that gives observations alone, four results of a step, one
space for all agents. This module must not import JAX.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.core.errors import UsageError, brief
from jaxrl.outside.workers.old_gym import first_of

ALL = "__all__"
RESULTS = "step must give (observations, rewards, terminateds, truncateds, infos), by agent"


class RllibAsParallel:
    """A `MultiAgentEnv` with the methods of a `ParallelEnv`.

    Attributes:
        possible_agents: in a fixed order.
        agents: those whose episode has not ended; they may wait.
    """

    def __init__(self, env: Any):
        self._env = env
        self.metadata = {**(getattr(env, "metadata", None) or {}), "agents_wait": True}
        self.possible_agents = _agents_of(env)
        self.agents: list = []
        self._spaces: dict[Any, tuple[Any, Any]] = {}
        for agent in self.possible_agents:
            spaces = _space_of(env, agent, "observation"), _space_of(env, agent, "action")
            self._spaces[agent] = spaces

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # while it is copied
            raise AttributeError(name)
        return getattr(self._env, name)

    def observation_space(self, agent: Any) -> Any:
        return self._spaces[agent][0]

    def action_space(self, agent: Any) -> Any:
        return self._spaces[agent][1]

    def reset(
        self, seed: int | None = None, options: dict | None = None
    ) -> tuple[Mapping, Mapping]:
        self.agents = list(self.possible_agents)
        observations, infos = first_of(self._env, seed)
        self._check(observations)
        return observations, infos

    def step(self, actions: dict) -> tuple[Mapping, dict, dict, dict, Mapping]:
        results = self._env.step(actions)
        if not isinstance(results, tuple | list) or len(results) not in (4, 5):
            raise ValueError(f"{RESULTS}, not {brief(results)}")
        observations, rewards, terminateds, *truncateds, infos = results
        self._check(observations)
        terminated, truncated = self._flags(terminateds, truncateds[0] if truncateds else {})
        is_present = lambda agent: not (terminated[agent] or truncated[agent])
        self.agents = list(filter(is_present, self.agents))
        return observations, dict.fromkeys(actions, 0.0) | rewards, terminated, truncated, infos

    def _flags(self, terminateds: Mapping, truncateds: Mapping) -> tuple[dict, dict]:
        """The flags of each agent that was present: its own, or else those of all."""
        terminated, truncated = {}, {}
        for agent in self.agents:
            ends, cut = terminateds.get(agent, False), truncateds.get(agent, False)
            if not (ends or cut):
                ends, cut = terminateds.get(ALL, False), truncateds.get(ALL, False)
            terminated[agent], truncated[agent] = ends, cut
        return terminated, truncated

    def _check(self, observations: Any) -> None:
        if not isinstance(observations, Mapping):
            raise ValueError(f"the observations are {brief(observations)}, not a dict by agent")
        for agent in observations:
            if agent not in self._spaces:
                raise ValueError(
                    f"there is an observation for agent {agent!r}, which is none of "
                    f"possible_agents: {', '.join(map(str, self.possible_agents))}"
                )


def made_parallel(make: Callable[[], Any]) -> RllibAsParallel:
    """An environment that is none by its methods, but gives observations by agent."""
    return RllibAsParallel(make())


def gives_by_agent(env: Any) -> bool:
    """Returns whether a reset gives a dict, one observation per agent, though the space is none."""
    space = getattr(env, "observation_space", None)
    if callable(space) or isinstance(getattr(space, "spaces", space), Mapping):
        return False
    observations, _ = first_of(env, seed=0)
    return isinstance(observations, Mapping) and bool(observations)


def _agents_of(env: Any) -> list:
    """All agents that may appear, as far as the environment says it; else those of a reset."""
    spaces = lambda name: _by_agent(getattr(env, name, None))
    candidates = [
        getattr(env, "possible_agents", None),
        spaces("observation_spaces"),
        spaces("action_spaces"),
        getattr(env, "_agent_ids", None),
        getattr(env, "agents", None),
    ]
    if spaces("observation_space").keys() == spaces("action_space").keys():
        candidates.append(spaces("observation_space"))
    for agents in candidates:
        if agents:
            return sorted(agents, key=str) if isinstance(agents, set | frozenset) else list(agents)
    observations, _ = first_of(env, seed=0)
    if not isinstance(observations, Mapping):
        raise ValueError(
            f"reset must give a dict of observations by agent, not {brief(observations)}"
        )
    return list(observations)


def _space_of(env: Any, agent: Any, kind: str) -> Any:
    """An agent's space, from wherever the environment has it."""
    space = getattr(env, f"{kind}_space", None)
    method = getattr(env, f"get_{kind}_space", None)
    for found in (_by_agent(getattr(env, f"{kind}_spaces", None)), _by_agent(space)):
        if agent in found:
            return found[agent]
    space = method(agent) if callable(method) else space
    if space is None:
        raise UsageError(
            f"{type(env).__name__} says no {kind} space for agent {agent!r}: set "
            f"self.{kind}_spaces = {{agent: space}}, or self.{kind}_space for all agents"
        )
    return space


def _by_agent(spaces: Any) -> Mapping:
    """Spaces by agent: a dict, or a Dict space."""
    found = getattr(spaces, "spaces", spaces)
    return found if isinstance(found, Mapping) else {}
