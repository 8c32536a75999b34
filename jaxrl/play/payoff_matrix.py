"""Payoff matrix of a pool of opponents: every member against every other, and Elo ratings."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.opponents import Pool
from jaxrl.algorithms.task_settings import COPY
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.play.host_episodes import EpisodeRange, Players, play_episodes
from jaxrl.run.logging.figures import heat_map, inline, save_figure

SCALE = 400 / np.log(10)  # rating points of a factor e in the odds of a win
ROUNDS = 1000  # of the fit, at most; some 30 are enough
LONGEST_STEP = 2.0  # of a round, in log strength


@dataclasses.dataclass(frozen=True)
class PayoffMatrix:
    """The win rate of each policy against each opponent, a draw counting half.

    Args:
        rows: the policies that learn: the present one by its policy's name, and its copies.
        columns: the members of the pool.
        win_rate: f64[rows, columns], of the row's policy.
        episodes: of each pair.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    win_rate: np.ndarray
    episodes: int

    def __post_init__(self):
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "win_rate", np.asarray(self.win_rate, float))

    @property
    def elo(self) -> dict[str, float]:
        """Ratings by name, the first column's 0, that explain the win rates best (Elo 1978).

            P(i beats j) = 1 / (1 + 10^((elo_j - elo_i) / 400))

        It is the maximum of the likelihood with one draw more for each pair, so that who always
        wins has a finite rating. A policy against itself does not count, nor does a pair whose win
        rate is NaN. Where nothing links some of them to the first column, they are rated among
        themselves, from 0 of the first.
        """
        names = list(dict.fromkeys((*self.columns, *self.rows)))
        points = np.zeros((len(names), len(names)))
        for row, rates in zip(self.rows, self.win_rate, strict=True):
            for column, rate in zip(self.columns, rates, strict=True):
                i, j = names.index(row), names.index(column)
                if i != j and not np.isnan(rate):
                    points[i, j] += rate * self.episodes + 0.5
                    points[j, i] += (1 - rate) * self.episodes + 0.5
        return dict(zip(names, (SCALE * log_strengths(points)).tolist(), strict=True))

    def table(self) -> str:
        """The matrix in Markdown, with the ratings of the rows."""
        elo = self.elo
        head = ["", *self.columns, "Elo"]
        lines = [head, ["---"] * len(head)]
        for row, rates in zip(self.rows, self.win_rate, strict=True):
            lines.append([row, *(f"{rate:.2f}" for rate in rates), f"{elo[row]:+.0f}"])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def plot(self, path: str | Path | None = None) -> Any:
        """A heat map as a matplotlib figure; with a path written to that .png, .pdf or .svg."""
        if path is not None:
            save_figure(path, self._figure)
        return inline(self._figure())

    def _figure(self) -> Any:
        elo = self.elo
        rows = [f"{row}  {elo[row]:+.0f}" for row in self.rows]
        title = f"win rate over {self.episodes} episodes; Elo beside the names"
        return heat_map(self.win_rate, rows, self.columns, title)


def log_strengths(points: np.ndarray) -> np.ndarray:
    """The most likely log strengths x, f64[n], of a Bradley-Terry model (Bradley and Terry 1952).

        P(i beats j) = 1 / (1 + exp(x_j - x_i))

    By Newton's method, whose step is shortened until the likelihood grows. The first of those that
    games link has 0.

    Args:
        points: f64[n, n], of the row against the column, more than 0 for both or for neither.
    """
    strengths, number = np.zeros(len(points)), points + points.T
    is_free = _first_linked(number > 0) != np.arange(len(points))
    for _ in range(ROUNDS):
        expected = number * _chances(strengths)
        gradient = (points - expected).sum(axis=1)[is_free]
        curvature = expected * _chances(strengths).T
        hessian = np.diag(curvature.sum(axis=1)) - curvature
        step = np.linalg.solve(hessian[np.ix_(is_free, is_free)], gradient)
        longest = np.abs(step).max(initial=0.0)
        step *= min(1.0, LONGEST_STEP / max(longest, LONGEST_STEP))
        before, strengths = strengths, _stepped(points, strengths, is_free, step)
        if longest < 1e-12 or np.array_equal(before, strengths):
            break
    return strengths


def _stepped(
    points: np.ndarray, strengths: np.ndarray, is_free: np.ndarray, step: np.ndarray
) -> np.ndarray:
    """The strengths after the step, or after so small a part of it that they become likelier."""
    least = _log_likelihood(points, strengths)
    for part in 0.5 ** np.arange(30):
        after = strengths.copy()
        after[is_free] += part * step
        if _log_likelihood(points, after) >= least:
            return after
    return strengths


