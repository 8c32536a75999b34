"""What older weights played is learned from as the objective of a stale rollout says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.ppo.batch import make_batch
from jaxrl.algorithms.ppo.behaviour import as_if_by_policy, as_if_played_now
from jaxrl.models.policy_spec import PolicyWeights
from tests.algorithms.ppo.test_update import MODEL, learner_spec, log_softmax, trajectory
from tests.outside.jax_vector import config_outside
from tests.programs import SMALL_CARTPOLE


@functools.partial(jax.jit, static_argnums=0)
def judged(spec, weights, played):
    return as_if_by_policy(as_if_played_now(spec, weights, played))


@pytest.mark.parametrize("minibatch_size", [16, 7, 1000])  # of 48 rows
def test_a_stale_rollout_has_the_distributions_and_values_of_the_weights_that_learn(minibatch_size):
    played = trajectory(jax.random.key(0))
    params = MODEL.init(jax.random.key(1))
    spec = learner_spec(minibatch_size=minibatch_size)
    now = judged(spec, PolicyWeights(params, None), played)

    distribution, value = MODEL.apply(params, played.obs.reshape(-1, 3))
    logits = np.asarray(distribution.logits).reshape(played.distribution.logits.shape)
    np.testing.assert_allclose(now.distribution.logits, logits, atol=1e-6)
    np.testing.assert_allclose(now.value, np.reshape(value, played.value.shape), atol=1e-6)

    action = np.asarray(played.action)[..., None]
    chosen = lambda logits: np.take_along_axis(log_softmax(np.asarray(logits)), action, -1)[..., 0]
    ratio = np.exp(chosen(logits) - chosen(played.distribution.logits))
    assert (ratio < 0.9).any() and (ratio > 1.1).any()
    np.testing.assert_allclose(now.importance, np.minimum(ratio, 1.0), rtol=1e-5)

    moved = np.asarray(now.value - played.value)
    moved = np.append(moved[1:], np.zeros_like(moved[:1]), axis=0)
    expected = played.next_value + np.where(played.done, 0.0, moved)
    np.testing.assert_allclose(now.next_value, expected, atol=1e-6)


def test_the_batch_of_a_stale_rollout_is_clipped_around_the_policy_that_learns():
    """Rows weigh as much as they are important to it, and the ratio begins at 1."""
    spec, played = learner_spec(), trajectory(jax.random.key(0))
    now = judged(spec, PolicyWeights(MODEL.init(jax.random.key(1)), None), played)
    ones = jnp.ones_like(played.value)
    batch = jax.jit(functools.partial(make_batch, spec))(None, now, (ones, ones))
    np.testing.assert_array_equal(batch.policy_weight, now.importance.reshape(-1))
    log_prob = now.distribution.log_prob(now.action).reshape(-1)
    np.testing.assert_allclose(batch.log_prob, log_prob, rtol=1e-5)


@pytest.mark.long
def test_what_the_weights_that_learn_played_themselves_is_learned_from_as_with_sync():
    """So it is in the first iteration, whose rollout no update came before."""
    config = SMALL_CARTPOLE.replace(env_args={"max_steps_in_episode": 9})
    learned = []
    for sync in (True, False):
        outside = config_outside(config, [])
        with jaxrl.Trainer(outside, run_dir=None, quiet=True, sync=sync) as trainer:
            trainer.train()
            learned.append(trainer.get_weights()["default_policy"].params)
    for synced, stale in zip(*map(jax.tree.leaves, learned), strict=True):
        np.testing.assert_allclose(stale, synced, rtol=1e-3, atol=1e-5)
