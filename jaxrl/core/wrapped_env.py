"""Environments around an environment: the wrapper that changes nothing, and its forms.

A wrapper derives from `Wrapped`, overrides what it changes, and has a class for each form of
environment: `class Frames(Wrapped)`, then `class FramesOfOneAgent(Frames, OneAgent)` and so on.
`form_of` chooses one of them.
"""

from collections.abc import Callable
from typing import Any

import jax

from jaxrl.core.env import (
    Environment,
    MultiAgentEnvironment,
    StackedEnvironment,
    has_outside_state,
    is_batched,
    is_multi_agent,
    is_stacked,
)
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Space
from jaxrl.core.types import AgentId, Key, PolicyId, PyTree

# Optional methods (state, params): a wrapper calls them with the state of the environment inside.
STATE_METHODS = ("action_mask", "acting_agents", "global_state", "render", "draw")


class Wrapped:
    """The wrapper that changes nothing. A subclass is a frozen dataclass; its first field is `env`.

    A wrapper with a state of its own defines `_inside`. Then every method that reads a state gets
    the state of `env`.
    """

    env: Any

    def __getattr__(self, name: str) -> Any:
        """Optional methods come from `env`, and are called with its state."""
        if name.startswith("__") or name in type(self).__dataclass_fields__:
            raise AttributeError(name)
        found = getattr(self.env, name)
        if name not in STATE_METHODS:
            return found
        return lambda state, params: found(*self._inside(state, params))

    def _inside(self, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        """(state, params) as `env` takes them."""
        return state, params

    def without_task(self, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        """(state, params) of the innermost environment; see the function `without_task`."""
        return without_task(self.env, *self._inside(state, params))

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def default_params(self) -> PyTree:
        return self.env.default_params

    def observation_space(self, *arguments: Any) -> Space:
        return self.env.observation_space(*arguments)

    def action_space(self, *arguments: Any) -> Space:
        return self.env.action_space(*arguments)

    def is_truncated(self, state: PyTree, params: PyTree) -> jax.Array:
        return self.env.is_truncated(*self._inside(state, params))

    def _reset(self, reset: Callable, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        """(obs, state) of a new episode; `reset` is that of `env`, for its form."""
        return reset(key, params)

    def _step(
        self, step: Callable, key: Key, state: PyTree, action: PyTree, params: PyTree
    ) -> tuple:
        """A step; `step` is that of `env`, for its form."""
        return step(key, state, action, params)


class OneAgent(Environment):
    """The form of a wrapper around an environment of one agent."""

    def reset_env(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        return self._reset(self.env.reset_env, key, params)

    def step_env(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        return self._step(self.env.step_env, key, state, action, params)


class ManyAgents(MultiAgentEnvironment):
    """The form of a wrapper around agents in dicts by agent id."""

    reset_env, step_env = OneAgent.reset_env, OneAgent.step_env

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return self.env.agents

    @property
    def default_policies(self) -> dict[PolicyId, tuple[AgentId, ...]]:
        return self.env.default_policies


class AlikeAgents(StackedEnvironment):
    """The form of a wrapper around stacked agents, [M, ...]."""

    agents, default_policies = ManyAgents.agents, ManyAgents.default_policies

    def reset_stacked(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        return self._reset(self.env.reset_stacked, key, params)

    def step_stacked(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        return self._step(self.env.step_stacked, key, state, action, params)


def form_of(env: Any, forms: tuple[type, type, type]) -> type:
    """The class of a wrapper, of (one agent, many, stacked ones), that has the form of `env`."""
    one_agent, many_agents, alike_agents = forms
    if not is_multi_agent(env):
        return one_agent
    return alike_agents if is_stacked(env) else many_agents


def require_wrappable(env: Any, wrapper: str, other: str) -> None:
    """Refuses environments that cannot be wrapped; `other` is Gymnasium's wrapper for Python."""
    if has_outside_state(env):
        raise UsageError(
            f"{wrapper}: {env.name} is stepped outside JAX; give env=MAKE, a function that puts "
            f"gymnasium.wrappers.{other} around it"
        )
    if is_batched(env):
        raise UsageError(f"{wrapper}: {env.name} steps all copies in one call")


def without_task(env: Any, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
    """(state, params) as the author of an environment knows them, whatever wrappers are around."""
    return env.without_task(state, params) if hasattr(env, "without_task") else (state, params)
