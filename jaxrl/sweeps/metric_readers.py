"""A number of the result tree, read on the device: what stops a trial and what ranks it."""

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp

from jaxrl.algorithms.base import Algorithm, Metrics
from jaxrl.algorithms.opponents import Pool, Scores
from jaxrl.algorithms.task_settings import COPY
from jaxrl.core.errors import UsageError, unknown_result
from jaxrl.core.tasks import TASK
from jaxrl.rollout.episode_stats import Spread, Summary
from jaxrl.rollout.grouping import Grouping

Reader = Callable[[Metrics], jax.Array]
EpisodeReader = Callable[[Summary], jax.Array]
OPPONENTS = "env_runners/opponents/"
EVALUATION = "evaluation/"  # begins the paths of what evaluation finds
HISTOGRAM = {
    "mean": lambda values: jnp.where(
        values.count > 0,
        (values.sum + values.lower) / values.count.astype(jnp.float32),
        jnp.nan,
    ),
    "min": lambda values: values.min,
    "max": lambda values: values.max,
}
LOGGED_STEPS = {**HISTOGRAM, "sum": lambda values: values.sum + values.lower}
SCORES: dict[str, Callable[[Scores], jax.Array]] = {
    "win_rate": lambda scores: scores.points / _played(scores),
    "episode_return_mean": lambda scores: scores.returns / _played(scores),
    "num_episodes": lambda scores: scores.episodes,
}


def _played(scores: Scores) -> jax.Array:
    return jnp.where(scores.episodes > 0, scores.episodes, jnp.nan)


def reader(algorithm: Algorithm, metrics: Metrics, path: str, what: str) -> Reader:
    """A function from an update's metrics to the number f32[] at `path`; NaN where there is none.

    What evaluation finds is known to the host alone: NaN as well.

    Args:
        metrics: the shapes of an update's metrics.
        what: names the path in the error.

    Raises:
        UsageError: a result has no such number, or none that is known on the device.
    """
    if path.startswith(EVALUATION):
        return lambda metrics: jnp.float32(jnp.nan)
    readers = readers_of(algorithm, metrics)
    check_path(path, readers, what)
    return readers[path]


def check_path(path: str, readers: Collection[str], what: str) -> None:
    if path not in readers:
        raise unknown_result(what, path, readers)


def check_metric(path: str, readers: Collection[str], *, evaluated: bool) -> None:
    """Refuses a metric that no result has.

    Args:
        readers: the paths of the numbers in a result, or their readers.
        evaluated: whether trials are evaluated.
    """
    if not path.startswith(EVALUATION):
        check_path(path, readers, "metric")
    elif not evaluated:
        raise UsageError(f"metric={path} needs evaluations: give evaluation_interval as well")
    else:
        of_episodes = [name for name in readers if name.startswith(EVALUATION)]
        if not of_episodes:
            for name in readers:
                if name.startswith("env_runners/") and not name.startswith(OPPONENTS):
                    of_episodes.append(f"{EVALUATION}{name}")
        if path not in of_episodes:
            raise unknown_result("metric", path, of_episodes)


def readers_of(algorithm: Algorithm, metrics: Metrics) -> dict[str, Reader]:
    """The readers of metrics, by path."""
    readers: dict[str, Reader] = {
        "env_runners/num_episodes": lambda metrics: metrics.episodes.iteration.count.astype(
            jnp.float32
        ),
    }
    for prefix, of in (
        ("", lambda metrics: metrics.episodes.recent),
        ("this_iteration/", _of_iteration),
    ):
        for name, read in _episode_readers(algorithm, metrics.episodes.recent).items():
            readers[f"env_runners/{prefix}{name}"] = lambda metrics, of=of, read=read: read(
                of(metrics)
            )
    for name, read in _step_readers(algorithm.grouping).items():
        readers[f"env_runners/{name}"] = lambda metrics, read=read: read(
            metrics.agent_steps.astype(jnp.float32)
        )
    for name in metrics.episodes.histograms:
        for statistic, read in HISTOGRAM.items():
            readers[f"env_runners/hist_stats/{name}/{statistic}"] = (
                lambda metrics, name=name, read=read: read(metrics.episodes.histograms[name])
            )
    for name, reduce in algorithm.rollout_spec.logged:
        if name in metrics.episodes.histograms:
            readers[f"env_runners/{name}"] = lambda metrics, name=name, reduce=reduce: LOGGED_STEPS[
                reduce
            ](metrics.episodes.histograms[name])
    of_learners = _learner_readers(algorithm.grouping, metrics)
    return readers | _opponent_readers(algorithm.opponents) | of_learners


def _opponent_readers(pool: Pool | None) -> dict[str, Reader]:
    """Results against all members of a pool together, and against each."""
    if pool is None:
        return {}
    readers: dict[str, Reader] = {
        f"{OPPONENTS}num_copies": lambda metrics: metrics.opponents.num_copies.astype(jnp.float32)
    }
    for i, member in enumerate(pool.members):
        for name, read in SCORES.items():
            readers[f"{OPPONENTS}{member}/{name}"] = lambda metrics, i=i, read=read: read(
                jax.tree.map(lambda leaf: leaf[i], metrics.opponents.scores)
            )
        if member.startswith(COPY):
            readers[f"{OPPONENTS}{member}/iteration"] = lambda metrics, i=i: (
                metrics.opponents.iteration[i].astype(jnp.float32)
            )
    for name, read in SCORES.items():
        readers[f"{OPPONENTS}{name}"] = lambda metrics, read=read: read(
            jax.tree.map(jnp.sum, metrics.opponents.scores)
        )
    return readers


