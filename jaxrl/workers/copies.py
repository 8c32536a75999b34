"""Copies of Python environments with one interface: each steps one row of the arrays.

A copy reads its actions from its `Row` and stores there what the step gave. It does not begin a new
episode by itself. This module must not import JAX.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from jaxrl.core.errors import UsageError
from jaxrl.core.python_kinds import GYMNASIUM, PARALLEL, TURNS, kind_of
from jaxrl.workers.arrays import EnvForm, Row
from jaxrl.workers.sources import Source, make_copy
from jaxrl.workers.space_forms import SpaceForm, form_of

AGENT = "default_agent"  # `jaxrl.core.types.DEFAULT_AGENT`, which needs JAX to be imported
MASK = "action_mask"
PROBE_SEED = 0


class Copy(Protocol):
    """One environment."""

    env: Any

    def probe(self) -> EnvForm:
        """What arrays the environment needs; it is reset and stepped once to see that."""

    def reset(self, row: Row, seed: int) -> None:
        """Begins the episode of a seed; its first observations are in `row.obs`."""

    def step(self, row: Row) -> bool:
        """Steps by the row's actions, after `begin_step`; returns whether the episode ended.

        The row's other arrays have the results, with the observations in `final_obs`.
        """


def made_copy(source: Source, seed: int) -> Copy:
    """A new copy; what its spaces sample follows from the seed."""
    copy = copy_of(make_copy(source), source.name)
    for number, space in enumerate(_spaces_of(copy.env)):
        space.seed((seed + number) & 0x7FFFFFFF)
    return copy


def copy_of(env: Any, name: str) -> Copy:
    """The copy that steps an environment of Python."""
    kind = kind_of(env)
    if kind == GYMNASIUM:
        return SingleAgentCopy(env, name)
    if kind == PARALLEL:
        return ParallelCopy(env, name)
    if kind == TURNS:
        parallel = _as_parallel(env)
        return TurnsCopy(env, name) if parallel is None else ParallelCopy(parallel, name)
    raise UsageError(f"environment {name!r}: a {kind} steps its copies itself")


class SingleAgentCopy:
    """A `gymnasium.Env`."""

    def __init__(self, env: Any, name: str):
        self.env, self._name = env, name

    def probe(self) -> EnvForm:
        spaces = self.env.observation_space, self.env.action_space
        observation = form_of(spaces[0], f"observation of {self._name}")
        action = form_of(spaces[1], f"action of {self._name}")
        _, first = self.env.reset(seed=PROBE_SEED)
        spaces[1].seed(PROBE_SEED)
        *_, info = self.env.step(spaces[1].sample(mask=_sample_mask(first, spaces[1])))
        masked = MASK in first or MASK in info
        if masked:
            _check_masked(action, self._name)
        metrics = tuple(sorted(_metrics(info)))
        return EnvForm((AGENT,), (observation,), (action,), masked, metrics, True, False)

    def reset(self, row: Row, seed: int) -> None:
        obs, info = self.env.reset(seed=seed)
        row.write_obs[0](obs)
        row.write_mask(0, info.get(MASK))

    def step(self, row: Row) -> bool:
        obs, reward, terminated, truncated, info = self.env.step(row.read_action(0))
        row.write_final_obs[0](obs)
        if row.is_masked:
            row.write_mask(0, info.get(MASK))
        row.reward[0] = _number(reward)
        if row.form.metrics:
            _write_metrics(row, info)
        if not (terminated or truncated):
            return False
        row.terminated[0], row.truncated[0] = terminated, truncated and not terminated
        return True


class ManyAgentsCopy:
    """What PettingZoo's two interfaces have in common."""

    waits = False

    def __init__(self, env: Any, name: str):
        self.env, self._name = env, name
        self.agents = tuple(map(str, env.possible_agents))
        self._ids = tuple(env.possible_agents)  # some are no texts
        self._index = {agent: index for index, agent in enumerate(self._ids)}
        self._inside = tuple(map(self._holds_mask, self._ids))  # masks in the observations

    def probe(self) -> EnvForm:
        observations, actions = [], []
        for agent, name, inside in zip(self._ids, self.agents, self._inside, strict=True):
            space = self.env.observation_space(agent)
            space = _without_mask(space) if inside else space
            observations.append(form_of(space, f"observation of {self._name} for {name!r}"))
            what = f"action of {self._name} for {name!r}"
            actions.append(form_of(self.env.action_space(agent), what))
        infos, waits = self._first_infos()
        masked = any(self._inside) or any(MASK in info for info in infos)
        for action in actions if masked else ():
            _check_masked(action, self._name)
        metrics = sorted({name for info in infos for name in _metrics(info)})
        return EnvForm(
            self.agents, tuple(observations), tuple(actions), masked, tuple(metrics), False, waits
        )

    def _first_infos(self) -> tuple[list[Mapping], bool]:
        """(infos of a reset and a step, whether agents may wait)."""
        raise NotImplementedError

    def _holds_mask(self, agent: Any) -> bool:
        parts = getattr(self.env.observation_space(agent), "spaces", None)
        return isinstance(parts, Mapping) and MASK in parts and len(parts) > 1

    def _agent(self, agent: Any) -> int:
        if agent not in self._index:
            raise ValueError(f"agent {agent!r} is not one of possible_agents")
        return self._index[agent]

    def _observe(self, row: Row, agent: int, obs: Any, info: Mapping) -> Any:
        """Stores an agent's mask; returns what remains of the observation."""
        if not self._inside[agent]:
            row.write_mask(agent, info.get(MASK))
            return obs
        row.write_mask(agent, obs[MASK])
        rest = {name: part for name, part in obs.items() if name != MASK}
        return rest["observation"] if rest.keys() == {"observation"} else rest

    def _write_acting(self, row: Row, acting: list) -> None:
        row.acting[:] = False
        row.acting[[self._index[agent] for agent in acting]] = True

    def _sample(self, agent: Any, obs: Any, info: Mapping) -> Any:
        space = self.env.action_space(agent)
        space.seed(PROBE_SEED)
        found = obs if self._inside[self._index[agent]] else info
        return space.sample(mask=_sample_mask(found, space))


