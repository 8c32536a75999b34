"""Arrays of E copies of an environment: what a step takes and what it gives.

In one process they are NumPy's own; between processes they are views of one piece of shared memory,
at places that follow from the environment's form and E alone. This module must not import JAX.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import brief
from jaxrl.core.value_copies import owned
from jaxrl.outside.workers.masks import MaskReader
from jaxrl.outside.workers.space_forms import SpaceForm, place_of, reader, writer

ALIGNMENT = 64  # bytes
WAITS = (
    "an agent that has not ended has no observation, or joins, though in the first reset and step "
    "all agents had one: where agents may wait, say so by metadata['agents_wait'] = True"
)


class EnvForm(NamedTuple):
    """The shapes and types of an environment's arrays, in values that any process can read."""

    agents: tuple[str, ...]
    observations: tuple[SpaceForm, ...]  # by agent
    actions: tuple[SpaceForm, ...]  # by agent
    masked: bool
    metrics: tuple[str, ...]
    always_active: bool
    waits: bool  # agents take turns
    agent_ids: tuple | None = None  # what the environment calls its agents; None: the same
    time_limit: int | None = None  # steps, as Gymnasium's specification says


@dataclass
class Seen:
    """Facts from an environment's first reset and step that its spaces do not state."""

    masked: bool = False
    waits: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


class AgentGroup(NamedTuple):
    """Agents with equal spaces, whose arrays are blocks [E, G, ...]."""

    form: SpaceForm
    members: tuple[int, ...]  # indices of agents


def groups_of(forms: tuple[SpaceForm, ...]) -> list[AgentGroup]:
    groups: list[tuple[SpaceForm, list[int]]] = []
    for index, form in enumerate(forms):
        for group_form, members in groups:
            if group_form == form:
                members.append(index)
                break
        else:
            groups.append((form, [index]))
    return [AgentGroup(form, tuple(members)) for form, members in groups]


def places_of(groups: list[AgentGroup]) -> list[tuple[int, int]]:
    """The index of each agent's group, and its index within the group, by agent."""
    places = {}
    for index, group in enumerate(groups):
        for member, agent in enumerate(group.members):
            places[agent] = (index, member)
    return [places[agent] for agent in range(len(places))]


