"""Off-policy estimators: a policy's return from episodes that another policy played.

With ratios rho[t] (`judged_episodes`), W[t] = rho[0] ... rho[t], W[-1] = 1, G = sum of
gamma^t r[t], and means over n episodes i:

    importance_sampling                       mean of W[T-1] G
    weighted_importance_sampling              sum of W[T-1] G / sum of W[T-1]
    per_decision_importance_sampling          mean of sum_t gamma^t W[t] r[t]
    weighted_per_decision_importance_sampling sum_t gamma^t (sum of W[t] r[t] / sum of W[t])
                                              (Precup et al. 2000, section 3; the last as in Thomas
                                              and Brunskill 2016)
    direct_method                             mean of V(s[0])
    doubly_robust                             mean of V(s[0])
                                              + sum_t gamma^t W[t] (r[t] + gamma V(s[t+1]) - Q[t])
                                              (Jiang and Li 2016, eq. 10, unrolled)
    weighted_doubly_robust                    the same with W[t] / (sum of W[t] / n)
                                              (Thomas and Brunskill 2016, section 5)

V and Q are fitted to other episodes (`fitted_value`); V is 0 after an episode's end. An episode
that has ended keeps its last W in the sums of later steps. All products are sums of logarithms.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import count, number, one_of, takes
from jaxrl.core.types import AgentId
from jaxrl.episodes import read_episodes
from jaxrl.episodes.by_agent import Episode
from jaxrl.offline.bootstrap import INTERVALS, Sums, bootstrap_interval, resample
from jaxrl.offline.fitted_value import FittedValues, fit_held_out
from jaxrl.offline.judged_episodes import JudgedEpisodes, judge_episodes

MIN_EPISODES = 2
# Below so many effective episodes, intervals hold the true return less often than they say: see
# benchmarks/estimators.py. Few episodes with even weights do hold it.
MIN_EFFECTIVE, MIN_SHARE = 100.0, 0.8
MIN_MEAN_WEIGHT = 0.5  # it should be 1; less means that episodes of large weight are missing
MIN_LOG_WEIGHT = -700.0  # relative to the largest; e^-745 would be 0


class WeightedSteps(NamedTuple):
    """The estimators' data: n episodes of up to T steps, discounted, 0 beyond an episode's end."""

    log_weights: np.ndarray  # f64[n, T]  log W[t]; beyond the end the last one
    lengths: np.ndarray  # i64[n]
    rewards: np.ndarray  # f64[n, T]  gamma^t r[t]
    values: np.ndarray | None = None  # f64[n, T]  gamma^t V(s[t])
    action_values: np.ndarray | None = None  # f64[n, T]  gamma^t Q(s[t], a[t])

    @property
    def corrections(self) -> np.ndarray:
        """gamma^t (r[t] + gamma V(s[t+1]) - Q(s[t], a[t])), f64[n, T]."""
        following = np.zeros_like(self.values)
        following[:, :-1] = self.values[:, 1:]
        return self.rewards + following - self.action_values


def weighted_steps(
    judged: JudgedEpisodes, gamma: float, fitted: FittedValues | None = None
) -> WeightedSteps:
    """Judged episodes with their products of ratios, discounted."""
    discounts = gamma ** np.arange(judged.rewards.shape[1])
    log_weights = np.cumsum(judged.log_ratios, axis=1)
    steps = WeightedSteps(log_weights, judged.lengths, discounts * judged.rewards)
    if fitted is None:
        return steps
    values, action_values = discounts * fitted.values, discounts * fitted.action_values
    return steps._replace(values=values, action_values=action_values)


def importance_sampling(steps: WeightedSteps) -> Sums:
    returns = steps.rewards.sum(axis=1, keepdims=True)
    return _mean(np.exp(steps.log_weights[:, -1:]) * returns)


def weighted_importance_sampling(steps: WeightedSteps) -> Sums:
    weights = _relative(steps.log_weights[:, -1:])
    return Sums(weights * steps.rewards.sum(axis=1, keepdims=True), weights)


def per_decision_importance_sampling(steps: WeightedSteps) -> Sums:
    return _mean(np.sum(np.exp(steps.log_weights) * steps.rewards, axis=1, keepdims=True))


def weighted_per_decision_importance_sampling(steps: WeightedSteps) -> Sums:
    weights = _relative(steps.log_weights)
    return Sums(weights * steps.rewards, weights)


def direct_method(steps: WeightedSteps) -> Sums:
    return _mean(steps.values[:, :1])


def doubly_robust(steps: WeightedSteps) -> Sums:
    corrections = np.sum(np.exp(steps.log_weights) * steps.corrections, axis=1, keepdims=True)
    return _mean(steps.values[:, :1] + corrections)


def weighted_doubly_robust(steps: WeightedSteps) -> Sums:
    weights, first = _relative(steps.log_weights), direct_method(steps)
    return Sums(
        np.concatenate([first.numerators, weights * steps.corrections], axis=1),
        np.concatenate([first.denominators, weights], axis=1),
    )


def _mean(values: np.ndarray) -> Sums:
    return Sums(values, np.ones_like(values))


def _relative(log_weights: np.ndarray) -> np.ndarray:
    """The weights of each step as shares of the largest, none of them 0."""
    away = log_weights - log_weights.max(axis=0)
    return np.exp(np.maximum(away, MIN_LOG_WEIGHT))


ESTIMATORS: dict[str, Callable[[WeightedSteps], Sums]] = {
    function.__name__: function
    for function in (
        importance_sampling,
        weighted_importance_sampling,
        per_decision_importance_sampling,
        weighted_per_decision_importance_sampling,
        direct_method,
        doubly_robust,
        weighted_doubly_robust,
    )
}
FITTED = ("direct_method", "doubly_robust", "weighted_doubly_robust")
WHOLE_EPISODES = ("importance_sampling", "weighted_importance_sampling")


def effective_sample_sizes(steps: WeightedSteps) -> np.ndarray:
    """(sum of W[t])^2 / sum of W[t]^2 (Kish 1965) by step, f64[T]; n if all ratios are 1."""
    weights = _relative(steps.log_weights)
    return weights.sum(axis=0) ** 2 / np.sum(weights**2, axis=0)


def effective_sample_size(method: str, steps: WeightedSteps) -> float:
    """The number of episodes that a method effectively averages over.

    Of the per-decision and doubly robust forms the mean over all recorded steps. `direct_method`
    uses no weights.
    """
    if method == "direct_method":
        return float(len(steps.lengths))
    sizes = effective_sample_sizes(steps)
    if method in WHOLE_EPISODES:
        return float(sizes[-1])
    going_on = np.sum(np.arange(len(sizes))[:, None] < steps.lengths, axis=1)
    return float(np.average(sizes, weights=going_on))


# For users


@dataclass(frozen=True)
class ReturnEstimate:
    """The estimate of the return by one method, with a confidence interval from `low` to `high`."""

    method: str
    estimate: float
    low: float
    high: float
    effective_sample_size: float


@dataclass(frozen=True)
class ReturnEstimates:
    """A table of estimates; `estimates["doubly_robust"]` is one of them."""

    rows: tuple[ReturnEstimate, ...]
    num_episodes: int
    mean_return: float  # of the recorded episodes, discounted: of the policy that played them
    gamma: float
    level: float
    interval: str
    warnings: tuple[str, ...] = ()

    def __getitem__(self, method: str) -> ReturnEstimate:
        by_method = {row.method: row for row in self.rows}
        if method not in by_method:
            raise unknown_name("method", method, by_method)
        return by_method[method]

    def __iter__(self) -> Iterator[ReturnEstimate]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        head = (
            f"{self.num_episodes:,} episodes, recorded return {self.mean_return:.2f} "
            f"(gamma {self.gamma:g}); {self.level:.0%} intervals ({self.interval} bootstrap)"
        )
        width = max(len(row.method) for row in self.rows)
        lines = [f"{'method':<{width}}{'estimate':>11}{'low':>11}{'high':>11}{'effective':>11}"]
        for row in self.rows:
            numbers = f"{row.estimate:>11.2f}{row.low:>11.2f}{row.high:>11.2f}"
            lines.append(f"{row.method:<{width}}{numbers}{row.effective_sample_size:>11.1f}")
        if any(row.method == "direct_method" for row in self.rows):
            lines.append("The interval of direct_method leaves out the error of its fit.")
        return "\n".join([head, *lines, *(f"warning: {text}" for text in self.warnings)])


@takes()
def estimate_return(
    episodes: str | Path | Iterable[Episode],
    policy: Any,
    *,
    method: str | Iterable[str] | None = None,
    gamma: float = 1.0,
    agent: AgentId | None = None,
    level: float = 0.95,
    interval: str = "bca",
    resamples: int = 2000,
    folds: int = 5,
    seed: int = 0,
) -> ReturnEstimates:
    """Estimates what a policy, sampling its actions, earns in an episode, from recorded episodes.

    The estimate is of what `jaxrl.evaluate(run, explore=True)` would measure: the mean over whole
    episodes of the discounted sum of rewards, up to where an episode terminates or its time limit
    truncates it. See docs/offline-evaluation.md for what each method is good for.

    Args:
        episodes: a folder of episodes, or such objects; recorded with `action_logp`.
        policy: a `jaxrl.Policy`, or {name: policy} of several that are judged together. The
            recorded agents of these policies are judged; the others remain as they were recorded.
        method: a name, or several; None: all. See `jaxrl.offline.estimators`.
        gamma: the discount of each step of the environment.
        agent: whose return; None: the sum over all agents, as evaluation has it.
        level: of the confidence intervals.
        interval: the kind of bootstrap over episodes, "bca" or "percentile".
        resamples: of the bootstrap.
        folds: parts of the data, for values that are fitted to the other parts.
        seed: of the resamples, the folds and the fit.

    Raises:
        UsageError: episodes, a policy or arguments that do not fit, in one line.
    """
    methods = _methods(method)
    number(0, 1)("gamma", gamma)
    number(0.5, 0.999)("level", level)
    one_of(*INTERVALS)("interval", interval)
    count(100)("resamples", resamples)
    count(2)("folds", folds)
    count(0)("seed", seed)
    if isinstance(episodes, str | Path):
        episodes = read_episodes(episodes)
    elif not isinstance(episodes, Iterable):
        raise UsageError(f"episodes are a folder, or a list of episodes, not {brief(episodes)}")
    fits = bool(set(methods) & set(FITTED))
    judged = judge_episodes(episodes, policy, agent, features=fits)
    if len(judged.lengths) < MIN_EPISODES:
        raise UsageError("an interval needs at least 2 episodes, not 1")
    fitted = fit_held_out(judged, gamma=gamma, folds=folds, seed=seed) if fits else None
    steps = weighted_steps(judged, gamma, fitted)
    sums = {name: ESTIMATORS[name](steps) for name in methods}
    resampled = resample(sums, resamples=resamples, seed=seed)
    rows = []
    for name in methods:
        bounds = bootstrap_interval(sums[name], resampled[name], level=level, kind=interval)
        size = effective_sample_size(name, steps)
        rows.append(ReturnEstimate(name, sums[name].estimate(), *bounds, size))
    return ReturnEstimates(
        rows=tuple(rows),
        num_episodes=len(steps.lengths),
        mean_return=float(steps.rewards.sum(axis=1).mean()),
        gamma=gamma,
        level=level,
        interval=interval,
        warnings=_warnings(steps, methods),
    )


def _methods(method: Any) -> list[str]:
    if method is None:
        return list(ESTIMATORS)
    names = [method] if isinstance(method, str) else method
    if not isinstance(names, Iterable) or not (names := list(names)):
        raise UsageError(f"method is a name, a list of names or None, not {brief(method)}")
    for name in names:
        one_of(*ESTIMATORS)("method", name)
    return list(dict.fromkeys(names))


def _warnings(steps: WeightedSteps, methods: list[str]) -> tuple[str, ...]:
    """Warnings about the weights at the episodes' ends, which have the longest tails."""
    if methods == ["direct_method"]:
        return ()
    found, number = [], len(steps.lengths)
    effective, mean = effective_sample_sizes(steps)[-1], np.exp(steps.log_weights[:, -1]).mean()
    if effective < min(MIN_EFFECTIVE, MIN_SHARE * number):
        found.append(
            f"the episodes' weights make them worth {effective:.1f} of {number:,} episodes, so all "
            "intervals are too narrow; record more, or with a policy nearer to the judged one"
        )
    if mean < MIN_MEAN_WEIGHT:
        found.append(
            f"the weights average {mean:.2g} instead of 1: what the judged policy mostly does is "
            "missing from the episodes"
        )
    return tuple(found)
