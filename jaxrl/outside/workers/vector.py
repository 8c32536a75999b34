"""Vectorised environments outside JAX: E copies that step together, results in NumPy.

    envs = make_vector_env("gym:CartPole-v1", 16)      # jaxrl.outside.workers.python_env
    obs = envs.reset(seeds).obs
    for part in range(len(envs.parts)):
        envs.send(part, actions)
        steps = envs.receive(part)
    envs.close()

Each episode of a copy has a seed of its own (`arrays.episode_seed`), the first one that of `reset`.
"""

import logging
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxrl.core.errors import TooManyFaults
from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.spaces import Space, from_json
from jaxrl.core.types import DEFAULT_AGENT, DEFAULT_POLICY, AgentId, PolicyId, PyTree
from jaxrl.outside.workers.arrays import EnvForm, StepArrays
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.stepper import Fault

log = logging.getLogger(__name__)


class VectorSpec(NamedTuple):
    """The specification of the copies: everything that is the same for all of them."""

    name: str  # of the environment, such as "gym:CartPole-v1"
    agents: tuple[AgentId, ...]
    observation_spaces: dict[AgentId, Space]
    action_spaces: dict[AgentId, Space]
    metrics: tuple[str, ...]  # the names in info["metrics"]
    masked: bool  # whether it says which actions are possible
    always_active: bool  # whether every agent acts in every step
    waits: bool  # whether agents wait for their turn, or appear after the reset
    agent_ids: tuple | None = None  # what the environment calls its agents, where some are no texts
    time_limit: int | None = None  # of an episode, in steps, where the environment says one
    critic_space: Space | None = None  # of what it gives for a centralised critic alone

    @property
    def default_policies(self) -> dict[PolicyId, tuple[AgentId, ...]]:
        """The agents of each policy where the user gives no mapping; a policy for each agent."""
        if self.agents == (DEFAULT_AGENT,):
            return {DEFAULT_POLICY: self.agents}
        return {agent: (agent,) for agent in self.agents}


class FirstObs(NamedTuple):
    """The first observations of all copies."""

    obs: dict[AgentId, PyTree]  # [E, ...]
    action_mask: dict[AgentId, np.ndarray] | None  # bool[E, A]; None without masks
    acting: np.ndarray | None  # bool[E, M]  who acts next; None where agents never wait
    critic: PyTree | None = None  # [E, ...]  for a centralised critic


class VectorEnv(Protocol):
    """E copies of an environment outside JAX.

    Attributes:
        parts: the copies that step together: all of them, or two halves, which step in turn.
            `send` and `receive` take the number of one.
        num_faults: dropped episodes so far; RLlib calls them num_faulty_episodes.
        num_restarts: worker processes that were started again.
        gives_jax_arrays: whether steps are arrays of JAX, and actions are taken as such. Those
            that lack it give NumPy's.
    """

    spec: VectorSpec
    num_envs: int
    parts: tuple[slice, ...]
    num_faults: int
    num_restarts: int

    def reset(self, seeds: np.ndarray) -> FirstObs:
        """Begins new episodes of all copies; `seeds` is u32[E]."""

    def send(self, part: int, actions: dict[AgentId, PyTree]) -> None:
        """Begins a step of a part's copies; `actions` are [e, ...], of agents that wait too."""

    def receive(self, part: int) -> OutsideSteps:
        """The results of the step that was begun with `send`; the next `send` may change them.

        Raises:
            TooManyFaults: so many in a row that the environment must be broken.
        """

    def infos(self) -> dict[int, dict[AgentId, dict]]:
        """{copy: {agent: info}} of what the last reset or step of all copies gave.

        Environments that have no infos lack it.
        """

    def foreach_env(self, function: EnvFunction, seeds: np.ndarray | None) -> list[Any]:
        """Calls a function with each environment and its context; the results in their order.

        Args:
            seeds: those of the first episodes, u32[E], where `reset` was not called yet; else None.

        Raises:
            UsageError: a call failed, or its function or result cannot go to another process.
        """

    def close(self) -> None:
        """Ends the processes, and closes the environments of this one."""