class StepArrays:
    """The arrays of E copies.

    Attributes:
        obs, final_obs, action: for each group of agents, a block [E, G, ...] for each leaf.
        mask: for each group of actions, bool[E, G, A]; empty if there are no masks.
        reward f32[E, M]; terminated, truncated, active bool[E, M].
        episode_done, lost bool[E]; metrics f32[E, K].
        first_seed u32[E], episode i64[E]: they decide the seed of the episode being played.
        step i64[E]: steps of that episode.
        acting bool[E, M]: who acts next, where agents may wait.
        mask_readers: of each agent; empty if there are no masks.
        current i64[E]: the row that worker w is stepping, or -1 (fewer than E are used).
        restarted bool[E]: a new episode had to begin between two steps, which the next one reports.
        findings: what the copies give is noted there, and may be more than `form` says.
    """

    def __init__(
        self, form: EnvForm, num_envs: int, buffer: Any = None, findings: Seen | None = None
    ):
        self.form, self.num_envs, self.findings = form, num_envs, findings
        self.observed, self.acted = groups_of(form.observations), groups_of(form.actions)
        self._buffer, self._size = buffer, 0
        self.blocks: list[np.ndarray] = []  # all of them
        self.obs, self.final_obs = self._blocks(self.observed), self._blocks(self.observed)
        self.action = self._blocks(self.acted)
        self.mask: list[np.ndarray] = []
        self.mask_readers: list[MaskReader] = []
        if form.masked:
            self.mask_readers += map(MaskReader, form.actions)
            for group in self.acted:
                shape = (len(group.members), group.form.num_actions)
                self.mask.append(self._array(shape, bool))
        flags = lambda *shape: self._array(shape, bool)
        numbers = lambda: self._array((), "int64")
        num_agents = len(form.agents)
        self.reward = self._array((num_agents,), "float32")
        self.terminated, self.truncated = flags(num_agents), flags(num_agents)
        self.active, self.acting = flags(num_agents), flags(num_agents)
        self.episode_done, self.lost, self.restarted = flags(), flags(), flags()
        self.metrics = self._array((len(form.metrics),), "float32")
        self.first_seed = self._array((), "uint32")
        self.episode, self.step, self.current = numbers(), numbers(), numbers()

    @property
    def inputs(self) -> list[np.ndarray]:
        """The inputs of a step: actions, and the numbers that decide the seeds of episodes."""
        return [*chain(*self.action), self.first_seed, self.episode]

    @property
    def size(self) -> int:
        """The bytes of all arrays."""
        return self._size

    def row(self, row: int) -> "Row":
        """The arrays of one copy."""
        return Row(self, row)

    def step_beginner(self, rows: slice) -> Callable[[], None]:
        """A function to call before a step of these copies: everybody acts, and nothing ends."""
        active = self.active[rows]
        blocks = self.terminated, self.truncated, self.episode_done, self.lost
        ends = [block[rows] for block in blocks]

        def begin_step() -> None:
            active.fill(True)
            for flags in ends:
                flags.fill(False)

        return begin_step

    def seed(self, row: int) -> int:
        """The seed of the episode that a copy plays."""
        return episode_seed(self.first_seed[row], self.episode[row])

    def _blocks(self, groups: list[AgentGroup]) -> list[list[np.ndarray]]:
        blocks = []
        for group in groups:
            leaves, number = group.form.leaves, len(group.members)
            blocks.append([self._array((number, *leaf.shape), leaf.dtype) for leaf in leaves])
        return blocks

    def _array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array [E, *shape], the next one in the buffer."""
        shape, start = (self.num_envs, *shape), self._size
        used = math.prod(shape) * np.dtype(dtype).itemsize
        self._size += -(-used // ALIGNMENT) * ALIGNMENT
        if self._buffer is None:
            block = np.zeros(shape, dtype)
        else:
            block = np.ndarray(shape, dtype, self._buffer, start)
        self.blocks.append(block)
        return block


class Row:
    """The arrays of one copy, as views that are made once.

    Attributes:
        obs, final_obs: for each agent, the leaves of its observation.
        write_obs, write_final_obs: for each agent, what stores its observation there; ValueError if
            it has no room.
        read_action: for each agent, what gives its action as the environment takes it.
        is_masked: whether there are masks.
        reads_metrics: whether there may be metrics.
        reward f32[M]; terminated, truncated, active, acting bool[M]; metrics f32[K].
        first_infos, infos: what the last reset gave, and the last step, by agent.
    """

    first_infos: Any = MappingProxyType({})
    infos: Any = MappingProxyType({})

    def __init__(self, arrays: StepArrays, row: int):
        self.form, forms, self._findings = arrays.form, arrays.form, arrays.findings
        self.reads_metrics = bool(forms.metrics) or self._findings is not None
        self.obs = _views(arrays.obs, arrays.observed, row)
        self.final_obs = _views(arrays.final_obs, arrays.observed, row)
        self.write_obs = list(map(writer, forms.observations, self.obs))
        self.write_final_obs = list(map(writer, forms.observations, self.final_obs))
        actions = _views(arrays.action, arrays.acted, row)
        self.read_action = list(map(reader, forms.actions, actions))
        masks, self.is_masked = [[mask] for mask in arrays.mask], forms.masked
        self._mask_readers = arrays.mask_readers
        self._mask = _views(masks, arrays.acted, row) if forms.masked else []
        self.reward, self.metrics = arrays.reward[row], arrays.metrics[row]
        self.terminated, self.truncated = arrays.terminated[row], arrays.truncated[row]
        self.active, self.acting = arrays.active[row], arrays.acting[row]

    def write_mask(self, agent: int, mask: Any, is_acting: bool = True) -> None:
        """Stores which actions of an agent are possible; None: all.

        Raises:
            ValueError: it does not fit the action space, or leaves no action to an agent who acts.
        """
        if self.is_masked:
            self._mask[agent][0][:] = self._mask_readers[agent].read(mask, is_acting)

    def note_mask(self) -> None:
        """Notes for a probe that there are masks."""
        if self._findings is not None:
            self._findings.masked = True

    def write_metrics(self, infos: Iterable[Mapping]) -> None:
        """Stores the first value of each metric that an agent's info has, else 0."""
        found = [metrics_of(info) for info in infos]
        if self._findings is not None:
            for values in found:
                for name, value in values.items():
                    self._findings.metrics[name] = float(value)
        for index, name in enumerate(self.form.metrics):
            holders = (values for values in found if name in values)
            self.metrics[index] = float(next(holders, {}).get(name, 0.0))

    def named_infos(self) -> dict[str, dict]:
        """Copies of the infos by the agents' names, of those that have one."""
        infos, names = self.infos, self.form.agents
        if not isinstance(infos, Mapping):
            return {}
        pairs = zip(names, self.form.agent_ids or names, strict=True)
        found = {name: infos.get(agent) for name, agent in pairs}
        return {name: owned(info) for name, info in found.items() if isinstance(info, Mapping)}

    def write_acting(self, acting: list[int], may_wait: bool) -> None:
        """Stores who acts next.

        Args:
            may_wait: whether an agent that is present does not, or one joins.

        Raises:
            ValueError: that was not so in the first reset and step.
        """
        if may_wait and not self.form.waits:
            raise ValueError(WAITS)
        if self._findings is not None:
            self._findings.waits |= may_wait
        self.acting[:] = False
        self.acting[acting] = True

    def read_actions(self) -> Any:
        """The actions of all agents, or of the only one, for a message."""
        actions = [read() for read in self.read_action]
        named = dict(zip(self.form.agents, actions, strict=True))
        return named if len(named) > 1 else actions[0]


