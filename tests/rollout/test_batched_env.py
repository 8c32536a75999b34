"""A batched environment: all copies in one call, with the numbers of the vmapped one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.core.batched_env import BatchedEnvironment
from jaxrl.core.env import Environment
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make, register
from jaxrl.envs.cartpole import CartPole
from tests.play.test_recording import counted

SMALL = {"num_envs": 12, "rollout_length": 16, "minibatch_size": 64, "num_epochs": 2}
SMALL |= {"fcnet_hiddens": (8,), "total_env_steps": 3 * 12 * 16, "lr": 1e-3}


class BatchedCartPole(BatchedEnvironment):
    """CartPole whose copies are stepped in one call."""

    env = CartPole()
    default_params = CartPole().default_params.replace(max_steps_in_episode=20)

    def observation_space(self, params=None):
        return self.env.observation_space(params)

    def action_space(self, params=None):
        return self.env.action_space(params)

    def reset_batch(self, keys, params):
        return jax.vmap(self.env.reset_env, in_axes=(0, None))(keys, params)

    def step_batch(self, keys, state, action, params):
        return jax.vmap(self.env.step_env, in_axes=(0, 0, 0, None))(keys, state, action, params)


class ShortCartPole(CartPole):
    default_params = BatchedCartPole.default_params


def trained(env):
    algorithm = PPOConfig(env=env, **SMALL).build()

    def update(runner, _):
        runner, rollout = algorithm.collect(runner)
        runner, metrics = algorithm.learn(runner, rollout)
        return runner, (rollout, metrics)

    @jax.jit
    def train(key):
        runner, (rollouts, metrics) = jax.lax.scan(update, algorithm.init(key), length=3)
        return runner.learners, rollouts, metrics

    return train(jax.random.key(3))


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.long
def test_training_gives_the_bits_of_the_vmapped_environment():
    batched, vmapped = trained(BatchedCartPole()), trained(ShortCartPole())
    assert_equal(batched, vmapped)
    ended = np.asarray(batched[1].episode_done)
    assert 12 < ended.sum() < ended.size / 4  # by falls, and by the clock


@pytest.mark.long
def test_evaluation_gives_the_bits_of_the_vmapped_environment():
    results = []
    for env in (BatchedCartPole(), ShortCartPole()):
        algorithm = PPOConfig(env=env, **SMALL).build()
        weights = tuple(each.weights for each in algorithm.init(jax.random.key(0)).learners)
        played = algorithm, weights, algorithm.env_params
        results.append(counted(played, number=5, explore=True, seed=7))
    assert results[0] == results[1]


@pytest.mark.long
def test_one_copy_alone_follows_the_contract():
    check_env(BatchedCartPole())


def test_a_wrong_shape_is_refused_before_compiling():
    class Wrong(BatchedCartPole):
        def step_batch(self, keys, state, action, params):
            obs, state, reward, terminated, info = super().step_batch(keys, state, action, params)
            return obs, state, jnp.sum(reward), terminated, info

    with pytest.raises(UsageError, match="Wrong"):
        PPOConfig(env=Wrong(), **SMALL).build()


def test_numbers_of_each_episode_are_refused():
    register("batched_cartpole", BatchedCartPole)
    with pytest.raises(UsageError, match="numbers cannot be drawn for each episode"):
        make("batched_cartpole", gravity="uniform:9:10")


def test_a_missing_method_is_named():
    class Unfinished(BatchedEnvironment):
        default_params = observation_space = action_space = Environment.default_params

    with pytest.raises(NotImplementedError, match=r"Unfinished must define reset_batch\(keys"):
        Unfinished().reset_env(jax.random.key(0), None)
