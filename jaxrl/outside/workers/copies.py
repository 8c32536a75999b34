"""Copies of Python environments with one interface: each steps one row of the arrays.

A copy reads its actions from its `Row` and stores there what the step gave. It does not begin a new
episode by itself. This module must not import JAX.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.mask_parts import MASK
from jaxrl.core.number_types import flag_in
from jaxrl.core.python_kinds import GYMNASIUM, PARALLEL, RLLIB, TURNS, kind_of
from jaxrl.outside.workers.arrays import EnvForm, Row
from jaxrl.outside.workers.masks import MaskSource, ObservedMask, method_of
from jaxrl.outside.workers.old_gym import as_gymnasium
from jaxrl.outside.workers.rllib_envs import RllibAsParallel
from jaxrl.outside.workers.sources import Source, make_copy
from jaxrl.outside.workers.space_forms import form_of

AGENT = "default_agent"  # `jaxrl.core.types.DEFAULT_AGENT`, which needs JAX to be imported
MOST_REWARD = float(np.finfo(np.float32).max)
LEAST_REWARD = -MOST_REWARD
FIVE = "step must give (observation, reward, terminated, truncated, info)"


class Copy(Protocol):
    """One environment.

    Attributes:
        env: as it is stepped.
        made: as its maker gave it.
    """

    env: Any
    made: Any

    def declared(self) -> EnvForm:
        """The form of the environment's arrays, as far as its spaces state it."""

    def reset(self, row: Row, seed: int) -> None:
        """Begins the episode of a seed; its first observations are in `row.obs`."""

    def step(self, row: Row) -> bool:
        """Steps by the row's actions, after its `begin_step`; returns whether the episode ended.

        The row's other arrays have the results, with the observations in `final_obs`.

        Raises:
            ValueError: it gave something else than an environment of its kind may give.
        """


def made_copy(source: Source, seed: int) -> Copy:
    """A new copy; what its spaces sample follows from the seed."""
    copy = copy_of(make_copy(source), source.name)
    for number, space in enumerate(_spaces_of(copy.env)):
        space.seed((seed + number) & 0x7FFFFFFF)
    return copy


def copy_of(env: Any, name: str) -> Copy:
    """The copy that steps an environment of Python."""
    copy = _stepped_by_kind(env, name)
    copy.made = env
    return copy


def _stepped_by_kind(env: Any, name: str) -> Copy:
    kind = kind_of(env)
    if kind == GYMNASIUM:
        return SingleAgentCopy(as_gymnasium(env), name)
    if kind == PARALLEL:
        return ParallelCopy(env, name)
    if kind == RLLIB:
        return ParallelCopy(RllibAsParallel(env), name)
    if kind == TURNS:
        parallel = _as_parallel(env)
        return TurnsCopy(env, name) if parallel is None else ParallelCopy(parallel, name)
    raise UsageError(f"environment {name!r}: a {kind} steps its copies itself")


class SingleAgentCopy:
    """A `gymnasium.Env`."""

    def __init__(self, env: Any, name: str):
        self.env = env
        self._action = form_of(env.action_space, f"action of {name}")
        self._observed = ObservedMask(env.observation_space, self._action)
        self._observation = form_of(
            self._observed.space, f"observation of {name}", is_observed=True
        )
        self._masks = MaskSource(method_of(env))

    def declared(self) -> EnvForm:
        return EnvForm((AGENT,), (self._observation,), (self._action,), True, (), True, waits=False)

    def reset(self, row: Row, seed: int) -> None:
        results = self.env.reset(seed=seed)
        if type(results) is not tuple or len(results) != 2:
            results = of_length(2, results, "reset must give (observation, info)")
        obs, info = results
        row.first_infos = {AGENT: info}
        if row.is_masked or MASK in info:
            obs = _observe(row, 0, results, (self._observed, self._masks))
        row.write_obs[0](obs)

    def step(self, row: Row) -> bool:
        results = self.env.step(row.read_action[0]())
        try:
            obs, reward, terminated, truncated, info = results
        except (TypeError, ValueError):
            obs, reward, terminated, truncated, info = of_length(5, results, FIVE)
        row.infos = {AGENT: info}
        ended = False
        if terminated is not False or truncated is not False:
            ends, cut = _as_flag(terminated, "terminated"), _as_flag(truncated, "truncated")
            ended = ends or cut
        if row.is_masked or (info and MASK in info):
            obs = _observe(row, 0, (obs, info), (self._observed, self._masks), not ended)
        row.write_final_obs[0](obs)
        is_plain = type(reward) is float and LEAST_REWARD <= reward <= MOST_REWARD
        row.reward[0] = reward if is_plain else _number(reward)
        if row.reads_metrics:
            row.write_metrics([info])
        if ended:
            row.terminated[0], row.truncated[0] = ends, cut and not ends
        return ended


