"""What a policy chooses from, and what the environment is given for it.

Batch axes come first; every method reduces the last axis, or the action's own, alone.
"""

import math
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.quick import quick
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space
from jaxrl.core.types import Key

MAX_LOG_STD = 20.0  # either way; RLlib's log_std_clip_param


class Distribution(Protocol):
    """A batch of distributions over actions; a pytree whose leaves lead with the batch axes `[...]`."""

    def sample(self, noise: jax.Array) -> jax.Array:
        """The action `[..., *action_space.shape]` that each row of `sampling_noise`, `[..., D]`, stands for."""

    def mode(self) -> jax.Array:
        """The likeliest action."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """f32[...], nats."""

    def entropy(self) -> jax.Array:
        """f32[...], nats."""

    def kl(self, other: "Distribution") -> jax.Array:
        """KL(self || other), f32[...], nats."""


class Categorical(struct.PyTreeNode):
    """One integer in [0, A); probabilities are the softmax of the logits."""

    logits: jax.Array  # f32[..., A]

    def sample(self, noise: jax.Array) -> jax.Array:
        """The Gumbel-max trick: an action of probability 0 is never taken."""
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        log_probs = jax.nn.log_softmax(self.logits)
        # A sum over a mask rather than a gather: its gradient is a product, where a gather's is a scatter.
        return jnp.sum(jnp.where(_one_hot(action, self.logits.shape[-1]), log_probs, 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def kl(self, other: "Categorical") -> jax.Array:
        log_probs, other_log_probs = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other_log_probs), axis=-1)


class MultiCategorical(struct.PyTreeNode):
    """A vector of independent integers, entry i in [0, nvec[i])."""

    logits: jax.Array  # f32[..., sum(nvec)], the entries' logits one after the other
    nvec: tuple[int, ...] = struct.field(pytree_node=False)

    def parts(self) -> list[Categorical]:
        return [Categorical(part) for part in jnp.split(self.logits, np.cumsum(self.nvec)[:-1], axis=-1)]

    def sample(self, noise: jax.Array) -> jax.Array:
        parts = zip(self.parts(), MultiCategorical(noise, self.nvec).parts(), strict=True)
        return jnp.stack([part.sample(noise.logits) for part, noise in parts], axis=-1)

    def mode(self) -> jax.Array:
        return jnp.stack([part.mode() for part in self.parts()], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts()))

    def entropy(self) -> jax.Array:
        return sum(part.entropy() for part in self.parts())

    def kl(self, other: "MultiCategorical") -> jax.Array:
        return sum(part.kl(others) for part, others in zip(self.parts(), other.parts(), strict=True))


class DiagGaussian(struct.PyTreeNode):
    """Independent normal numbers, as an array of `shape`, d = prod(shape); densities are those of the array."""

    mean: jax.Array  # f32[..., d]
    log_std: jax.Array  # f32[..., d]
    shape: tuple[int, ...] = struct.field(pytree_node=False)

    def sample(self, noise: jax.Array) -> jax.Array:
        return self._as_array(self.mean + jnp.exp(self.log_std) * noise)

    def mode(self) -> jax.Array:
        return self._as_array(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        away = (action.reshape(self.mean.shape) - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * away**2 + self.log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> jax.Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl(self, other: "DiagGaussian") -> jax.Array:
        spread = jnp.exp(2 * (self.log_std - other.log_std))
        away = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return jnp.sum(other.log_std - self.log_std + 0.5 * (spread + away**2 - 1), axis=-1)

    def _as_array(self, flat: jax.Array) -> jax.Array:
        return flat.reshape(*flat.shape[:-1], *self.shape)


def num_logits(action_space: Space) -> int:
    """How many outputs a network needs for the distribution over `action_space`: of a Box mean and log-std."""
    match action_space:
        case Discrete(n):
            return n
        case MultiDiscrete(nvec):
            return sum(nvec)
        case Box() if np.issubdtype(action_space.dtype, np.floating) and action_space.size:
            return 2 * action_space.size
    raise UsageError(
        f"action space {action_space} is not supported; allowed: Discrete, MultiDiscrete, a Box of floating numbers"
    )


def sampling_noise(action_space: Space, key: Key, shape: tuple[int, ...]) -> jax.Array:
    """The random numbers f32[*shape, D] that `sample` makes actions of, to be drawn as one block.

    A standard normal for each element of a Box, a standard Gumbel for each value that an integer may have.
    """
    if isinstance(action_space, Box):
        return jax.random.normal(quick(key), (*shape, action_space.size))
    return jax.random.gumbel(quick(key), (*shape, num_logits(action_space)))


def from_logits(action_space: Space, logits: jax.Array) -> Distribution:
    """The distribution over `action_space` that f32[..., num_logits] stand for."""
    match action_space:
        case MultiDiscrete(nvec):
            return MultiCategorical(logits, nvec)
        case Box():
            mean, log_std = jnp.split(logits, 2, axis=-1)
            return DiagGaussian(mean, jnp.clip(log_std, -MAX_LOG_STD, MAX_LOG_STD), action_space.shape)
    return Categorical(logits)


def environment_action(action_space: Space, *, normalize: bool, clip: bool) -> Callable[[jax.Array], jax.Array]:
    """The function from a policy's action `[..., *shape]` to the environment's; other spaces than Box keep theirs.

    Args:
        normalize: [-1, 1] stands for [low, high], and what is beyond is clipped; where a bound is infinite there is
            nothing to stretch to, and the action stays as it is. Goes before `clip`, as in RLlib.
        clip: to [low, high].
    """
    if not isinstance(action_space, Box):
        return lambda action: action
    bounds = (action_space.low, action_space.high)
    low, high = (np.broadcast_to(np.float32(bound), action_space.shape) for bound in bounds)
    bounded = bool(np.all(np.abs([low, high]) < 1e30))  # wider than that, high - low overflows f32

    def convert(action):
        axes = tuple(range(action.ndim - low.ndim))
        least, most = np.expand_dims(low, axes), np.expand_dims(high, axes)
        if normalize and bounded:
            action = jnp.clip(least + (action + 1.0) * (0.5 * (most - least)), least, most)
        elif clip:
            action = jnp.clip(action, least, most)
        return action.astype(jax.dtypes.canonicalize_dtype(action_space.dtype))

    return convert


def _one_hot(action: jax.Array, num_categories: int) -> jax.Array:
    """bool[..., A]."""
    return jnp.expand_dims(action, -1) == jax.lax.broadcasted_iota(
        action.dtype, (*action.shape, num_categories), action.ndim
    )