class ParallelCopy(ManyAgentsCopy):
    """A PettingZoo `ParallelEnv`. Agents that left are inactive until the reset."""

    _acting: list  # agents that are present and have not ended
    _ended: set

    def _first_infos(self):
        obs, infos = self.env.reset(seed=PROBE_SEED)
        present = list(self.env.agents)
        actions = {
            agent: self._sample(agent, obs[agent], infos.get(agent, {})) for agent in present
        }
        *_, after = self.env.step(actions)
        return [*infos.values(), *after.values()], set(present) != set(self._ids)

    def reset(self, row: Row, seed: int) -> None:
        observations, infos = self.env.reset(seed=seed)
        self._acting, self._ended = list(self.env.agents), set()
        _clear_obs(row)
        for agent in self._acting:
            seen = observations[agent], infos.get(agent, {})
            self._write(row, agent, seen, row.write_obs)
        self._write_acting(row, self._acting)

    def step(self, row: Row) -> bool:
        acting = self._acting
        actions = {agent: row.read_action(self._index[agent]) for agent in acting}
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._ended |= {agent for agent in acting if terminated[agent] or truncated[agent]}
        # Some environments leave agents that have ended on their list.
        self._acting = [agent for agent in self.env.agents if agent not in self._ended]
        _clear_step(row)
        for agent in acting:
            index = self._index[agent]
            row.active[index] = True
            row.reward[index] = _number(rewards[agent])
            has_left = agent not in self._ended and agent not in self._acting
            row.terminated[index] = bool(terminated[agent]) or has_left
            row.truncated[index] = bool(truncated[agent]) and not terminated[agent]
        for agent in dict.fromkeys((*acting, *self._acting)):
            if agent in observations:
                seen = observations[agent], infos.get(agent, {})
                self._write(row, agent, seen, row.write_final_obs)
            elif agent in self._acting:
                raise ValueError(f"there is no observation for agent {agent!r}")
        self._write_acting(row, self._acting)
        _write_metrics(row, *infos.values())
        return not self._acting

    def _write(self, row: Row, agent: Any, seen: tuple, writers: list) -> None:
        index = self._agent(agent)
        obs, info = seen
        writers[index](self._observe(row, index, obs, info))


