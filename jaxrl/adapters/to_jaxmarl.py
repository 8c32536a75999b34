"""Environments of jaxrl for programs that use JaxMARL (https://github.com/FLAIROx/JaxMARL, 0.2).

    env = jaxrl.to_jaxmarl("arena")    where its scripts call `jaxmarl.make(...)`

JaxMARL is imported when an environment is made.
"""

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl.adapters.to_gymnax import gymnax_space
from jaxrl.adapters.to_numpy import derived, require_library, resolve
from jaxrl.core.env import (
    agents_may_wait,
    lift,
    raw_action_mask,
    raw_step,
    split_agents,
    strongly_typed,
)
from jaxrl.core.fields import takes
from jaxrl.core.program_spaces import from_program, mask_length, program_space, to_program
from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.core.types import ALL, AgentId, Key, PolicyId, PyTree
from jaxrl.rollout.critic_inputs import global_state_space

if TYPE_CHECKING:
    from jaxmarl.environments.multi_agent_env import MultiAgentEnv

WORLD_STATE = "world_state"  # JaxMARL's name, a key beside the agents


@takes()
def to_jaxmarl(env: Any, params: PyTree = None) -> "MultiAgentEnv":
    """A `MultiAgentEnv` of JaxMARL, with observations, actions, rewards and `done` by agent.

    JaxMARL has one `done` for both kinds of ends, so a learner cannot tell a time limit from a real
    end. An agent that has left stays done until the reset. `info` has the environment's metrics,
    each as f32[num_agents], the shape that JaxMARL's scripts reshape.

    Of an environment with a `global_state`, observations have "world_state" too, f32[state_size],
    the same for all agents, as those of JaxMARL's SMAX.

    Args:
        env: an environment or its name.
        params: its parameters; None: the default ones. They are constants of the program.

    Raises:
        UsageError: JaxMARL is not installed.
    """
    require_library("jaxmarl", "to_jaxmarl", "jaxmarl")
    from jaxmarl.environments import multi_agent_env, spaces

    env, params = resolve(env, params)
    return derived(JaxMarlEnv, multi_agent_env.MultiAgentEnv)(env, params, spaces)


class JaxMarlEnv:
    """A `MultiAgentEnv` of JaxMARL; see `to_jaxmarl`."""

    def __init__(self, env: Any, params: PyTree, spaces: ModuleType):
        self._env, self._params = lift(env), params
        super().__init__(len(self._env.agents))
        self.agents: list[AgentId] = list(self._env.agents)  # instead of agent_0, agent_1, ...
        self._actions, self._observations = {}, {}
        self.action_spaces, self.observation_spaces = {}, {}
        for agent in self.agents:
            self._actions[agent] = self._env.action_space(agent, params)
            self._observations[agent] = self._env.observation_space(agent, params)
            self.action_spaces[agent] = gymnax_space(self._actions[agent], spaces)
            self.observation_spaces[agent] = gymnax_space(self._observations[agent], spaces)
        if hasattr(self._env, "global_state"):
            self._state_space = global_state_space(self._env, params)
            self.get_world_state = self._world_state
            obs, _ = jax.eval_shape(self.reset, jax.random.key(0))
            self.state_size: int = obs[WORLD_STATE].size

    @property
    def name(self) -> str:
        return self._env.name

    @property
    def agent_classes(self) -> dict[PolicyId, list[AgentId]]:
        return {name: list(agents) for name, agents in self._env.default_policies.items()}

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key: Key) -> tuple[dict[AgentId, PyTree], PyTree]:
        obs, state = self._env.reset(key, self._params)
        return self._with_world_state(obs, state), strongly_typed(state)

    def step_env(
        self, key: Key, state: PyTree, actions: dict[AgentId, PyTree]
    ) -> tuple[dict, PyTree, dict, dict, dict]:
        """Returns (obs, state, rewards, dones, info), with no reset, which `step` adds."""
        actions = {agent: _shaped(space, actions[agent]) for agent, space in self._actions.items()}
        raw = raw_step(self._env, key, state, actions, self._params)
        done = raw.terminated | raw.truncated
        if not agents_may_wait(self._env):
            done = done | ~raw.active
        dones = {**split_agents(self._env, done), ALL: raw.episode_done}
        info = {}
        for name, value in raw.info.get("metrics", {}).items():
            info[name] = jnp.full(len(self.agents), value, jnp.float32)
        rewards = split_agents(self._env, raw.reward)
        obs = self._with_world_state(self._env.by_agent(raw.obs), raw.state)
        return obs, raw.state, rewards, dones, info

    @functools.partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: PyTree) -> dict[AgentId, jax.Array]:
        """bool[A]: the possible actions, all of them in an environment without masks."""
        if hasattr(self._env, "action_mask"):
            return self._env.by_agent(raw_action_mask(self._env, state, self._params))
        masks = {}
        for agent, space in self._actions.items():
            masks[agent] = jnp.ones(mask_length(space) or space.shape, bool)
        return masks

    def _with_world_state(self, obs: dict[AgentId, PyTree], state: PyTree) -> dict[str, PyTree]:
        shown = {}
        for agent, space in self._observations.items():
            shown[agent] = to_program(space, obs[agent], jnp)
        if hasattr(self, "get_world_state"):
            shown[WORLD_STATE] = self.get_world_state(state)
        return shown

    def _world_state(self, state: PyTree) -> jax.Array:
        """f32[state_size]: the environment's `global_state` in a row."""
        global_state = self._env.global_state(state, self._params)
        parts = jax.tree.map(_numbers, tree_of(self._state_space), global_state)
        return jnp.concatenate(jax.tree.leaves(parts))


def _shaped(space: Space, action: PyTree) -> PyTree:
    """The environment's action for JaxMARL's, whose scripts give numbers as [1]."""
    shaped = jax.tree.map(
        lambda part, leaf: jnp.reshape(jnp.asarray(leaf, part.dtype), part.shape),
        tree_of(program_space(space)),
        action,
    )
    return from_program(space, shaped, jnp)


def _numbers(space: Space, value: jax.Array) -> jax.Array:
    """f32[S]: the numbers in a row; the integers of Discrete and MultiDiscrete one-hot."""
    if isinstance(space, Box):
        return jnp.ravel(jnp.asarray(value, jnp.float32))
    digits = jnp.ravel(to_program(space, value, jnp))
    return jnp.concatenate([jax.nn.one_hot(digits[i], n) for i, n in enumerate(space.counts)])
