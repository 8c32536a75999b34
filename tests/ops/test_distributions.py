"""Distributions against formulas in NumPy, and against the frequencies of their samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.ops.distributions import (
    Categorical,
    DiagGaussian,
    MultiCategorical,
    from_logits,
    num_logits,
    sampling_noise,
)
from jaxrl.ops.environment_actions import ActionForm

NVEC = (2, 3)
KEY = jax.random.key(0)
few = settings(max_examples=15, database=None)


def rows(num_logits):
    """One row of moderate logits."""
    return st.lists(st.floats(-8, 8, width=32), min_size=num_logits, max_size=num_logits).map(
        np.float32
    )


def softmax(logits):
    weights = np.exp(np.float64(logits) - np.max(logits))
    return weights / weights.sum()


def joint(logits):
    """The table f64[2, 3] of a MultiCategorical's probabilities: the product of its entries'."""
    return np.outer(softmax(logits[:2]), softmax(logits[2:]))


@few
@given(rows(4))
def test_a_categorical_has_the_probabilities_of_the_softmax(logits):
    probabilities = softmax(logits)
    distribution = Categorical(jnp.asarray(logits).reshape(1, 4))
    np.testing.assert_allclose(distribution.probabilities(), [probabilities], rtol=1e-5, atol=1e-7)
    for action in range(4):
        log_prob = distribution.log_prob(jnp.array([action]))
        np.testing.assert_allclose(log_prob, [np.log(probabilities[action])], rtol=1e-5, atol=1e-5)
    expected = [-(probabilities * np.log(probabilities)).sum()]
    np.testing.assert_allclose(distribution.entropy(), expected, rtol=1e-5, atol=1e-5)


@few
@given(rows(4), rows(4))
def test_kl_is_the_mean_log_ratio_and_never_below_zero(first, second):
    p, q = softmax(first), softmax(second)
    kl = Categorical(jnp.asarray(first)).kl(Categorical(jnp.asarray(second)))
    np.testing.assert_allclose(kl, (p * np.log(p / q)).sum(), rtol=1e-4, atol=2e-6)
    assert kl >= -2e-6
    assert Categorical(jnp.asarray(first)).kl(Categorical(jnp.asarray(first))) == 0


@few
@given(rows(5), rows(5))
def test_a_multicategorical_is_the_product_of_its_entries(first, second):
    p, q = joint(first), joint(second)
    distribution, other = (
        MultiCategorical(jnp.asarray(logits), NVEC) for logits in (first, second)
    )
    for action in np.ndindex(NVEC):
        np.testing.assert_allclose(
            distribution.log_prob(jnp.array(action)), np.log(p[action]), rtol=1e-5, atol=1e-5
        )
    np.testing.assert_allclose(distribution.entropy(), -(p * np.log(p)).sum(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        distribution.kl(other), (p * np.log(p / q)).sum(), rtol=1e-4, atol=4e-6
    )
    assert distribution.kl(distribution) == 0


def test_the_probabilities_of_a_multicategorical_are_those_of_its_entries_one_after_the_other():
    logits = np.log([[1, 3, 1, 1, 2]]).astype(np.float32)
    found = MultiCategorical(jnp.asarray(logits), NVEC).probabilities()
    np.testing.assert_allclose(found, [[0.25, 0.75, 0.25, 0.25, 0.5]], rtol=1e-6)


def test_kl_is_that_of_the_first_to_the_second():
    """p = (1/2, 1/2), q = (1/4, 3/4): KL(p || q) = 1/2 log 2 + 1/2 log 2/3, not KL(q || p)."""
    p, q = Categorical(jnp.zeros(2)), Categorical(jnp.log(jnp.array([1.0, 3.0])))
    assert p.kl(q) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3), abs=1e-6)
    assert q.kl(p) == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), abs=1e-6)


def test_a_categorical_draws_each_action_as_often_as_its_probability_says():
    num_draws, probabilities = 40_000, np.array([0.1, 0.2, 0.65, 0.05])
    logits = jnp.broadcast_to(jnp.log(probabilities).astype(jnp.float32), (num_draws, 4))
    actions = Categorical(logits).sample(sampling_noise(Discrete(4), KEY, (num_draws,)))
    draws = np.bincount(actions, minlength=4) / num_draws
    deviation = np.sqrt(probabilities * (1 - probabilities) / num_draws)
    assert np.all(np.abs(draws - probabilities) < 4 * deviation)


def test_the_entries_of_a_multicategorical_are_drawn_independently():
    num_draws, logits = 40_000, np.float32([0.0, 1.0, 0.5, 0.0, -1.0])
    noise = sampling_noise(MultiDiscrete(NVEC), KEY, (num_draws,))
    actions = MultiCategorical(jnp.broadcast_to(logits, (num_draws, 5)), NVEC).sample(noise)
    draws = np.zeros(NVEC)
    np.add.at(draws, tuple(np.asarray(actions).T), 1 / num_draws)
    probabilities = joint(logits)
    assert np.all(
        np.abs(draws - probabilities) < 4 * np.sqrt(probabilities * (1 - probabilities) / num_draws)
    )


def test_alike_entries_of_a_multicategorical_do_not_draw_alike():
    actions = MultiCategorical(jnp.zeros((1000, 4)), (2, 2)).sample(
        sampling_noise(MultiDiscrete((2, 2)), KEY, (1000,))
    )
    assert 400 < jnp.sum(actions[:, 0] == actions[:, 1]) < 600


def test_an_action_of_no_probability_is_never_drawn():
    logits = jnp.broadcast_to(jnp.array([0.0, -1e9, 0.0]), (10_000, 3))
    draws = Categorical(logits).sample(sampling_noise(Discrete(3), KEY, (10_000,)))
    assert not jnp.any(draws == 1)
    assert jnp.any(draws == 0)
    assert jnp.any(draws == 2)


def test_the_mode_is_the_likeliest_action():
    assert Categorical(jnp.array([[0.0, 3.0, 1.0], [2.0, -1.0, 1.0]])).mode().tolist() == [1, 0]
    assert MultiCategorical(jnp.array([0.0, 1.0, 5.0, 4.0, 3.0]), NVEC).mode().tolist() == [1, 0]


@pytest.mark.parametrize("low", [-1e4, -1e9])
def test_values_and_gradients_are_finite_at_extreme_logits(low):
    rows = [[low, 0.0, 0.0], [0.0, -low, low], [0.0, 0.0, low], [-low, -low, -low]]
    logits = np.float32(rows)

    def terms(logits, second):
        first, second = Categorical(logits), Categorical(second)
        log_probs = sum(first.log_prob(jnp.full(4, action)) for action in range(3))
        return log_probs, first.entropy(), first.kl(second), second.kl(first)

    def summed(i):
        return jax.grad(lambda *logits: jnp.sum(terms(*logits)[i]), argnums=(0, 1))

    run = jax.jit(lambda *logits: (terms(*logits), [summed(i)(*logits) for i in range(4)]))
    values, gradients = run(logits, logits[::-1])
    assert all(np.isfinite(number).all() for number in jax.tree.leaves((values, gradients)))
    np.testing.assert_allclose(values[1], np.log([2, 1, 2, 3]), atol=1e-6)


def test_the_gradient_of_a_log_probability_is_the_one_hot_less_the_softmax():
    logits = np.float32([0.3, -1.2, 2.0])
    gradient = jax.grad(lambda logits: Categorical(logits).log_prob(jnp.array(2)))(
        jnp.asarray(logits)
    )
    np.testing.assert_allclose(gradient, np.eye(3)[2] - softmax(logits), atol=1e-6)


@pytest.mark.parametrize("batch", [(), (5,), (2, 3, 1)])
@pytest.mark.parametrize("space", [Discrete(5), MultiDiscrete(NVEC)], ids=str)
def test_batch_axes_lead_and_rows_are_independent(space, batch):
    logits = np.float32(np.random.default_rng(0).normal(size=(*batch, num_logits(space))))

    @jax.jit
    def run(logits):
        distribution, other = from_logits(space, logits), from_logits(space, logits[..., ::-1])
        action = distribution.sample(sampling_noise(space, KEY, batch))
        return (
            action,
            distribution.mode(),
            distribution.log_prob(action),
            distribution.entropy(),
            distribution.kl(other),
        )

    action, mode, *results = run(logits)
    assert action.shape == mode.shape == (*batch, *space.shape)
    assert action.dtype == mode.dtype == space.dtype
    assert all(space.contains(row) for row in np.asarray(action).reshape(-1, *space.shape))
    assert [result.shape for result in results] == [batch] * 3
    each = [np.asarray(array) for array in (logits, action, *results)]
    for index in np.ndindex(batch):
        row_logits, row_action, log_prob, entropy, kl = (array[index] for array in each)
        alone = of_row(space, row_logits, row_action)
        np.testing.assert_allclose((log_prob, entropy, kl), alone, atol=1e-6)


@functools.partial(jax.jit, static_argnums=0)
def of_row(space, logits, action):
    """(log-probability, entropy, KL from the one of reversed logits), without batch axes."""
    row = from_logits(space, logits)
    return row.log_prob(action), row.entropy(), row.kl(from_logits(space, logits[::-1]))


def test_a_network_gives_one_output_for_each_category():
    assert num_logits(Discrete(7)) == 7
    assert num_logits(MultiDiscrete((2, 3, 4))) == 9


def test_a_network_gives_a_mean_and_a_log_std_for_each_number_of_a_box():
    assert num_logits(Box(-1.0, 1.0, (2,))) == 4


def test_an_action_space_without_a_distribution_is_refused():
    message = r"action space Box.*not supported; allowed: Discrete, MultiDiscrete, Box, and Dict"
    with pytest.raises(UsageError, match=message):
        num_logits(Box(0, 5, (0,)))


def test_a_network_gives_one_output_for_each_integer_of_a_box():
    assert num_logits(Box(0, 5, (2,), "int32")) == 12


# Box: the diagonal Gaussian, against SciPy


def gaussians(size):
    """(mean, log-std) of `size` independent normal numbers."""
    part = st.lists(st.floats(-2, 2, width=32), min_size=size, max_size=size).map(np.float32)
    return st.tuples(part, part)


def reference(mean, log_std):
    return scipy.stats.multivariate_normal(
        np.float64(mean), np.diag(np.exp(2 * np.float64(log_std)))
    )


@few
@given(gaussians(3), st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3).map(np.float32))
def test_a_gaussian_has_the_density_and_entropy_of_scipys(parameters, action):
    distribution = DiagGaussian(*map(jnp.asarray, parameters), shape=(3,))
    expected = reference(*parameters)
    np.testing.assert_allclose(
        distribution.log_prob(jnp.asarray(action)), expected.logpdf(action), rtol=2e-5, atol=2e-4
    )
    np.testing.assert_allclose(distribution.entropy(), expected.entropy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(distribution.mode(), parameters[0])


@few
@given(gaussians(1), gaussians(1))
def test_a_gaussians_kl_is_the_integral_of_the_density_times_the_log_ratio(first, second):
    p, q = (
        scipy.stats.norm(float(mean[0]), float(np.exp(log_std[0])))
        for mean, log_std in (first, second)
    )
    low, high = p.ppf(1e-14), p.isf(1e-14)
    integral, _ = scipy.integrate.quad(
        lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), low, high, limit=200
    )
    distributions = [
        DiagGaussian(*map(jnp.asarray, parameters), shape=(1,)) for parameters in (first, second)
    ]
    np.testing.assert_allclose(
        distributions[0].kl(distributions[1]), integral, rtol=1e-3, atol=1e-4
    )
    assert distributions[0].kl(distributions[0]) == 0


@few
@given(gaussians(4), gaussians(4))
def test_a_gaussians_kl_adds_up_over_its_independent_numbers(first, second):
    def kl(index):
        p, q = (
            DiagGaussian(*(jnp.asarray(part[index]) for part in parameters), shape=(1,))
            for parameters in (first, second)
        )
        return p.kl(q)

    whole = kl(slice(None))
    np.testing.assert_allclose(whole, sum(float(kl([i])) for i in range(4)), rtol=1e-4, atol=1e-4)


def test_a_gaussians_samples_have_its_mean_and_spread_and_shape():
    mean, log_std = jnp.arange(6.0), jnp.linspace(-1.0, 1.0, 6)
    space = Box(-9.0, 9.0, (2, 3))
    gaussian = from_logits(space, jnp.concatenate([mean, log_std]))
    samples = np.asarray(jax.vmap(gaussian.sample)(sampling_noise(space, KEY, (20_000,))))
    assert samples.shape == (20_000, 2, 3) and num_logits(space) == 12
    flat, error = samples.reshape(-1, 6), np.exp(log_std) / np.sqrt(20_000)
    assert (np.abs(flat.mean(0) - mean) < 4.5 * error).all()
    np.testing.assert_allclose(flat.std(0), np.exp(log_std), rtol=0.03)
    assert (
        scipy.stats.kstest(flat[:, 2], scipy.stats.norm(2.0, float(np.exp(log_std[2]))).cdf).pvalue
        > 1e-3
    )
    np.testing.assert_allclose(
        gaussian.log_prob(samples[0]), reference(mean, log_std).logpdf(flat[0]), rtol=1e-5
    )


def test_an_overflowing_log_std_is_held_at_twenty():
    gaussian = from_logits(Box(-1.0, 1.0, (1,)), jnp.array([0.0, 1e9]))
    np.testing.assert_array_equal(gaussian.log_std, [20.0])
    assert jnp.isfinite(gaussian.log_prob(jnp.array([1e8])))


def test_normalized_actions_stretch_to_the_bounds_and_stop_there():
    space = Box((0.0, -2.0), (10.0, 2.0), (2,))
    convert = ActionForm(space, normalize=True).to_env
    actions = jnp.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [1.5, -7.0]])
    np.testing.assert_allclose(convert(actions), [[0, -2], [5, 1], [10, 2], [10, -2]], atol=1e-6)


def test_clipped_actions_stop_at_the_bounds_and_others_pass_as_they_are():
    space, actions = Box((0.0, -2.0), (10.0, 2.0), (2,)), jnp.array([[-1.0, -1.0], [11.0, 3.0]])
    np.testing.assert_array_equal(
        ActionForm(space, normalize=False, clip=True).to_env(actions), [[0, -1], [10, 2]]
    )
    np.testing.assert_array_equal(ActionForm(space, normalize=False).to_env(actions), actions)


def test_each_element_is_stretched_between_finite_bounds_and_clipped_at_a_single_one():
    space = Box((0.0, -np.inf, -np.inf, 0.0), (np.inf, 2.0, np.inf, 10.0))
    actions = jnp.array([[-1.0, -1.0, -1.0, -1.0], [11.0, 3.0, 50.0, 0.5]])
    for clip in (False, True):
        np.testing.assert_array_equal(
            ActionForm(space, normalize=True, clip=clip).to_env(actions),
            [[0, -1, -1, 0], [11, 2, 50, 7.5]],
        )
    np.testing.assert_array_equal(
        ActionForm(space, normalize=False, clip=True).to_env(actions),
        [[0, -1, -1, 0], [11, 2, 50, 0.5]],
    )


BOUNDS = st.tuples(
    st.sampled_from((-np.inf, -1e35, -7.5, -1.0, 0.0)), st.sampled_from((0.0, 2.0, 1e35, np.inf))
)


@few
@given(st.lists(BOUNDS, min_size=1, max_size=4), st.booleans(), st.integers(0, 10**6))
def test_environments_get_actions_within_every_finite_bound(bounds, normalize, seed):
    """And the policy's action comes back, unless it was clipped."""
    low, high = map(np.float32, zip(*bounds, strict=True))
    space = Box(tuple(low.tolist()), tuple(high.tolist()))
    form = ActionForm(space, normalize, clip=True)
    actions = np.float32(5 * np.random.default_rng(seed).normal(size=(20, len(bounds))))
    given = np.asarray(form.to_env(jnp.asarray(actions)))
    assert np.all((given >= low) & (given <= high))
    both = (np.abs(low) < 1e30) & (np.abs(high) < 1e30) & normalize
    wanted = np.where(both, np.clip(actions, -1, 1), np.clip(actions, low, high))
    back = form.from_env(given)
    is_point = both & (low == high)  # one action, whatever the policy had
    np.testing.assert_allclose(back[:, ~is_point], wanted[:, ~is_point], atol=1e-5, rtol=1e-5)


