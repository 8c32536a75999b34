"""Explorations: the drawn actions follow the probabilities that are recorded for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.ops.continuous import DiagGaussian
from jaxrl.ops.distributions import Categorical, MultiCategorical
from jaxrl.ops.exploration import (
    EpsilonGreedy,
    GaussianNoise,
    Random,
    SoftQ,
    StochasticSampling,
)
from jaxrl.ops.explored import (
    Explored,
    act_greedily,
    exploration_of,
    policy_of,
    read_exploration,
)
from tests.messages import refused_by

ROWS = 20_000
LOGITS = jnp.array([2.0, 0.0, 1.0])


def acted(exploration, policy, env_steps=0.0):
    return Explored(policy, exploration(policy, jnp.float32(env_steps)))


def drawn(explored, num_noise, *, gumbel=True):
    draw = jax.random.gumbel if gumbel else jax.random.normal
    return explored.sample(draw(jax.random.key(0), (ROWS, num_noise)))


def of_rows(logits):
    return Categorical(jnp.broadcast_to(logits, (ROWS, 3)))


def shares(exploration, policy, env_steps=0.0):
    """(how often each of three actions was drawn, the probabilities that were recorded)."""
    explored = acted(exploration, policy, env_steps)
    actions = drawn(explored, 3)
    each = [float(jnp.mean(actions == i)) for i in range(3)]
    recorded = [float(jnp.exp(explored.log_prob(jnp.full(ROWS, i)))[0]) for i in range(3)]
    return each, recorded


@pytest.mark.long
def test_epsilon_greedy_draws_what_it_records_and_epsilon_falls():
    exploration = EpsilonGreedy(
        initial_epsilon=0.6, final_epsilon=0.0, warmup_timesteps=100, epsilon_timesteps=100
    )
    for env_steps, epsilon in ((0, 0.6), (100, 0.6), (150, 0.3), (200, 0.0), (900, 0.0)):
        expected = [1 - epsilon * 2 / 3, epsilon / 3, epsilon / 3]
        found, recorded = shares(exploration, of_rows(LOGITS), env_steps)
        np.testing.assert_allclose(recorded, expected, atol=1e-6)
        np.testing.assert_allclose(found, expected, atol=0.015)


def test_impossible_actions_are_never_explored():
    policy = of_rows(LOGITS).masked(jnp.array([False, True, True]))
    for exploration, expected in (
        (EpsilonGreedy(initial_epsilon=0.5), [0.0, 0.25, 0.75]),
        (Random(), [0.0, 0.5, 0.5]),
        (SoftQ(temperature=1 / np.log(3)), [0.0, 0.25, 0.75]),  # 3^0 and 3^1
        (SoftQ(temperature=1e6), [0.0, 0.5, 0.5]),
        (StochasticSampling(random_timesteps=9), [0.0, 0.5, 0.5]),
    ):
        found, recorded = shares(exploration, policy)
        np.testing.assert_allclose(recorded, expected, atol=1e-6)
        np.testing.assert_allclose(found, expected, atol=0.015)


def test_random_timesteps_end():
    exploration = StochasticSampling(random_timesteps=1000)
    softmax = np.asarray(jax.nn.softmax(LOGITS))
    for env_steps, expected in ((999, [1 / 3] * 3), (1000, softmax)):
        found, recorded = shares(exploration, of_rows(LOGITS), env_steps)
        np.testing.assert_allclose(recorded, expected, atol=1e-6)
        np.testing.assert_allclose(found, expected, atol=0.015)


def test_softq_samples_at_a_temperature_after_its_random_steps():
    exploration = SoftQ(temperature=1 / np.log(2), random_timesteps=10)
    # Logits 2, 0 and 1: powers of 2, which add up to 7.
    for env_steps, expected in ((9, [1 / 3] * 3), (10, [4 / 7, 1 / 7, 2 / 7])):
        found, recorded = shares(exploration, of_rows(LOGITS), env_steps)
        np.testing.assert_allclose(recorded, expected, atol=1e-6)
        np.testing.assert_allclose(found, expected, atol=0.015)
    several = MultiCategorical(jnp.array([[3.0, 0.0, 2.0, 0.0, 1.0]]), (2, 3))
    softened = SoftQ(temperature=1 / np.log(2))(several, jnp.float32(0)).probabilities()
    np.testing.assert_allclose(softened, [[8 / 9, 1 / 9, 4 / 7, 1 / 7, 2 / 7]], rtol=1e-6)


def test_several_integers_are_explored_each_by_itself():
    policy = MultiCategorical(
        jnp.broadcast_to(jnp.array([1.0, 0.0, 5.0, 0.0, 0.0]), (ROWS, 5)), (2, 3)
    )
    explored = acted(EpsilonGreedy(initial_epsilon=0.6), policy)
    actions = drawn(explored, 5)
    at_modes = float(jnp.mean((actions[:, 0] == 0) & (actions[:, 1] == 0)))
    expected = (1 - 0.6 / 2) * (1 - 0.6 * 2 / 3)
    assert at_modes == pytest.approx(expected, abs=0.015)
    recorded = jnp.exp(explored.log_prob(jnp.zeros((ROWS, 2), jnp.int32)))[0]
    assert float(recorded) == pytest.approx(expected, abs=1e-6)


def test_gaussian_noise_is_around_the_mode_and_shrinks():
    mean = jnp.broadcast_to(jnp.array([0.5, -1.0]), (ROWS, 2))
    policy = DiagGaussian(mean, jnp.zeros((ROWS, 2)), (2,))
    exploration = GaussianNoise(
        random_timesteps=10, stddev=0.2, final_scale=0.5, scale_timesteps=100
    )
    for env_steps, std in ((10, 0.2), (60, 0.15), (110, 0.1), (999, 0.1)):
        explored = acted(exploration, policy, env_steps)
        actions = drawn(explored, 2, gumbel=False)
        np.testing.assert_allclose(jnp.mean(actions, 0), [0.5, -1.0], atol=0.01)
        np.testing.assert_allclose(jnp.std(actions, 0), [std, std], rtol=0.03)
        expected = DiagGaussian(mean, jnp.full((ROWS, 2), np.log(std)), (2,)).log_prob(actions)
        np.testing.assert_allclose(explored.log_prob(actions), expected, rtol=1e-4, atol=1e-4)
    explored = acted(exploration, policy, 9)
    actions = drawn(explored, 2, gumbel=False)
    assert float(jnp.max(jnp.abs(actions))) <= 1
    np.testing.assert_allclose(jnp.mean(actions < 0.5, axis=0), [0.75, 0.75], atol=0.015)
    np.testing.assert_allclose(explored.log_prob(actions), 2 * np.log(0.5), rtol=1e-6)


def test_acting_greedily_is_the_mode_with_probability_one():
    explored = acted(act_greedily, of_rows(LOGITS))
    assert set(np.asarray(drawn(explored, 3))) == {0}
    np.testing.assert_array_equal(explored.log_prob(jnp.zeros(ROWS, jnp.int32)), 0.0)


def test_everything_but_the_probability_of_actions_is_the_policys():
    policy, other = of_rows(LOGITS), of_rows(jnp.zeros(3))
    explored = acted(Random(), policy)
    assert policy_of(explored) is policy and policy_of(policy) is policy
    np.testing.assert_array_equal(explored.kl(other), policy.kl(other))
    np.testing.assert_array_equal(explored.entropy(), policy.entropy())
    np.testing.assert_array_equal(explored.mode(), policy.mode())


def test_rllibs_mapping_is_read():
    pairs = (("type", "EpsilonGreedy"), ("epsilon_timesteps", 500))
    assert read_exploration("exploration_config", pairs) == EpsilonGreedy(epsilon_timesteps=500)
    assert read_exploration("exploration_config", (("type", "StochasticSampling"),)) is None
    assert read_exploration("exploration_config", ()) is None
    pairs = (("type", "SoftQ"), ("temperature", 0.5))
    assert read_exploration("exploration_config", pairs) == SoftQ(temperature=0.5)
    assert read_exploration("exploration_config", (("type", "SoftQ"),)) is None  # samples
    assert read_exploration("exploration_config", act_greedily) is act_greedily


INTEGERS, SEVERAL = Discrete(3), MultiDiscrete((2, 3))
NUMBERS, UNBOUNDED = Box(-1.0, 1.0, (2,)), Box(-np.inf, np.inf, (2,))


test_what_cannot_work_is_refused = refused_by(
    lambda value, space: exploration_of(
        read_exploration("exploration_config", value), True, space, "gaussian"
    ),
    [
        ((("type", "EpsilonGreedi"),), INTEGERS, "unknown exploration type 'EpsilonGreedi'; did"),
        ((("type", "Random"), ("epsilon", 1)), INTEGERS, "unknown argument 'epsilon'"),
        ((("epsilon", 1),), INTEGERS, "must be a mapping such as"),
        ((("type", "EpsilonGreedy"),), NUMBERS, "EpsilonGreedy is for integer actions"),
        ((("type", "SoftQ"), ("temperature", 2)), NUMBERS, "SoftQ is for integer actions"),
        ((("type", "SoftQ"), ("temperature", 0)), INTEGERS, "temperature=0 must be a number > 0"),
        ((("type", "GaussianNoise"),), SEVERAL, "GaussianNoise is for Box actions"),
        ((("type", "Random"),), UNBOUNDED, "Random draws random actions of integers, or of a Box"),
        ((("type", "EpsilonGreedy"), ("final_epsilon", 2)), INTEGERS, "final_epsilon=2 must be"),
    ],
)


def test_a_beta_has_no_random_actions():
    with pytest.raises(UsageError, match="action_distribution='gaussian'"):
        exploration_of(Random(), True, NUMBERS, "beta")
