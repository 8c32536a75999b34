"""CartPole against Gymnasium's CartPole-v1, state by state."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.envs.cartpole import CartPole, Params, State, accelerations, has_fallen, integrate

ENV, PARAMS = CartPole(), Params()
KEY = jax.random.key(0)
step_env = jax.jit(ENV.step_env)
step = jax.jit(ENV.step)
step_all = jax.jit(jax.vmap(ENV.step_env, in_axes=(None, 0, 0, None)))


def plain_cartpole(motion=None):
    """Gymnasium's environment without its time limit, in the state `motion` (float64)."""
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    if motion is not None:
        env.state = np.float64(motion)
    return env


def plain_episode(motion, actions):
    """Gymnasium's (states f64[n, 4], terminated bool[n], rewards[n]), to the end or last action."""
    env, rows = plain_cartpole(motion), []
    for action in actions:
        _, reward, terminated, _, _ = env.step(int(action))
        rows.append((env.state, terminated, reward))
        if terminated:
            break
    return tuple(np.array(column) for column in zip(*rows, strict=True))


def our_state(motion, time=0):
    return State(motion=jnp.asarray(motion, jnp.float32), time=jnp.int32(time))


def stabilise(motion):
    """A controller that balances forever: it pushes to the side to which the pole falls."""
    x, x_dot, theta, theta_dot = motion
    return int(0.05 * x + 0.2 * x_dot + 3.0 * theta + theta_dot > 0)


def random_episodes(count, seed=0):
    random = np.random.default_rng(seed)
    for _ in range(count):
        motion = random.uniform(-0.05, 0.05, 4)
        actions = random.integers(0, 2, 500)
        yield motion, actions, *plain_episode(motion, actions)


def test_each_step_from_gymnasiums_state_reaches_gymnasiums_next_state():
    before, actions, after, ends = [], [], [], []
    for motion, chosen, states, terminated, rewards in random_episodes(40):
        before += [motion, *states[:-1]]
        actions += list(chosen[: len(states)])
        after += list(states)
        ends += list(terminated)
        assert (rewards == 1.0).all()
    state = State(motion=jnp.float32(np.array(before)), time=jnp.zeros(len(before), jnp.int32))
    obs, state, reward, terminated, _ = step_all(KEY, state, jnp.array(actions), PARAMS)
    assert len(after) > 600 and sum(ends) == 40
    np.testing.assert_allclose(obs, after, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state.motion, obs)
    np.testing.assert_array_equal(terminated, ends)
    np.testing.assert_array_equal(reward, np.ones(len(after)))


def test_whole_episodes_follow_gymnasium_and_end_on_the_same_step():
    for motion, actions, states, terminated, _ in random_episodes(8, seed=1):
        state, reached = our_state(motion), []
        for action in actions[: len(states)]:
            _, state, reward, ended, _ = step_env(KEY, state, action, PARAMS)
            reached.append((np.asarray(state.motion), bool(ended)))
            assert reward == 1.0  # the step that falls included
        np.testing.assert_allclose([row for row, _ in reached], states, rtol=1e-4, atol=1e-5)
        assert (
            [ended for _, ended in reached]
            == terminated.tolist()
            == [False] * (len(states) - 1) + [True]
        )


def test_other_numbers_of_the_physics_follow_gymnasium_too():
    plain = plain_cartpole([0.1, -0.2, 0.05, 0.3])
    plain.gravity, plain.force_mag, plain.tau = 3.7, 6.0, 0.05
    plain.masscart, plain.masspole, plain.length = 2.0, 0.4, 1.5
    plain.total_mass, plain.polemass_length = 2.0 + 0.4, 0.4 * 1.5
    params = Params(
        gravity=3.7, cart_mass=2.0, pole_mass=0.4, pole_half_length=1.5, force=6.0, time_step=0.05
    )
    state = our_state(plain.state)
    for action in (0, 1, 1, 0, 1):
        plain.step(action)
        _, state, _, _, _ = step_env(KEY, state, action, params)
        np.testing.assert_allclose(state.motion, plain.state, rtol=1e-5, atol=1e-6)


