"""Episode statistics against Python lists: sums of whole numbers, so that all of them are exact."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.rollout.episode_stats import (
    EpisodeStats,
    LowerParts,
    Window,
    advance,
    no_episodes,
    report,
    summarise,
)

T, E, M, W = 6, 4, 3, 5
NAMES = ("goals", "falls")

reported = jax.jit(report)


def empty_window(size=W):
    return Window(no_episodes(M, NAMES, size), jnp.int32(0))


def random_iteration(rng, probability):
    """Episodes [T, E] as each step left them, and which steps ended one."""
    episodes = EpisodeStats(
        returns=jnp.float32(rng.integers(-50, 50, size=(T, E, M))),
        length=jnp.int32(rng.integers(1, 200, size=(T, E))),
        metrics={name: jnp.float32(rng.integers(-9, 9, size=(T, E))) for name in NAMES},
    )
    return episodes, rng.random((T, E)) < probability


def finished(episodes, over):
    """[(returns [M], length, {name.

    Metric})] of the episodes that ended, in order of step, then environment.
    """
    return [
        (
            np.asarray(episodes.returns)[t, e],
            int(episodes.length[t, e]),
            {name: float(values[t, e]) for name, values in episodes.metrics.items()},
        )
        for t in range(T)
        for e in range(E)
        if over[t, e]
    ]


def assert_summary(summary, episodes):
    assert summary.count == len(episodes)
    if not episodes:
        return
    np.testing.assert_array_equal(
        summary.agent_returns.sum, np.sum([returns for returns, _, _ in episodes], axis=0)
    )
    assert_spread(summary.episode_return, [returns.sum() for returns, _, _ in episodes])
    assert_spread(summary.episode_len, [length for _, length, _ in episodes])
    assert set(summary.custom_metrics) == set(NAMES)
    for name in NAMES:
        assert_spread(summary.custom_metrics[name], [metrics[name] for _, _, metrics in episodes])


def assert_spread(spread, numbers):
    expected = (sum(numbers), min(numbers), max(numbers))
    assert (float(spread.sum), float(spread.min), float(spread.max)) == expected


@pytest.mark.parametrize("seed", range(4))
def test_the_window_holds_the_last_episodes_or_all_of_an_iteration_that_had_more(seed):
    rng = np.random.default_rng(seed)
    window, last = empty_window(), deque(maxlen=W)
    seen = set()
    for i in range(25):
        probability = 0.05 if i < 4 else rng.choice([0.0, 0.05, 0.2, 0.5, 1.0])
        episodes, over = random_iteration(rng, probability)
        ended = finished(episodes, over)
        last.extend(ended)
        window, metrics = reported(window, episodes, jnp.asarray(over))
        assert_summary(metrics.iteration, ended)
        assert_summary(metrics.recent, ended if len(ended) > W else list(last))
        assert window.count == len(last)
        held = np.asarray(window.episodes.length)[W - len(last) :]  # oldest first, at the end
        assert held.tolist() == [length for _, length, _ in last]
        seen |= {"none" if not ended else "some" if len(ended) <= W else "more"}
        seen |= {"half full"} if 0 < len(last) < W else set()
    assert seen == {"none", "some", "more", "half full"}


def test_before_the_first_episode_ends_there_is_nothing_to_report():
    window = empty_window()
    for _ in range(3):
        episodes, over = random_iteration(np.random.default_rng(0), 0.0)
        window, metrics = reported(window, episodes, jnp.asarray(over))
        assert metrics.iteration.count == metrics.recent.count == window.count == 0
        assert metrics.recent.episode_return.sum == metrics.recent.episode_len.sum == 0
        assert not jnp.any(metrics.recent.agent_returns.sum)


def test_an_iteration_of_exactly_as_many_episodes_as_the_window_holds_fills_it():
    episodes, _ = random_iteration(np.random.default_rng(1), 0.0)
    over = np.zeros((T, E), bool)
    over[1, :] = over[3, 0] = True  # 5 = W
    window, metrics = reported(empty_window(), episodes, jnp.asarray(over))
    assert window.count == metrics.recent.count == W
    assert_summary(metrics.recent, finished(episodes, over))


def test_what_did_not_end_does_not_count_whatever_it_holds():
    """An episode that still runs may hold anything, infinities too."""
    episodes, over = random_iteration(np.random.default_rng(2), 0.3)
    going_on = ~over
    garbage = jax.tree.map(
        lambda leaf: jnp.where(
            going_on.reshape(T, E, *[1] * (leaf.ndim - 2)),
            jnp.asarray(jnp.inf).astype(leaf.dtype),
            leaf,
        ),
        episodes,
    )
    _, metrics = reported(empty_window(), garbage, jnp.asarray(over))
    assert over.any()
    assert_summary(metrics.iteration, finished(episodes, over))


def test_a_summary_by_hand():
    """Two episodes of two agents ended: returns 1 + 2 and 10 - 4.

    The third, in between, goes on.
    """
    episodes = EpisodeStats(
        returns=jnp.array([[1.0, 2.0], [100.0, 100.0], [10.0, -4.0]]),
        length=jnp.array([7, 99, 3]),
        metrics={"goals": jnp.array([0.5, 9.0, 1.0])},
    )
    summary = summarise(episodes, jnp.array([True, False, True]))
    assert summary.count == 2
    assert_spread(summary.episode_return, [3.0, 6.0])
    assert_spread(summary.episode_len, [7.0, 3.0])
    assert_spread(summary.custom_metrics["goals"], [0.5, 1.0])
    assert summary.agent_returns.sum.tolist() == [11.0, -2.0]


@pytest.mark.long
def test_the_bounds_of_a_policys_returns_by_hand():
    """Agents 0 and 2 are played by one policy, agent 1 by another; the middle episode goes on."""
    returns = jnp.array([[1.0, 2.0, 4.0], [9.0, 99.0, -9.0], [-3.0, 7.0, 0.5]])
    episodes = EpisodeStats(returns=returns, length=jnp.array([7, 99, 3]), metrics={})
    ended = jnp.array([True, False, True])
    pair, alone = summarise(episodes, ended, (((0, 2),), ((1,),))).policy_returns
    assert (pair.min.tolist(), pair.max.tolist()) == ([-2.5], [5.0])
    assert (alone.min.tolist(), alone.max.tolist()) == ([2.0], [7.0])
    assert summarise(episodes, ended).policy_returns == ()


def test_a_step_adds_up_and_an_end_starts_again_from_zero():
    running = no_episodes(2, ("goals",))
    lengths, returns, goals, carried = [], [], [], []
    for step, over in enumerate([False, True, False], start=1):
        running, reached = advance(
            running,
            jnp.array([1.0, 10.0 * step]),
            {"goals": jnp.float32(step)},
            jnp.array(over),
            jnp.ones(2, bool),
        )
        lengths.append(int(reached.length))
        returns.append(reached.returns.tolist())
        goals.append(float(reached.metrics["goals"]))
        carried.append(int(running.length))
    assert lengths == [1, 2, 1]
    assert returns == [[1, 10], [2, 30], [1, 30]]
    assert goals == [1, 3, 3]
    assert carried == [1, 0, 1]


@pytest.mark.long
def test_the_steps_of_agents_that_leave_are_counted_by_agent():
    """Episodes of three and two steps; the second agent acts in the first step of each alone."""
    running = no_episodes(2, (), always_active=False)
    rows = []
    for first, over in [(True, False), (False, False), (False, True), (True, False), (False, True)]:
        active = jnp.array([True, first])
        running, reached = advance(running, jnp.zeros(2), {}, jnp.array(over), active)
        rows.append((reached, over))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[reached for reached, _ in rows])
    summary = summarise(stacked, jnp.array([over for _, over in rows]))
    assert summary.count == 2
    assert summary.agent_steps.tolist() == [5, 2]
    assert running.agent_steps.tolist() == [0, 0]


def test_where_all_agents_always_act_nothing_more_is_kept():
    running = no_episodes(2, ())
    _, reached = advance(running, jnp.zeros(2), {}, jnp.array(False), jnp.ones(2, bool))
    summary = summarise(running, jnp.array(True))
    kept = running.agent_steps, reached.agent_steps, summary.agent_steps
    assert kept == (None, None, None)


def test_a_return_is_right_however_long_the_episode_is():
    """200,000 steps of reward 0.1, and a metric of 1 and of 1e-3; float32 sums give 19,959."""
    steps = 200_000

    def step(t, state):
        metrics = {"goals": jnp.float32(1.0), "falls": jnp.float32(1e-3)}
        is_last = t == steps - 1
        return advance(state[0], jnp.float32([0.1, -7.3]), metrics, is_last, jnp.ones(2, bool))

    start = no_episodes(2, NAMES)
    _, reached = jax.jit(lambda: jax.lax.fori_loop(0, steps, step, (start, start)))()
    returns = steps * np.float64(np.float32([0.1, -7.3]))
    np.testing.assert_allclose(reached.returns, returns, rtol=1e-7)
    np.testing.assert_allclose(reached.returns + reached.lower.returns, returns, rtol=1e-7)
    assert reached.metrics["goals"] == steps
    np.testing.assert_allclose(reached.metrics["falls"], steps * 1e-3, rtol=1e-6)


def test_whole_numbers_are_summed_without_rounding_over_episodes_too():
    """Three episodes, their returns and lengths beyond the whole numbers of float32."""
    returns, lower = jnp.full((3, 1), 2.0**24), jnp.array([[1.0], [0.0], [1.0]])
    length = jnp.full(3, 2**24 + 1)
    episodes = EpisodeStats(returns, length, {}, lower=LowerParts(lower, {}))
    summary = jax.device_get(summarise(episodes, jnp.ones(3, bool)))
    for spread, total in (
        (summary.episode_return, 3 * 2**24 + 2),
        (summary.episode_len, 3 * 2**24 + 3),
    ):
        assert float(spread.sum) + float(spread.lower) == total
    of_agents = float(summary.agent_returns.sum[0]) + float(summary.agent_returns.lower[0])
    assert of_agents == 3 * 2**24 + 2
