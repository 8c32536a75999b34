"""What a policy chooses from. Batch axes come first; every method reduces the last axis, or the action's own, alone."""

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Discrete, MultiDiscrete, Space
from jaxrl.core.types import Key


class Distribution(Protocol):
    """A batch of distributions over actions; a pytree whose leaves lead with the batch axes `[...]`."""

    def sample(self, key: Key) -> jax.Array:
        """One action for each, `[..., *action_space.shape]`."""

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

    def sample(self, key: Key) -> jax.Array:
        return jax.random.categorical(key, self.logits)

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

    def sample(self, key: Key) -> jax.Array:
        keys = jax.random.split(key, len(self.nvec))
        return jnp.stack([part.sample(key) for part, key in zip(self.parts(), keys, strict=True)], axis=-1)

    def mode(self) -> jax.Array:
        return jnp.stack([part.mode() for part in self.parts()], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts()))

    def entropy(self) -> jax.Array:
        return sum(part.entropy() for part in self.parts())

    def kl(self, other: "MultiCategorical") -> jax.Array:
        return sum(part.kl(others) for part, others in zip(self.parts(), other.parts(), strict=True))


def num_logits(action_space: Space) -> int:
    """How many outputs a network needs for the distribution over `action_space`."""
    match action_space:
        case Discrete(n):
            return n
        case MultiDiscrete(nvec):
            return sum(nvec)
    raise UsageError(f"action space {action_space} is not supported yet; allowed: Discrete, MultiDiscrete")


def from_logits(action_space: Space, logits: jax.Array) -> Distribution:
    """The distribution over `action_space` that f32[..., num_logits] stand for."""
    if isinstance(action_space, MultiDiscrete):
        return MultiCategorical(logits, action_space.nvec)
    return Categorical(logits)


def _one_hot(action: jax.Array, num_categories: int) -> jax.Array:
    """bool[..., A]."""
    return jnp.expand_dims(action, -1) == jax.lax.broadcasted_iota(
        action.dtype, (*action.shape, num_categories), action.ndim
    )
