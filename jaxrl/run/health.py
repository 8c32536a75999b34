"""Training health: detects NaN and infinity, and warns about problems that persist."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.base import Diagnostics, RunnerState, no_diagnostics
from jaxrl.core.spaces import Box, Space, beyond, parts_of
from jaxrl.core.types import PyTree
from jaxrl.rollout.grouping import Grouping
from jaxrl.rollout.steps import UNDECLARED_WAITS
from jaxrl.run.results import RETURN, Result, flatten, lookup

WARN_AFTER_ITERATIONS = 10  # in a row, in which the same problem must be found
NO_EPISODE_ITERATIONS = 100  # without the end of an episode, and
NO_EPISODE_STEPS = (
    10_000  # steps of each environment meanwhile: few environments have longer episodes
)
SAME = 1e-5  # the share of returns that differ by rounding alone
LARGE = 1e18  # squares of larger numbers overflow in float32
LOOKED_AT = 64  # environments whose observations are held against their space
FINITE = "parameters_finite"  # 1.0 or 0.0, which an algorithm may report beside its terms


class Diverged(ArithmeticError):
    """Training met NaN or infinity and has stopped; the message names the policy and the term."""


def first_bad(results: list[Result], root_causes: Sequence[str] = ()) -> tuple[int, str] | None:
    """The first result in which training broke: (index, "policy 'pol1': vf_loss is nan").

    Broken is a policy of which any number is NaN or infinite, or the parameters are no longer
    finite.

    Args:
        root_causes: the algorithm's `root_cause_metrics`; the first of these that is bad is named.
    """
    order = {name: place for place, name in enumerate(root_causes)}
    for i, result in enumerate(results):
        for policy, numbers in result.get("learners", {}).items():
            bad = {
                name: value
                for name, value in flatten(numbers)
                if isinstance(value, float) and not math.isfinite(value)
            }
            if bad:
                name = min(bad, key=lambda name: order.get(name, len(order)))
                return i, f"policy {policy!r}: {name} is {bad[name]}"
            if numbers.get(FINITE, 1.0) == 0.0:
                return (
                    i,
                    f"policy {policy!r}: its parameters or its optimiser's state are no longer "
                    "finite",
                )
    return None


def undeclared_wait(results: list[Result]) -> tuple[int, str] | None:
    """The first of `results` that learned wrongly, since an agent waited undeclared.

    As of `first_bad`: (index, why).
    """
    for i, result in enumerate(results):
        for policy, numbers in result.get("learners", {}).items():
            if numbers.get(UNDECLARED_WAITS, 0.0) > 0.0:
                return i, (
                    f"policy {policy!r}: an agent is inactive but has not ended; an environment "
                    "whose agents wait must "
                    "have acting_agents(state, params), {agent: whether it acts in this state}"
                )
    return None


def outside(space: Space, obs: PyTree) -> Iterator[tuple[str, str]]:
    """(part, text) of each part of observations, arrays [..., *shape], that leaves its space."""
    for name, part, values in parts_of(space, obs):
        what = f"observation {name!r}" if name else "an observation"
        if isinstance(part, Box):
            low, high = (np.asarray(bound, np.float64) for bound in (part.low, part.high))
            room = 1e-4 * np.maximum(1.0, np.abs(values, dtype=np.float64))  # for rounding
            wrong = ~((values >= low - room) & (values <= high + room))
        else:
            wrong = beyond(part, values)
        if wrong.any():
            yield name, f"{what} is {values[wrong][0]:g}, outside its space {part!s:.120}"
        elif isinstance(part, Box) and np.abs(values).max(initial=0) > LARGE:
            yield (
                name,
                f"{what} is {values.flat[np.abs(values).argmax()]:g}, too large to learn from in "
                "float32",
            )


def _bad_episodes(result: Result) -> Iterator[tuple[str, str]]:
    """(kind, text) of episodes' returns and metrics that are NaN, infinite or too large."""
    returns, metrics = "agent_episode_returns_mean", "custom_metrics"
    for name, value in flatten(lookup(result, f"env_runners/{returns}") or {}):
        if not abs(value) <= LARGE:
            yield (
                f"return {name}",
                (
                    f"the return of agent {name!r} is {value:g}: see its rewards, of which "
                    "learning squares the sums, "
                    "and call jaxrl.check_env"
                ),
            )
    for name, value in flatten(lookup(result, f"env_runners/{metrics}") or {}):
        if name.endswith("_mean") and not math.isfinite(value):
            yield (
                f"metric {name}",
                f"env_runners/{metrics}/{name} is {value:g}: a number of its sum was not finite",
            )


