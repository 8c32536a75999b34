"""The results of an iteration: device metrics as RLlib's result tree; what a run has come to."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.task_settings import COPY
from jaxrl.core.errors import UsageError, brief, unknown_result
from jaxrl.core.exact_sums import on_host
from jaxrl.core.fields import without
from jaxrl.core.tasks import TASK
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.models.model import num_parameters
from jaxrl.rollout.episode_stats import EpisodeStats, Histogram, Spread, Summary, Window
from jaxrl.rollout.grouping import Grouping

if TYPE_CHECKING:
    from jaxrl.algorithms.opponents import Scores

Result = dict[str, Any]
ITERATIONS = "training_iteration"
ENV_STEPS = "num_env_steps_sampled_lifetime"
RETURN = "env_runners/episode_return_mean"
ALL_MODULES = "__all_modules__"  # beside the policies that learn
TRAINED = "num_module_steps_trained"
TRAINED_LIFETIME = f"{TRAINED}_lifetime"
NUM_PARAMETERS = "num_trainable_parameters"
ADDED = (NUM_PARAMETERS, TRAINED_LIFETIME)  # to what a policy's update reports


class UnknownResult(UsageError, KeyError):
    """A name that a result does not hold."""

    __str__ = UsageError.__str__


@jax.tree_util.register_pytree_with_keys_class
class ResultTree(dict):
    """A part of a result; a name that it does not hold is answered with the present one.

    JAX takes it for a tree, as it takes a dict.
    """

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        names = tuple(sorted(self))
        return [(jax.tree_util.DictKey(name), self[name]) for name in names], names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Iterable[Any]) -> "ResultTree":
        return cls(zip(names, values, strict=True))

    def __missing__(self, name: Any) -> Any:
        """Is called by `result[name]` where there is no such key."""
        if not isinstance(name, str) and (text := str(name).removesuffix(".0")) in self:
            return self[text]  # a percentile by its number, as RLlib's
        from jaxrl.core.foreign_names import RESULTS, said_of

        if found := said_of(str(name), RESULTS):
            raise UnknownResult(f"the result has no {brief(name)}: {found}")
        if str(name).startswith("episode_") and "num_episodes" in self:
            raise UnknownResult(f"the result has no {brief(name)} before an episode has ended")
        raise UnknownResult(str(unknown_result("result", str(name), {*self, *dict(flatten(self))})))

    def _repr_html_(self) -> str:
        from jaxrl.run.result_display import result_display

        return result_display(dict(flatten(self))).html


def return_path(config: AlgorithmConfig) -> str:
    """The path of the mean return in a result: evaluation's where training plays no episodes."""
    return f"evaluation/{RETURN}" if config.is_offline else RETURN


@dataclass
class Lifetime:
    """Lifetime sums, kept on the host: an i32 on the device overflows within a minute."""

    training_iteration: int = 0
    num_env_steps: int = 0
    num_episodes: int = 0
    time_total_s: float = 0.0  # of training, compilation apart
    # None where nobody counted
    num_agent_steps: dict[AgentId, int] | None = None  # that each agent acted in
    num_module_steps_trained: dict[PolicyId, int] | None = None  # rows, each visit counted

    @classmethod
    def after(cls, result: Result, before: "Lifetime") -> "Lifetime":
        """The lifetime after the iteration of `result`; policies that did not learn keep theirs."""
        return cls(
            training_iteration=result["training_iteration"],
            num_env_steps=result["num_env_steps_sampled_lifetime"],
            num_episodes=result["num_episodes_lifetime"],
            time_total_s=result["time_total_s"],
            num_agent_steps=result.get("env_runners", {}).get("num_agent_steps_sampled_lifetime"),
            num_module_steps_trained=_trained_so_far(result["learners"], before),
        )


