"""Octax's games: the library's own steps, beside it."""

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig, check_env, make, make_train
from jaxrl.core.spaces import Box, Discrete
from tests.messages import refused_by

pytest.importorskip("octax", reason="the extra octax is not installed")

from octax.environments import create_environment

pytestmark = [
    pytest.mark.usefixtures("rank_promotion"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # the library's, of the types of an update
]


def test_a_step_is_the_librarys_and_the_time_limit_is_ours():
    env, params = make("octax:brix", frame_skip=2, max_num_steps_per_episodes=40)
    library, _ = create_environment("brix", frame_skip=2)
    actions = np.random.default_rng(0).integers(3, size=60)

    def ours(state, action):
        obs, state, reward, terminated, _ = env.step_env(jax.random.key(0), state, action, params)
        return state, (obs.transpose(2, 1, 0), reward, terminated, env.is_truncated(state, params))

    def theirs(state, action):
        state, obs, reward, terminated, _, _ = library.step(state, action)
        return state, (obs, reward, terminated)

    key = jax.random.PRNGKey(0)
    first, state = env.reset_env(key, params)
    other, obs, _ = library.reset(key)
    np.testing.assert_array_equal(first.transpose(2, 1, 0), obs)
    *found, truncated = jax.jit(lambda: jax.lax.scan(ours, state, actions)[1])()
    wanted = jax.jit(lambda: jax.lax.scan(theirs, other, actions)[1])()
    jax.tree.map(np.testing.assert_array_equal, tuple(found), wanted)
    assert found[1].sum() >= 1  # a brick was hit
    np.testing.assert_array_equal(truncated, np.arange(1, 61) >= 40)


@pytest.mark.long
def test_a_level_is_checked_and_trains():
    env, params = make("octax:cavern3")
    assert env.observation_space(params) == Box(0, 1, (32, 64, 4), "bool")
    assert env.action_space(params) == Discrete(5)
    check_env("octax:cavern3")
    sizes = {"num_envs": 2, "rollout_length": 4, "minibatch_size": 8, "num_epochs": 1}
    network = {"conv_filters": ((4, 8, 8),), "fcnet_hiddens": (8,)}
    config = PPOConfig(env="octax:cavern3", total_env_steps=8, **sizes, **network)
    jax.block_until_ready(jax.jit(make_train(config))(jax.random.key(0)))


def test_a_users_game_is_taken_and_drawn():
    game, _ = create_environment("brix", max_num_steps_per_episodes=9)
    env, params = make(game)
    assert params.max_steps_in_episode == 9 and env == make(game)[0] != make("octax:brix")[0]
    _, state = env.reset(jax.random.key(0), params)
    picture = np.asarray(env.render(state, params))
    assert picture.shape == (256, 512, 3) and set(np.unique(picture)) == {0, 255}
    np.testing.assert_array_equal(picture[::8, ::8, 0] > 0, np.asarray(state.inner.display).T)


test_what_cannot_work_is_refused_in_one_line = refused_by(
    lambda name, args: make(f"octax:{name}", **args),
    [
        ("worms", {}, "unknown octax environment 'worms'; did you mean 'worm'"),
        ("cavern", {}, "unknown octax environment 'cavern'; did you mean 'cavern"),
        ("brix", {"frame_skip": "x"}, "frame_skip must be a finite number, not 'x'"),
        ("brix", {"max_num_steps_per_episodes": 0}, "must be an integer of at least 1, not 0"),
    ],
)
