"""A number of the result tree, read on the device: what stops a trial and what ranks it."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxrl.core.errors import unknown_result
from jaxrl.loop.episodes import Summary
from jaxrl.loop.runner import Algorithm, Metrics

Reader = Callable[[Metrics], jax.Array]


def reader(algorithm: Algorithm, metrics: Metrics, path: str, what: str) -> Reader:
    """A function from one update's metrics to the number f32[] at `path`; not a number where there is none yet.

    Args:
        metrics: the shapes of an update's metrics.
        what: names the path in the error.

    Raises:
        UsageError: a result has no such number, or none that is known on the device.
    """
    readers = readers_of(algorithm, metrics)
    check_path(path, readers, what)
    return readers[path]


def check_path(path: str, readers: Mapping[str, Reader], what: str) -> None:
    if path not in readers:
        raise unknown_result(what, path, readers)


def readers_of(algorithm: Algorithm, metrics: Metrics) -> dict[str, Reader]:
    """By path."""
    readers: dict[str, Reader] = {
        "env_runners/num_episodes": lambda metrics: metrics.episodes.iteration.count.astype(jnp.float32),
    }
    for prefix, of in (("", lambda metrics: metrics.episodes.recent), ("this_iteration/", _of_iteration)):
        for name, read in _episode_readers(algorithm, metrics.episodes.recent).items():
            readers[f"env_runners/{prefix}{name}"] = lambda metrics, of=of, read=read: read(of(metrics))
    for g, (group, values) in enumerate(zip(algorithm.grouping.groups, metrics.learners, strict=True)):
        for n, policy in enumerate(group.policies):
            for name in values:
                readers[f"learners/{policy}/{name}"] = lambda metrics, g=g, n=n, name=name: metrics.learners[g][name][n]
    return readers


def _of_iteration(metrics: Metrics) -> Summary:
    return metrics.episodes.iteration


def _episode_readers(algorithm: Algorithm, shapes: Summary) -> dict[str, Callable[[Summary], jax.Array]]:
    def mean_of(total):
        return lambda summary: jnp.where(summary.count > 0, total(summary) / summary.count, jnp.nan)

    def bound_of(spread, side):
        return lambda summary: jnp.where(summary.count > 0, getattr(spread(summary), side), jnp.nan)

    spreads = {
        "episode_return": lambda summary: summary.episode_return,
        "episode_len": lambda summary: summary.episode_len,
        **{
            f"custom_metrics/{name}": lambda summary, name=name: summary.custom_metrics[name]
            for name in shapes.custom_metrics
        },
    }
    readers = {}
    for name, spread in spreads.items():
        readers[f"{name}_mean"] = mean_of(lambda summary, spread=spread: spread(summary).sum)
        for side in ("min", "max"):
            readers[f"{name}_{side}"] = bound_of(spread, side)
    agents = algorithm.grouping.agents
    for i, agent in enumerate(agents):
        readers[f"agent_episode_returns_mean/{agent}"] = mean_of(lambda summary, i=i: summary.agent_returns[i])
    for group in algorithm.grouping.groups:
        for policy, own in zip(group.policies, group.agents, strict=True):
            index = jnp.array([agents.index(agent) for agent in own])
            readers[f"module_episode_returns_mean/{policy}"] = mean_of(
                lambda summary, index=index: jnp.sum(summary.agent_returns[index])
            )
    return readers
