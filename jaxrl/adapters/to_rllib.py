"""Environments of jaxrl for RLlib (https://docs.ray.io/en/latest/rllib, 2.60).

    ray.tune.register_env("arena", lambda config: jaxrl.to_rllib("arena"))
    PPOConfig().environment("arena")      a MultiAgentEnv

A step of all agents is one compiled program. Ray is imported when an environment is made. RLlib
makes several environments by calling the function again and steps them one by one; it has no place
for a vector environment of many agents.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxrl.adapters.to_numpy import derived, resolve
from jaxrl.adapters.to_pettingzoo import PettingZooEnv, no_action
from jaxrl.core.env import MultiAgentEnvironment, acting_agents, agents_may_wait
from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.types import ALL, AgentId, PyTree

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv


def to_rllib(env: Any, params: PyTree = None, *, render_mode: str | None = None) -> "MultiAgentEnv":
    """A `MultiAgentEnv` of RLlib, of an environment with any number of agents.

    Seeds, infos and agents that leave are as for `to_pettingzoo`. An agent that waits is given no
    observation until it acts again, as RLlib expects.

    Args:
        env: an environment or its name.
        params: its parameters; None: the default ones.
        render_mode: "rgb_array", or None.

    Raises:
        UsageError: RLlib is not installed, an unknown `render_mode`.
    """
    try:
        from ray.rllib.env.multi_agent_env import MultiAgentEnv
    except ImportError as error:  # Ray may be installed without what RLlib needs
        missing = f'to_rllib needs RLlib: pip install "jaxrl[rllib]" ({one_line(error)})'
        raise UsageError(missing) from None
    env, params = resolve(env, params)
    return derived(RllibEnv, MultiAgentEnv)(env, params, render_mode)


@functools.partial(jax.jit, static_argnums=0)
def acting(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> jax.Array:
    """bool[M]: the agents that act in a state."""
    return acting_agents(env, state, params)


class RllibEnv(PettingZooEnv):
    """A `MultiAgentEnv` of RLlib; see `to_rllib`."""

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[dict[AgentId, PyTree], dict[AgentId, dict]]:
        """Returns (obs, infos) of a new episode, of the agents that act."""
        obs, infos = super().reset(seed, options)
        due = self._due()
        return _of(due, obs), _of(due, infos)

    def step(self, action_dict: Mapping[AgentId, PyTree]) -> tuple[dict, dict, dict, dict, dict]:
        """Returns (obs, rewards, terminateds, truncateds, infos), by agent."""
        waiting = set(self.agents) - set(self._due())
        actions = {agent: no_action(self._actions[agent]) for agent in waiting}
        raw, results = self._advance({**actions, **action_dict})
        obs, rewards, terminateds, truncateds, infos = results
        shown = {*self._due(), *(agent for agent in obs if agent not in self.agents)}
        terminateds[ALL] = bool(raw.all_terminated)
        truncateds[ALL] = bool(raw.episode_done and not raw.all_terminated)
        return _of(shown, obs), rewards, terminateds, truncateds, _of(shown, infos)

    def _due(self) -> list[AgentId]:
        """The agents that act next."""
        env, current = self._episodes.env, self._episodes.current
        if not agents_may_wait(env) or current is None:
            return self.agents
        acts = dict(
            zip(env.agents, acting(env, current.state, self._episodes.params).tolist(), strict=True)
        )
        return [agent for agent in self.agents if acts[agent]]


def _of(agents: Any, values: dict[AgentId, PyTree]) -> dict[AgentId, PyTree]:
    return {agent: value for agent, value in values.items() if agent in agents}