def test_integer_actions_are_never_converted():
    for space, action in (
        (Discrete(3), jnp.array([2])),
        (MultiDiscrete(NVEC), jnp.array([[1, 2]])),
    ):
        assert ActionForm(space, normalize=True, clip=True).to_env(action) is action


# Masks


LOGITS = st.one_of(
    rows(5), st.lists(st.floats(-1e6, 1e6, width=32), min_size=5, max_size=5).map(np.float32)
)
MASKS = st.lists(st.booleans(), min_size=5, max_size=5).map(np.array)


def both(logits):
    """One integer of five, and the pair of two and three, of the same logits."""
    return Categorical(logits), MultiCategorical(logits, NVEC)


@few
@given(LOGITS, MASKS, st.integers(0, 10**6))
def test_a_masked_action_is_never_drawn_and_never_the_mode(logits, mask, seed):
    for space, distribution in zip(
        (Discrete(5), MultiDiscrete(NVEC)), both(jnp.asarray(logits)), strict=True
    ):
        masked = distribution.masked(jnp.asarray(mask))
        entries = [mask] if isinstance(space, Discrete) else np.split(mask, [2])
        noise = sampling_noise(space, jax.random.key(seed), (200,))
        draws = np.asarray(jax.vmap(masked.sample)(noise)).reshape(200, -1)
        for i, allowed in enumerate(entries):
            allowed = allowed | ~allowed.any()  # none left: as if all were
            assert allowed[draws[:, i]].all()
            assert allowed[np.ravel(masked.mode())[i]]