@dataclass
class Session:
    """This process's part of a run: since it was started, or resumed."""

    training_iteration: int = 0  # that it began after
    time_total_s: float = 0.0  # of training before it
    facts: dict[str, str] = field(default_factory=dict)  # of the run, such as a trial's id

    def __post_init__(self):
        from jaxrl.run.node import utilisation

        utilisation()  # the first result's is that since now

    def stamp(self, results: list[Result], now: float) -> None:
        """Adds to a chunk's results when and where they were computed.

        Args:
            now: seconds since 1970, when the chunk ended; its iterations took equally long.
        """
        from jaxrl.run.node import place, utilisation

        facts, load = {**place(), **self.facts}, utilisation()
        for i, result in enumerate(results):
            result["perf"] |= load
            end = now - result["time_this_iter_s"] * (len(results) - 1 - i)
            result |= {
                "date": time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(end)),
                "timestamp": int(end),
                **facts,
                "time_since_restore": result["time_total_s"] - self.time_total_s,
                "iterations_since_restore": result["training_iteration"] - self.training_iteration,
            }


class Snapshot(NamedTuple):
    """The whole state of a run between two chunks; its arrays are never written to."""

    runner: RunnerState
    hypers: PyTree
    env_params: PyTree
    lifetime: Lifetime
    result: Result | None  # of its last iteration
    hooks: dict[str, Any]  # their own states, by their names


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
        _result(
            algorithm, jax.tree.map(lambda leaf, i=i: leaf[i], metrics), seconds / count, lifetime
        )
        for i in range(count)
    ]


def _result(algorithm: Algorithm, metrics: Metrics, seconds: float, lifetime: Lifetime) -> Result:
    steps, finished = algorithm.num_env_steps, int(metrics.episodes.iteration.count)
    lifetime.training_iteration += 1
    lifetime.num_env_steps += steps
    lifetime.num_episodes += finished
    lifetime.time_total_s += seconds
    learners = ResultTree(_learners(algorithm, metrics.learners, lifetime))
    played = ResultTree(_played(algorithm, metrics, lifetime)) if algorithm.plays else None
    result = {
        "training_iteration": lifetime.training_iteration,
        "num_env_steps_sampled_lifetime": lifetime.num_env_steps,
        "num_env_steps_trained_lifetime": lifetime.num_env_steps if len(learners) > 1 else 0,
        "num_episodes_lifetime": lifetime.num_episodes,
        "time_this_iter_s": seconds,
        "time_total_s": lifetime.time_total_s,
        "done": False,
        **({} if played is None else {"env_runners": played}),
        "learners": learners,
        "timers": ResultTree(
            iteration=seconds,
            **({} if algorithm.plays else {"learner_update_timer": seconds}),  # all of it
        ),
        "perf": ResultTree(env_steps_per_s=steps / seconds if seconds > 0 else 0.0),
    }
    return ResultTree(result)


def _played(algorithm: Algorithm, metrics: Metrics, lifetime: Lifetime) -> Result:
    """The results of sampling in the environments."""
    counts = {
        "num_episodes": int(metrics.episodes.iteration.count),
        "num_episodes_lifetime": lifetime.num_episodes,
        "num_env_steps_sampled": algorithm.num_env_steps,
        "num_env_steps_sampled_lifetime": lifetime.num_env_steps,
        **_agent_steps(algorithm.grouping, metrics.agent_steps.tolist(), lifetime),
        "this_iteration": episode_results(algorithm, metrics.episodes.iteration),
        **_opponents(algorithm, metrics),
    }
    result = episode_results(algorithm, metrics.episodes.recent, counts)
    return _with(result, _histograms(algorithm, metrics.episodes.histograms), "on_episode_step")