def spec_of(name: str, form: EnvForm) -> VectorSpec:
    observations, actions = {}, {}
    for agent, observed, acted in zip(form.agents, form.observations, form.actions, strict=True):
        observations[agent], actions[agent] = from_json(observed.json), from_json(acted.json)
    return VectorSpec(
        name,
        form.agents,
        observations,
        actions,
        form.metrics,
        form.masked,
        form.always_active,
        form.waits,
        form.agent_ids,
        form.time_limit,
    )


class FaultCount:
    """Counts and logs faults; too many in a row raise `TooManyFaults`."""

    def __init__(self, name: str, max_consecutive: int):
        self._name, self._max = name, max_consecutive
        self.total = self.consecutive = 0

    def add(self, fault: Fault | str, num_episodes: int = 1) -> None:
        """Counts a fault, which cost this many episodes.

        Raises:
            TooManyFaults: it is one too many in a row.
        """
        self.consecutive += 1
        self.lose(fault, num_episodes)
        if self.consecutive > self._max:
            raise TooManyFaults(
                f"environment {self._name!r} failed {self.consecutive} times and finished no "
                f"episode in between; last: {fault}"
            )

    def lose(self, reason: Fault | str, num_episodes: int) -> None:
        """Counts and logs episodes that were lost, also where the environment did not fail."""
        self.total += num_episodes
        loss = "episode dropped, " if num_episodes else ""
        if num_episodes > 1:
            loss = f"{num_episodes} episodes dropped, "
        log.warning("environment %r: %s%s", self._name, loss, reason)

    def see(self, steps: Any) -> None:
        """Begins to count again where an episode ended in a part's `OutsideSteps`, or a rollout."""
        if self.consecutive and steps.episode_done.any():
            self.consecutive = 0


class Results:
    """The arrays of all copies as trees by agent.

    Attributes:
        steps: the last step of each part; views of the arrays, which the next one changes.
    """

    def __init__(self, arrays: StepArrays, parts: tuple[slice, ...]):
        self._arrays, self._agents = arrays, arrays.form.agents
        self.steps = [self._steps(rows) for rows in parts]

    def first(self) -> FirstObs:
        """The first observations, which no step changes."""
        rows = slice(None)
        obs, arrays = self._by_agent(self._arrays.obs, rows), self._arrays
        acting = arrays.acting[rows] if arrays.form.waits else None
        return jax.tree.map(np.copy, FirstObs(obs, self._masks(rows), acting))

    def write_actions(self, rows: slice, actions: dict[AgentId, PyTree]) -> None:
        """Stores actions [e, ...]."""
        for group, blocks in zip(self._arrays.acted, self._arrays.action, strict=True):
            for member, index in enumerate(group.members):
                action = actions[self._agents[index]]
                for leaf, block in zip(group.form.leaves, blocks, strict=True):
                    part = action
                    for key in leaf.path:
                        part = part[key]
                    block[rows, member] = part

    def _steps(self, rows: slice) -> OutsideSteps:
        arrays = self._arrays
        metrics = arrays.metrics[rows]
        return OutsideSteps(
            obs=self._by_agent(arrays.obs, rows),
            final_obs=self._by_agent(arrays.final_obs, rows),
            reward=arrays.reward[rows],
            terminated=arrays.terminated[rows],
            truncated=arrays.truncated[rows],
            active=arrays.active[rows],
            episode_done=arrays.episode_done[rows],
            lost=arrays.lost[rows],
            metrics={name: metrics[:, i] for i, name in enumerate(arrays.form.metrics)},
            action_mask=self._masks(rows),
            acting=arrays.acting[rows] if arrays.form.waits else None,
        )

    def _by_agent(self, blocks: list[list[np.ndarray]], rows: slice) -> dict[AgentId, PyTree]:
        values = {}
        for group, leaves in zip(self._arrays.observed, blocks, strict=True):
            for member, index in enumerate(group.members):
                parts = [leaf[rows, member] for leaf in leaves]
                values[self._agents[index]] = group.form.build(parts)
        return {agent: values[agent] for agent in self._agents}

    def _masks(self, rows: slice) -> dict[AgentId, np.ndarray] | None:
        masks = {}
        for group, block in zip(self._arrays.acted, self._arrays.mask, strict=False):
            for member, index in enumerate(group.members):
                masks[self._agents[index]] = block[rows, member]
        if not masks:
            return None
        return {agent: masks[agent] for agent in self._agents}