def test_a_push_from_rest_accelerates_cart_and_pole_as_by_hand():
    params = Params(cart_mass=1.0, pole_mass=1.0, pole_half_length=1.0)
    x_acceleration, theta_acceleration = accelerations(jnp.zeros(4), jnp.float32(10.0), params)
    # push = 10 / 2 = 5; theta'' = -5 / (4/3 - 1/2) = -6; x'' = 5 + 6 / 2 = 8
    np.testing.assert_allclose([x_acceleration, theta_acceleration], [8.0, -6.0], rtol=1e-6)


def test_positions_move_by_the_velocities_before_the_push():
    motion = integrate(jnp.array([1.0, 2.0, 0.0, 3.0]), jnp.float32(10.0), PARAMS)
    np.testing.assert_allclose(motion[jnp.array([0, 2])], [1.0 + 0.02 * 2.0, 0.02 * 3.0], rtol=1e-6)


@settings(max_examples=40)
@given(st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4), st.sampled_from([-10.0, 10.0]))
def test_the_mirrored_push_gives_the_mirrored_motion(motion, force):
    motion, force = jnp.array(motion, jnp.float32), jnp.float32(force)
    np.testing.assert_allclose(
        integrate(-motion, -force, PARAMS), -integrate(motion, force, PARAMS), rtol=1e-6
    )


@pytest.mark.parametrize("entry, threshold", [(0, 2.4), (2, 12 * 2 * np.pi / 360)])
def test_the_thresholds_themselves_are_still_standing(entry, threshold):
    at = jnp.zeros(4).at[entry].set(threshold)
    for side in (at, -at):
        assert not has_fallen(side, PARAMS)
        assert has_fallen(side * 1.00001, PARAMS)


def test_the_clock_truncates_at_exactly_500_steps_where_gymnasium_does():
    env = gymnasium.make("CartPole-v1")
    expected, _ = env.reset(seed=3)
    state = our_state(expected)
    # Each is controlled by its state: in an unstable system rounding errors grow without bound.
    for count in range(1, 501):
        expected, _, fallen, cut, _ = env.step(stabilise(expected))
        action = stabilise(state.motion.tolist())
        _, state, _, terminated, truncated, _ = step(KEY, state, action, PARAMS)
        assert (bool(terminated), bool(truncated)) == (fallen, cut) == (False, count == 500)
    assert state.time == 0  # a new episode has begun


def test_a_fall_on_the_last_step_counts_as_terminated_and_not_as_truncated():
    falling = our_state([0.0, 0.0, 0.2, 3.0], time=499)
    _, _, reward, terminated, truncated, _ = step(KEY, falling, 0, PARAMS)
    assert (reward, bool(terminated), bool(truncated)) == (1.0, True, False)


def test_the_final_observation_is_what_the_step_reached_whether_or_not_the_episode_ended():
    for theta_dot, ends in ((0.0, False), (3.0, True)):
        state = our_state([0.0, 0.1, 0.2, theta_dot])
        reached, _, _, _, _ = step_env(KEY, state, 1, PARAMS)
        obs, state, _, terminated, _, info = step(KEY, state, 1, PARAMS)
        assert terminated == ends
        np.testing.assert_array_equal(info["final_observation"], reached)
        np.testing.assert_array_equal(obs, state.motion)
        assert ends == (not np.array_equal(obs, reached))
        assert (np.abs(obs).max() <= 0.05) == ends


def test_a_reset_is_uniform_within_its_range():
    keys = jax.random.split(KEY, 4000)
    obs, state = jax.vmap(ENV.reset, in_axes=(0, None))(keys, PARAMS)
    np.testing.assert_array_equal(obs, state.motion)
    assert (np.abs(obs) <= 0.05).all() and (state.time == 0).all()
    deviation = 0.05 / np.sqrt(3)  # of a uniform draw
    np.testing.assert_allclose(obs.mean(0), np.zeros(4), atol=4 * deviation / np.sqrt(len(keys)))
    np.testing.assert_allclose(obs.std(0), np.full(4, deviation), rtol=0.05)
    assert np.abs(np.corrcoef(obs.T) - np.eye(4)).max() < 4 / np.sqrt(len(keys))


