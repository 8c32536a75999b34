"""Episode statistics: running sums of each environment, and summaries of finished episodes."""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core import exact_sums
from jaxrl.core.env import restart
from jaxrl.ops.packing import pack

HISTOGRAM_BINS = 30
Places = tuple[tuple[tuple[int, ...], ...], ...]  # by group N x M
Pairs = Sequence[tuple[jax.Array, jax.Array]]  # numbers and their lower parts


class LowerParts(struct.PyTreeNode):
    """The remainders that rounding left out of an episode's sums (`jaxrl.core.exact_sums`)."""

    returns: jax.Array  # f32[..., M]
    metrics: dict[str, jax.Array]  # {name: f32[...]}


class EpisodeStats(struct.PyTreeNode):
    """Episodes, finished or running, one for each entry of the leading axes."""

    returns: jax.Array  # f32[..., M]  undiscounted, by agent
    length: jax.Array  # i32[...]  environment steps
    metrics: dict[str, jax.Array]  # {name: f32[...]}  the sums of `info["metrics"]`
    # i32[..., M]  steps in which each agent acted; None where all always act
    agent_steps: jax.Array | None = None
    lower: LowerParts | None = None  # None: 0

    @property
    def in_two_parts(self) -> "EpisodeStats":
        """The same with all lower parts: metrics that are no sums, and what was given without."""
        lower = self.lower or LowerParts(jnp.zeros_like(self.returns), {})
        others = {name: self.metrics[name] for name in self.metrics if name not in lower.metrics}
        metrics = {**lower.metrics, **jax.tree.map(jnp.zeros_like, others)}
        return self.replace(lower=lower.replace(metrics=metrics))


class Spread(struct.PyTreeNode):
    """The spread of numbers per episode; min and max are meaningless where no episode ended."""

    sum: jax.Array  # f32[...]
    min: jax.Array  # f32[...]
    max: jax.Array  # f32[...]
    lower: jax.Array  # f32[...]  what rounding has left out of the sum


class Summary(struct.PyTreeNode):
    """The summary of `count` finished episodes; the shapes are those of its spreads."""

    count: jax.Array  # i32[]
    episode_return: Spread  # []  summed over agents
    episode_len: Spread  # []
    custom_metrics: dict[str, Spread]  # {name: []}
    agent_returns: Spread  # [M]
    # by group [N], summed over a policy's agents; empty where one policy plays them all
    policy_returns: tuple[Spread, ...] = ()
    # i32[M]  sums over the episodes; None where all agents always act
    agent_steps: jax.Array | None = None


class Window(struct.PyTreeNode):
    """The last finished episodes, oldest first, at the end of the buffer."""

    episodes: EpisodeStats  # [W, ...]
    count: jax.Array  # i32[]  how many entries hold an episode, at most W


class Histogram(struct.PyTreeNode):
    """A histogram of an iteration's values, in equal bins from the least to the greatest."""

    count: jax.Array  # i32[]
    sum: jax.Array  # f32[]
    lower: jax.Array  # f32[]  what rounding has left out of the sum
    min: jax.Array  # f32[]
    max: jax.Array  # f32[]
    # i32[HISTOGRAM_BINS]  a bin holds its lower edge, the last one its upper edge too
    counts: jax.Array


class EpisodeMetrics(struct.PyTreeNode):
    """The episode metrics of one iteration."""

    iteration: Summary  # the episodes that ended in this iteration
    recent: Summary  # the last W, or all of this iteration's if those are more
    # of the callbacks' `hist_data`
    histograms: dict[str, Histogram] = struct.field(default_factory=dict)


def no_episodes(
    num_agents: int, metrics: tuple[str, ...], *shape: int, always_active: bool = True
) -> EpisodeStats:
    """Episodes of zero length; `always_active` says that every agent acts in every step."""
    return EpisodeStats(
        returns=jnp.zeros((*shape, num_agents)),
        length=jnp.zeros(shape, jnp.int32),
        metrics={name: jnp.zeros(shape) for name in metrics},
        agent_steps=None if always_active else jnp.zeros((*shape, num_agents), jnp.int32),
    ).in_two_parts


def advance(
    running: EpisodeStats,
    rewards: jax.Array,
    metrics: dict[str, jax.Array],
    episode_done: jax.Array,
    active: jax.Array,
) -> tuple[EpisodeStats, EpisodeStats]:
    """One step of one environment.

    Args:
        rewards: f32[M].
        metrics: {name: f32[]}.
        episode_done: bool[].
        active: bool[M], whether the agents acted; not read where they always do.

    Returns:
        (running, reached): the episode that goes on, zero where one ended, and the episode as this
        step left it.
    """
    running = running.in_two_parts
    lower = running.lower.returns, running.lower.metrics
    sums, lower = exact_sums.add((running.returns, running.metrics), lower, (rewards, metrics))
    reached = EpisodeStats(
        returns=sums[0],
        length=running.length + 1,
        metrics=sums[1],
        agent_steps=jax.tree.map(
            lambda steps: steps + active.astype(jnp.int32), running.agent_steps
        ),
        lower=LowerParts(*lower),
    )
    return restart(episode_done, jax.tree.map(jnp.zeros_like, reached), reached), reached


