"""Beta and squashed Gaussian against SciPy, their samples against their distribution functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.ops.continuous import Beta, DiagGaussian, SquashedGaussian, beta_of, digamma, log_gamma
from jaxrl.ops.distributions import from_logits, num_logits, sampling_noise
from jaxrl.ops.environment_actions import ActionForm
from tests.messages import refusal

KEY = jax.random.key(0)
KINDS = ("gaussian", "beta", "squashed_gaussian")
noise_of = jax.jit(sampling_noise, static_argnums=(0, 2, 3))
few = settings(max_examples=10, derandomize=True)


def several(low, high, size=3):
    return st.lists(st.floats(low, high, width=32), min_size=size, max_size=size).map(np.float32)


CONCENTRATIONS = st.tuples(several(1.125, 50), several(1.125, 50))


def beta(parameters):
    return Beta(*map(jnp.asarray, parameters), shape=(3,))


def of_single(distribution, action):
    """Compiled once for all examples: mode, log-probability, entropy."""
    return _of_single(type(distribution), distribution, action)


def kl_of(first, second):
    return _kl_of(type(first), first, second)


# The class is an argument of its own: to jaxlib 0.10.2 two dataclasses with as many fields are the
# same structure, and one call in a hundred runs the program of the other class.
@functools.partial(jax.jit, static_argnums=0)
def _of_single(kind, distribution, action):
    return distribution.mode(), distribution.log_prob(action), distribution.entropy()


@functools.partial(jax.jit, static_argnums=0)
def _kl_of(kind, first, second):
    return first.kl(second)


def references(parameters):
    """SciPy's, on [-1, 1]."""
    return [
        scipy.stats.beta(float(a), float(b), loc=-1, scale=2)
        for a, b in zip(*parameters, strict=True)
    ]


def test_the_spread_is_the_mean_and_a_standard_deviation_to_each_side():
    mean, std = jnp.array([[1.0, -2.0]]), jnp.array([[0.5, 3.0]])
    for kind in (DiagGaussian, SquashedGaussian):  # of the latter before the tanh
        low, middle, high = kind(mean, jnp.log(std), shape=(1, 2)).spread()
        np.testing.assert_allclose(low, [[[0.5, -5.0]]], rtol=1e-6)
        np.testing.assert_allclose(middle, [[[1.0, -2.0]]])
        np.testing.assert_allclose(high, [[[1.5, 1.0]]], rtol=1e-6)
    parameters = np.float32([[2, 1.5, 30]]), np.float32([[3, 9, 2]])
    expected = references([part[0] for part in parameters])
    low, middle, high = Beta(*map(jnp.asarray, parameters), shape=(3,)).spread()
    np.testing.assert_allclose(middle[0], [part.mean() for part in expected], rtol=1e-5)
    np.testing.assert_allclose((high - low)[0] / 2, [part.std() for part in expected], rtol=1e-5)


# Beta


@few
@given(CONCENTRATIONS, several(-0.9375, 0.9375))
def test_a_beta_has_the_density_entropy_and_mode_of_scipys(parameters, action):
    expected = references(parameters)
    mode, log_prob, entropy = of_single(beta(parameters), jnp.asarray(action))
    np.testing.assert_allclose(
        log_prob,
        sum(part.logpdf(float(x)) for part, x in zip(expected, action, strict=True)),
        rtol=2e-5,
        atol=2e-4,
    )
    np.testing.assert_allclose(
        entropy, sum(part.entropy() for part in expected), rtol=1e-4, atol=1e-4
    )
    beside = [of_single(beta(parameters), mode + move)[1] for move in (-0.01, 0.0, 0.01)]
    assert beside[1] >= max(beside) - 1e-4


@few
@given(CONCENTRATIONS, CONCENTRATIONS)
def test_a_betas_kl_is_the_integral_of_the_density_times_the_log_ratio(first, second):
    integrals = []
    for p, q in zip(references(first), references(second), strict=True):
        integrand = lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x))
        integrals.append(scipy.integrate.quad(integrand, p.ppf(1e-13), p.isf(1e-13), limit=200)[0])
    np.testing.assert_allclose(
        kl_of(beta(first), beta(second)), sum(integrals), rtol=1e-3, atol=2e-4
    )
    assert kl_of(beta(first), beta(first)) == 0


