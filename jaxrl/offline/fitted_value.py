"""Fitted Q evaluation: a judged policy's values, fitted to episodes that another policy played.

    V(s)    = psi(s) . v
    Q(s, a) = V(s) + sum over entries j of (g_j(a) - E_pi[g_j | s]) psi(s) . u_j

g(a) are the actions' features and E_pi[g | s] their exact expectation, so E_pi[Q(s, a)] = V(s)
whatever the weights w = (v, u) are. Fitted Q evaluation (Le et al. 2019) repeats the regression of
r + gamma V(s') on Q(s, a). For functions that are linear in their weights it need not be repeated:
its fixed point solves one linear system (LSTD-Q, Lagoudakis and Parr 2003),

    sum of phi(s, a) (phi(s, a) - gamma phi_V(s'))^T w + ridge w = sum of phi(s, a) r

with Q = phi(s, a) . w and V = phi_V(s) . w, which is 0 after an episode's end. psi is a constant,
the time, the observations if they are few, and a hidden layer with random weights (Rahimi and
Recht 2008).

Nothing else rests on the fit: the doubly robust estimators are unbiased for any Q that has not seen
the episode that it is used for, and precise if it is a good one.
"""

from typing import NamedTuple

import numpy as np

from jaxrl.offline.judged_episodes import JudgedEpisodes

MIN_HIDDEN, MAX_HIDDEN = 8, 64  # units of the random layer
EPISODES_PER_UNIT = 5  # a fit to few episodes that has many weights makes intervals too narrow
MAX_LINEAR = 64  # numbers of a state that are features themselves
RIDGE = 1e-3  # for each row, features being of size 1
ROWS_AT_ONCE = 2**13
MIN_STD = 1e-6  # of a state's entry; what varies less is constant


class FittedValues(NamedTuple):
    """Values of the recorded steps, 0 beyond an episode's end."""

    values: np.ndarray  # f64[n, T]  V(s_t)
    action_values: np.ndarray  # f64[n, T]  Q(s_t, a_t)


def fit_held_out(
    judged: JudgedEpisodes, *, gamma: float = 1.0, folds: int = 5, seed: int = 0
) -> FittedValues:
    """Values of each episode, fitted to those of the other folds.

    Args:
        judged: with features.
        folds: the number of parts of the data, at most as many as episodes.
        seed: of the folds and the random layer.
    """
    generator = np.random.default_rng(seed)
    number = len(judged.lengths)
    fold = generator.permutation(number) % min(folds, number)
    steps = _steps_of(judged)
    values, action_values = np.zeros(len(steps.reward)), np.zeros(len(steps.reward))
    for k in range(fold.max() + 1):
        held_out = np.repeat(fold == k, judged.lengths)
        units = np.sum(fold != k) // EPISODES_PER_UNIT
        units = int(np.clip(units, MIN_HIDDEN, MAX_HIDDEN))
        basis = _Basis.draw(steps.state[~held_out], units, generator)
        weights = _solve(basis, steps, ~held_out, gamma)
        bounds = _bounds(steps, ~held_out, gamma)
        rows = np.flatnonzero(held_out)
        values[rows], action_values[rows] = _predict(basis, weights, steps, rows, bounds)
    inside = np.arange(judged.rewards.shape[1]) < judged.lengths[:, None]
    placed = []
    for flat in (values, action_values):
        out = np.zeros(judged.rewards.shape)
        out[inside] = flat
        placed.append(out)
    return FittedValues(*placed)


class _Steps(NamedTuple):
    """The R steps of all episodes, one after the other."""

    state: np.ndarray  # f32[R, D]  the time first
    advantage: np.ndarray  # f32[R, G]  g(a) - E[g]
    reward: np.ndarray  # f64[R]
    is_last: np.ndarray  # bool[R]


def _steps_of(judged: JudgedEpisodes) -> _Steps:
    inside = np.arange(judged.rewards.shape[1]) < judged.lengths[:, None]
    time = np.nonzero(inside)[1]
    state = np.concatenate([time[:, None].astype(np.float32), judged.states], axis=1)
    is_last = np.zeros(len(time), bool)
    is_last[np.cumsum(judged.lengths) - 1] = True
    return _Steps(state, judged.taken - judged.expected, judged.rewards[inside], is_last)


