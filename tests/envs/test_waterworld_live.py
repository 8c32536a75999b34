"""Random play of Waterworld and of PettingZoo's waterworld_v4: the same distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import waterworld_physics
from jaxrl.envs.waterworld import Params, Waterworld

pytest.importorskip("pymunk", reason="the reference needs pymunk; pip install -e .[sisl]")
waterworld_v4 = pytest.importorskip(
    "pettingzoo.sisl.waterworld_v4", reason="pip install -e .[sisl]"
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NUM_EPISODES, NUM_STEPS = 240, 100
KEY = jax.random.key(7)


def live(seed=0):
    env = waterworld_v4.parallel_env(max_cycles=NUM_STEPS)
    env.reset(seed=seed)
    return env


@pytest.fixture(scope="module")
def live_play():
    """[episodes, 4]: returns of both pursuers, catches of food, steps with a touch of poison."""
    env, random = live(), np.random.default_rng(0)
    pool = env.unwrapped.env
    rows = []
    for episode in range(NUM_EPISODES):
        env.reset(seed=episode)
        row = np.zeros(4)
        while env.agents:
            before = [evader.shape.counter for evader in pool.evaders]
            actions = {agent: random.uniform(-1, 1, 2).astype(np.float32) for agent in env.agents}
            obs, rewards, *_ = env.step(actions)
            row[:2] += [rewards["pursuer_0"], rewards["pursuer_1"]]
            row[2] += sum(
                max(evader.shape.counter - old, 0)
                for evader, old in zip(pool.evaders, before, strict=True)
            )
            row[3] += sum(values[-1] for values in obs.values())
        rows.append(row)
    return np.array(rows)


@pytest.fixture(scope="module")
def our_play():
    """The same, of 4,000 episodes."""
    env, params = Waterworld(), Params(max_cycles=NUM_STEPS)

    def episode(key):
        def step(state, key):
            action_key, step_key = jax.random.split(key)
            action = jax.random.uniform(action_key, (2, 2), minval=-1, maxval=1)
            obs, after, rewards, _, _ = env.step_stacked(step_key, state, action, params)
            counted = jnp.sum(jnp.maximum(after.counter - state.counter, 0))
            return after, jnp.array([rewards[0], rewards[1], counted, obs[:, -1].sum()])

        reset_key, play_key = jax.random.split(key)
        _, rows = jax.lax.scan(
            step, env.start(reset_key, params), jax.random.split(play_key, NUM_STEPS)
        )
        return rows.sum(0)

    return np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(KEY, 4000)))


def assert_same_mean(actual, expected):
    error = np.sqrt(actual.var(0) / len(actual) + expected.var(0) / len(expected))
    assert (abs(actual.mean(0) - expected.mean(0)) < 3.5 * error).all(), (
        actual.mean(0),
        expected.mean(0),
        error,
    )


def test_random_play_returns_and_counts_the_same(live_play, our_play):
    """Mean returns, touches of food that count and touches of poison."""
    assert_same_mean(our_play, live_play)
    assert live_play[:, 2].mean() > 0.5 and live_play[:, 3].mean() > 0.5  # something happened


def test_resets_are_distributed_as_the_references():
    expected = []
    env = live()
    pool = env.unwrapped.env
    for seed in range(300):
        env.reset(seed=seed)
        bodies = [
            thing.body for kind in (pool.pursuers, pool.evaders, pool.poisons) for thing in kind
        ]
        expected.append([[*body.position, *body.velocity] for body in bodies])
    expected = np.array(expected)
    state = jax.vmap(lambda key: Waterworld().start(key, Params()))(jax.random.split(KEY, 3000))
    drawn = np.concatenate(
        [np.swapaxes(state.position, 1, 2), np.swapaxes(state.velocity, 1, 2)], axis=2
    )
    for kind in (slice(0, 2), slice(2, 7), slice(7, 17)):
        assert_quantiles_agree(drawn[:, kind].reshape(-1, 4), expected[:, kind].reshape(-1, 4))


def test_respawns_are_distributed_as_the_references():
    pool = live().unwrapped.env
    for thing, radius in ((pool.evaders[0], 22.5), (pool.poisons[0], 8.4375)):
        shape = thing.shape
        expected = []
        for _ in range(4000):
            speed = pool._generate_speed(shape.max_speed)
            expected.append([*pool._generate_coord(shape.radius), *speed])
        expected = np.array(expected)
        bits = jax.random.bits(KEY, (3, 20_000))
        fixed = jnp.array([[375.0], [375.0]])
        clear, top = jnp.full(20_000, 2 * radius + 75), jnp.full(20_000, 75.0)
        drawn = np.concatenate(waterworld_physics.draw_respawns(bits, fixed, clear, top)).T
        assert shape.radius == radius
        assert_quantiles_agree(drawn, expected)
        away = [np.hypot(*(rows[:, :2] - 375).T)[:, None] for rows in (drawn, expected)]
        assert min(rows.min() for rows in away) > 2 * radius + 75
        assert_quantiles_agree(*away)


def assert_quantiles_agree(actual, expected):
    """Compares the share of `ours` below each decile of `expected`, per column.

    Columns that are constant in `expected` must be equal.
    """
    moving = expected.std(0) > 0
    assert (actual[:, ~moving] == expected[0, ~moving]).all()
    for share in np.arange(0.1, 1, 0.1):
        level = np.quantile(expected, share, axis=0)
        below = (actual < level).mean(0)
        error = np.sqrt(share * (1 - share) * (1 / len(actual) + 1 / len(expected)))
        assert (abs(below - share) < 4 * error)[moving].all(), (share, below)
