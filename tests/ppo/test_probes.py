"""Training learns what each probe isolates; which probe fails says which part broke."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from tests.probes import Endless, Leavers, Probe

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
    """(probabilities and values of a policy's observations, last iteration's mean return)."""
    config = PPOConfig(env=env, **{**SMALL, **settings})
    algorithm = config.replace(total_env_steps=num_updates * config.train_batch_size).build()

    @jax.jit
    def train(key):
        return jax.lax.scan(lambda r, _: algorithm.update(r), algorithm.init(key), length=num_updates)

    runner, metrics = train(jax.random.key(0))

    def look(policy, obs):
        group, _ = algorithm.grouping.locate(policy)
        distribution, value = algorithm.models[group].apply(algorithm.policy_params(runner, policy), jnp.asarray(obs))
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
        before, after = algorithm.policy_params(start, policy), algorithm.policy_params(runner, policy)
        same = jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), before, after))
        assert same != changes, policy
    learned = {p for g, m in zip(algorithm.grouping.groups, metrics.learners, strict=True) if m for p in g.policies}
    assert learned == {"long"}
