"""An action of several independent parts: its distribution is the product of theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core.program_spaces import (
    action_from_program,
    action_space_inside,
    action_to_program,
    mask_length,
    unpacked,
)
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.ops.distributions import (
    dist_inputs,
    from_logits,
    num_log_stds,
    num_logits,
    sampling_noise,
    with_log_stds,
)
from jaxrl.ops.environment_actions import InEnvironment
from jaxrl.ops.exploration import EpsilonGreedy, GaussianNoise, Random
from tests.messages import refused_by

SPACE = Dict(
    {
        "key": Discrete(3, start=-1),
        "move": Box(-1.0, 1.0, (2,)),
        "more": Tuple((MultiDiscrete([[2], [2]]), Box(4, 6, (), "int8"))),
    }
)
PLAIN = Discrete(3), MultiDiscrete((2, 2)), Discrete(3), Box(-1.0, 1.0, (2,))  # inside, in order
WIDTHS = 3, 4, 3, 4
KEY = jax.random.key(0)
LOGITS = jax.random.normal(KEY, (5, sum(WIDTHS)))


def alone(logits=LOGITS):
    """The distributions of the parts."""
    rows = jnp.split(logits, np.cumsum(WIDTHS)[:-1], axis=-1)
    return [from_logits(part, row) for part, row in zip(PLAIN, rows, strict=True)]


def test_it_needs_the_outputs_of_all_parts_and_masks_their_integers():
    assert num_logits(SPACE) == sum(WIDTHS) == 14
    assert num_log_stds(SPACE) == 2
    assert mask_length(SPACE) == 3 + 4 + 3


@pytest.mark.long
def test_log_probabilities_entropies_and_divergences_are_sums_over_the_parts():
    joint, other = from_logits(SPACE, LOGITS), from_logits(SPACE, 0.5 * LOGITS)
    actions = [part.sample(KEY) for part in alone()]
    rows = [jnp.float32(action).reshape(5, -1) for action in actions]
    row = jnp.concatenate(rows, axis=-1)
    pairs = list(zip(alone(), actions, strict=True))
    expected = sum(part.log_prob(action) for part, action in pairs)
    np.testing.assert_allclose(joint.log_prob(row), expected, rtol=1e-6)
    np.testing.assert_allclose(joint.entropy(), sum(p.entropy() for p in alone()), rtol=1e-6)
    halves = zip(alone(), alone(0.5 * LOGITS), strict=True)
    expected = sum(part.kl(half) for part, half in halves)
    np.testing.assert_allclose(joint.kl(other), expected, rtol=1e-5)
    np.testing.assert_array_equal(dist_inputs(joint), LOGITS)


def test_samples_and_modes_are_those_of_the_parts():
    joint, noise = from_logits(SPACE, LOGITS), sampling_noise(SPACE, KEY, (5,))
    widths = np.cumsum((3, 4, 3))
    parts = jax.tree.leaves(unpacked(action_space_inside(SPACE), joint.sample(noise)))
    for part, found, drawn in zip(alone(), parts, jnp.split(noise, widths, axis=-1), strict=True):
        np.testing.assert_array_equal(found, part.sample(drawn))
    modes = jax.tree.leaves(unpacked(action_space_inside(SPACE), joint.mode()))
    for part, found in zip(alone(), modes, strict=True):
        np.testing.assert_array_equal(found, part.mode())


def test_a_mask_forbids_choices_of_every_part_and_leaves_numbers_alone():
    mask = np.ones((5, 10), bool)
    mask[:, [0, 2, 4, 7, 8]] = False  # of the key 0 is left, of the first entry 0, of the Box 6
    joint = from_logits(SPACE, LOGITS).masked(jnp.asarray(mask))
    drawn = InEnvironment(joint, SPACE).sample(KEY)
    assert set(drawn["key"].tolist()) == {0}
    assert set(drawn["more"][0][:, 0, 0].tolist()) == {0}
    assert set(drawn["more"][1].tolist()) == {6}
    np.testing.assert_array_equal(joint.parts[3].mean, alone()[3].mean)
    with pytest.raises(jaxrl.UsageError, match="an action mask needs discrete actions"):
        from_logits(Tuple((Box(-1, 1), Box(-1, 1))), jnp.zeros((1, 4))).masked(
            jnp.ones((1, 1), bool)
        )


def test_in_the_environments_language_an_action_is_its_tree():
    distribution = InEnvironment(from_logits(SPACE, LOGITS), SPACE)
    action = distribution.sample(KEY)
    assert action["more"][0].shape == (5, 2, 1) and action["more"][1].dtype == np.int8
    row = action_to_program(SPACE, jax.tree.map(np.asarray, action))
    np.testing.assert_allclose(
        distribution.log_prob(action), from_logits(SPACE, LOGITS).log_prob(row), rtol=1e-6
    )
    back = action_from_program(SPACE, row)
    jax.tree.map(np.testing.assert_array_equal, back, jax.tree.map(np.asarray, action))


def test_free_standard_deviations_stand_behind_the_means_of_each_box():
    space = Tuple((Box(-1, 1), Discrete(2), Box(-1, 1, (2,))))
    outputs = jnp.arange(5.0)[None]  # one mean, two logits, two means
    logits = with_log_stds(space, outputs, jnp.array([-1.0, -2.0, -3.0]))
    assert logits.tolist() == [[0, -1, 1, 2, 3, 4, -2, -3]]


@pytest.mark.parametrize("kind", ["beta", "squashed_gaussian"])
def test_the_numbers_of_its_boxes_have_any_distribution(kind):
    joint, noise = from_logits(SPACE, LOGITS, kind), sampling_noise(SPACE, KEY, (5,), kind)
    assert joint.noise(KEY).shape == noise.shape
    assert np.isfinite(joint.log_prob(joint.sample(noise))).all()


@pytest.mark.long
def test_explorations_act_on_every_part():
    policy, steps = from_logits(SPACE, LOGITS), jnp.float32(0)
    random = Random()(policy, steps)
    np.testing.assert_allclose(random.parts[0].probabilities(), 1 / 3, rtol=1e-6)
    expected = -np.log(3.0) - 2 * np.log(2.0) - np.log(3.0) - 2 * np.log(2.0)
    np.testing.assert_allclose(random.log_prob(policy.mode()), expected, rtol=1e-5)
    integers = Tuple((Discrete(2), Discrete(3)))
    greedy = EpsilonGreedy(initial_epsilon=0.0, final_epsilon=0.0)
    policy = from_logits(integers, jnp.arange(5.0)[None])
    np.testing.assert_allclose(greedy(policy, steps).log_prob(policy.mode()), 0.0, atol=1e-6)
    numbers = Tuple((Box(-1, 1), Box(-1, 1)))
    noisy = GaussianNoise(random_timesteps=0, stddev=0.5)
    policy = from_logits(numbers, jnp.zeros((1, 4)))
    behaviour = noisy(policy, steps).parts[1]
    np.testing.assert_allclose(getattr(behaviour, "other", behaviour).log_std, np.log(0.5))
    with pytest.raises(jaxrl.UsageError, match="EpsilonGreedy is for integer actions"):
        greedy.check(SPACE, "gaussian")


test_a_box_of_too_many_integers_says_the_way_out = refused_by(
    lambda space: num_logits(space),
    [
        (Box(0, 2**31 - 1, (), "int32"), "are 2,147,483,648 choices of integers"),
        (Dict({"a": Box(0, 255, (64,), "uint8")}), "choices of integers, more than 10,000"),
    ],
)
