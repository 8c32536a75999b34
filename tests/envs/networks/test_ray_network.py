"""The network with the same weights for each ray: its symmetry, its parts by hand, its refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig
from jaxrl.core.spaces import Box, Discrete
from jaxrl.envs.networks.ray_network import (
    IS_DISTANCE,
    RayNetwork,
    gathered,
    readings,
    with_neighbours,
)
from tests.messages import refused_by

PUSH = Box(-1.0, 1.0, (2,))


def test_a_reading_of_nothing_is_0_and_a_nearer_one_is_larger():
    blocks = np.where(np.array(IS_DISTANCE)[:, None], 1.0, 0.0) * np.ones((8, 3), np.float32)
    blocks[0, 1], blocks[3, 2] = 0.25, -0.5  # an obstacle on the second ray, a speed on the third
    rays = readings(jnp.asarray(blocks, jnp.float32).reshape(1, -1), IS_DISTANCE)
    expected = np.zeros((1, 3, 8))
    expected[0, 1, 0], expected[0, 2, 3] = 0.75, -1.0
    np.testing.assert_array_equal(rays, expected)


def test_the_rays_are_a_circle():
    rays = with_neighbours(jnp.arange(4.0)[:, None])
    np.testing.assert_array_equal(rays, [[3, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 0]])


def test_sums_over_the_rays_are_plain_and_by_direction():
    rays = jnp.array([[1.0], [2.0], [0.0], [5.0]])  # to the right, up, to the left, down
    np.testing.assert_allclose(gathered(rays), [8.0, 1.0, -3.0], atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("speed_features", [True, False])
def test_it_reads_what_waterworld_shows(speed_features):
    env, params = jaxrl.make("waterworld", n_sensors=7, speed_features=speed_features)
    model = RayNetwork(env.observation_space(), PUSH, 7, speed_features)
    obs, _ = env.reset_stacked(jax.random.key(0), params)
    weights = model.init(jax.random.key(1), obs)
    logits, value = model.apply(weights, obs)
    assert logits.shape == (2, 4) and value.shape == (2,)
    assert env.tuned["model"].endswith(f"(num_sensors=7, speed_features={speed_features})")
    spec = PPOConfig.tuned(env).build().policy_specs[0]
    assert spec.model.name == "RayNetwork"


test_what_it_cannot_read_is_refused_in_one_line = refused_by(
    lambda spaces, sensors: RayNetwork(*spaces, num_sensors=sensors),
    [
        ((Box(0, 1, (241,)), PUSH), 30, "a Box of 242 numbers and Box actions, not"),
        ((Box(0, 1, (242,)), Discrete(4)), 30, "Discrete"),
        ((Box(0, 1, (242,)), PUSH), 7, "num_sensors=7"),
        ((Discrete(3), PUSH), 30, "not Discrete"),
    ],
    literal=True,
)


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_names_it_is_loaded_without_trust(tmp_path):
    small = {"num_envs": 2, "rollout_length": 4, "minibatch_size": 8, "num_epochs": 1}
    config = PPOConfig.tuned("waterworld", {"n_sensors": 3}, **small, total_env_steps=8)
    with jaxrl.Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer:
        trainer.fit()
    policy = jaxrl.load_policy(tmp_path / "run", "pursuer_0")
    assert np.shape(policy.act(np.zeros(26, np.float32))) == (2,)