class TurnsCopy(ManyAgentsCopy):
    """A PettingZoo `AECEnv`, one turn a step: one agent is active, the others wait."""

    def _first_infos(self):
        self.env.reset(seed=PROBE_SEED)
        obs, _, _, _, first = self.env.last()
        infos = [dict(first)]
        self.env.step(self._sample(self.env.agent_selection, obs, first))
        return [*infos, *self.env.infos.values()], True

    def reset(self, row: Row, seed: int) -> None:
        self.env.reset(seed=seed)
        _clear_obs(row)
        self._pass_the_ended()
        self._write_all(row, row.write_obs)
        self._write_turn(row)

    def step(self, row: Row) -> bool:
        acting = self._agent(self.env.agent_selection)
        self.env.step(row.read_action(acting))
        _clear_step(row)
        row.active[acting] = True
        for agent in self.env.agents:
            index = self._agent(agent)
            row.reward[index] = _number(self.env.rewards[agent])
            ends, cut = bool(self.env.terminations[agent]), bool(self.env.truncations[agent])
            row.terminated[index], row.truncated[index] = ends, cut and not ends
        self._write_all(row, row.write_final_obs)
        _write_metrics(row, *self.env.infos.values())
        self._pass_the_ended()
        self._write_turn(row)
        return not self.env.agents

    def _write_all(self, row: Row, writers: list) -> None:
        for agent in self.env.agents:
            index, info = self._agent(agent), self.env.infos.get(agent, {})
            writers[index](self._observe(row, index, self.env.observe(agent), info))

    def _pass_the_ended(self) -> None:
        """Agents that have ended leave; PettingZoo has them step with None first."""
        env = self.env
        while env.agents and (
            env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        ):
            env.step(None)

    def _write_turn(self, row: Row) -> None:
        self._write_acting(row, [self.env.agent_selection] if self.env.agents else [])


def _spaces_of(env: Any) -> Iterator[Any]:
    for spaces in (env.action_space, env.observation_space):
        yield from map(spaces, env.possible_agents) if callable(spaces) else [spaces]


def _as_parallel(env: Any) -> Any:
    """PettingZoo's own conversion of an AECEnv in which all act at once; None for others."""
    if not getattr(env, "metadata", {}).get("is_parallelizable"):
        return None
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)


def _without_mask(space: Any) -> Any:
    from gymnasium import spaces

    rest = {name: part for name, part in space.spaces.items() if name != MASK}
    return rest["observation"] if rest.keys() == {"observation"} else spaces.Dict(rest)


def _check_masked(action: SpaceForm, name: str) -> None:
    if not action.num_actions:
        raise UsageError(f"environment {name!r}: an action_mask needs discrete actions")


def _sample_mask(holder: Any, space: Any) -> Any:
    """The mask for Gymnasium's `sample`, of a Discrete space; None where there is none."""
    import numpy as np

    mask = holder.get(MASK) if isinstance(holder, Mapping) else None
    is_simple = hasattr(space, "n") and mask is not None
    return np.asarray(mask, "int8") if is_simple else None


def _number(reward: Any) -> float:
    reward = float(reward)
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return reward


def _clear_obs(row: Row) -> None:
    """Zeros for agents that are absent at first."""
    for agent, views in enumerate(row.obs):
        row.write_mask(agent, None)
        for view in views:
            view[...] = 0


def _clear_step(row: Row) -> None:
    """Results of agents that are absent: observations stay as they are."""
    for views, finals in zip(row.obs, row.final_obs, strict=True):
        for view, final in zip(views, finals, strict=True):
            final[...] = view
    row.reward[:] = 0
    for flags in (row.terminated, row.truncated, row.active):
        flags[:] = False


def _metrics(info: Mapping) -> Mapping:
    """The scalars in info["metrics"]."""
    found = info.get("metrics")
    return found if isinstance(found, Mapping) else {}


def _write_metrics(row: Row, *infos: Mapping) -> None:
    """The first value of each metric that an agent's info has, else 0."""
    row.metrics[:] = [_first(infos, name) for name in row.form.metrics]


def _first(infos: Iterable[Mapping], name: str) -> float:
    return next((float(_metrics(info)[name]) for info in infos if name in _metrics(info)), 0.0)