def test_every_number_may_differ_by_member_of_a_batch():
    lengths = np.float32([0.25, 0.5, 1.0])
    params = jax.jit(jax.vmap(lambda length: PARAMS.replace(pole_half_length=length)))(lengths)
    over_params = jax.jit(jax.vmap(ENV.step_env, in_axes=(None, None, None, 0)))
    batch = np.asarray(over_params(KEY, our_state([0, 0, 0.1, 0]), 1, params)[0])
    for row, length in zip(batch, lengths, strict=True):
        alone = step_env(
            KEY, our_state([0, 0, 0.1, 0]), 1, PARAMS.replace(pole_half_length=length)
        )[0]
        np.testing.assert_allclose(row, alone, rtol=1e-6)


def test_the_observation_space_is_gymnasiums_with_the_largest_float_for_infinity():
    space, plain = ENV.observation_space(), plain_cartpole().observation_space
    largest = np.finfo(np.float32).max
    assert space == ENV.observation_space(PARAMS) and space.shape == (4,) and hash(space)
    np.testing.assert_array_equal(np.float32(space.high), np.minimum(plain.high, largest))
    np.testing.assert_array_equal(np.float32(space.low), np.maximum(plain.low, -largest))
    assert ENV.num_actions == plain_cartpole().action_space.n


def test_the_bounds_follow_params_and_promise_nothing_for_traced_ones():
    assert ENV.observation_space(PARAMS.replace(x_threshold=1.0)).high[0] == 2.0
    traced = []
    jax.jit(lambda params: traced.append(ENV.observation_space(params)))(PARAMS)
    assert (
        traced[0].high
        == ENV.observation_space(jax.tree.map(lambda leaf: jnp.full(3, leaf), PARAMS)).high
    )
    assert traced[0].contains(jnp.array([1e9, 0.0, -1e9, 0.0]))


def test_environments_are_equal_and_hashable():
    assert CartPole() == CartPole() and hash(CartPole()) == hash(CartPole())


def test_pictures_of_a_batch_show_where_cart_and_pole_are():
    motions = np.float32([[-1.0, 0, 0, 0], [1.0, 0, 0, 0], [1.0, 0, 0.2, 0]])
    states = State(motion=motions, time=np.zeros(3, np.int32))
    pictures = jax.jit(jax.vmap(ENV.render, in_axes=(0, None)))(states, PARAMS)
    assert pictures.shape == (3, 200, 300, 3) and pictures.dtype == jnp.uint8
    left, right, leaning = np.asarray(pictures, np.int32)

    def middle(picture, colour):  # of the pixels that are nearly of this colour
        return np.argwhere(np.abs(picture - colour).max(-1) < 8).mean(0)[1]

    cart, pole = (44, 62, 92), (224, 146, 46)
    metre = 300 / (2 * 1.25 * 2.4)
    np.testing.assert_allclose(
        [middle(left, cart), middle(right, cart)], [149.5 - metre, 149.5 + metre], atol=0.6
    )
    assert abs(middle(right, pole) - middle(right, cart)) < 0.6
    assert middle(leaning, pole) - middle(leaning, cart) > 3


def test_sutton_and_bartos_reward_is_gymnasiums():
    reference = gymnasium.make("CartPole-v1", sutton_barto_reward=True).unwrapped
    reference.reset(seed=0)
    reference.state = np.array([0.0, 0.0, 0.15, 1.0])
    env, state = CartPole(sutton_barto_reward=True), ENV.reset(KEY)[1]
    state = state.replace(motion=jnp.array([0.0, 0.0, 0.15, 1.0]))
    rewards = []
    for _ in range(6):
        _, state, reward, terminated, _ = env.step_env(KEY, state, jnp.int32(0), PARAMS)
        _, expected_reward, expected_end, _, _ = reference.step(0)
        assert (float(reward), bool(terminated)) == (expected_reward, expected_end)
        rewards.append(float(reward))
        if terminated:
            break
    assert rewards[0] == 0.0 and rewards[-1] == -1.0