def episode_results(algorithm: Algorithm, summary: Summary, counts: Result | None = None) -> Result:
    """The results of finished episodes and, beside them, `counts`; before the first these alone."""
    count = int(summary.count)
    if count == 0:
        return {**(counts or {})}
    grouping = algorithm.grouping
    agent_returns = on_host(summary.agent_returns.sum, summary.agent_returns.lower) / count
    agents = dict(zip(grouping.agents, agent_returns.tolist(), strict=True))
    task = {
        name.removeprefix(TASK): _mean(spread, count)
        for name, spread in summary.custom_metrics.items()
        if name.startswith(TASK)
    }
    result = {
        **_spread("episode_return", summary.episode_return, count),
        **_spread("episode_len", summary.episode_len, count),
        **_agent_returns(grouping, agents),
        **_module_bounds(grouping, summary),
        "agent_steps": _mean_agent_steps(grouping, summary),
        "custom_metrics": _by_path(
            {
                key: value
                for name, spread in summary.custom_metrics.items()
                if not name.startswith(TASK)
                for key, value in _spread(name, spread, count).items()
            }
        ),
        **({"task": task} if task else {}),
        **(counts or {}),
    }
    return _with(result, _logged(algorithm, summary.custom_metrics, count), "on_episode_end")


def _with(result: Result, values: Result, hook: str) -> Result:
    """A result with the values of a hook; refuses names that it has already."""
    if values:
        from jaxrl.core.metrics_logger import merge

        merge(result, values, hook)
    return result


def _by_path(values: Mapping[str, Any]) -> Result:
    """A tree of values, of whose names "/" begins a deeper one."""
    if not any("/" in name for name in values):
        return dict(values)
    from jaxrl.core.metrics_logger import path_of, tree_of

    return tree_of({path_of(name): value for name, value in values.items()})


def _logged(algorithm: Algorithm, numbers: Mapping[str, Spread | Histogram], count: int) -> Result:
    """The numbers that traced hooks logged, by their names alone and by their reductions."""
    result: Result = {}
    for name, reduce in algorithm.rollout_spec.logged:
        if (values := numbers.get(name)) is not None:
            total = float(on_host(values.sum, values.lower))
            bounds = {"min": float(values.min), "max": float(values.max)}
            result[name] = {"mean": total / count, "sum": total, **bounds}[reduce]
    return _by_path(result)


def _opponents(algorithm: Algorithm, metrics: Metrics) -> Result:
    """Results against each member of the pool, {"opponents": ...}; {} without a pool."""
    if algorithm.opponents is None:
        return {}
    pool, against = metrics.opponents, {}
    for i, name in enumerate(algorithm.opponents.members):
        copied = pool.iteration[i : i + 1].tolist()  # [] of a function
        if copied != [-1]:
            made = {"iteration": copied[0]} if name.startswith(COPY) else {}
            against[name] = made | _score(jax.tree.map(lambda leaf, i=i: leaf[i], pool.scores))
    together = _score(jax.tree.map(np.sum, pool.scores))
    return {"opponents": {"num_copies": int(pool.num_copies), **together, **against}}


def _score(scores: "Scores") -> dict[str, float]:
    played = float(scores.episodes)
    counted = {"num_episodes": round(played, 3)}  # sums that were shrunk, in float32
    if played == 0:
        return counted
    return {
        "win_rate": float(scores.points) / played,
        "episode_return_mean": float(scores.returns) / played,
        **counted,
    }


def _mean_agent_steps(grouping: Grouping, summary: Summary) -> dict[AgentId, float]:
    """Mean steps of an episode in which each agent acted: its length if all always act."""
    steps = summary.agent_steps
    if steps is None:
        spread = summary.episode_len
        steps = np.full(len(grouping.agents), on_host(spread.sum, spread.lower))
    return dict(zip(grouping.agents, (steps / int(summary.count)).tolist(), strict=True))


def _agent_returns(grouping: Grouping, agents: dict[AgentId, float]) -> Result:
    """Mean returns by agent and by policy; of a single agent under RLlib's singular names too."""
    policies = _by_policy(grouping, agents)
    means = {"agent_episode_returns_mean": agents, "module_episode_returns_mean": policies}
    if len(agents) == 1:
        means |= {
            "agent_episode_return_mean": dict(agents),
            "module_episode_return_mean": dict(policies),
        }
    return means


