"""Starts and random play of pursuit against the reference (`pip install jaxrl[sisl]`)."""

import importlib
import warnings

import jax
import numpy as np
import pytest

from jaxrl.envs.pursuit import Pursuit
from jaxrl.envs.pursuit_rules import Params

# Importing the reference warns of packages of its own: nothing that this repository could mend.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        pursuit_v4 = importlib.import_module("pettingzoo.sisl.pursuit_v4")
    except ImportError as error:
        pytest.skip(f"needs pettingzoo 1.24.3: {error}", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NUM_EPISODES, NUM_STEPS, NUM_STARTS = 200, 60, 400
FREEDOM = 3.5  # standard errors; of a right environment one check in two thousand fails


def reference(**settings):
    """(parallel environment, the object with its bodies), reset."""
    env = pursuit_v4.parallel_env(**settings)
    env.reset(seed=0)
    return env, env.unwrapped.env if hasattr(env.unwrapped, "env") else env.aec_env.unwrapped.env


def cells(layer):
    return np.array([layer.get_position(i) for i in range(layer.n_agents())])


def agree(actual, expected):
    """Whether the means of two samples differ by no more than chance.

    The spread is that of `ours`, the larger sample: catches are rare and have a high reward, so the
    few expected episodes are not enough to estimate it.
    """
    error = np.std(actual) * np.sqrt(1 / len(actual) + 1 / len(expected))
    return abs(np.mean(actual) - np.mean(expected)) <= FREEDOM * error


def chi_square(some, others):
    """The statistic for two histograms of any sums: about the number of cells if they agree."""
    ratio = np.sqrt(others.sum() / some.sum())
    total = some + others
    return ((some * ratio - others / ratio) ** 2 / np.where(total == 0, 1, total)).sum()


# The reference never manages to place 30 evaders in 0.8.
@pytest.mark.parametrize("window, n_evaders", [(1.0, 30), (0.8, 10)])
def test_starts_are_where_the_reference_starts(window, n_evaders):
    env, inner = reference(constraint_window=window, n_evaders=n_evaders)
    expected = []
    for seed in range(NUM_STARTS):
        env.reset(seed=seed)
        expected.append((cells(inner.pursuer_layer), cells(inner.evader_layer)))
    reset = jax.vmap(Pursuit(n_evaders=n_evaders).reset_stacked, in_axes=(0, None))
    _, states = jax.jit(reset)(
        jax.random.split(jax.random.key(0), 20 * NUM_STARTS), Params(constraint_window=window)
    )
    for kind, positions in enumerate((states.pursuers, states.evaders)):
        counts = [
            np.bincount(np.asarray(found).reshape(-1, 2) @ [16, 1], minlength=256)
            for found in (np.swapaxes(positions, 1, 2), [start[kind] for start in expected])
        ]
        # Bodies of one start share its window and its distances, so a start counts as fewer than
        # its bodies.
        assert chi_square(*counts) < (1 if window == 1.0 else 3) * (193 + 5 * np.sqrt(2 * 193))
        for axis in (0, 1):
            starts = np.asarray(positions)[:, axis].mean(1)
            assert agree(starts, [start[kind][:, axis].mean() for start in expected])


def reference_play(settings):
    """(returns [episodes, agents], catches [episodes])."""
    env, inner = reference(max_cycles=NUM_STEPS, **settings)
    random, returns, catches = np.random.default_rng(0), [], []
    for seed in range(NUM_EPISODES):
        env.reset(seed=seed)
        num_evaders, total = inner.evader_layer.n_agents(), 0.0
        while env.agents:
            actions = {agent: int(random.integers(5)) for agent in env.agents}
            total += np.array(list(env.step(actions)[1].values()))
        returns.append(total)
        catches.append(num_evaders - inner.evader_layer.n_agents())
    return np.array(returns), catches


def our_play(settings, num_episodes=4000):
    env, params = Pursuit(**settings), Params(max_cycles=NUM_STEPS)

    def episode(key):
        def step(state, key):
            act_key, step_key = jax.random.split(key)
            action = jax.random.randint(act_key, (env.n_pursuers,), 0, 5)
            _, reached, rewards, _, info = env.step_stacked(step_key, state, action, params)
            going = state.alive.any()
            return reached, (rewards * going, info["metrics"]["catches"])

        _, state = env.reset_stacked(key, params)
        return jax.lax.scan(step, state, jax.random.split(jax.random.fold_in(key, 1), NUM_STEPS))[1]

    rewards, catches = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), num_episodes))
    return np.asarray(rewards.sum(1)), np.asarray(catches.sum(1))


@pytest.mark.parametrize("settings", [
    dict(), dict(x_size=8, y_size=8, n_evaders=6, surround=False, shared_reward=False),
    dict(x_size=6, y_size=6, n_evaders=6, n_pursuers=6),  # small, so that many are surrounded
    dict(x_size=8, y_size=8, n_evaders=6, surround=False, shared_reward=0.5),
])  # fmt: skip
def test_random_play_pays_and_catches_what_it_does_in_the_reference(settings):
    expected_returns, expected_catches = reference_play(settings)
    returns, catches = our_play(settings)
    # The mean, and the range over the agents, which is 0 where all rewards are shared.
    for of_episode in (np.mean, np.ptp):
        actual, expected = of_episode(returns, axis=1), of_episode(expected_returns, axis=1)
        assert agree(actual, expected), (of_episode.__name__, np.mean(actual), np.mean(expected))
    assert agree(catches, expected_catches), (np.mean(catches), np.mean(expected_catches))