def test_of_a_million_draws_none_is_masked():
    """As many as a training draws: of all magnitudes of logits, by every mask."""
    num_draws = 2**20

    @jax.jit
    def impossible(key):
        """How many draws the mask forbids: of a Categorical, and of a MultiCategorical's parts."""
        logits_key, mask_key, noise_key = jax.random.split(key, 3)
        size = jnp.geomspace(0.01, 1e6, num_draws)[:, None]
        logits = size * jax.random.normal(logits_key, (num_draws, 5))
        mask = jax.random.bernoulli(mask_key, 0.5, (num_draws, 5))
        counts = []
        for space, distribution in zip(
            (Discrete(5), MultiDiscrete(NVEC)), both(logits), strict=True
        ):
            masked = distribution.masked(mask)
            draws = masked.sample(sampling_noise(space, noise_key, (num_draws,)))
            parts = [mask] if isinstance(space, Discrete) else jnp.split(mask, [2], axis=1)
            for i, part in enumerate(parts):
                possible = part | ~jnp.any(part, axis=1, keepdims=True)  # none left: all are
                drawn = draws.reshape(num_draws, -1)[:, i : i + 1]
                counts.append(jnp.sum(~jnp.take_along_axis(possible, drawn, axis=1)))
        return counts

    assert impossible(KEY) == [0, 0, 0]