def _module_bounds(grouping: Grouping, summary: Summary) -> Result:
    """The least and the greatest return of an episode by policy."""
    if not summary.policy_returns:  # one policy plays all agents
        (policy,), of_all = grouping.policies, summary.episode_return
        bounds = {policy: (float(of_all.min), float(of_all.max))}
    else:
        bounds = {}
        for group, found in zip(grouping.groups, summary.policy_returns, strict=True):
            pairs = zip(found.min.tolist(), found.max.tolist(), strict=True)
            bounds |= zip(group.policies, pairs, strict=True)
    return {
        f"module_episode_returns_{side}": {policy: pair[i] for policy, pair in bounds.items()}
        for i, side in enumerate(("min", "max"))
    }


def recent_episodes(window: Window) -> Result:
    """The last finished episodes one by one, oldest first, {"hist_stats": ...}; {} before any."""
    if not (count := int(window.count)):
        return {}
    return one_by_one(jax.tree.map(lambda leaf: np.asarray(leaf)[-count:], window.episodes))


def one_by_one(episodes: EpisodeStats) -> Result:
    """Finished episodes one by one, under RLlib's names, and custom metrics under their own."""
    lower = {} if episodes.lower is None else episodes.lower.metrics
    lists = {"episode_reward": episode_returns(episodes).tolist()}
    lists["episode_lengths"] = episodes.length.tolist()
    for name, values in episodes.metrics.items():
        if not name.startswith(TASK):
            lists.setdefault(name, on_host(values, lower.get(name, 0.0)).tolist())
    return {"hist_stats": lists}


def episode_returns(episodes: EpisodeStats) -> np.ndarray:
    """The return of each episode, summed over its agents, f64[...]."""
    lower = 0.0 if episodes.lower is None else episodes.lower.returns
    return on_host(episodes.returns, lower).sum(axis=-1)


def _agent_steps(grouping: Grouping, counts: list[int], lifetime: Lifetime) -> Result:
    """Agents' steps by agent and by policy: of this iteration and, with `lifetime`, of all."""
    agents = dict(zip(grouping.agents, counts, strict=True))
    now = {
        "num_agent_steps_sampled": agents,
        "num_module_steps_sampled": _by_policy(grouping, agents),
    }
    if lifetime.num_agent_steps is None:
        return now
    lifetime.num_agent_steps = {
        agent: lifetime.num_agent_steps.get(agent, 0) + agents[agent] for agent in agents
    }
    ever = lifetime.num_agent_steps
    return {
        **now,
        "num_agent_steps_sampled_lifetime": dict(ever),
        "num_module_steps_sampled_lifetime": _by_policy(grouping, ever),
    }


def _by_policy(grouping: Grouping, agents: Mapping[AgentId, Any]) -> dict[PolicyId, Any]:
    """The sums over each policy's agents."""
    return {
        policy: sum(agents[agent] for agent in played)
        for group in grouping.groups
        for policy, played in zip(group.policies, group.agents, strict=True)
    }


def _histograms(algorithm: Algorithm, histograms: Mapping[str, Histogram]) -> Result:
    """The histograms of this iteration's steps; empty where no callback gives values."""
    if not histograms:
        return {}
    stats: Result = {}
    for name, values in histograms.items():
        stats[f"{name}/mean"] = _mean(values, int(values.count))
        stats[f"{name}/min"] = float(values.min)
        stats[f"{name}/max"] = float(values.max)
        stats[f"{name}/counts"] = values.counts.tolist()
    steps = int(next(iter(histograms.values())).count)
    logged = _logged(algorithm, histograms, steps)
    return _with({"hist_stats": _by_path(stats)}, logged, "on_episode_step")