class ManyAgentsCopy:
    """The part that copies of PettingZoo's two interfaces have in common."""

    def __init__(self, env: Any, name: str):
        self.env, self._name = env, name
        self.agents = tuple(map(str, env.possible_agents))
        self._ids = tuple(env.possible_agents)  # some are no texts
        self._index = {agent: index for index, agent in enumerate(self._ids)}
        self._actions, self._observed, self._observations = [], [], []
        for agent in self._ids:
            place = f"of {name} for {str(agent)!r}"
            action = form_of(env.action_space(agent), f"action {place}")
            observed = ObservedMask(env.observation_space(agent), action)
            observation = form_of(observed.space, f"observation {place}", is_observed=True)
            self._actions.append(action)
            self._observed.append(observed)
            self._observations.append(observation)
        self._masks = [MaskSource() for _ in self._ids]

    def declared(self) -> EnvForm:
        return EnvForm(
            *(self.agents, self._observations, self._actions, True, ()),
            always_active=False,
            waits=True,
            agent_ids=None if self._ids == self.agents else self._ids,
        )

    def _agent(self, agent: Any) -> int:
        if agent not in self._index:
            raise ValueError(f"agent {agent!r} is not one of possible_agents")
        return self._index[agent]

    def _observe(self, row: Row, agent: int, obs_and_info: tuple, is_acting: bool) -> Any:
        """Stores an agent's mask; returns what remains of (observation, info)."""
        return _observe(
            row, agent, obs_and_info, (self._observed[agent], self._masks[agent]), is_acting
        )

    def _write_acting(self, row: Row, acting: Iterable, may_wait: bool) -> None:
        row.write_acting([self._index[agent] for agent in acting], may_wait)


