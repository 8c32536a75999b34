"""Episode statistics: running sums of each environment, and summaries of finished episodes."""

import functools
from collections.abc import Mapping
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
    """The spread of a number per episode; all three are meaningless where the count is 0."""

    sum: jax.Array  # f32[]
    min: jax.Array  # f32[]
    max: jax.Array  # f32[]
    lower: jax.Array  # f32[]  what rounding has left out of the sum


class Bounds(struct.PyTreeNode):
    """The least and the greatest of a number per episode, of each policy of a group."""

    min: jax.Array  # f32[N]
    max: jax.Array  # f32[N]


class Summary(struct.PyTreeNode):
    """The summary of `count` finished episodes."""

    count: jax.Array  # i32[]
    episode_return: Spread  # summed over agents
    episode_len: Spread
    agent_returns: jax.Array  # f32[M]  sums over the episodes
    custom_metrics: dict[str, Spread]
    # i32[M]  sums over the episodes; None where all agents always act
    agent_steps: jax.Array | None = None
    agent_returns_lower: jax.Array | float = 0.0  # f32[M]
    # by group, summed over a policy's agents; empty where one policy plays them all
    policy_returns: tuple[Bounds, ...] = ()


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
    numbers = (
        exact_sums.two_sum(
            *(jnp.sum(part, -1) for part in (episodes.returns, episodes.lower.returns))
        ),
        _in_two_parts(episodes.length),
        *zip(episodes.metrics.values(), episodes.lower.metrics.values(), strict=True),
    )
    values, lower = (jnp.stack(parts) for parts in zip(*numbers, strict=True))
    episode_return, episode_len, *custom = _spreads(values, lower, mask)
    rows = lambda leaf: jnp.where(mask[..., None], leaf, 0).reshape(-1, leaf.shape[-1])
    agent_returns = exact_sums.total(rows(episodes.returns), rows(episodes.lower.returns))
    return Summary(
        count=jnp.sum(mask, dtype=jnp.int32),
        episode_return=episode_return,
        episode_len=episode_len,
        agent_returns=agent_returns[0],
        custom_metrics=dict(zip(episodes.metrics, custom, strict=True)),
        agent_steps=jax.tree.map(
            lambda steps: jnp.sum(rows(steps), axis=0, dtype=jnp.int32), episodes.agent_steps
        ),
        agent_returns_lower=agent_returns[1],
        policy_returns=tuple(_bounds(episodes, mask, np.array(table)) for table in places),
    )


def _bounds(episodes: EpisodeStats, mask: jax.Array, table: np.ndarray) -> Bounds:
    """The bounds of the returns of policies that play the agents at `table`, i32[N, M]."""
    parts = (episodes.returns, episodes.lower.returns)
    returns, _ = exact_sums.two_sum(*(jnp.sum(part[..., table], -1) for part in parts))
    returns, mask = returns.reshape(-1, len(table)), mask.reshape(-1, 1)
    return Bounds(
        min=jnp.min(jnp.where(mask, returns, jnp.inf), axis=0),
        max=jnp.max(jnp.where(mask, returns, -jnp.inf), axis=0),
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
    iteration = summarise(reached, episode_done, places)
    window = _push(
        window,
        jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), reached),
        episode_done.reshape(-1),
    )
    size = window.episodes.length.shape[0]
    recent = summarise(window.episodes, jnp.arange(size) >= size - window.count, places)
    more = iteration.count > size
    now, last = (pack(summary, num_axes=0) for summary in (iteration, recent))
    recent = jax.tree.map(lambda now, last: jnp.where(more, now, last), now, last).unpack()
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


def _push(window: Window, reached: EpisodeStats, episode_done: jax.Array) -> Window:
    """The window after the episodes [R] that are done, found by binary search, not by a sort."""
    size = window.episodes.length.shape[0]
    running_count = jnp.cumsum(episode_done.astype(jnp.int32))
    total = running_count[-1]
    # Entry i of the new window is the (total - size + i + 1)-th that ended now, or an older one
    # further on.
    rank = total - size + 1 + jnp.arange(size)
    row = jnp.clip(jnp.searchsorted(running_count, rank), 0, episode_done.shape[0] - 1)
    older = jnp.clip(jnp.arange(size) + total, 0, size - 1)
    episodes = jax.tree.map(
        lambda new, old: jnp.where(
            (rank >= 1).reshape(-1, *[1] * (new.ndim - 1)), new[row], old[older]
        ),
        pack(reached, num_axes=1),
        pack(window.episodes, num_axes=1),
    )
    return Window(episodes.unpack(), jnp.minimum(window.count + total, size))


def _spreads(values: jax.Array, lower: jax.Array, mask: jax.Array) -> list[Spread]:
    """The sum, minimum and maximum of each row of f32[Q, ...] where `mask`, bool[...], is set."""
    mask = mask.reshape(1, -1)
    values, lower = (part.reshape(part.shape[0], -1) for part in (values, lower))
    counted = (jnp.where(mask, part, 0.0) for part in (values, lower))
    sums, left_out = exact_sums.total(*counted, axis=1)
    spreads = Spread(
        sum=sums,
        min=jnp.min(jnp.where(mask, values, jnp.inf), axis=1),
        max=jnp.max(jnp.where(mask, values, -jnp.inf), axis=1),
        lower=left_out,
    )
    return [jax.tree.map(lambda leaf, i=i: leaf[i], spreads) for i in range(values.shape[0])]