@few
@given(rows(5), rows(5), MASKS)
def test_a_masked_categorical_is_that_of_the_possible_actions_alone(first, second, mask):
    mask = mask | ~mask.any()
    p, q = softmax(first[mask]), softmax(second[mask])
    first, second = (
        Categorical(jnp.asarray(logits)).masked(jnp.asarray(mask)) for logits in (first, second)
    )
    log_probs = np.array([first.log_prob(jnp.array(action)) for action in range(5)])
    np.testing.assert_allclose(log_probs[mask], np.log(p), rtol=1e-5, atol=1e-5)
    assert (log_probs[~mask] < -1e30).all() and (np.exp(log_probs[~mask]) == 0).all()
    np.testing.assert_allclose(first.entropy(), -(p * np.log(p)).sum(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first.kl(second), (p * np.log(p / q)).sum(), rtol=1e-4, atol=4e-6)


def masked_terms(logits, mask):
    """Log-probabilities of all actions, entropy and both KLs of two rows of logits.

    First for Categorical, then for MultiCategorical.
    """
    values = []
    for first, second in zip(both(logits[0]), both(logits[1]), strict=True):
        first, second = first.masked(mask), second.masked(mask)
        actions = (
            jnp.arange(5) if isinstance(first, Categorical) else jnp.array(list(np.ndindex(NVEC)))
        )
        values.append(
            [jax.vmap(first.log_prob)(actions), first.entropy(), first.kl(second), second.kl(first)]
        )
    return values


values_and_gradients = jax.jit(lambda *at: (masked_terms(*at), jax.jacfwd(masked_terms)(*at)))


@few
@given(LOGITS, LOGITS, MASKS)
def test_of_masked_actions_everything_is_finite_and_their_logits_have_no_gradient(
    first, second, mask
):
    values, gradients = values_and_gradients(jnp.stack([first, second]), jnp.asarray(mask))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((values, gradients)))
    if mask.any():
        assert all((np.asarray(leaf)[..., ~mask] == 0).all() for leaf in gradients[0])


