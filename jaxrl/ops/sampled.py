"""Sampling: the base class of distributions, which draw from a random key or from its numbers."""

from typing import Any

import jax

from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import is_key
from jaxrl.core.types import Key


class Sampled:
    """The base class of all distributions."""

    def noise_of(self, noise: jax.Array | Key | None) -> jax.Array:
        """The random numbers that `sample` makes an action of.

        Raises:
            UsageError: there are none, and no key.
        """
        if noise is None:
            raise UsageError("sample takes a random key: distribution.sample(jax.random.key(0))")
        return self.noise(noise) if is_key(noise) else noise

    def logp(self, action: Any) -> jax.Array:
        """The same as `log_prob`, by RLlib's name."""
        return self.log_prob(action)
