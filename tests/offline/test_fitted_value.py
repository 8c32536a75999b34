"""Fitted Q evaluation: values that average to V, have not seen their episode, and are right."""

import numpy as np
import pytest

from jaxrl.offline.fitted_value import fit_held_out
from jaxrl.offline.judged_episodes import JudgedEpisodes

TARGET = np.array([[0.3, 0.7], [0.8, 0.2]])  # [S, A]


def drawn(number, seed=0):
    """Up to five steps in two states, by a uniform policy; action 1 changes the state.

    The reward is 1 for action 1 in state 0, and an episode ends after each step with probability
    1/4.
    """
    generator = np.random.default_rng(seed)
    states, actions, lengths = [], [], []
    for _ in range(number):
        state, length = int(generator.integers(2)), 0
        while length < 5 and (length == 0 or generator.random() < 0.75):
            states.append(state)
            actions.append(int(generator.integers(2)))
            state, length = (state + actions[-1]) % 2, length + 1
        lengths.append(length)
    return np.array(states), np.array(actions), np.array(lengths)


def judged_of(states, actions, lengths, rewards=None):
    rewards = 1.0 * ((states == 0) & (actions == 1)) if rewards is None else rewards
    inside = np.arange(lengths.max()) < lengths[:, None]
    placed = np.zeros(inside.shape)
    placed[inside] = rewards
    eye = np.eye(2, dtype=np.float32)
    expected = TARGET[states].astype(np.float32)
    return JudgedEpisodes(
        np.zeros_like(placed), placed, lengths, eye[states], eye[actions], expected
    )


def true_values(horizon, gamma):
    """Q [T, S, A] and V [T, S] of the target, backwards in time."""
    q, v = np.zeros((horizon, 2, 2)), np.zeros((horizon + 1, 2))
    for t in reversed(range(horizon)):
        goes_on = 0.75 if t < horizon - 1 else 0.0
        for state in range(2):
            for action in range(2):
                reward = float(state == 0 and action == 1)
                q[t, state, action] = reward + gamma * goes_on * v[t + 1, (state + action) % 2]
        v[t] = np.sum(TARGET * q[t], axis=-1)
    return q, v


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_fitted_values_are_near_the_true_ones(gamma):
    states, actions, lengths = drawn(2000)
    fitted = fit_held_out(judged_of(states, actions, lengths), gamma=gamma)
    inside = np.arange(5) < lengths[:, None]
    time = np.nonzero(inside)[1]
    q, v = true_values(5, gamma)
    np.testing.assert_allclose(fitted.values[inside], v[time, states], atol=0.15)
    np.testing.assert_allclose(fitted.action_values[inside], q[time, states, actions], atol=0.2)
    assert not fitted.values[~inside].any() and not fitted.action_values[~inside].any()


def test_action_values_average_to_the_value_whatever_the_fit():
    """The last episode's actions are rewritten: it is held out from the fit of its own values."""
    states, actions, lengths = drawn(30)
    last = slice(-lengths[-1], None)
    by_action = []
    for action in range(2):
        rewritten = actions.copy()
        rewritten[last] = action
        by_action.append(fit_held_out(judged_of(states, rewritten, lengths)))
    steps = slice(0, lengths[-1])
    values = by_action[0].values[-1, steps]
    np.testing.assert_allclose(by_action[1].values[-1, steps], values)
    q = np.stack([fitted.action_values[-1, steps] for fitted in by_action], axis=-1)
    assert np.abs(q[:, 0] - q[:, 1]).min() > 0.05
    np.testing.assert_allclose(np.sum(TARGET[states[last]] * q, axis=-1), values, atol=1e-6)


def test_an_episodes_rewards_do_not_change_its_values():
    states, actions, lengths = drawn(30)
    judged = judged_of(states, actions, lengths)
    rich = judged._replace(rewards=judged.rewards.copy())
    rich.rewards[4] += 100.0
    before, after = fit_held_out(judged), fit_held_out(rich)
    np.testing.assert_array_equal(before.values[4], after.values[4])
    np.testing.assert_array_equal(before.action_values[4], after.action_values[4])
    assert np.abs(before.values - after.values).max() > 1.0


def test_two_episodes_are_enough_for_values():
    states, actions, lengths = drawn(2)
    fitted = fit_held_out(judged_of(states, actions, lengths))
    assert np.isfinite(fitted.values).all() and np.isfinite(fitted.action_values).all()


def test_a_state_of_many_numbers_and_no_actions_can_be_fitted():
    generator = np.random.default_rng(0)
    nothing = np.zeros((40, 0), np.float32)
    states = generator.normal(size=(40, 300)).astype(np.float32)
    judged = JudgedEpisodes(
        np.zeros((20, 2)), np.ones((20, 2)), np.full(20, 2), states, nothing, nothing
    )
    fitted = fit_held_out(judged)
    np.testing.assert_array_equal(fitted.values, fitted.action_values)
    np.testing.assert_allclose(fitted.values, np.tile([2.0, 1.0], (20, 1)), atol=0.1)