@few
@given(LOGITS, MASKS)
def test_a_mask_can_be_read_back_and_one_of_all_actions_changes_nothing(logits, mask):
    logits, everything = jnp.asarray(logits), jnp.ones(5, bool)
    for distribution in both(logits):
        np.testing.assert_array_equal(distribution.masked(everything).logits, logits)
        assert distribution.possible().all()
    expected = mask | ~mask.any()
    np.testing.assert_array_equal(
        Categorical(logits).masked(jnp.asarray(mask)).possible(), expected
    )
    entries = np.concatenate([entry | ~entry.any() for entry in np.split(mask, [2])])
    np.testing.assert_array_equal(
        MultiCategorical(logits, NVEC).masked(jnp.asarray(mask)).possible(), entries
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_masks_hold_in_every_floating_type(dtype):
    logits = jnp.array([[8.0, -3.0, 2.0, 1000.0], [-1000.0, 5.0, 4.0, 3.0]], dtype)
    mask = jnp.array([[True, False, True, False], [True, False, False, False]])

    @jax.jit
    def of(logits):
        """(masked logits, probabilities, entropy, the entropy's gradient)."""
        masked = Categorical(logits).masked(mask)
        log_probs = [masked.log_prob(jnp.full(2, action)) for action in range(4)]
        entropy = lambda logits: jnp.sum(Categorical(logits).masked(mask).entropy())
        probabilities = jnp.exp(jnp.stack(log_probs, axis=-1))
        return masked.logits, probabilities, masked.entropy(), jax.grad(entropy)(logits)

    masked_logits, probabilities, entropy, gradients = of(logits)
    assert masked_logits.dtype == dtype
    np.testing.assert_array_equal(np.asarray(probabilities > 0), np.asarray(mask))
    assert entropy[1] == 0
    assert jnp.all(jnp.isfinite(gradients))


def test_a_batch_of_masks_goes_row_by_row():
    logits = jnp.zeros((3, 2, 5))
    mask = jnp.asarray(np.arange(5) < np.arange(1, 7).reshape(3, 2, 1))
    np.testing.assert_allclose(
        Categorical(logits).masked(mask).entropy(),
        np.log([[1, 2], [3, 4], [5, 5]]),
        rtol=1e-6,
        atol=1e-6,
    )