class ParallelCopy(ManyAgentsCopy):
    """A PettingZoo `ParallelEnv`.

    An agent that is present acts next if there is an observation for it, and else waits. Agents
    that left are inactive until the reset.
    """

    _present: list  # agents that have not ended
    _acting: list  # those of them that act next
    _ended: set

    def reset(self, row: Row, seed: int) -> None:
        results = self.env.reset(seed=seed)
        observations, infos = of_length(2, results, "reset must give (observations, infos)")
        row.first_infos = infos
        self._present, self._ended = list(self.env.agents), set()
        self._acting = [agent for agent in self._present if agent in observations]
        _clear_obs(row)
        self._write(row, self._acting, (observations, infos), row.write_obs)
        self._write_acting(row, self._acting, len(self._acting) < len(self._ids))

    def step(self, row: Row) -> bool:
        acting, present = self._acting, self._present
        actions = {agent: row.read_action[self._agent(agent)]() for agent in acting}
        observations, rewards, *flags, infos = of_length(5, self.env.step(actions), FIVE)
        row.infos = infos
        _clear_step(row)
        for agent in present:
            if self._write_result(row, agent, (rewards, *flags), agent in acting):
                self._ended.add(agent)
            elif agent not in self.env.agents:  # it has left
                row.terminated[self._agent(agent)] = True
        # Some environments leave agents that have ended on their list.
        self._present = [agent for agent in self.env.agents if agent not in self._ended]
        self._acting = [agent for agent in self._present if agent in observations]
        shown = [agent for agent in present if agent in observations]
        shown = list(dict.fromkeys((*shown, *self._acting)))
        self._write(row, shown, (observations, infos), row.write_final_obs)
        joins = any(agent not in present for agent in self._acting)
        self._write_acting(row, self._acting, joins or len(self._acting) < len(self._present))
        if row.reads_metrics:
            row.write_metrics(infos.values())
        return not self._present

    def _write_result(self, row: Row, agent: Any, results: tuple, has_acted: bool) -> bool:
        """Writes an agent's result of a step, which may have fewer entries while it waits.

        Returns:
            Whether the agent has ended.
        """
        index, (rewards, terminated, truncated) = self._agent(agent), results
        if has_acted or agent in rewards:
            row.reward[index] = _number(rewards[agent])
        row.active[index] = has_acted
        ends = (has_acted or agent in terminated) and _flag(terminated, agent)
        cut = (has_acted or agent in truncated) and _flag(truncated, agent)
        row.terminated[index], row.truncated[index] = ends, cut and not ends
        return ends or cut

    def _write(self, row: Row, agents: Iterable, results: tuple, writers: list) -> None:
        observations, infos = results
        if not isinstance(infos, Mapping):
            raise ValueError(f"the infos are {brief(infos)}, not a dict by agent")
        for agent in agents:
            index = self._agent(agent)
            info = infos.get(agent, {})
            obs_and_info = observations[agent], info
            writers[index](self._observe(row, index, obs_and_info, agent in self._acting))


class TurnsCopy(ManyAgentsCopy):
    """A PettingZoo `AECEnv`, one turn a step: one agent is active, the others wait."""

    def reset(self, row: Row, seed: int) -> None:
        self.env.reset(seed=seed)
        _clear_obs(row)
        self._pass_the_ended()
        row.first_infos = dict(self.env.infos)
        self._write_all(row, self.env.agents, row.write_obs)
        self._write_turn(row)

    def step(self, row: Row) -> bool:
        acting = self._agent(self.env.agent_selection)
        self.env.step(row.read_action[acting]())
        _clear_step(row)
        row.active[acting] = True
        for agent in self.env.agents:
            index = self._agent(agent)
            row.reward[index] = _number(self.env.rewards[agent])
            ends, cut = _flag(self.env.terminations, agent), _flag(self.env.truncations, agent)
            row.terminated[index], row.truncated[index] = ends, cut and not ends
        self._write_all(row, self.env.agents, row.write_final_obs)
        row.infos = dict(self.env.infos)  # a copy, which keeps those of agents that leave now
        if row.reads_metrics:
            row.write_metrics(self.env.infos.values())
        if self._pass_the_ended():
            self._write_all(row, [self.env.agent_selection], row.write_final_obs)
        self._write_turn(row)
        return not self.env.agents

    def _write_all(self, row: Row, agents: list, writers: list) -> None:
        chosen = None if self._has_ended() else self.env.agent_selection
        for agent in agents:
            index, info = self._agent(agent), self.env.infos.get(agent, {})
            obs_and_info = self.env.observe(agent), info
            writers[index](self._observe(row, index, obs_and_info, agent == chosen))

    def _has_ended(self) -> bool:
        """Returns whether the agent whose turn it is has ended."""
        agent = self.env.agent_selection
        return bool(self.env.terminations[agent] or self.env.truncations[agent])

    def _pass_the_ended(self) -> bool:
        """Agents that have ended leave; PettingZoo has them step with None first.

        Returns:
            Whether it is another one's turn by that.
        """
        env, has_passed = self.env, False
        while env.agents and self._has_ended():
            env.step(None)
            has_passed = True
        return has_passed and bool(env.agents)

    def _write_turn(self, row: Row) -> None:
        acting = [self.env.agent_selection] if self.env.agents else []
        self._write_acting(row, acting, may_wait=True)


