"""Functions between an environment and its policies: of observations, actions and rewards."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.env import is_multi_agent, is_stacked
from jaxrl.core.errors import UsageError, brief, explained
from jaxrl.core.fields import function, takes
from jaxrl.core.registry import make_with
from jaxrl.core.spaces import Space, box_of, space_of
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.core.wrapped_env import (
    AlikeAgents,
    ManyAgents,
    OneAgent,
    Wrapped,
    form_of,
    require_wrappable,
)

Spaces = tuple[tuple[AgentId | None, Space], ...]  # by agent; None: of an only one
OPTIONAL = function(optional=True)


def _unchanged(values: PyTree) -> PyTree:
    return values


@dataclasses.dataclass(frozen=True)
class _Transformed(Wrapped):
    """An environment behind functions; see `transform`."""

    env: Any
    observation: Callable[[PyTree], PyTree]
    action: Callable[[PyTree], PyTree]
    reward: Callable[[PyTree], PyTree]
    observation_spaces: Spaces = ()
    action_spaces: Spaces = ()

    def observation_space(self, *arguments: Any) -> Space:
        agent = arguments[0] if is_multi_agent(self.env) else None
        return dict(self.observation_spaces).get(agent) or self.env.observation_space(*arguments)

    def action_space(self, *arguments: Any) -> Space:
        agent = arguments[0] if is_multi_agent(self.env) else None
        return dict(self.action_spaces).get(agent) or self.env.action_space(*arguments)

    def _reset(self, reset: Callable, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = reset(key, params)
        return _called(self, "observation", obs), state

    def _step(
        self, step: Callable, key: Key, state: PyTree, action: PyTree, params: PyTree
    ) -> tuple:
        action = _called(self, "action", action)
        obs, state, reward, terminated, info = step(key, state, action, params)
        obs, reward = _called(self, "observation", obs), _called(self, "reward", reward)
        return obs, state, reward, terminated, info


class _OfOneAgent(_Transformed, OneAgent):
    pass


class _OfManyAgents(_Transformed, ManyAgents):
    pass


class _OfAlikeAgents(_Transformed, AlikeAgents):
    pass


@takes(observation=OPTIONAL, action=OPTIONAL, reward=OPTIONAL)
def transform(
    env: Any,
    *,
    observation: Callable[[PyTree], PyTree] | None = None,
    action: Callable[[PyTree], PyTree] | None = None,
    reward: Callable[[PyTree], PyTree] | None = None,
    observation_space: Space | Mapping[AgentId, Space] | None = None,
    action_space: Space | Mapping[AgentId, Space] | None = None,
) -> Any:
    """The environment behind functions of its observations, actions and rewards.

    What Gymnasium has as `TransformObservation`, `TransformAction` and `TransformReward`, and RLlib
    as `observation_fn` and connectors. The functions are traced with the environment.

        scaled = jaxrl.transform("cartpole", observation=lambda obs: obs / 2.4)

    Of several agents each function gets, and returns, what the environment itself has: a dict by
    agent id, or [M, ...] of a `StackedEnvironment`. So an agent may see what another one sees.

    Args:
        env: an environment in JAX, or its name.
        observation: from what the environment shows to what policies see.
        action: from a policy's action to the environment's.
        reward: from the environment's rewards to those that are learned from and reported.
        observation_space: what `observation` returns, {agent: space} where agents differ; None:
            Boxes of floats without bounds, or of bytes, of the shapes that it returns.
        action_space: what `action` takes; None: what the environment does.

    Raises:
        UsageError: no function, one that fails as it is traced, observations of integers without a
            space, or an environment outside JAX.
    """
    if observation is action is reward is None:
        raise UsageError("transform: give a function, such as observation=lambda obs: obs / 10")
    env, params = make_with(env, {})
    require_wrappable(env, "transform", "TransformObservation")
    functions = [function or _unchanged for function in (observation, action, reward)]
    transformed = form_of(env, (_OfOneAgent, _OfManyAgents, _OfAlikeAgents))(env, *functions)
    spaces = {
        "observation_spaces": _by_agent(env, "observation_space", observation_space),
        "action_spaces": _by_agent(env, "action_space", action_space),
    }
    if observation is not None and observation_space is None:
        spaces["observation_spaces"] = _spaces_without_bounds(transformed, params)
    return dataclasses.replace(transformed, **spaces)


def _called(transformed: _Transformed, name: str, values: PyTree) -> PyTree:
    with explained(f"transform of {transformed.name}: {name} fails as it is traced"):
        return getattr(transformed, name)(values)


def _by_agent(env: Any, name: str, spaces: Any) -> Spaces:
    """A space or {agent: space}, as pairs of both; none for None."""
    if spaces is None:
        return ()
    agents = env.agents if is_multi_agent(env) else (None,)
    by_agent = spaces if isinstance(spaces, Mapping) else dict.fromkeys(agents, spaces)
    if set(by_agent) != set(agents):
        what = "a space, not a dict" if agents == (None,) else f"a space for each of {agents}"
        raise UsageError(f"transform: {name}={brief(spaces)} must be {what}")
    for space in by_agent.values():
        if not isinstance(space, Space):
            what = "a space of jaxrl.core.spaces"
            raise UsageError(f"transform: {name}={brief(space)} must be {what}")
    return tuple(by_agent.items())


def _spaces_without_bounds(transformed: _Transformed, params: PyTree) -> Spaces:
    """The spaces of what a reset shows, of which the shapes and types are known."""
    env = transformed.env
    reset = transformed.reset_stacked if is_stacked(env) else transformed.reset_env
    with explained(f"transform of {env.name}: observation must return arrays"):
        obs, _ = jax.eval_shape(lambda: reset(jax.random.key(0), params))
    if is_stacked(env):
        row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), obs)
        obs = dict.fromkeys(env.agents, row)
    elif not is_multi_agent(env):
        obs = {None: obs}
    return tuple((agent, space_of(_boxes_of(part))) for agent, part in obs.items())


def _boxes_of(obs: PyTree) -> PyTree:
    """A Box for each array of observations, in dicts and tuples."""
    forms = {dict, tuple, jax.ShapeDtypeStruct}
    if not jax.tree.leaves(obs) or type(obs) not in forms:
        raise UsageError(
            f"transform: observation must return an array, or a dict or tuple of arrays, not "
            f"{brief(obs)}"
        )
    for leaf in jax.tree.leaves(obs):
        if leaf.dtype not in (bool, jnp.uint8) and jnp.issubdtype(leaf.dtype, jnp.integer):
            raise UsageError(
                f"transform: observation returns integers {leaf.dtype}{list(leaf.shape)}: give "
                "observation_space, such as MultiDiscrete((100, 100)) of choices, or a Box"
            )
    return jax.tree.map(box_of, obs)