def _spread(name: str, spread: Spread, count: int) -> dict[str, float]:
    values = {"mean": _mean(spread, count), "min": float(spread.min), "max": float(spread.max)}
    return {f"{name}_{statistic}": value for statistic, value in values.items()}


def _mean(values: Spread | Histogram, count: int) -> float:
    return float(on_host(values.sum, values.lower)) / count


def _trained_so_far(learners: Result, before: Lifetime) -> dict[PolicyId, int] | None:
    """The lifetime counts of trained rows, with those of a result; None where nobody counted."""
    if before.num_module_steps_trained is None:
        return None
    counts = dict(before.num_module_steps_trained)
    for policy, learner in without(learners, {ALL_MODULES}).items():
        if TRAINED_LIFETIME in learner:
            counts[policy] = learner[TRAINED_LIFETIME]
    return counts


def _learners(
    algorithm: Algorithm, metrics: tuple[dict[str, np.ndarray], ...], lifetime: Lifetime
) -> Result:
    """The policies that learned, by name, and their sums under "__all_modules__"."""
    learners: Result = {}
    for group, policy_spec, values in zip(
        algorithm.grouping.groups, algorithm.policy_specs, metrics, strict=True
    ):
        if values:
            if taken := [name for name in ADDED if name in values]:
                raise UsageError(f"{taken[0]!r} is a number of the result itself: log another name")
            size = num_parameters(policy_spec.model)
            for i, policy in enumerate(group.policies):
                learners[policy] = _by_path({name: float(of[i]) for name, of in values.items()})
                learners[policy][NUM_PARAMETERS] = size
    if lifetime.num_module_steps_trained is not None:
        for policy, learner in learners.items():
            before = lifetime.num_module_steps_trained.get(policy, 0)
            if TRAINED in learner:
                learner[TRAINED_LIFETIME] = before + int(learner[TRAINED])
        lifetime.num_module_steps_trained = _trained_so_far(learners, lifetime)
    totals = ("total_loss", TRAINED, TRAINED_LIFETIME, NUM_PARAMETERS)
    together = {}
    for name in totals:
        summands = [learner[name] for learner in learners.values() if name in learner]
        if summands or (not learners and name != TRAINED_LIFETIME):
            together[name] = sum(summands)
    together["num_env_steps_trained"] = algorithm.num_env_steps if learners else 0
    return {**learners, ALL_MODULES: together}


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every leaf, with "/" between the parts of the path."""
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def lookup(result: Mapping[str, Any] | None, path: str) -> Any:
    """The value at a path such as "env_runners/episode_return_mean"; None where there is none."""
    for part in path.split("/"):
        if not isinstance(result, Mapping) or part not in result:
            return None
        result = result[part]
    return result


def result_names(
    algorithm: Algorithm,
    metrics: Metrics,
    *,
    evaluated: bool = False,
    session: Session | None = None,
    lifetime: Lifetime | None = None,
) -> list[str]:
    """Every path that a result of this run may have a number at.

    Args:
        metrics: the shapes of a chunk's metrics.
        evaluated: whether some results hold an evaluation as well.
        session: that stamps the results, if one does.
        lifetime: whose counts they hold; default: one that counts no agents' steps.
    """
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), metrics)
    result = iteration_results(algorithm, ones, 1, 1.0, replace(lifetime or Lifetime()))[0]
    if session is not None:
        session.stamp([result], now=0.0)
    if evaluated:
        summary = jax.tree.map(lambda leaf: leaf[0], ones.episodes.iteration)
        counts = dict.fromkeys(("num_episodes", "num_env_steps_sampled"), 1)
        counts |= {"episode_return_std": 0.0, "episode_len_std": 0.0}
        counts["num_agent_steps_sampled"] = dict.fromkeys(algorithm.grouping.agents, 1)
        result["evaluation"] = {"env_runners": episode_results(algorithm, summary, counts)}
        result["timers"]["evaluation"] = 0.0
    return [name for name, value in flatten(result) if not isinstance(value, list | str)]
