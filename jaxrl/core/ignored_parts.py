"""Parts of observations that are left out: by the setting `ignore_observations`, or empty ones.

A part is named by its keys: "mission", or "outer/inner" where it lies deeper. A Box of size 0 in a
Dict or Tuple holds nothing, and is always left out.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl.core.env import MultiAgentEnvironment, Solo, is_batched, is_stacked, lift
from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.outside_env import is_outside, outside_environment
from jaxrl.core.spaces import Box, Dict, Space, Tuple, is_tree
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.core.wrapped_env import AlikeAgents, ManyAgents, OneAgent, Wrapped

SETTING = "ignore_observations"
Names = tuple[str, ...]


def named_parts(space: Space, path: str = "") -> Iterator[tuple[str, Space]]:
    """(name, space) of each part of a Dict or Tuple, and of their parts."""
    for name, part in _parts(space):
        inner = f"{path}/{name}" if path else name
        yield inner, part
        yield from named_parts(part, inner)


def without_parts(space: Space, names: Iterable[str]) -> Space | None:
    """The space without some parts and without empty ones; None if nothing is left."""
    names = frozenset(names)

    def kept(space: Space, path: str) -> Space | None:
        if not is_tree(space):
            return None if path and _is_empty(space) else space
        parts = {}
        for name, part in _parts(space):
            inner = f"{path}/{name}" if path else name
            if inner not in names and (found := kept(part, inner)) is not None:
                parts[name] = found
        if not parts:
            return None
        return Dict(parts) if isinstance(space, Dict) else Tuple(tuple(parts.values()))

    return kept(space, "")


def values_without(names: Iterable[str], space: Space, values: PyTree) -> PyTree:
    """Observations of a space of which `without_parts` left `space`, without the same parts.

    Values that do not have them are returned as they are, and so is what does not fit the space.
    """
    names = frozenset(names)

    def kept(space: Space, values: Any, path: str) -> Any:
        if isinstance(space, Dict) and isinstance(values, Mapping):
            parts = space.spaces
            found = {}
            for name, value in values.items():
                inner = f"{path}/{name}" if path else str(name)
                if name in parts:
                    found[name] = kept(parts[name], value, inner)
                elif not _is_left_out(value, inner, names):
                    found[name] = value
            return found
        if isinstance(space, Tuple) and isinstance(values, tuple | list):
            inner = [(f"{path}/{i}" if path else str(i), value) for i, value in enumerate(values)]
            if len(inner) > len(space.spaces):
                inner = [pair for pair in inner if not _is_left_out(pair[1], pair[0], names)]
            if len(inner) != len(space.spaces):
                return values
            pairs = zip(space.spaces, inner, strict=True)
            return type(values)(kept(part, value, name) for part, (name, value) in pairs)
        return values

    return kept(space, values, "")


def ignoring(env: MultiAgentEnvironment, params: PyTree, names: Names) -> MultiAgentEnvironment:
    """The environment without some parts of its observations; itself if there is none of them.

    Raises:
        UsageError: there is no such part, nothing would be left, or a part that no network can read
            (Text, Graph) is not among `names`.
    """
    inner = getattr(env, "env", env)
    unread = dict(inner.unread) if is_outside(env) else {}
    spaces = {agent: env.observation_space(agent, params) for agent in env.agents}
    part_names = {name for space in spaces.values() for name, _ in named_parts(space)} | set(unread)
    for name in names:
        if name not in part_names:
            raise unknown_name("part", name, sorted(part_names), f"of {SETTING}, in {env.name}")
    if missed := [part for part in unread if not _is_named(part, names)]:
        kinds = ", ".join(f"{part!r} (a {unread[part]} space)" for part in missed)
        raise UsageError(
            f"observation of {env.name}: no network reads {kinds}; what cannot be learned from is "
            f"left out with {SETTING}={(*names, *missed)}"
        )
    left = {agent: without_parts(space, names) for agent, space in spaces.items()}
    for agent, space in left.items():
        if space is None or _is_empty(space):
            without = f" without {', '.join(names)} ({SETTING})" if names else ""
            raise UsageError(
                f"observation of {env.name} for {agent!r}: {spaces[agent]} has nothing to learn "
                f"from{without}"
            )
    if left == spaces:
        return env
    if is_outside(env):
        return lift(_outside(inner, names, left))
    if is_batched(env):
        raise UsageError(f"{SETTING}: {env.name} steps all copies in one call; nothing is left out")
    spaces = tuple(left.items())
    if isinstance(env, Solo):
        return Solo(_OfOneAgent(inner, tuple(names), spaces))
    return (_OfAlikeAgents if is_stacked(env) else _OfManyAgents)(env, tuple(names), spaces)


def _outside(env: Any, names: Names, left: dict[AgentId, Space]) -> Any:
    """An environment outside JAX with the observation spaces that are left."""
    if env.without_parts is not None:
        return env.without_parts(names)
    return outside_environment(env.spec._replace(observation_spaces=left), env.vector)


@dataclasses.dataclass(frozen=True)
class _Ignoring(Wrapped):
    """An environment of JAX without some parts of its observations; see `ignoring`."""

    env: Any
    names: Names
    spaces: tuple[tuple[AgentId, Space], ...]  # what is left, by agent

    def _reset(self, reset: Callable, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = reset(key, params)
        return self._left(obs), state

    def _step(
        self, step: Callable, key: Key, state: PyTree, action: PyTree, params: PyTree
    ) -> tuple:
        obs, *rest = step(key, state, action, params)
        return self._left(obs), *rest

    def _left(self, obs: PyTree) -> PyTree:
        """Observations of one agent, or stacked ones of agents with one space."""
        return values_without(self.names, self.spaces[0][1], obs)


class _OfOneAgent(_Ignoring, OneAgent):
    def observation_space(self, params: PyTree = None) -> Space:
        return self.spaces[0][1]


class _OfManyAgents(_Ignoring, ManyAgents):
    def observation_space(self, agent: AgentId, params: PyTree = None) -> Space:
        return dict(self.spaces)[agent]

    def _left(self, obs: dict[AgentId, PyTree]) -> dict[AgentId, PyTree]:
        spaces = dict(self.spaces)
        return {agent: values_without(self.names, spaces[agent], obs[agent]) for agent in obs}


class _OfAlikeAgents(_Ignoring, AlikeAgents):
    observation_space = _OfManyAgents.observation_space


def _is_named(part: str, names: Iterable[str]) -> bool:
    """Returns whether a part, or one that contains it, is among `names`."""
    return any(part == name or part.startswith(f"{name}/") for name in names)


def _parts(space: Space) -> list[tuple[str, Space]]:
    if isinstance(space, Dict):
        return list(space.parts)
    return [(str(i), part) for i, part in enumerate(space.spaces)] if is_tree(space) else []


def _is_empty(space: Space) -> bool:
    return isinstance(space, Box) and space.size == 0


def _is_left_out(value: Any, path: str, names: Collection[str]) -> bool:
    """Returns whether a part of an observation is named or empty, or everything in it is."""
    if path in names:
        return True
    if isinstance(value, Mapping):
        return all(_is_left_out(part, f"{path}/{name}", names) for name, part in value.items())
    if isinstance(value, tuple):
        return all(_is_left_out(part, f"{path}/{i}", names) for i, part in enumerate(value))
    return not isinstance(value, str | bytes) and np.size(value) == 0