def _chances(strengths: np.ndarray) -> np.ndarray:
    """P(row beats column), f64[n, n], which no strength lets overflow."""
    return np.exp(-np.logaddexp(0.0, strengths - strengths[:, None]))


def _log_likelihood(points: np.ndarray, strengths: np.ndarray) -> float:
    return float(-(points * np.logaddexp(0.0, strengths - strengths[:, None])).sum())


def _first_linked(is_played: np.ndarray) -> np.ndarray:
    """The first player to whom games link each one, i64[n], from bool[n, n] of pairs."""
    is_linked = is_played | np.eye(len(is_played), dtype=bool)
    for _ in range(len(is_played).bit_length()):  # games that are twice as far away each time
        is_linked = is_linked @ is_linked
    return np.array([np.flatnonzero(linked)[0] for linked in is_linked], int)


def matrix_of(trainer: Any, episode_range: EpisodeRange) -> PayoffMatrix:
    """The matrix of a trainer's pool, the same in all processes that train.

    Args:
        episode_range: the episodes of each pair.

    Raises:
        UsageError: the configuration has no pool.
    """
    algorithm, runner = trainer.algorithm, trainer.runner
    params = algorithm.env_params if trainer.config.env_task_fn else trainer.env_params
    pairs = lambda: play_pairs(algorithm, runner, params, episode_range)
    return PayoffMatrix(**trainer.processes.broadcast(pairs))


def play_pairs(
    algorithm: Algorithm, runner: RunnerState, env_params: PyTree, episode_range: EpisodeRange
) -> dict[str, Any]:
    """The arguments of a `PayoffMatrix`, as JSON holds them.

    Plays the policy that learns, and its copies, against every member of the pool.

    Args:
        episode_range: the episodes of each pair.

    Raises:
        UsageError: the algorithm has no pool.
    """
    pool = algorithm.opponents
    if pool is None:
        raise UsageError("payoff_matrix: the configuration has no pool of opponents")
    columns = tuple(_by_age(pool, runner))
    rows = _rows(algorithm, runner, columns)
    win_rate = np.zeros((len(rows), len(columns)))
    for i, row in enumerate(rows.values()):
        for j, column in enumerate(columns):
            weights = list(row)
            weights[pool.group] = pool.player(runner.opponents, column)
            win_rate[i, j] = _win_rate(algorithm, tuple(weights), env_params, episode_range)
    label = lambda name: _label(pool, runner, name)
    names = {"rows": list(map(label, rows)), "columns": list(map(label, columns))}
    return {**names, "win_rate": win_rate.tolist(), "episodes": episode_range.number}


def _by_age(pool: Pool, runner: RunnerState) -> Iterator[str]:
    """The members, copies in the order in which they were made."""
    iterations = np.asarray(runner.opponents.iteration)
    present = pool.present(runner.opponents)
    copies = [name for name in present if name.startswith(COPY)]
    yield from sorted(copies, key=lambda name: iterations[present[name]])
    yield from (name for name in present if not name.startswith(COPY))


def _rows(
    algorithm: Algorithm, runner: RunnerState, members: tuple[str, ...]
) -> dict[str, tuple[PyTree, ...]]:
    """Weights by group of everybody who can play for the policy that learns."""
    pool, weights = algorithm.opponents, algorithm.acting_weights(runner)
    if pool.copied is None:
        return {algorithm.trained[0]: weights}
    group, index = pool.copied
    rows = {}
    for name in members:
        if name in pool.settings.functions:
            continue
        player = pool.player(runner.opponents, name)
        stacked = jax.tree.map(lambda rows, new: rows.at[index].set(new[0]), weights[group], player)
        rows[name] = (*weights[:group], stacked, *weights[group + 1 :])
    return {**rows, pool.learner: weights}


def _label(pool: Pool, runner: RunnerState, name: str) -> str:
    is_member = name in pool.members
    return pool.label(runner.opponents, name) if is_member else name


def _win_rate(
    algorithm: Algorithm,
    weights: tuple[PyTree, ...],
    env_params: PyTree,
    episode_range: EpisodeRange,
) -> float:
    """The share of the episodes that ended which were won; NaN if none did."""
    batches = play_episodes(Players(algorithm, weights, env_params), episode_range)
    returns = np.concatenate([batch.finished.returns[batch.done] for batch in batches])
    points = algorithm.opponents.points(returns)[1]
    return float(points.mean(dtype=np.float64)) if len(points) else math.nan
