"""Environments of jaxrl for programs that use PettingZoo (https://pettingzoo.farama.org).

    env = jaxrl.to_pettingzoo("arena")    a pettingzoo.ParallelEnv

A step of all agents is one compiled program. PettingZoo is imported when an environment is made.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.adapters import to_numpy
from jaxrl.adapters.to_numpy import as_actions, by_agent, require_started
from jaxrl.core.env import MultiAgentEnvironment, RawStep, agents_may_wait, is_stacked
from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.fields import only, takes
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.types import AgentId, PyTree
from jaxrl.episodes.minari_datasets import gymnasium_space
from jaxrl.rollout.critic_inputs import global_state_space

if TYPE_CHECKING:
    import pettingzoo


@takes()
def to_pettingzoo(
    env: Any, params: PyTree = None, *, render_mode: str | None = None
) -> "pettingzoo.ParallelEnv":
    """A `pettingzoo.ParallelEnv` of an environment with any number of agents.

    `reset(seed=s)` begins with the key `jax.random.key(s)`; a reset without a seed continues from
    it. An agent that ends is left out of `agents` from the next step on. Agents that wait are among
    `agents`, and their actions are ignored. `infos[agent]` has the environment's "metrics" and the
    agent's "action_mask", int8, where there are any. `state()` and `state_space` are the
    environment's `global_state` and its space, where it has one.

    Args:
        env: an environment or its name; `to_pettingzoo(*jaxrl.make("arena", height=6))`.
        params: its parameters; None: the default ones.
        render_mode: "rgb_array", or None.

    Raises:
        UsageError: PettingZoo is not installed, an unknown `render_mode`.
    """
    to_numpy.require_library("pettingzoo", "to_pettingzoo", "pettingzoo")
    import pettingzoo

    env, params = to_numpy.resolve(env, params)
    return to_numpy.derived(PettingZooEnv, pettingzoo.ParallelEnv)(env, params, render_mode)


class PettingZooEnv:
    """A `pettingzoo.ParallelEnv`; see `to_pettingzoo`."""

    def __init__(self, env: Any, params: PyTree, render_mode: str | None):
        rendering = to_numpy.render_metadata(env, render_mode)
        self.metadata = {"name": env.name, "is_parallelizable": True, **rendering}
        self.render_mode = render_mode
        self._episodes = to_numpy.Episodes(env, params)
        env = self._episodes.env
        self.possible_agents: list[AgentId] = list(env.agents)
        self.agents: list[AgentId] = []
        self._actions, self.action_spaces, self.observation_spaces = {}, {}, {}
        for agent in env.agents:
            self._actions[agent] = env.action_space(agent, params)
            self.action_spaces[agent] = gymnasium_space(self._actions[agent])
            observed = env.observation_space(agent, params)
            self.observation_spaces[agent] = gymnasium_space(observed)
        if hasattr(env, "global_state"):  # PettingZoo asks whether there is a state_space
            self.state_space = gymnasium_space(global_state_space(env, self._episodes.params))

    def observation_space(self, agent: AgentId) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: AgentId) -> Any:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict | None = None
    ) -> tuple[dict[AgentId, PyTree], dict[AgentId, dict]]:
        """Returns (obs, infos) of a new episode, by agent."""
        obs, masks = self._episodes.reset(seed)
        self.agents = list(self.possible_agents)
        return self._observations(obs), self._infos({}, masks)

    def step(self, actions: Mapping[AgentId, PyTree]) -> tuple[dict, dict, dict, dict, dict]:
        """Returns (obs, rewards, terminations, truncations, infos) of `agents`, by agent."""
        return self._advance(actions)[1]

    def _advance(self, actions: Mapping[AgentId, PyTree]) -> tuple[RawStep, tuple]:
        """The step, and what `step` returns of it."""
        require_started(self._episodes.current, "step")
        if not self.agents:
            raise UsageError("the episode has ended: call reset() before step()")
        raw, masks = self._episodes.step(self._joint_action(actions))
        rewards = self._numbers(raw.reward)
        left = leaving(self._episodes.env, raw)
        terminations, truncations = self._numbers(left), self._numbers(raw.truncated)
        obs, infos = self._observations(raw.obs), self._infos(raw.info, masks)
        is_present = lambda agent: not (terminations[agent] or truncations[agent])
        self.agents = list(filter(is_present, self.agents))
        return raw, (obs, rewards, terminations, truncations, infos)

    def render(self) -> np.ndarray | None:
        """u8[H, W, 3] with render_mode "rgb_array"."""
        return None if self.render_mode is None else self._episodes.render()

    def state(self) -> PyTree:
        """The environment's `global_state` after the last step or reset.

        Raises:
            NotImplementedError: it has none; PettingZoo's own environments raise this, too.
        """
        if not hasattr(self, "state_space"):
            raise NotImplementedError(
                f"{self._episodes.env.name} has no global_state(state, params)"
            )
        return self._episodes.global_state()

    def _joint_action(self, actions: Mapping[AgentId, PyTree]) -> PyTree:
        """The actions of all agents as the environment takes them; zeros of those that ended."""
        for agent in actions:
            if agent not in self._actions:
                raise unknown_name("agent", agent, self.possible_agents)
        joint = {}
        for agent, space in self._actions.items():
            if agent not in self.agents:
                joint[agent] = no_action(space)
            elif agent in actions:
                joint[agent] = as_actions(space, actions[agent])
            else:
                raise UsageError(f"step() needs an action for agent {agent!r}, which has not ended")
        if not is_stacked(self._episodes.env):
            return joint
        return jax.tree.map(lambda *leaves: np.stack(leaves), *joint.values())

    def _numbers(self, values: np.ndarray) -> dict[AgentId, float | bool]:
        numbers = dict(zip(self.possible_agents, values.tolist(), strict=True))
        return {agent: numbers[agent] for agent in self.agents}

    def _observations(self, obs: PyTree) -> dict[AgentId, PyTree]:
        obs = by_agent(self._episodes.env, obs)
        return {agent: to_numpy.plain(obs[agent]) for agent in self.agents}

    def _infos(self, info: dict[str, Any], masks: PyTree) -> dict[AgentId, dict]:
        metrics = to_numpy.plain_info(only(info, {"metrics"}))
        if masks is None:
            return {agent: dict(metrics) for agent in self.agents}
        masks = by_agent(self._episodes.env, masks)
        return {agent: {**metrics, "action_mask": masks[agent].copy()} for agent in self.agents}


def leaving(env: MultiAgentEnvironment, raw: RawStep) -> np.ndarray:
    """bool[..., M]: terminated; an agent absent for the episode leaves in its first step."""
    return raw.terminated if agents_may_wait(env) else raw.terminated | ~raw.active


def no_action(space: Space) -> PyTree:
    """Zeros for an agent that does not act."""
    return jax.tree.map(lambda part: np.zeros(part.shape, part.dtype), tree_of(space))
