"""Tests of `frame_stack`: a deque of frames in NumPy, and Gymnasium's wrapper, as oracles."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

import jaxrl
from jaxrl.core.env import raw_reset
from jaxrl.core.spaces import Box, Dict
from tests.by_hand import by_hand
from tests.messages import refused_by
from tests.probes import Forbidden

NUM = 3


@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_the_frames_are_those_of_gymnasiums_wrapper_also_across_episodes(padding):
    cartpole, params = jaxrl.make("cartpole", max_steps_in_episode=5)
    stacked = jaxrl.to_gymnasium(jaxrl.frame_stack(cartpole, NUM, padding), params)
    wrapped = jaxrl.to_gymnasium(cartpole, params)
    wrapped = FrameStackObservation(wrapped, NUM, padding_type=padding)
    rng = np.random.default_rng(0)
    for seed in range(2):
        (obs, _), (expected, _) = stacked.reset(seed=seed), wrapped.reset(seed=seed)
        is_over, length = False, 0
        while not is_over:
            np.testing.assert_array_equal(obs, np.concatenate(expected))
            action = int(rng.integers(2))
            obs, _, *ends, _ = stacked.step(action)
            expected, _, *expected_ends, _ = wrapped.step(action)
            assert ends == expected_ends
            is_over, length = any(ends), length + 1
        np.testing.assert_array_equal(obs, np.concatenate(expected))  # as the step reached it
        assert length == 5


def test_a_step_that_ends_an_episode_begins_the_next_with_its_first_frame_alone():
    env = jaxrl.frame_stack("cartpole", NUM)
    params = env.default_params.replace(max_steps_in_episode=4)
    step, key = jax.jit(env.step), jax.random.key(0)
    obs, state = env.reset(key, params)
    frames = deque([obs[-4:]] * NUM, maxlen=NUM)
    for _ in range(9):
        key, step_key = jax.random.split(key)
        obs, state, _, terminated, truncated, info = step(step_key, state, jnp.int32(1), params)
        final = info["final_observation"]
        frames.append(final[-4:])
        np.testing.assert_array_equal(final, np.concatenate(frames))
        if terminated | truncated:
            frames = deque([obs[-4:]] * NUM, maxlen=NUM)
        np.testing.assert_array_equal(obs, np.concatenate(frames))


@pytest.mark.long
def test_episodes_of_training_hold_no_frame_of_another_episode():
    env_args = {"env": "cartpole", "num_frames": NUM, "max_steps_in_episode": 7}
    sizes = {"num_envs": 2, "train_batch_size": 32, "minibatch_size": 32, "num_epochs": 1}
    config = jaxrl.PPOConfig(
        env="jaxrl:frame_stack", env_args=env_args, total_env_steps=32, fcnet_hiddens=(4,), **sizes
    )
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.train()
        episodes = trainer.sample(3)
    for episode in episodes:
        observations = episode.get_observations()
        assert len(observations) == len(episode) + 1
        frames = deque([observations[0, -4:]] * NUM, maxlen=NUM)
        for obs in observations:
            frames.append(obs[-4:])
            np.testing.assert_array_equal(obs, np.concatenate(frames))


class Twosome(jaxrl.MultiAgentEnvironment):
    """Two agents with dicts by agent, who see the time."""

    agents = ("a", "b")
    default_params = None
    low, high = (0.0, -1.0), (9.0, 1.0)
    observation_space = lambda self, agent=None, params=None: Box(self.low, self.high, (2,))
    action_space = lambda self, agent=None, params=None: Box(0.0, 1.0, (1,))
    is_truncated = lambda self, state, params: state >= 4

    def _by_agent(self, time):
        return {"a": jnp.array([time, 1.0]), "b": jnp.array([2 * time, -1.0])}

    def reset_env(self, key, params):
        return self._by_agent(0.0), jnp.float32(0)

    def step_env(self, key, state, action, params):
        zeros = dict.fromkeys(self.agents, jnp.float32(0))
        ends = dict.fromkeys((*self.agents, "__all__"), jnp.bool_(False))
        return self._by_agent(state + 1), state + 1, zeros, ends, {}


def test_each_agent_has_its_own_frames():
    env = jaxrl.frame_stack(Twosome(), 2)
    assert env.observation_space("a") == Box((0, -1, 0, -1), (9, 1, 9, 1), (4,))
    obs, state = env.reset_env(jax.random.key(0), None)
    np.testing.assert_array_equal(obs["b"], [0, -1, 0, -1])
    obs, *_ = env.step_env(jax.random.key(0), state, None, None)
    np.testing.assert_array_equal(obs["a"], [0, 1, 1, 1])
    np.testing.assert_array_equal(obs["b"], [0, -1, 2, -1])


class Masked(Forbidden):
    """Two actions of four are possible, and observed beside the mask that says so."""

    told = "part"
    mask = Box(0, 1, (4,), "bool")

    def observation_space(self, params=None):
        return Dict({"observations": Box(1.0, 9.0, (4,)), "action_mask": self.mask})

    def _observe(self, state):
        return {"observations": 1.0 + state.cue, "action_mask": state.cue == 1}


@pytest.mark.long
def test_a_mask_beside_the_observations_is_that_of_the_last_frame_alone():
    env = jaxrl.frame_stack(Masked(), NUM)
    assert env.observation_space().spaces["action_mask"] == Masked.mask
    obs, state = env.reset_env(jax.random.key(0), None)
    for _ in range(2):
        np.testing.assert_array_equal(obs["action_mask"], state.inner.cue == 1)
        np.testing.assert_array_equal(obs["observations"], jnp.tile(1.0 + state.inner.cue, NUM))
        obs, state, *_ = env.step_env(jax.random.key(1), state, jnp.int32(0), None)
    sizes = {"num_envs": 2, "rollout_length": 4, "minibatch_size": 8, "fcnet_hiddens": (4,)}
    config = jaxrl.PPOConfig(env=env, total_env_steps=8, **sizes)
    jax.eval_shape(jaxrl.make_train(config), jax.random.key(0), config.hypers())


class Below(Twosome):
    low, high = (-9.0, -1.0), (-2.0, 1.0)


def test_zeros_before_an_episode_lie_in_the_space():
    env = jaxrl.frame_stack(Masked(), 2, "zero")
    assert env.observation_space()["observations"] == Box(0.0, 9.0, (8,))
    assert env.observation_space().contains(env.reset_env(jax.random.key(0), None)[0])
    below = jaxrl.frame_stack(Below(), 2, "zero")
    assert below.observation_space("a") == Box((-9, -1) * 2, (0, 1) * 2, (4,))


@pytest.mark.long
def test_the_state_that_a_critic_sees_is_the_games_through_frames_and_seats():
    game, params = jaxrl.make("waterworld")
    for env in (jaxrl.frame_stack(game, 2), jaxrl.frame_stack(jaxrl.ShuffledSeats(game), 2)):
        _, state = raw_reset(env, jax.random.key(0), params)
        inner = env.without_task(state, params)[0]
        expected = game.global_state(inner, params)
        np.testing.assert_array_equal(env.global_state(state, params), expected)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cartpole", Twosome(), *by_hand("waterworld")])
def test_stacked_frames_keep_the_contract(name):
    jaxrl.check_env(jaxrl.frame_stack(name, 2))


def test_equal_stacks_are_one_key_of_compiled_programs():
    assert jaxrl.frame_stack("cartpole", 2) == jaxrl.frame_stack("cartpole", 2)
    assert jaxrl.frame_stack("cartpole", 2) != jaxrl.frame_stack("cartpole", 3)


test_what_cannot_be_stacked_is_refused = refused_by(
    lambda env, num_frames=2, padding="reset": jaxrl.frame_stack(env, num_frames, padding),
    [
        ("arena", "observations must be Boxes with an axis, not MultiDiscrete"),
        ("gym:CartPole-v1", "stepped outside JAX.*FrameStackObservation"),
        ("cartpol", "did you mean 'cartpole'"),
    ],
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_frames": 0}, "num_frames=0 must be an integer of at least 1"),
        ({"padding": "zeros"}, "did you mean 'zero'"),
        ({"num_frame": 2}, "did you mean 'num_frames'"),
    ],
)
def test_arguments_of_frame_stack_are_checked(arguments, message):
    with pytest.raises(jaxrl.UsageError, match=message):
        jaxrl.frame_stack("cartpole", **arguments)