def summarise(episodes: EpisodeStats, mask: jax.Array, places: Places = ()) -> Summary:
    """The summary of the episodes where `mask`, bool[...], is set.

    Args:
        places: the agents of each policy, as of `Grouping.places`.
    """
    episodes = episodes.in_two_parts
    parts = (episodes.returns, episodes.lower.returns)
    summed = lambda agents: exact_sums.two_sum(*(jnp.sum(part[..., agents], -1) for part in parts))
    numbers = (
        summed(slice(None)),
        _in_two_parts(episodes.length),
        *zip(episodes.metrics.values(), episodes.lower.metrics.values(), strict=True),
        parts,
        *(summed(np.array(table)) for table in places),
    )
    episode_return, episode_len, *others = _spreads(numbers, mask)
    custom = {name: others.pop(0) for name in episodes.metrics}
    agents, *policies = others
    steps = lambda leaf: jnp.sum(leaf, axis=tuple(range(mask.ndim)), where=mask[..., None])
    return Summary(
        count=jnp.sum(mask, dtype=jnp.int32),
        episode_return=episode_return,
        episode_len=episode_len,
        custom_metrics=custom,
        agent_returns=agents,
        policy_returns=tuple(policies),
        agent_steps=jax.tree.map(steps, episodes.agent_steps),
    )


def _in_two_parts(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whole numbers, i32[...], as a sum and its lower part, f32[...] each."""
    rounded = numbers.astype(jnp.float32)
    return rounded, (numbers - rounded.astype(jnp.int32)).astype(jnp.float32)


def report(
    window: Window,
    reached: EpisodeStats,
    episode_done: jax.Array,
    hist_data: Mapping[str, jax.Array] = MappingProxyType({}),
    axis_name: str | None = None,
    places: Places = (),
) -> tuple[Window, EpisodeMetrics]:
    """Adds an iteration's finished episodes to the window and sums both up.

    Args:
        reached: Episodes [T, E] as each step left them.
        episode_done: bool[T, E], whether that step ended them.
        hist_data: {name: f32[T, E]}, values of each step.
        axis_name: a mapped axis over which the environments are split, in their order; all its
            members report alike.
        places: as of `summarise`.
    """
    reached = reached.in_two_parts
    if axis_name is not None:
        gather = functools.partial(jax.lax.all_gather, axis_name=axis_name, axis=1, tiled=True)
        reached, episode_done = jax.tree.map(gather, (reached, episode_done))
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), reached)
    size, index = window.episodes.length.shape[0], jnp.arange(window.episodes.length.shape[0])
    # The window's episodes, oldest first, and this iteration's steps behind them.
    episodes = jax.tree.map(
        lambda *leaves: jnp.concatenate(leaves), pack(window.episodes, 1), pack(rows, 1)
    )
    ended = jnp.concatenate((index >= size - window.count, episode_done.reshape(-1)))
    in_iteration = ended & (jnp.arange(ended.size) >= size)
    rank = jnp.cumsum(ended, dtype=jnp.int32)  # of the episodes, 1 of the oldest
    last = rank[-1]
    num_ended = last - window.count
    num_recent = jnp.minimum(last, jnp.maximum(size, num_ended))
    in_recent = ended & (rank > last - num_recent)
    masks = jnp.stack((in_iteration, in_recent))
    summaries = jax.vmap(lambda mask: summarise(episodes.unpack(), mask, places))(masks)
    summaries = summaries.replace(count=jnp.stack((num_ended, num_recent)))  # compiles faster
    iteration, recent = (jax.tree.map(lambda leaf, i=i: leaf[i], summaries) for i in range(2))
    row = jnp.searchsorted(rank, last - size + 1 + index)
    window = Window(
        jax.tree.map(lambda leaf: leaf[row], episodes).unpack(), jnp.minimum(last, size)
    )
    histograms = {name: histogram(values, axis_name) for name, values in hist_data.items()}
    return window, EpisodeMetrics(iteration, recent, histograms)


def histogram(values: jax.Array, axis_name: str | None = None) -> Histogram:
    """Histogram of f32[...], over a mapped axis too; edges[i] = min + i (max - min) / bins.

    A bin counts what lies at or above its lower edge and not at or above the next one's, so nothing
    is sorted.
    """
    least, greatest = jnp.min(values), jnp.max(values)
    if axis_name is not None:
        least, greatest = jax.lax.pmin(least, axis_name), jax.lax.pmax(greatest, axis_name)
    # They grow, however they round.
    edges = least + (greatest - least) * (jnp.arange(HISTOGRAM_BINS) / HISTOGRAM_BINS)
    at_or_above = jnp.sum(values.reshape(-1, 1) >= edges[None], axis=0, dtype=jnp.int32)
    counts = at_or_above - jnp.append(at_or_above[1:], 0)
    sums, count = exact_sums.total(values.reshape(-1)), jnp.int32(values.size)
    if axis_name is not None:
        sums, count, counts = jax.lax.psum((sums, count, counts), axis_name)
    return Histogram(count, *sums, least, greatest, counts)


def _spreads(numbers: Pairs, mask: jax.Array) -> list[Spread]:
    """The spreads of (f32[..., *shape], its lower part) each, where `mask`, bool[...], is set.

    All are rows of one sum: a sum that is exact compiles as long for one number as for many.
    """
    dtype = jnp.result_type(*jax.tree.leaves(numbers))  # JAX may have 64 bits
    numbers = jax.tree.map(lambda number: number.astype(dtype), numbers)
    upper, lower = (pack(part, mask.ndim, widest=None) for part in zip(*numbers, strict=True))
    rows = lambda part: part.wide[str(dtype)].reshape(mask.size, -1).T
    values, mask = rows(upper), mask.reshape(-1)
    sums, left_out = exact_sums.total(
        *(jnp.where(mask, part, 0.0) for part in (values, rows(lower))), axis=1
    )
    found = (
        sums,
        jnp.min(jnp.where(mask, values, jnp.inf), axis=1),
        jnp.max(jnp.where(mask, values, -jnp.inf), axis=1),
        left_out,
    )
    columns = (upper.replace(wide={str(dtype): row}).unpack() for row in found)
    return list(map(Spread, *columns))