def _learner_readers(grouping: Grouping, metrics: Metrics) -> dict[str, Reader]:
    readers: dict[str, Reader] = {}
    for g, (group, values) in enumerate(zip(grouping.groups, metrics.learners, strict=True)):
        for n, policy in enumerate(group.policies):
            for name in values:
                readers[f"learners/{policy}/{name}"] = lambda metrics, g=g, n=n, name=name: (
                    metrics.learners[g][name][n]
                )
    for name in ("total_loss", "num_module_steps_trained"):
        summed = [read for path, read in readers.items() if path.endswith(f"/{name}")]
        if summed:
            readers[f"learners/__all_modules__/{name}"] = lambda metrics, summed=summed: sum(
                read(metrics) for read in summed
            )
    return readers


def _step_readers(grouping: Grouping) -> dict[str, Callable[[jax.Array], jax.Array]]:
    """The readers of the agents' steps in this iteration, f32[M]."""
    readers = {}
    for i, agent in enumerate(grouping.agents):
        readers[f"num_agent_steps_sampled/{agent}"] = lambda steps, i=i: steps[i]
    for policy, index in _agents_of(grouping).items():
        readers[f"num_module_steps_sampled/{policy}"] = lambda steps, index=index: jnp.sum(
            steps[index]
        )
    return readers


def _agents_of(grouping: Grouping) -> dict[str, jax.Array]:
    """{policy: the places of its agents}."""
    places = {}
    for group in grouping.groups:
        for policy, agents in zip(group.policies, group.agents, strict=True):
            places[policy] = jnp.array(list(map(grouping.agents.index, agents)))
    return places


def _of_iteration(metrics: Metrics) -> Summary:
    return metrics.episodes.iteration


def _mean_of(total: EpisodeReader) -> EpisodeReader:
    """The mean over episodes of a summed metric; NaN before the first episode."""

    def mean(summary: Summary) -> jax.Array:
        count = summary.count.astype(jnp.float32)
        return jnp.where(count > 0, total(summary) / count, jnp.nan)

    return mean


def _sum_of(spread: Callable[[Summary], Spread]) -> EpisodeReader:
    """The sum of a spread, as near as float32 is."""
    return lambda summary: spread(summary).sum + spread(summary).lower


_agent_returns = _sum_of(lambda summary: summary.agent_returns)  # f32[M]


def _bound_of(spread: Callable[[Summary], Spread], side: str) -> EpisodeReader:
    """The "min" or "max" of a spread; NaN without episodes."""
    return lambda summary: jnp.where(summary.count > 0, getattr(spread(summary), side), jnp.nan)


def _episode_readers(algorithm: Algorithm, shapes: Summary) -> dict[str, EpisodeReader]:
    readers = _spread_readers(shapes)
    for name, reduce in algorithm.rollout_spec.logged:
        if name in shapes.custom_metrics:
            readers[name] = _logged_reader(name, reduce)
    grouping = algorithm.grouping
    for i, agent in enumerate(grouping.agents):
        readers[f"agent_steps/{agent}"] = _mean_of(lambda summary, i=i: _steps_of(summary, i))
    # As in `jaxrl.run.results`.
    for number in ("returns", "return") if len(grouping.agents) == 1 else ("returns",):
        for i, agent in enumerate(grouping.agents):
            read = _mean_of(lambda summary, i=i: _agent_returns(summary)[i])
            readers[f"agent_episode_{number}_mean/{agent}"] = read
        for policy, index in _agents_of(grouping).items():
            read = _mean_of(lambda summary, index=index: jnp.sum(_agent_returns(summary)[index]))
            readers[f"module_episode_{number}_mean/{policy}"] = read
    for policy in grouping.policies:
        for side in ("min", "max"):
            bound = lambda summary, policy=policy, side=side: _module_bound(
                grouping, summary, policy, side
            )
            readers[f"module_episode_returns_{side}/{policy}"] = bound
    return readers


def _module_bound(grouping: Grouping, summary: Summary, policy: str, side: str) -> jax.Array:
    """The "min" or "max" of a policy's return; NaN without episodes."""
    if not summary.policy_returns:
        return _bound_of(lambda summary: summary.episode_return, side)(summary)
    group, place = grouping.locate(policy)
    bounds = getattr(summary.policy_returns[group], side)
    return jnp.where(summary.count > 0, bounds[place], jnp.nan)


def _spread_readers(shapes: Summary) -> dict[str, EpisodeReader]:
    """The means, and of all but the tasks' metrics the least and the most."""
    readers = {}
    spreads = {
        "episode_return": lambda summary: summary.episode_return,
        "episode_len": lambda summary: summary.episode_len,
    }
    for name in shapes.custom_metrics:
        spread = lambda summary, name=name: summary.custom_metrics[name]
        if name.startswith(TASK):
            readers[name] = _mean_of(_sum_of(spread))
        else:
            spreads[f"custom_metrics/{name}"] = spread
    for name, spread in spreads.items():
        readers[f"{name}_mean"] = _mean_of(_sum_of(spread))
        for side in ("min", "max"):
            readers[f"{name}_{side}"] = _bound_of(spread, side)
    return readers


def _logged_reader(name: str, reduce: str) -> EpisodeReader:
    """A number that `on_episode_end` logs, by its reduction; NaN without episodes."""
    spread = lambda summary: summary.custom_metrics[name]
    if reduce in ("min", "max"):
        return _bound_of(spread, reduce)
    total = _sum_of(spread)
    if reduce == "mean":
        return _mean_of(total)
    return lambda summary: jnp.where(summary.count > 0, total(summary), jnp.nan)


def _steps_of(summary: Summary, agent: int) -> jax.Array:
    """The steps of an agent; where all always act they are the episodes'."""
    if summary.agent_steps is None:
        return _sum_of(lambda summary: summary.episode_len)(summary)
    return summary.agent_steps[agent].astype(jnp.float32)
