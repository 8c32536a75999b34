"""What a policy chooses from, and what the environment is given for it.

Batch axes come first; every method reduces the last axis, or the action's own, alone.
"""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space
from jaxrl.core.types import Key
from jaxrl.ops.continuous import DiagGaussian, SquashedGaussian, beta_noise, beta_of, is_key

MAX_LOG_STD = 20.0  # either way; RLlib's log_std_clip_param
ACTION_DISTRIBUTIONS = ("gaussian", "beta", "squashed_gaussian")  # of a Box's actions


class Distribution(Protocol):
    """A batch of distributions over actions; a pytree whose leaves lead with the batch axes `[...]`."""

    def noise(self, key: Key) -> jax.Array:
        """The random numbers `[..., D]` that `sample` makes one action of each row of."""

    def sample(self, noise: jax.Array | Key) -> jax.Array:
        """An action `[..., *action_space.shape]` for each row, drawn with a random key, or from rows of `noise`."""

    def mode(self) -> jax.Array:
        """The likeliest action."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """f32[...], nats."""

    def entropy(self) -> jax.Array:
        """f32[...], nats."""

    def kl(self, other: "Distribution") -> jax.Array:
        """KL(self || other), f32[...], nats."""

    def masked(self, mask: jax.Array) -> "Distribution":
        """With probability 0 for every action where `mask` is False; of discrete actions alone."""


class Categorical(struct.PyTreeNode):
    """One integer in [0, A); probabilities are the softmax of the logits."""

    logits: jax.Array  # f32[..., A]

    def masked(self, mask: jax.Array) -> "Categorical":
        """Actions where `mask`, bool[..., A], is False get the probability 0; a row without any is left as it is.

        Their logits become half of the least number there is (Huang and Ontañón 2020): finite, so
        that 0 log 0 is 0 in entropy and KL and in their gradients, and a log-probability of theirs
        is a number, if a very low one.
        """
        possible = mask | ~jnp.any(mask, axis=-1, keepdims=True)
        return Categorical(jnp.where(possible, self.logits, _impossible(self.logits)))

    def possible(self) -> jax.Array:
        """The mask again, bool[..., A]; True where there is none."""
        return self.logits > 0.5 * _impossible(self.logits)

    def noise(self, key: Key) -> jax.Array:
        return jax.random.gumbel(to_fast_key(key), jnp.shape(self.logits))

    def sample(self, noise: jax.Array | Key) -> jax.Array:
        """The Gumbel-max trick: an action of probability 0 is never taken."""
        noise = self.noise(noise) if is_key(noise) else noise
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        action, log_probs = jnp.asarray(action), jax.nn.log_softmax(self.logits)
        # A sum over a mask rather than a gather: its gradient is a product, where a gather's is a
        # scatter.
        return jnp.sum(jnp.where(_one_hot(action, self.logits.shape[-1]), log_probs, 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def kl(self, other: "Categorical") -> jax.Array:
        log_probs, other_log_probs = (
            jax.nn.log_softmax(self.logits),
            jax.nn.log_softmax(other.logits),
        )
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other_log_probs), axis=-1)


class MultiCategorical(struct.PyTreeNode):
    """A vector of independent integers, entry i in [0, nvec[i])."""

    logits: jax.Array  # f32[..., sum(nvec)], the entries' logits one after the other
    nvec: tuple[int, ...] = struct.field(pytree_node=False)

    def parts(self) -> list[Categorical]:
        return [
            Categorical(part) for part in jnp.split(self.logits, np.cumsum(self.nvec)[:-1], axis=-1)
        ]

    def masked(self, mask: jax.Array) -> "MultiCategorical":
        """As of `Categorical`, entry by entry: bool[..., sum(nvec)]."""
        masks = jnp.split(mask, np.cumsum(self.nvec)[:-1], axis=-1)
        parts = [part.masked(own).logits for part, own in zip(self.parts(), masks, strict=True)]
        return MultiCategorical(jnp.concatenate(parts, axis=-1), self.nvec)

    def possible(self) -> jax.Array:
        """The mask again, bool[..., sum(nvec)]."""
        return Categorical(self.logits).possible()

    def noise(self, key: Key) -> jax.Array:
        return Categorical(self.logits).noise(key)

    def sample(self, noise: jax.Array | Key) -> jax.Array:
        noise = self.noise(noise) if is_key(noise) else noise
        parts = zip(self.parts(), MultiCategorical(noise, self.nvec).parts(), strict=True)
        return jnp.stack([part.sample(noise.logits) for part, noise in parts], axis=-1)

    def mode(self) -> jax.Array:
        return jnp.stack([part.mode() for part in self.parts()], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        action = jnp.asarray(action)
        return sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts()))

    def entropy(self) -> jax.Array:
        return sum(part.entropy() for part in self.parts())

    def kl(self, other: "MultiCategorical") -> jax.Array:
        return sum(
            part.kl(others) for part, others in zip(self.parts(), other.parts(), strict=True)
        )


def num_logits(action_space: Space, kind: str = "gaussian") -> int:
    """How many outputs a network needs for the distribution over `action_space`: of a Box two for each element.

    Args:
        kind: of a Box's actions, one of ACTION_DISTRIBUTIONS.

    Raises:
        UsageError: a space that has no distribution, or none of this kind.
    """
    if kind != "gaussian" and not (isinstance(action_space, Box) and _bounded(action_space)):
        raise UsageError(
            f"action_distribution={kind!r} needs Box actions with finite bounds, not {action_space}"
        )
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


def sampling_noise(
    action_space: Space, key: Key, shape: tuple[int, ...], kind: str = "gaussian"
) -> jax.Array:
    """The random numbers f32[*shape, D] that `sample` makes actions of, to be drawn as one block.

    A standard normal for each element of a Box, but of `beta_noise` for a Beta; a standard Gumbel
    for each value that an integer may have.
    """
    if not isinstance(action_space, Box):
        return jax.random.gumbel(to_fast_key(key), (*shape, num_logits(action_space)))
    if kind == "beta":
        return beta_noise(key, shape, action_space.size)
    return jax.random.normal(to_fast_key(key), (*shape, action_space.size))


def from_logits(action_space: Space, logits: jax.Array, kind: str = "gaussian") -> Distribution:
    """The distribution over `action_space` that f32[..., num_logits] stand for."""
    match action_space:
        case MultiDiscrete(nvec):
            return MultiCategorical(logits, nvec)
        case Box() if kind == "beta":
            return beta_of(logits, action_space.shape)
        case Box():
            gaussian = DiagGaussian if kind == "gaussian" else SquashedGaussian
            mean, log_std = jnp.split(logits, 2, axis=-1)
            return gaussian(mean, jnp.clip(log_std, -MAX_LOG_STD, MAX_LOG_STD), action_space.shape)
    return Categorical(logits)


def environment_action(
    action_space: Space, *, normalize: bool, clip: bool, kind: str = "gaussian"
) -> Callable[[jax.Array], jax.Array]:
    """The function from a policy's action `[..., *shape]` to the environment's; other spaces than Box keep theirs.

    Args:
        normalize: [-1, 1] stands for [low, high], and what is beyond is clipped; where a bound is
            infinite there is nothing to stretch to, and the action stays as it is. Goes before
            `clip`, as in RLlib.
        clip: to [low, high].
        kind: of the distribution: "beta" and "squashed_gaussian", which is squashed here, always
        fill [low, high].
    """
    if not isinstance(action_space, Box):
        return lambda action: action
    low, high = _bounds(action_space)
    stretched = _bounded(action_space) and (normalize or kind != "gaussian")

    def convert(action):
        axes = tuple(range(action.ndim - low.ndim))
        least, most = np.expand_dims(low, axes), np.expand_dims(high, axes)
        action = jnp.tanh(action) if kind == "squashed_gaussian" else action
        if stretched:
            action = jnp.clip(least + (action + 1.0) * (0.5 * (most - least)), least, most)
        elif clip:
            action = jnp.clip(action, least, most)
        return action.astype(jax.dtypes.canonicalize_dtype(action_space.dtype))

    return convert


def _bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """(low, high), f32[*shape]."""
    return tuple(
        np.broadcast_to(np.float32(bound), space.shape) for bound in (space.low, space.high)
    )


def _bounded(space: Box) -> bool:
    """Whether there is an interval to stretch to: beyond 1e30, high - low overflows f32."""
    return bool(np.all(np.abs(_bounds(space)) < 1e30))


def _impossible(logits: jax.Array) -> float:
    """The logit of what is masked: so low that its softmax is 0, and finite also less the highest."""
    return 0.5 * float(jnp.finfo(logits.dtype).min)


def _one_hot(action: jax.Array, num_categories: int) -> jax.Array:
    """bool[..., A]."""
    return jnp.expand_dims(action, -1) == jax.lax.broadcasted_iota(
        action.dtype, (*action.shape, num_categories), action.ndim
    )
