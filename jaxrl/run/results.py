"""What an iteration reports: device metrics as RLlib's result tree."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrl.loop.episodes import Histogram, Spread, Summary
from jaxrl.loop.runner import Algorithm, Metrics
from jaxrl.models.model import num_parameters

Result = dict[str, Any]
ITERATIONS = "training_iteration"


@dataclass
class Lifetime:
    """What is summed up on the host over the whole run: an i32 on the device overflows within a minute."""

    training_iteration: int = 0
    num_env_steps: int = 0
    num_episodes: int = 0
    time_total_s: float = 0.0  # of training, compilation apart

    @classmethod
    def after(cls, result: Result) -> "Lifetime":
        """As the iteration of `result` left it."""
        return cls(
            training_iteration=result["training_iteration"],
            num_env_steps=result["num_env_steps_sampled_lifetime"],
            num_episodes=result["env_runners"]["num_episodes_lifetime"],
            time_total_s=result["time_total_s"],
        )


def iteration_results(
    algorithm: Algorithm, metrics: Metrics, count: int, seconds: float, lifetime: Lifetime
) -> list[Result]:
    """The result trees of a chunk's iterations; `lifetime` moves on.

    Args:
        metrics: arrays of a chunk, [K, ...], the first `count` of them filled.
        seconds: that the chunk took.
    """
    metrics = jax.tree.map(np.asarray, metrics)
    return [
        _result(algorithm, jax.tree.map(lambda leaf, i=i: leaf[i], metrics), seconds / count, lifetime)
        for i in range(count)
    ]


def _result(algorithm: Algorithm, metrics: Metrics, seconds: float, lifetime: Lifetime) -> Result:
    steps, finished = algorithm.num_env_steps, int(metrics.episodes.iteration.count)
    lifetime.training_iteration += 1
    lifetime.num_env_steps += steps
    lifetime.num_episodes += finished
    lifetime.time_total_s += seconds
    agents = algorithm.grouping.agents
    return {
        "training_iteration": lifetime.training_iteration,
        "num_env_steps_sampled_lifetime": lifetime.num_env_steps,
        "time_this_iter_s": seconds,
        "time_total_s": lifetime.time_total_s,
        "done": False,
        "env_runners": {
            **episode_results(algorithm, metrics.episodes.recent),
            "num_episodes": finished,
            "num_episodes_lifetime": lifetime.num_episodes,
            "num_env_steps_sampled": steps,
            "num_env_steps_sampled_lifetime": lifetime.num_env_steps,
            "num_agent_steps_sampled": dict(zip(agents, metrics.agent_steps.tolist(), strict=True)),
            "this_iteration": episode_results(algorithm, metrics.episodes.iteration),
            **_histograms(metrics.episodes.histograms),
        },
        "learners": _learners(algorithm, metrics.learners),
        "timers": {"iteration": seconds},
        "perf": {"env_steps_per_s": steps / seconds if seconds > 0 else 0.0},
    }


def episode_results(algorithm: Algorithm, summary: Summary) -> Result:
    """Of finished episodes; nothing before the first one."""
    count = int(summary.count)
    if count == 0:
        return {}
    grouping = algorithm.grouping
    agents = dict(zip(grouping.agents, (summary.agent_returns / count).tolist(), strict=True))
    policies = {
        policy: sum(agents[agent] for agent in own)
        for group in grouping.groups
        for policy, own in zip(group.policies, group.agents, strict=True)
    }
    return {
        **_spread("episode_return", summary.episode_return, count),
        **_spread("episode_len", summary.episode_len, count),
        "agent_episode_returns_mean": agents,
        "module_episode_returns_mean": policies,
        "custom_metrics": {
            key: value
            for name, spread in summary.custom_metrics.items()
            for key, value in _spread(name, spread, count).items()
        },
    }


def _histograms(histograms: Mapping[str, Histogram]) -> Result:
    """Of this iteration's steps; nothing where no callback gives values."""
    stats = {
        name: {
            "mean": float(values.sum) / int(values.count),
            "min": float(values.min),
            "max": float(values.max),
            "counts": values.counts.tolist(),
        }
        for name, values in histograms.items()
    }
    return {"hist_stats": stats} if stats else {}


def _spread(name: str, spread: Spread, count: int) -> dict[str, float]:
    values = {"mean": float(spread.sum) / count, "min": float(spread.min), "max": float(spread.max)}
    return {f"{name}_{statistic}": value for statistic, value in values.items()}


def _learners(algorithm: Algorithm, metrics: tuple[dict[str, np.ndarray], ...]) -> Result:
    """The policies that learned, by name, and their sums under "__all_modules__"."""
    learners: Result = {}
    for group, player, values in zip(algorithm.grouping.groups, algorithm.players, metrics, strict=True):
        if values:
            size = num_parameters(player.model)
            for i, policy in enumerate(group.policies):
                learners[policy] = {name: float(value[i]) for name, value in values.items()}
                learners[policy]["num_trainable_parameters"] = size
    totals = ("num_module_steps_trained", "num_trainable_parameters")
    together = {name: sum(learner[name] for learner in learners.values()) for name in totals}
    steps = algorithm.num_env_steps
    return {**learners, "__all_modules__": {**together, "num_env_steps_trained": steps if learners else 0}}


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every leaf, with "/" between the parts of the path."""
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def lookup(result: Mapping[str, Any] | None, path: str) -> Any:
    """The value at a path such as "env_runners/episode_return_mean", or None where there is none (yet)."""
    for part in path.split("/"):
        if not isinstance(result, Mapping) or part not in result:
            return None
        result = result[part]
    return result


def result_names(algorithm: Algorithm, metrics: Metrics, *, evaluated: bool = False) -> list[str]:
    """Every path that a result of this run may have a number at.

    Args:
        metrics: the shapes of a chunk's metrics.
        evaluated: whether some results hold an evaluation as well.
    """
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), metrics)
    result = iteration_results(algorithm, ones, 1, 1.0, Lifetime())[0]
    if evaluated:
        episodes = episode_results(algorithm, jax.tree.map(lambda leaf: leaf[0], ones.episodes.iteration))
        result["evaluation"] = {"env_runners": {**episodes, "episode_return_std": 0.0, "episode_len_std": 0.0}}
    return [name for name, value in flatten(result) if not isinstance(value, list)]
