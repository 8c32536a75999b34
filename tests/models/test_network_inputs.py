"""Each part of an observation is normalised, scaled or left alone, by its kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, UsageError, load_policy
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.models.network_inputs import ObservationFilter
from jaxrl.ops.running_stats import update
from tests.probes import OneAgent, State

MEAN_STD = "MeanStdFilter"
NUMBERS, PICTURE = Box(-np.inf, np.inf, (3,)), Box(0, 255, (4, 5, 3), "uint8")
PARTS = Dict(
    {"cam": PICTURE, "inner": Tuple((Discrete(4), Box(0, 4000, (), "int32"))), "row": NUMBERS}
)


def drawn(rng, size):
    """Observations [size, ...] of `PARTS`, with numbers far from 0."""
    return {
        "cam": rng.integers(0, 256, (size, 4, 5, 3), np.uint8),
        "inner": (rng.integers(0, 4, size), rng.integers(2000, 4000, size)),
        "row": np.float32(1000 + 50 * rng.normal(size=(size, 3))),
    }


def learned(observation_filter, obs):
    size = len(jax.tree.leaves(obs)[0])
    numbers = jax.tree.map(np.float32, observation_filter.numbers(obs))
    return update(observation_filter.initial(), numbers, jnp.ones(size))


@pytest.mark.long
def test_numbers_are_normalised_pictures_scaled_and_integers_left_alone():
    observation_filter = ObservationFilter(PARTS, MEAN_STD)
    obs = drawn(np.random.default_rng(0), 50)
    moments = learned(observation_filter, obs)
    assert {name: leaf.shape for name, leaf in moments.mean.items()} == {"inner/1": (), "row": (3,)}
    read = observation_filter.read(moments, obs)
    np.testing.assert_allclose(read["cam"], obs["cam"] / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(read["inner"][0], obs["inner"][0])
    for normal in (read["row"], read["inner"][1]):
        np.testing.assert_allclose(np.mean(normal, axis=0), 0, atol=1e-3)
        np.testing.assert_allclose(np.std(normal, axis=0), 1, atol=1e-3)


def test_statistics_of_parts_are_those_of_the_same_numbers_alone():
    obs = drawn(np.random.default_rng(1), 20)
    alone = learned(ObservationFilter(NUMBERS, MEAN_STD), obs["row"])
    parts = learned(ObservationFilter(PARTS, MEAN_STD), obs)
    np.testing.assert_array_equal(parts.mean["row"], alone.mean)
    np.testing.assert_array_equal(parts.variance["row"], alone.variance)


def test_before_the_first_rows_numbers_are_as_they_are():
    observation_filter, obs = ObservationFilter(PARTS, MEAN_STD), drawn(np.random.default_rng(2), 4)
    read = observation_filter.read(observation_filter.initial(), obs)
    np.testing.assert_array_equal(read["row"], obs["row"])
    assert np.max(read["cam"]) <= 1


@pytest.mark.parametrize("space", [PICTURE, PARTS])
def test_pictures_are_scaled_without_a_filter_where_it_is_asked_for(space):
    observation_filter = ObservationFilter(space, None, normalize_images=True)
    obs = drawn(np.random.default_rng(3), 4)
    read = observation_filter.read(None, obs if space == PARTS else obs["cam"])
    scaled = read["cam"] if space == PARTS else read
    np.testing.assert_allclose(scaled, obs["cam"] / np.float32(255), rtol=1e-6)
    assert observation_filter.initial() is None


def test_codes_in_bytes_are_scaled_by_their_own_bounds():
    codes = Box(0, 12, (5, 5, 2), "uint8")
    read = ObservationFilter(Dict({"view": codes}), MEAN_STD).read(
        None, {"view": np.full((5, 5, 2), 6)}
    )
    np.testing.assert_allclose(read["view"], 0.5)


def test_a_picture_alone_is_normalised_pixel_by_pixel_as_ever():
    observation_filter = ObservationFilter(PICTURE, MEAN_STD)
    assert observation_filter.initial().mean.shape == PICTURE.shape


def test_observations_without_numbers_have_no_filter():
    for space in (Discrete(3), Dict({"a": Discrete(3), "b": MultiDiscrete((2, 3))})):
        with pytest.raises(UsageError, match="needs Box observations, alone or in a Dict"):
            PPOConfig(env="cartpole", observation_filter=MEAN_STD).policy_spec(
                "p", space, Discrete(2)
            )


class Sights(OneAgent):
    """A picture and numbers far from 0, of which the first one says the right action."""

    observes = Dict({"cam": PICTURE, "row": NUMBERS})

    def reset_env(self, key, params):
        row = 1000 + 50 * jax.random.normal(key, (3,))
        picture = jax.random.randint(key, PICTURE.shape, 0, 256).astype(jnp.uint8)
        return {"cam": picture, "row": row}, State(jnp.int32(0), row[0] > 1000)

    def step_env(self, key, state, action, params):
        obs, after = self.reset_env(key, params)
        reward = jnp.float32(action == state.cue)
        return obs, after, reward, jnp.array(True), {}


@pytest.mark.long
def test_a_filtered_dict_is_learned_from_and_its_checkpoint_acts_as_it_did(tmp_path):
    config = PPOConfig(
        env=Sights(),
        num_envs=16,
        rollout_length=16,
        minibatch_size=64,
        num_epochs=4,
        lr=3e-3,
        gamma=0.0,
        total_env_steps=6_000,
        observation_filter=MEAN_STD,
        conv_filters=((4, 3, 2),),
        fcnet_hiddens=(16,),
    )
    with Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer:
        result = trainer.fit()
        policy = trainer.get_policy("default_policy")
    assert result["env_runners"]["episode_return_mean"] > 0.9
    assert policy.weights.filter.count > 0 and set(policy.weights.filter.mean) == {"row"}
    loaded = load_policy(tmp_path / "run")
    obs = {"cam": np.zeros(PICTURE.shape, np.uint8), "row": np.float32([1060, 1000, 990])}
    assert loaded.act(obs) == policy.act(obs) == 1