class _Basis(NamedTuple):
    """psi and phi, scaled by the states that they are fitted to."""

    mean: np.ndarray  # f64[D]
    scale: np.ndarray  # f64[D]
    weights: np.ndarray  # f64[D, H]  of the random layer
    biases: np.ndarray  # f64[H]

    @classmethod
    def draw(cls, states: np.ndarray, units: int, generator: np.random.Generator) -> "_Basis":
        mean, std = states.mean(axis=0, dtype=np.float64), states.std(axis=0, dtype=np.float64)
        scale = np.where(std > MIN_STD, 1 / np.maximum(std, MIN_STD), 0.0)
        weights = generator.normal(size=(len(mean), units))
        weights /= np.sqrt(max(np.count_nonzero(scale), 1))
        return cls(mean, scale, weights, generator.normal(size=units))

    def psi(self, states: np.ndarray) -> np.ndarray:
        """Features of the states, f64[R, P]: 1, the time, the observations if few, the layer."""
        scaled = (states - self.mean) * self.scale
        few = len(self.mean) if len(self.mean) <= MAX_LINEAR else 1
        hidden = np.tanh(scaled @ self.weights + self.biases)
        return np.concatenate([np.ones((len(states), 1)), scaled[:, :few], hidden], axis=1)

    def phi(self, psi: np.ndarray, advantage: np.ndarray) -> np.ndarray:
        """Features of states and actions, f64[R, P + G P']: `psi`, and products with advantages."""
        entries = advantage.shape[1]
        used = psi[:, : max(1, len(self.biases) // max(entries, 1))]
        products = advantage[:, :, None] * used[:, None, :]
        return np.concatenate([psi, products.reshape(len(psi), -1)], axis=1)


def _solve(basis: _Basis, steps: _Steps, chosen: np.ndarray, gamma: float) -> np.ndarray:
    """The weights of the fixed point."""
    rows, matrix, vector = np.flatnonzero(chosen), 0.0, 0.0
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[begin : begin + ROWS_AT_ONCE]
        here = basis.psi(steps.state[part])
        phi = basis.phi(here, steps.advantage[part])
        # An episode's steps are in one fold, so the next row is the next step.
        after = basis.psi(steps.state[np.minimum(part + 1, len(chosen) - 1)])
        following = np.where(steps.is_last[part, None], 0.0, after)
        difference = phi.copy()
        difference[:, : here.shape[1]] -= gamma * following
        matrix = matrix + phi.T @ difference
        vector = vector + phi.T @ steps.reward[part]
    ridge = np.full(len(vector), RIDGE * len(rows))
    ridge[0] = 0.0  # the constant
    return np.linalg.solve(matrix + np.diag(ridge), vector)


def _bounds(steps: _Steps, chosen: np.ndarray, gamma: float) -> tuple[float, float]:
    """The least and the most return from some step on."""
    rewards, last = steps.reward[chosen], steps.is_last[chosen]
    returns, after = np.empty(len(rewards)), 0.0
    for i in range(len(rewards) - 1, -1, -1):
        after = returns[i] = rewards[i] + gamma * (0.0 if last[i] else after)
    return returns.min(), returns.max()


def _predict(
    basis: _Basis, weights: np.ndarray, steps: _Steps, rows: np.ndarray, bounds: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """(V, Q) of some steps; V within the returns that were seen, whatever the fit."""
    values, action_values = np.empty(len(rows)), np.empty(len(rows))
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        here = basis.psi(steps.state[rows[part]])
        phi = basis.phi(here, steps.advantage[rows[part]])
        value = here @ weights[: here.shape[1]]
        advantage = phi[:, here.shape[1] :] @ weights[here.shape[1] :]
        values[part] = np.clip(value, *bounds)
        action_values[part] = values[part] + advantage
    return values, action_values