def test_a_betas_samples_follow_its_distribution_function():
    space, num = Box(-1.0, 1.0, ()), 100_000
    noise = sampling_noise(space, KEY, (num,), "beta")
    sample = jax.jit(
        lambda alpha, beta: Beta(jnp.full((num, 1), alpha), jnp.full((num, 1), beta), ()).sample(
            noise
        )
    )
    for alpha, beta in [(1.0, 1.0), (1.001, 1.5), (1.7, 1.7), (1.2, 9.0), (60.0, 3.0), (1e3, 1e3)]:
        draws = np.float64(sample(alpha, beta))
        expected = scipy.stats.beta(alpha, beta, loc=-1, scale=2)
        assert scipy.stats.kstest(draws, expected.cdf).pvalue > 1e-3
        assert abs(draws.mean() - expected.mean()) < 4.5 * expected.std() / np.sqrt(num)


def test_the_numbers_of_a_beta_array_are_independent_and_in_their_places():
    space, num = Box(-1.0, 1.0, (2, 2)), 20_000
    logits = np.float32([0.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, 0.0])
    distribution = jax.jit(lambda logits: from_logits(space, logits, "beta"))(logits)
    sample = jax.jit(jax.vmap(distribution.sample))
    draws = np.asarray(sample(noise_of(space, KEY, (num,), "beta")))
    assert draws.shape == (num, 2, 2)
    flat = draws.reshape(num, 4)
    for i, expected in enumerate(references((distribution.alpha, distribution.beta))):
        assert scipy.stats.kstest(np.float64(flat[:, i]), expected.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(flat.T) - np.eye(4)).max() < 4.5 / np.sqrt(num)


def test_a_betas_numbers_and_gradients_are_finite_at_the_bounds_and_at_extreme_logits():
    space = Box(-1.0, 1.0, (2,))
    noise = sampling_noise(space, KEY, (500,), "beta")
    edges = jnp.array([[-1.0, 1.0], [1.0, -1.0], [0.0, 0.5]])

    def terms(logits):
        first = from_logits(space, logits, "beta")
        second = from_logits(space, logits[::-1] + 1.0, "beta")
        rows = jax.tree.map(lambda leaf: jnp.tile(leaf, (3, 1)), first)
        return jnp.stack(
            [jnp.sum(rows.log_prob(edges)), first.entropy(), first.kl(second), second.kl(first)]
        )

    @jax.jit
    def run(logits):
        first = from_logits(space, logits, "beta")
        actions = jnp.concatenate([jax.vmap(first.sample)(noise), first.mode()[None]])
        return actions, terms(logits), jax.grad(lambda logits: jnp.sum(terms(logits)))(logits)

    for logit in (-1e9, -20.0, 0.0, 20.0, 1e4, 1e9):
        actions, *values = run(jnp.array([logit, 0.5, -0.5, -logit]))
        assert np.all((actions >= -1) & (actions <= 1))
        assert all(np.isfinite(value).all() for value in values)


def test_a_betas_gradients_are_those_of_finite_differences():
    def terms(parameters):
        first, second = (Beta(*part, shape=(2,)) for part in parameters)
        return jnp.stack(
            [first.log_prob(jnp.array([0.3, -0.8])), first.entropy(), first.kl(second)]
        )

    parameters = jnp.array([[[1.5, 4.0], [2.5, 9.0]], [[2.0, 5.0], [2.0, 7.0]]])
    gradients, compiled = np.asarray(jax.jit(jax.jacfwd(terms))(parameters)), jax.jit(terms)
    for index in np.ndindex(parameters.shape):
        move = 1e-2 * (np.arange(8) == np.ravel_multi_index(index, parameters.shape)).reshape(
            parameters.shape
        )
        difference = (compiled(parameters + move) - compiled(parameters - move)) / 2e-2
        np.testing.assert_allclose(
            gradients[(slice(None), *index)], difference, rtol=5e-3, atol=5e-4
        )


def test_the_logits_of_a_beta_are_softplus_above_one():
    distribution = beta_of(jnp.array([0.0, 5.0, -3.0, 2.0]), (2,))
    np.testing.assert_allclose(distribution.alpha, 1 + np.log1p(np.exp([0.0, 5.0])), rtol=1e-6)
    np.testing.assert_allclose(distribution.beta, 1 + np.log1p(np.exp([-3.0, 2.0])), rtol=1e-6)


