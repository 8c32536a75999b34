"""Continuous action distributions: Gaussian, tanh-squashed Gaussian, and Beta.

Log-probability, entropy and KL are those of the whole array: sums over its d = prod(shape)
elements.
"""

import math
from typing import NoReturn

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.types import Key
from jaxrl.ops.sampled import Sampled

# Distance from 0 and 1 to which a Beta's density is evaluated; f32 actions come as near as 3e-8.
BETA_MARGIN = 1e-6
MIN_BETA_LOGIT, MAX_CONCENTRATION = -9.0, 1e3  # beyond these, f32 cannot distinguish two Betas
GAMMA_ATTEMPTS = 4  # of rejection sampling

# The logistic distribution of scale 1/2 as a mixture of three normal distributions: weights and
# standard deviations (Monahan and Stefanski 1992).
MIXTURE_WEIGHTS = (0.25220, 0.58523, 0.16257)
MIXTURE_STDS = (0.55070, 0.86538, 1.37352)


class Continuous(Sampled):
    """The base class of distributions over arrays of numbers of the shape `shape`."""

    def masked(self, mask: jax.Array) -> NoReturn:
        raise UsageError(
            "an action mask needs discrete actions, Discrete or MultiDiscrete, not a Box"
        )

    def spread(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(mean - std, mean, mean + std), f32[..., *shape] each; of u for tanh(u)."""
        mean, std = self._mean_and_std()
        return tuple(self._as_array(mean + times * std) for times in (-1, 0, 1))

    def _as_array(self, flat: jax.Array) -> jax.Array:
        return flat.reshape(*flat.shape[:-1], *self.shape)


class DiagGaussian(Continuous, struct.PyTreeNode):
    """Independent normal numbers."""

    mean: jax.Array  # f32[..., d]
    log_std: jax.Array  # f32[..., d]
    shape: tuple[int, ...] = struct.field(pytree_node=False)

    def noise(self, key: Key) -> jax.Array:
        return jax.random.normal(to_fast_key(key), jnp.shape(self.mean))

    def sample(self, noise: jax.Array | Key | None = None) -> jax.Array:
        noise = self.noise_of(noise)
        return self._as_array(self.mean + jnp.exp(self.log_std) * noise)

    def mode(self) -> jax.Array:
        return self._as_array(self.mean)

    def _mean_and_std(self) -> tuple[jax.Array, jax.Array]:
        return self.mean, jnp.exp(self.log_std)

    def log_prob(self, action: jax.Array) -> jax.Array:
        away = (jnp.asarray(action).reshape(self.mean.shape) - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * away**2 + self.log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> jax.Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl(self, other: "DiagGaussian") -> jax.Array:
        spread = jnp.exp(2 * (self.log_std - other.log_std))
        away = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return jnp.sum(other.log_std - self.log_std + 0.5 * (spread + away**2 - 1), axis=-1)


class SquashedGaussian(DiagGaussian):
    """tanh(u) of independent normal numbers u, within (-1, 1) (Haarnoja et al. 2018, appendix C).

    Actions are stored as u; `ActionForm` squashes them. In f32, u cannot be recovered from
    tanh(u) near the bounds, and the ratio of two log-probabilities would be noise there. Densities
    are those of tanh(u). The KL is that of the normal numbers, since a bijection does not change
    it. The mode is that of u.
    """

    def log_prob(self, action: jax.Array) -> jax.Array:
        """log N(u) - sum(log(1 - tanh(u)^2))."""
        u = jnp.asarray(action).reshape(self.mean.shape)
        log_slope = 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))
        return DiagGaussian.log_prob(self, action) - sum_last(log_slope)

    def entropy(self) -> jax.Array:
        """The entropy of u plus E[log(1 - tanh(u)^2)], within 0.001 for each number.

            log(1 - tanh(u)^2) = 2 log 2 - 2 log(2 cosh u)
            log(2 cosh u)      = E|u + L|, with L logistic of scale 1/2

        With L as a mixture of three normal distributions, u + L is one too, and E|N(m, s^2)| is

            s sqrt(2 / pi) exp(-m^2 / 2 s^2) + m erf(m / s sqrt(2))
        """
        variance, mean_abs = jnp.exp(2 * self.log_std), 0.0
        for weight, std in zip(MIXTURE_WEIGHTS, MIXTURE_STDS, strict=True):
            scaled = self.mean * jax.lax.rsqrt(2 * (variance + std**2))
            bell = jnp.sqrt((variance + std**2) * (2 / math.pi)) * jnp.exp(-(scaled**2))
            mean_abs = mean_abs + weight * (bell + self.mean * jax.lax.erf(scaled))
        return DiagGaussian.entropy(self) + sum_last(2 * (math.log(2) - mean_abs))


class Beta(Continuous, struct.PyTreeNode):
    """Independent Beta numbers, stretched from [0, 1] to [-1, 1] (Chou et al. 2017).

    Both concentrations are above 1.
    """

    alpha: jax.Array  # f32[..., d]  weight towards 1
    beta: jax.Array  # f32[..., d]  weight towards -1
    shape: tuple[int, ...] = struct.field(pytree_node=False)

    def noise(self, key: Key) -> jax.Array:
        *shape, size = jnp.shape(self.alpha)
        return beta_noise(key, tuple(shape), size)

    def sample(self, noise: jax.Array | Key | None = None) -> jax.Array:
        """G / (G + G') of two Gamma numbers; `noise` as in `beta_noise`."""
        noise = self.noise_of(noise)
        noise = noise.reshape(*noise.shape[:-1], 2, GAMMA_ATTEMPTS, 2, self.alpha.shape[-1])
        both = jnp.stack([self.alpha, self.beta], axis=-2)
        gammas = gamma(both, noise[..., 0, :, :, :], noise[..., 1, :, :, :])
        return self._as_array(2 * gammas[..., 0, :] / jnp.sum(gammas, axis=-2) - 1)

    def mode(self) -> jax.Array:
        return self._as_array(2 * (self.alpha - 1) / (self.alpha + self.beta - 2) - 1)

    def _mean_and_std(self) -> tuple[jax.Array, jax.Array]:
        total = self.alpha + self.beta
        share = self.alpha / total
        return 2 * share - 1, 2 * jnp.sqrt(share * (1 - share) / (total + 1))

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Finite everywhere: an action nearer than 1e-6 to a bound counts as 1e-6 away from it."""
        x = 0.5 * (jnp.asarray(action).reshape(self.alpha.shape) + 1)
        x = jnp.clip(x, BETA_MARGIN, 1 - BETA_MARGIN)
        density = (self.alpha - 1) * jnp.log(x) + (self.beta - 1) * jnp.log1p(-x)
        return sum_last(density) - self._log_norm()

    def entropy(self) -> jax.Array:
        return self._log_norm() - self._mean_log(self.alpha - 1, self.beta - 1)

    def kl(self, other: "Beta") -> jax.Array:
        log_ratio = self._mean_log(self.alpha - other.alpha, self.beta - other.beta)
        return other._log_norm() - self._log_norm() + log_ratio

    def _log_norm(self) -> jax.Array:
        """log(2 B(alpha, beta)), f32[...]: the normaliser of the density on [-1, 1]."""
        log_beta = log_gamma(self.alpha) + log_gamma(self.beta) - log_gamma(self.alpha + self.beta)
        return sum_last(log_beta + math.log(2))

    def _mean_log(self, times: jax.Array, times_rest: jax.Array) -> jax.Array:
        """E[times log x + times_rest log(1 - x)], f32[...]."""
        both = digamma(self.alpha + self.beta)
        log_x, log_rest = digamma(self.alpha) - both, digamma(self.beta) - both
        return sum_last(times * log_x + times_rest * log_rest)


def beta_of(logits: jax.Array, shape: tuple[int, ...]) -> Beta:
    """The Beta of logits f32[..., 2 d]; concentrations 1 + softplus(logit) give it one mode."""
    above = jax.nn.softplus(jnp.maximum(logits, MIN_BETA_LOGIT))
    above = jnp.minimum(above, MAX_CONCENTRATION - 1)
    return Beta(*jnp.split(1 + above, 2, axis=-1), shape)


def beta_noise(key: Key, shape: tuple[int, ...], size: int) -> jax.Array:
    """The random numbers for `size` samples of a Beta: normal numbers, then exponential numbers.

    f32[*shape, 4 GAMMA_ATTEMPTS size].
    """
    normal_key, exponential_key = jax.random.split(to_fast_key(key))
    noise_shape = (*shape, beta_noise_size(size) // 2)
    normal = jax.random.normal(normal_key, noise_shape)
    return jnp.concatenate([normal, jax.random.exponential(exponential_key, noise_shape)], -1)


def beta_noise_size(size: int) -> int:
    """The random numbers of `size` samples."""
    return 4 * GAMMA_ATTEMPTS * size


def gamma(concentration: jax.Array, normal: jax.Array, exponential: jax.Array) -> jax.Array:
    """Gamma numbers by rejection (Marsaglia and Tsang 2000), with a fixed number of attempts each.

        d = concentration - 1/3,    v = (1 + x / sqrt(9 d))^3
        d v is accepted if log(uniform) < x^2 / 2 + d (1 - v + log v)

    An attempt fails in less than 1 of 20 cases, so all four fail in less than 1 of 160,000 draws;
    then the last attempt is used.

    Args:
        concentration: f32[..., 2, d], at least 1.
        normal, exponential: f32[..., GAMMA_ATTEMPTS, 2, d], x and -log(uniform) of each attempt.
    """
    scale = concentration - 1 / 3

    def attempt(k):
        x = normal[..., k, :, :]
        root = 1 + x / (3 * jnp.sqrt(scale))
        cube = jnp.maximum(root, 1e-6) ** 3
        bound = 0.5 * x**2 + scale * (1 - cube + jnp.log(cube))
        return cube, (root > 0) & (-exponential[..., k, :, :] < bound)

    drawn, _ = attempt(GAMMA_ATTEMPTS - 1)
    for k in reversed(range(GAMMA_ATTEMPTS - 1)):
        cube, accepted = attempt(k)
        drawn = jnp.where(accepted, cube, drawn)
    return scale * drawn


def sum_last(values: jax.Array) -> jax.Array:
    """The sum over the last axis, f32[...], as a matrix product.

    For a short sum XLA's CPU backend would fuse the computation of `values` into the sum, one
    number at a time, which takes 20 times longer.
    """
    return jnp.matmul(values, jnp.ones(values.shape[-1], values.dtype), precision="highest")


def log_gamma(x: jax.Array) -> jax.Array:
    """log Gamma(x) for x >= 1, within 5e-6 or 1e-6 of its value.

    Abramowitz and Stegun 6.1.41, at z = x + 5:

        (z - 1/2) log z - z + log(2 pi) / 2 + 1 / 12 z - 1 / 360 z^3 + 1 / 1260 z^5
            - log(x (x + 1) ... (x + 4))

    XLA's function, for all real numbers, is slower, its gradients most of all, and takes seconds to
    compile.
    """
    z, product = x + 5, x * (x + 1) * (x + 2) * (x + 3) * (x + 4)
    inverse = 1 / z
    square = inverse**2
    series = inverse * (1 / 12 - square * (1 / 360 - square / 1260))
    return (z - 0.5) * jnp.log(z) - z + 0.5 * math.log(2 * math.pi) + series - jnp.log(product)


def digamma(x: jax.Array) -> jax.Array:
    """The derivative of log Gamma for x >= 1, with the same precision.

    Abramowitz and Stegun 6.3.18, at z = x + 5:

        log z - 1 / 2 z - 1 / 12 z^2 + 1 / 120 z^4 - 1 / 252 z^6
            - (1 / x + 1 / (x + 1) + ... + 1 / (x + 4))
    """
    z = x + 5
    inverse = 1 / z
    square = inverse**2
    series = 0.5 * inverse + square * (1 / 12 - square * (1 / 120 - square / 252))
    # x (x + 1) ... (x + 4), and its derivative
    product = x * (24 + x * (50 + x * (35 + x * (10 + x))))
    slope = 24 + x * (100 + x * (105 + x * (40 + 5 * x)))
    return jnp.log(z) - series - slope / product
