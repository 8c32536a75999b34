"""Training learns what each probe isolates; which probe fails says which part broke."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.ops.distributions import DiagGaussian
from tests.probes import Endless, Leavers, Probe, Target

SMALL = {
    "num_envs": 16,
    "rollout_length": 16,
    "minibatch_size": 64,
    "num_epochs": 4,
    "fcnet_hiddens": (32,),
    "lr": 1e-2,
    "lambda_": 0.95,
}


def trained(env, num_updates, **settings):
    """(probabilities or Box actions, and values, of a policy's observations, last iteration's mean return)."""
    config = PPOConfig(env=env, **{**SMALL, **settings})
    algorithm = config.replace(total_env_steps=num_updates * config.train_batch_size).build()

    @jax.jit
    def train(key):
        return jax.lax.scan(lambda r, _: algorithm.update(r), algorithm.init(key), length=num_updates)

    runner, metrics = train(jax.random.key(0))

    def look(policy, obs):
        group, _ = algorithm.grouping.locate(policy)
        player = algorithm.players[group]
        distribution, value, _ = player.apply(algorithm.policy_weights(runner, policy), jnp.asarray(obs))
        if isinstance(distribution, DiagGaussian):
            return np.asarray(player.in_environment(distribution.mode())), np.asarray(value)
        return np.asarray(jax.nn.softmax(distribution.logits)), np.asarray(value)

    last = jax.tree.map(lambda leaf: leaf[-1], metrics.episodes.iteration)
    return look, float(last.episode_return.sum / jnp.maximum(last.count, 1))


def test_a_constant_reward_is_learned_as_the_value():
    look, _ = trained(Probe(num_steps=1), 30)
    np.testing.assert_allclose(look("default_policy", [0, 1])[1], [1.0, 1.0], atol=0.05)


def test_a_reward_two_steps_ahead_is_discounted_twice():
    look, _ = trained(Probe(num_steps=3, shown=False), 60, gamma=0.5)
    np.testing.assert_allclose(look("default_policy", [0, 2, 4])[1], [0.25, 0.5, 1.0], atol=0.05)


def test_the_rewarded_action_is_learned_without_anything_to_see():
    look, mean_return = trained(Probe(reward_for="action", shown=False), 30)
    assert look("default_policy", [0])[0][0, 1] > 0.95
    assert mean_return > 0.9


def test_the_action_that_the_observation_calls_for_is_learned():
    look, mean_return = trained(Probe(reward_for="cue"), 40)
    probabilities, _ = look("default_policy", [0, 1])
    assert probabilities[0, 0] > 0.95
    assert probabilities[1, 1] > 0.95
    assert mean_return > 0.9


PLACES = np.array([[-0.8], [-0.2], [0.5]])
CONTINUOUS = {"num_envs": 64, "rollout_length": 4, "lr": 5e-3, "entropy_coeff": 0.0, "num_epochs": 8}


@pytest.mark.parametrize("free_log_std", [False, True])
def test_the_place_that_the_observation_calls_for_is_learned_by_a_continuous_action(free_log_std):
    look, mean_return = trained(Target(), 100, free_log_std=free_log_std, **CONTINUOUS)
    np.testing.assert_allclose(look("default_policy", PLACES)[0], 5.0 + 3.0 * PLACES, atol=0.6)
    assert mean_return > -1.2


def test_an_observation_far_from_zero_is_learned_from_through_its_filter_alone():
    """A thousandth of the observation carries the cue: the network by itself cannot tell it from none."""
    far, settings = Target(offset=1000.0, scale=1.0), {**CONTINUOUS, "observation_filter": "MeanStdFilter"}
    look, mean_return = trained(far, 100, **settings)
    np.testing.assert_allclose(look("default_policy", 1000.0 + PLACES)[0], 5.0 + 3.0 * PLACES, atol=0.8)
    _, unfiltered = trained(far, 100, **CONTINUOUS)
    assert mean_return > -1.2 > unfiltered


@pytest.mark.parametrize("lambda_", [0.0, 1.0])
def test_a_time_limit_bootstraps_so_that_the_value_is_that_of_an_endless_world(lambda_):
    look, _ = trained(Endless(), 60, gamma=0.5, lambda_=lambda_)
    np.testing.assert_allclose(look("default_policy", [[1.0]])[1], [2.0], atol=0.05)


def test_agents_of_different_spaces_learn_and_one_that_left_learns_from_its_active_rows_alone():
    look, _ = trained(Leavers(), 60)
    assert look("short", [0])[0][0, 1] > 0.95  # -100 awaits action 1 in the rows after it has left
    assert look("short", [0])[1][0] == pytest.approx(1.0, abs=0.1)
    assert (look("long", [0, 1, 2, 3])[0][:, 1] > 0.95).all()
    angles = np.arange(4.0)
    assert (look("wide", np.stack([np.cos(angles), np.sin(angles)], axis=-1))[0][:, 2] > 0.95).all()


def test_a_policy_not_in_policies_to_train_keeps_its_parameters_to_the_bit():
    config = PPOConfig(env=Leavers(), policies_to_train=("long",), total_env_steps=4 * 256, **SMALL)
    algorithm = config.build()
    start = jax.jit(algorithm.init)(jax.random.key(0))
    runner, metrics = jax.jit(algorithm.update)(start)
    for policy, changes in (("short", False), ("wide", False), ("long", True)):
        before, after = algorithm.policy_weights(start, policy), algorithm.policy_weights(runner, policy)
        same = jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), before, after))
        assert same != changes, policy
    learned = {p for g, m in zip(algorithm.grouping.groups, metrics.learners, strict=True) if m for p in g.policies}
    assert learned == {"long"}