def _spaces_of(env: Any) -> Iterator[Any]:
    for spaces in (env.action_space, env.observation_space):
        yield from map(spaces, env.possible_agents) if callable(spaces) else [spaces]


def _as_parallel(env: Any) -> Any:
    """PettingZoo's own conversion of an AECEnv in which all act at once; None for others."""
    if not getattr(env, "metadata", {}).get("is_parallelizable"):
        return None
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)


def _observe(
    row: Row,
    agent: int,
    obs_and_info: tuple[Any, Any],
    places: tuple[ObservedMask, MaskSource],
    is_acting: bool = True,
) -> Any:
    """Stores the mask of an agent's next action; returns what is learned from.

    Args:
        obs_and_info: (observation, info).
        places: where its masks are.
        is_acting: whether it acts next; else it needs no mask.
    """
    (obs, info), (observed, source) = obs_and_info, places
    if not row.is_masked:
        if MASK in info:
            raise ValueError("info['action_mask'] is given, and the first reset and step had none")
        return obs
    obs, mask = observed.split(obs)
    is_there = observed.is_part
    if not is_there and is_acting:
        is_there, mask = source.find(info)
    if is_there:
        row.note_mask()
    row.write_mask(agent, mask, is_acting)
    return obs


def of_length(length: int, results: Any, meant: str) -> Any:
    """Checks the number of values that an environment returned; ValueError says what is `meant`."""
    if not isinstance(results, tuple | list):
        raise ValueError(f"{meant}, not {described(results)}")
    if len(results) != length:
        raise ValueError(f"{meant}, not {len(results)} values")
    return results


def _number(reward: Any) -> float:
    """A reward: any number that float32 holds, or an array that holds one."""
    number = reward if type(reward) is float else _as_number(reward)
    if not LEAST_REWARD <= number <= MOST_REWARD:
        raise ValueError(f"the reward is {number}, not a finite number of float32")
    return number


def _as_number(reward: Any) -> float:
    if isinstance(reward, bool | int | np.number | np.bool_) and not np.iscomplexobj(reward):
        return float(reward)
    found = np.asarray(reward)
    if found.size != 1 or found.dtype.kind not in "fiub":
        raise ValueError(f"the reward is {described(reward)}, not a number")
    return float(found.item())


def _flag(flags: Mapping, agent: Any) -> bool:
    """An agent's flag."""
    value = flags[agent]
    # Nearly always; the name alone would take longer than the rest.
    return value if value is False or value is True else _as_flag(value, f"a flag of {agent!r}")


def _as_flag(value: Any, name: str) -> bool:
    found = flag_in(value)
    if found is None:
        raise ValueError(f"{name} is {described(value)}, not True or False")
    return found


def described(value: Any) -> str:
    """A value that does not fit, in a few words."""
    if isinstance(value, np.ndarray) and value.size != 1:
        return f"an array of shape {value.shape}"
    return f"{brief(value)} of type {type(value).__name__}"


def _clear_obs(row: Row) -> None:
    """The smallest integers, and zeros of Boxes, for agents that are absent at first."""
    for agent, (form, views) in enumerate(zip(row.form.observations, row.obs, strict=True)):
        row.write_mask(agent, None)
        for leaf, view in zip(form.leaves, views, strict=True):
            view[...] = np.reshape(leaf.start, leaf.shape) if leaf.count else 0


def _clear_step(row: Row) -> None:
    """Results of agents that are absent: observations stay as they are."""
    for views, finals in zip(row.obs, row.final_obs, strict=True):
        for view, final in zip(views, finals, strict=True):
            final[...] = view
    row.reward[:] = 0
    for flags in (row.terminated, row.truncated, row.active):
        flags[:] = False