def test_log_gamma_and_its_derivatives_are_scipys_from_1_to_the_highest_concentrations():
    x = np.concatenate([np.linspace(1, 12, 200), np.geomspace(12, 2000, 100)]).astype(np.float32)
    wide = np.float64(x)
    np.testing.assert_allclose(
        log_gamma(jnp.asarray(x)), scipy.special.gammaln(wide), rtol=1e-6, atol=5e-6
    )
    np.testing.assert_allclose(
        digamma(jnp.asarray(x)), scipy.special.digamma(wide), rtol=1e-6, atol=2e-6
    )
    slopes = [
        jax.jit(jax.vmap(jax.grad(function)))(jnp.asarray(x)) for function in (log_gamma, digamma)
    ]
    np.testing.assert_allclose(slopes[0], scipy.special.digamma(wide), rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(slopes[1], scipy.special.polygamma(1, wide), rtol=1e-4, atol=1e-6)


# The squashed Gaussian


GAUSSIANS = st.tuples(several(-3, 3), several(-3, 1.5))


def squashed(parameters):
    return SquashedGaussian(*map(jnp.asarray, parameters), shape=(3,))


@few
@given(GAUSSIANS, several(-4, 4))
def test_a_squashed_gaussian_has_the_density_of_a_change_of_variables(parameters, action):
    """By y = tanh(u): p(y) = N(atanh(y)) / (1 - y^2)."""
    mean, log_std = map(np.float64, parameters)
    y = np.tanh(np.float64(action))
    density = scipy.stats.norm(mean, np.exp(log_std)).logpdf(np.arctanh(y)) - np.log1p(-(y**2))
    log_prob = of_single(squashed(parameters), jnp.asarray(action))[1]
    np.testing.assert_allclose(log_prob, density.sum(), rtol=2e-5, atol=1e-3)


@few
@given(st.floats(-9, 9, width=32), st.floats(-5, 3, width=32))
def test_a_squashed_gaussians_entropy_is_that_of_u_and_the_mean_of_the_log_slope(mean, log_std):
    std = np.exp(log_std)
    nodes = np.linspace(-9, 9, 4001)
    weights = scipy.stats.norm.pdf(nodes) * (nodes[1] - nodes[0])
    u = mean + std * nodes
    log_slope = 2 * (np.log(2) - np.logaddexp(u, -u))  # log(1 - tanh(u)^2)
    expected = scipy.stats.norm(mean, std).entropy() + (weights * log_slope).sum()
    squashed = SquashedGaussian(jnp.array([mean]), jnp.array([log_std]), (1,))
    np.testing.assert_allclose(of_single(squashed, jnp.zeros(1))[2], expected, atol=1e-3, rtol=1e-5)


def test_the_entropy_of_a_squashed_gaussian_has_the_gradient_of_the_integral():
    nodes = np.linspace(-9, 9, 4001)
    weights = jnp.float32(scipy.stats.norm.pdf(nodes) * (nodes[1] - nodes[0]))

    def by_integral(mean, log_std):
        u = mean + jnp.exp(log_std) * jnp.float32(nodes)
        return log_std + jnp.sum(weights * 2 * (np.log(2) - jnp.logaddexp(u, -u)))

    def closed(mean, log_std):
        return SquashedGaussian(mean[None], log_std[None], (1,)).entropy()

    compiled = [jax.jit(jax.grad(entropy, argnums=(0, 1))) for entropy in (closed, by_integral)]
    for at in ((0.4, -0.5), (-1.5, 0.3), (2.0, 1.0), (0.1, -2.0)):
        gradients = [gradient(*map(jnp.float32, at)) for gradient in compiled]
        np.testing.assert_allclose(*gradients, atol=5e-3)


@few
@given(GAUSSIANS, GAUSSIANS)
def test_squashing_changes_no_kl(first, second):
    expected = [
        DiagGaussian(*map(jnp.asarray, parameters), shape=(3,)) for parameters in (first, second)
    ]
    np.testing.assert_array_equal(kl_of(squashed(first), squashed(second)), kl_of(*expected))


def test_the_ratio_of_two_log_probabilities_is_exact_however_near_the_bounds():
    """In f32 tanh(12) is 1 up to its last bits; for u = 12 the ratio is that of the normals."""
    action = jnp.array([12.0])
    first, second = (
        SquashedGaussian(jnp.array([mean]), jnp.zeros(1), (1,)) for mean in (11.0, 11.5)
    )
    difference = second.log_prob(action) - first.log_prob(action)
    np.testing.assert_allclose(difference, 0.5 * 1.0**2 - 0.5 * 0.5**2, rtol=1e-4)
    assert jnp.tanh(action) > 1 - 1e-6


def test_a_squashed_gaussians_numbers_and_gradients_are_finite_at_extremes():
    def terms(mean, log_std):
        squashed = SquashedGaussian(mean[None], log_std[None], (1,))
        return squashed.log_prob(squashed.sample(jnp.array([2.5]))), squashed.entropy()

    run = jax.jit(lambda *at: (terms(*at), jax.jacfwd(terms, argnums=(0, 1))(*at)))
    for mean in (0.0, -1e4, 1e6):
        for log_std in (-20.0, 0.0, 20.0):
            assert all(np.isfinite(jax.tree.leaves(run(jnp.float32(mean), jnp.float32(log_std)))))


# All kinds


@pytest.mark.parametrize(("batch", "shape"), [((), (3,)), ((5,), ()), ((2, 3, 1), (2, 2))])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_axes_lead_and_rows_are_independent(kind, batch, shape):
    space = Box(-2.0, 5.0, shape)
    logits = np.float32(np.random.default_rng(0).normal(size=(*batch, num_logits(space, kind))))

    @jax.jit
    def run(logits, noise):
        distribution = from_logits(space, logits, kind)
        other = from_logits(space, 0.5 * logits, kind)
        action = distribution.sample(noise)
        terms = distribution.log_prob(action), distribution.entropy(), distribution.kl(other)
        to_env_action = ActionForm(space, normalize=False, kind=kind).to_env
        return action, distribution.mode(), to_env_action(action), *terms

    noise = noise_of(space, KEY, batch, kind)
    action, mode, to_env_action, *results = each = run(logits, noise)
    assert action.shape == mode.shape == to_env_action.shape == (*batch, *shape)
    assert [result.shape for result in results] == [batch] * 3
    if kind != "gaussian":
        rows = np.asarray(to_env_action).reshape(-1, *shape)
        assert np.all(jax.jit(jax.vmap(space.contains))(rows))
    if batch:
        noise, each = jax.device_get((noise, each))
        for values, turned in zip(each, run(logits[::-1], noise[::-1]), strict=True):
            np.testing.assert_allclose(values, turned[::-1], rtol=1e-5, atol=1e-5)


def test_beta_and_squashed_actions_fill_the_bounds_however_actions_are_fitted():
    space = Box((0.0, -2.0), (10.0, 2.0), (2,))
    for normalize in (True, False):
        convert = ActionForm(space, normalize, kind="beta").to_env
        np.testing.assert_allclose(
            convert(jnp.array([[-1.0, 0.5], [1.0, -1.0]])), [[0, 1], [10, -2]]
        )
        convert = ActionForm(space, normalize, kind="squashed_gaussian").to_env
        np.testing.assert_allclose(convert(jnp.array([0.0, 20.0])), [5, 2])
        np.testing.assert_allclose(
            convert(jnp.array([np.arctanh(0.5), -20.0])), [7.5, -2], rtol=1e-6
        )


@pytest.mark.parametrize(
    "space", [Discrete(3), MultiDiscrete((2, 3)), Box(-np.inf, 1.0, (2,))], ids=str
)
@pytest.mark.parametrize("kind", ["beta", "squashed_gaussian"])
def test_what_has_no_finite_bounds_has_no_distribution_between_them(space, kind):
    with refusal(f"action_distribution='{kind}' needs Box actions with finite bounds, not"):
        num_logits(space, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_over_numbers_is_refused(kind):
    distribution = from_logits(Box(-1.0, 1.0, (2,)), jnp.zeros(4), kind)
    with pytest.raises(UsageError, match="an action mask needs discrete actions"):
        distribution.masked(jnp.ones(2, bool))