def metrics_of(info: Any) -> Mapping[str, Any]:
    """The numbers in info["metrics"]; ValueError where an info is no dict."""
    if not isinstance(info, Mapping):
        raise ValueError(f"info is {brief(info)}, not a dict")
    found = info.get("metrics")
    return found if isinstance(found, Mapping) else {}


class RangeCheck:
    """Finds rows with observations that hold NaN or infinity, or integers out of their range.

    Args:
        blocks: `obs` or `final_obs`.
        rows: those to look at.
    """

    def __init__(self, arrays: StepArrays, blocks: list[list[np.ndarray]], rows: range):
        self._leaves = []
        for group, leaves in zip(arrays.observed, blocks, strict=True):
            for leaf, block in zip(group.form.leaves, leaves, strict=True):
                limits = None
                if leaf.count:
                    start = np.reshape(leaf.start, leaf.shape)
                    limits = start, start + np.reshape(leaf.count, leaf.shape)
                if leaf.count or block.dtype.kind == "f":
                    part = block[rows.start : rows.stop]
                    self._leaves.append((part, part.reshape(-1), limits, place_of(leaf)))

    def wrong_rows(self) -> list[int]:
        """The indices of the wrong rows among the rows to check."""
        found = set()
        for block, numbers, limits, _ in self._leaves:
            if limits is None and math.isfinite(np.vdot(numbers, numbers)):
                continue  # the sum of its squares is finite, so they are
            wrong = _wrong(block, limits)
            if wrong.any():
                found.update(np.flatnonzero(wrong.reshape(len(block), -1).any(axis=1)).tolist())
        return sorted(found)

    def reason(self, row: int) -> str:
        """The reason why a row, one of `wrong_rows`, is wrong."""
        for block, _, limits, place in self._leaves:
            numbers = block[row][_wrong(block[row], limits)]
            if numbers.size and limits is None:
                is_nan, dtype = np.isnan(numbers[0]), block.dtype
                wrong = "NaN" if is_nan else f"infinity, or a number beyond {dtype}"
                return f"an observation{place} holds {wrong}"
            if numbers.size:
                return f"an observation{place} holds {numbers[0]}, an integer out of its range"
        raise ValueError(f"row {row} is not wrong")


def _wrong(block: np.ndarray, limits: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """A mask of the numbers that are not finite, or out of their range."""
    return ~np.isfinite(block) if limits is None else (block < limits[0]) | (block >= limits[1])


def _views(blocks: list[list[np.ndarray]], groups: list[AgentGroup], row: int) -> list:
    """Each agent's part of a row of each block."""
    places = places_of(groups)
    return [[block[row, member, ...] for block in blocks[group]] for group, member in places]


def size_of(form: EnvForm, num_envs: int) -> int:
    """The bytes of the arrays of `num_envs` copies."""
    return StepArrays(form, num_envs).size


def episode_seed(first_seed: int, episode: int) -> int:
    """The seed of a copy's episode number `episode`; 31 bits, since some environments take no more.

    Every episode has a seed, so each can be played again alone.
    """
    return (int(first_seed) + 2654435769 * int(episode)) & 0x7FFFFFFF
