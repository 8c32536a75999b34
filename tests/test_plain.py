"""The formulas of `benchmarks/plain.py`, PPO on one page, are those of the engine."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops.advantages import gae
from jaxrl.ops.distributions import Categorical
from jaxrl.ops.losses import clipped_surrogate, value_loss

T, E, ACTIONS, SIZE = 6, 3, 2, 4
FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "plain.py"
FOUND = importlib.util.spec_from_file_location("plain", FILE)
plain = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(plain)
SETTINGS = plain.Settings(num_envs=E, rollout_length=T, num_updates=1)


def random_steps(seed):
    """T steps of E environments of arrays that are drawn, with ends among them."""
    draw = np.random.default_rng(seed)
    numbers = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
    action = jnp.asarray(draw.integers(0, ACTIONS, (T, E)))
    done = jnp.asarray(draw.random((T, E)) < 0.3)
    obs, log_prob = numbers(T, E, SIZE), -jnp.abs(numbers(T, E))
    return plain.Step(obs, action, log_prob, numbers(T, E), numbers(T, E), done), numbers(E)


def test_advantages_are_those_of_gae_where_time_limits_count_as_ends():
    for seed in range(5):
        steps, last_value = random_steps(seed)
        next_values = jnp.concatenate([steps.value[1:], last_value[None]])
        numbers = {"gamma": SETTINGS.gamma, "lambda_": SETTINGS.lambda_}
        ends = steps.done, steps.done
        expected, _ = gae(steps.reward, steps.value, next_values, *ends, **numbers)
        found = plain.plain_gae(steps, last_value, SETTINGS)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@jax.numpy_rank_promotion("allow")  # as the page adds its biases
def test_the_loss_is_made_of_the_engines_terms():
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "actor": plain.init_network(keys[0], (SIZE, 8, ACTIONS), 1.0),
        "critic": plain.init_network(keys[1], (SIZE, 8, 1), 1.0),
    }
    for seed in range(5):
        steps, _ = random_steps(seed)
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), steps)
        advantages, targets = rows.reward, rows.reward + rows.value
        policy = Categorical(plain.network(params["actor"], rows.obs))
        value = plain.network(params["critic"], rows.obs)[:, 0]
        standardised = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_probs = policy.log_prob(rows.action), rows.log_prob
        clip = SETTINGS.clip_param
        expected = (
            jnp.mean(clipped_surrogate(*log_probs, standardised, clip))
            + SETTINGS.vf_loss_coeff
            * jnp.mean(0.5 * value_loss(value, rows.value, targets, clip, "prediction"))
            - SETTINGS.entropy_coeff * jnp.mean(policy.entropy())
        )
        found = plain.loss(params, rows, advantages, targets, SETTINGS)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