def has_constant_sum(episodes: Mapping[str, Any]) -> bool:
    """Returns whether several agents' returns had one sum in all recent episodes, as in a game.

    The mean return then says nothing of how well anybody plays.

    Args:
        episodes: the branch "env_runners" of a result or of an evaluation.
    """
    returns = list(episodes.get("agent_episode_returns_mean", {}).values())
    if len(returns) < 2 or "episode_return_min" not in episodes:
        return False
    is_constant = is_same(episodes["episode_return_min"], episodes["episode_return_max"])
    is_shared = any(returns) and is_same(min(returns), max(returns))  # a team's
    return is_constant and not is_shared


def is_same(first: float, second: float) -> bool:
    """Returns whether two returns differ by rounding alone."""
    return abs(first - second) <= SAME * max(1.0, abs(first), abs(second))


def _constant_sum(result: Result) -> Iterator[tuple[str, str]]:
    """(kind, text) where the agents' returns have the same sum in all recent episodes."""
    episodes = result.get("env_runners", {})
    # Returns of 0 alone may be those of a team that has not met its reward yet.
    if has_constant_sum(episodes) and any(episodes["agent_episode_returns_mean"].values()):
        total = f"{episodes['episode_return_mean']:.2f}"
        yield (
            f"constant sum {total}",
            f"the agents' returns sum to {total} in every episode, so there is no best checkpoint "
            "and no return to stop at: see docs/competitive-games.md, and give "
            "checkpoint_score_attribute, such as env_runners/opponents/NAME/win_rate",
        )


class HealthMonitor:
    """Sees every result and says what deserves a warning, each kind once in its life.

    Args:
        config: the run's.
        diagnostics: the algorithm's, of what it finds wrong with an iteration; said when found
            `WARN_AFTER_ITERATIONS` times in a row.
        score: the path of the result that decides which checkpoint is best.
    """

    def __init__(self, config: Any, diagnostics: Diagnostics = no_diagnostics, score: str = RETURN):
        self._config, self._diagnostics, self._score = config, diagnostics, score
        self._said: set[str] = set()
        self._lasted: dict[str, int] = {}  # iterations in a row, by kind
        self._iterations = self._env_steps = 0  # since an episode ended

    def look(self, results: list[Result]) -> list[str]:
        """The warnings that these results, which follow those seen before, give rise to."""
        return [
            text for result in results for kind, text in self._found(result) if self._is_news(kind)
        ]

    def _found(self, result: Result) -> list[tuple[str, str]]:
        present = dict(self._diagnostics(self._config, result))
        if self._score.endswith(RETURN):
            present |= _constant_sum(result)
        self._lasted = {kind: self._lasted.get(kind, 0) + 1 for kind in present}
        lasting = [
            (kind, text)
            for kind, text in present.items()
            if self._lasted[kind] >= WARN_AFTER_ITERATIONS
        ]
        return lasting + self._no_episode(result) + list(_bad_episodes(result))

    def look_at_observations(self, grouping: Grouping, *runners: RunnerState) -> list[str]:
        """Warnings of observations outside their spaces in these states; checked once."""
        if not self._is_news("observations"):
            return []
        found = {}
        for runner in runners:
            # An algorithm that learns from recorded episodes has no environments to look at.
            for group, obs in zip(grouping.groups, runner.envs.obs, strict=False):
                some = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :LOOKED_AT], obs)
                for where, text in outside(group.observation_space, some):
                    found[where, group.policies[0]] = (
                        f"{text} (policy {group.policies[0]!r}); jaxrl.check_env finds it"
                    )
        return list(found.values())

    def _no_episode(self, result: Result) -> list[tuple[str, str]]:
        ended = lookup(result, "env_runners/num_episodes")
        if ended is None or ended > 0:
            self._iterations = self._env_steps = 0
            return []
        self._iterations += 1
        self._env_steps += lookup(result, "env_runners/num_env_steps_sampled") or 0
        steps = self._env_steps // self._config.num_envs
        if self._iterations < NO_EPISODE_ITERATIONS or steps < NO_EPISODE_STEPS:
            return []
        text = (
            f"no episode has ended in the last {self._iterations:,} iterations ({steps:,} steps of "
            "each environment), "
            "so returns are old or unknown; if episodes are not that long, see whether the "
            "environment terminates, "
            "or give it a time limit"
        )
        return [("no_episode", text)]

    def _is_news(self, kind: str) -> bool:
        news = kind not in self._said
        self._said.add(kind)
        return news
