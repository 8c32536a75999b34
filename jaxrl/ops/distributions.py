"""Action distributions for every action space.

Batch axes come first; methods reduce only the last axis, or the axes of the action.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import to_fast_key
from jaxrl.core.program_spaces import action_space_inside
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, is_tree, tree_of
from jaxrl.core.types import Key
from jaxrl.ops.continuous import (
    DiagGaussian,
    SquashedGaussian,
    beta_noise,
    beta_noise_size,
    beta_of,
)
from jaxrl.ops.joint import Joint
from jaxrl.ops.sampled import Sampled

MAX_LOG_STD = 20.0  # either way; RLlib's log_std_clip_param
INFINITE = 1e30  # bounds from here on are none: high - low would overflow f32
ACTION_DISTRIBUTIONS = ("gaussian", "beta", "squashed_gaussian")  # of a Box's actions


class Distribution(Protocol):
    """A batch of distributions over actions; a pytree of arrays that begin with batch axes."""

    def noise(self, key: Key) -> jax.Array:
        """The random numbers `[..., D]` from which `sample` makes an action per row."""

    def sample(self, noise: jax.Array | Key | None = None) -> jax.Array:
        """An action `[..., *action_space.shape]` per row, from a random key or from `noise`."""

    def mode(self) -> jax.Array:
        """The most probable action."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """f32[...], nats."""

    def entropy(self) -> jax.Array:
        """f32[...], nats."""

    def kl(self, other: "Distribution") -> jax.Array:
        """KL(self || other), f32[...], nats."""

    def masked(self, mask: jax.Array) -> "Distribution":
        """The distribution with probability 0 where `mask` is False; discrete actions only."""


class Categorical(Sampled, struct.PyTreeNode):
    """One integer in [0, A); probabilities are the softmax of the logits."""

    logits: jax.Array  # f32[..., A]

    def masked(self, mask: jax.Array) -> "Categorical":
        """Actions where `mask`, bool[..., A], is False get probability 0; all-False rows are kept.

        Their logits become half of the lowest float (Huang and Ontañón 2020). This is finite, so
        that 0 log 0 is 0 in entropy and KL and in their gradients, and their log-probabilities are
        very low but finite.
        """
        possible = mask | ~jnp.any(mask, axis=-1, keepdims=True)
        return Categorical(jnp.where(possible, self.logits, _impossible(self.logits)))

    def probabilities(self) -> jax.Array:
        """f32[..., A]."""
        return jax.nn.softmax(self.logits)

    def possible(self) -> jax.Array:
        """The mask, bool[..., A]; True everywhere without one."""
        return self.logits > 0.5 * _impossible(self.logits)

    def noise(self, key: Key) -> jax.Array:
        return jax.random.gumbel(to_fast_key(key), jnp.shape(self.logits))

    def sample(self, noise: jax.Array | Key | None = None) -> jax.Array:
        """The Gumbel-max trick: an action of probability 0 is never sampled."""
        noise = self.noise_of(noise)
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        action, log_probs = jnp.asarray(action), jax.nn.log_softmax(self.logits)
        # A masked sum instead of a gather: its gradient is a product, that of a gather a scatter.
        return jnp.sum(jnp.where(_one_hot(action, self.logits.shape[-1]), log_probs, 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def kl(self, other: "Categorical") -> jax.Array:
        log_probs = jax.nn.log_softmax(self.logits)
        other_log_probs = jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other_log_probs), axis=-1)


class MultiCategorical(Sampled, struct.PyTreeNode):
    """A vector of independent integers, entry i in [0, nvec[i])."""

    logits: jax.Array  # f32[..., sum(nvec)], the concatenated logits of the entries
    nvec: tuple[int, ...] = struct.field(pytree_node=False)

    def parts(self) -> list[Categorical]:
        return list(map(Categorical, jnp.split(self.logits, np.cumsum(self.nvec)[:-1], axis=-1)))

    def masked(self, mask: jax.Array) -> "MultiCategorical":
        """Masks each entry like `Categorical.masked`: `mask` is bool[..., sum(nvec)]."""
        masks = jnp.split(mask, np.cumsum(self.nvec)[:-1], axis=-1)
        pairs = zip(self.parts(), masks, strict=True)
        logits = [part.masked(part_mask).logits for part, part_mask in pairs]
        return MultiCategorical(jnp.concatenate(logits, axis=-1), self.nvec)

    def probabilities(self) -> jax.Array:
        """f32[..., sum(nvec)], those of each entry."""
        return jnp.concatenate([part.probabilities() for part in self.parts()], axis=-1)

    def possible(self) -> jax.Array:
        """The mask, bool[..., sum(nvec)]."""
        return Categorical(self.logits).possible()

    def noise(self, key: Key) -> jax.Array:
        return Categorical(self.logits).noise(key)

    def sample(self, noise: jax.Array | Key | None = None) -> jax.Array:
        noise = self.noise_of(noise)
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
        pairs = zip(self.parts(), other.parts(), strict=True)
        return sum(part.kl(other_part) for part, other_part in pairs)


def dist_inputs(distribution: Distribution) -> jax.Array:
    """All numbers of a distribution in one row, f32[..., K]: RLlib's `action_dist_inputs`.

    Logits; of a Gaussian the means, then the logarithms of the standard deviations; of a Beta both
    concentrations.
    """
    leaves = jax.tree.leaves(distribution)
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def num_logits(action_space: Space, kind: str = "gaussian") -> int:
    """The number of network outputs for the distribution over `action_space`; 2 per Box element.

    Args:
        kind: the distribution of a Box's actions, from ACTION_DISTRIBUTIONS.

    Raises:
        UsageError: a space that has no distribution, or none of this kind.
    """
    parts = _parts(action_space)
    boxes = [part for part in parts if isinstance(part, Box)]
    if kind != "gaussian" and not (boxes and all(map(has_bounds, boxes))):
        raise UsageError(
            f"action_distribution={kind!r} needs Box actions with finite bounds, not {action_space}"
        )
    return sum(_num_logits(part, action_space) for part in parts)


def _num_logits(part: Space, action_space: Space) -> int:
    if isinstance(part, Discrete | MultiDiscrete):
        return sum(part.counts)
    if np.issubdtype(part.dtype, np.floating) and part.size:
        return 2 * part.size
    raise UsageError(
        f"action space {action_space} is not supported; allowed: Discrete, MultiDiscrete, Box, and "
        "Dict and Tuple of them"
    )


def num_log_stds(action_space: Space) -> int:
    """The numbers of all Boxes of an action; each has a standard deviation."""
    return sum(part.size for part in _parts(action_space) if isinstance(part, Box))


def with_log_stds(action_space: Space, outputs: jax.Array, log_std: jax.Array) -> jax.Array:
    """The logits of a network that has no outputs for standard deviations.

    Args:
        outputs: [..., num_logits - num_log_stds].
        log_std: [num_log_stds], the same for all rows.
    """
    rows = jnp.broadcast_to(
        log_std.reshape((1,) * (outputs.ndim - 1) + (-1,)), (*outputs.shape[:-1], log_std.size)
    )
    logits, first, first_std = [], 0, 0
    for part in _parts(action_space):
        size = part.size if isinstance(part, Box) else sum(part.counts)
        logits.append(outputs[..., first : first + size])
        first += size
        if isinstance(part, Box):
            logits.append(rows[..., first_std : first_std + size])
            first_std += size
    return jnp.concatenate(logits, axis=-1)


def _parts(action_space: Space) -> list[Space]:
    """The plain parts of what a policy chooses, in JAX's order."""
    return jax.tree.leaves(tree_of(action_space_inside(action_space)))


def sampling_noise(
    action_space: Space, key: Key, shape: tuple[int, ...], kind: str = "gaussian"
) -> jax.Array:
    """The random numbers f32[*shape, D] from which `sample` makes actions, drawn as one block.

    For a Box standard normal numbers, one per element (`beta_noise` for a Beta); for integers
    standard Gumbel numbers, one per possible value; of several parts those of each in a row.
    """
    if is_tree(action_space):
        parts = _parts(action_space)
        keys = jax.random.split(to_fast_key(key), len(parts))
        drawn = [sampling_noise(part, keys[i], shape, kind) for i, part in enumerate(parts)]
        return jnp.concatenate(drawn, axis=-1)
    action_space = action_space_inside(action_space)
    if not isinstance(action_space, Box):
        return jax.random.gumbel(to_fast_key(key), (*shape, num_logits(action_space)))
    if kind == "beta":
        return beta_noise(key, shape, action_space.size)
    return jax.random.normal(to_fast_key(key), (*shape, action_space.size))


def from_logits(action_space: Space, logits: jax.Array, kind: str = "gaussian") -> Distribution:
    """The distribution over `action_space` of logits f32[..., num_logits]."""
    action_space = action_space_inside(action_space)
    match action_space:
        case Dict() | Tuple():
            return _joint(action_space, logits, kind)
        case MultiDiscrete():
            return MultiCategorical(logits, action_space.counts)
        case Box() if kind == "beta":
            return beta_of(logits, action_space.shape)
        case Box():
            gaussian = DiagGaussian if kind == "gaussian" else SquashedGaussian
            mean, log_std = jnp.split(logits, 2, axis=-1)
            return gaussian(mean, jnp.clip(log_std, -MAX_LOG_STD, MAX_LOG_STD), action_space.shape)
    return Categorical(logits)


def _joint(action_space: Dict | Tuple, logits: jax.Array, kind: str) -> Joint:
    parts, first, noise_sizes = [], 0, []
    for part in _parts(action_space):
        kind_of_part = kind if isinstance(part, Box) else "gaussian"
        size = num_logits(part, kind_of_part)
        parts.append(from_logits(part, logits[..., first : first + size], kind_of_part))
        noise_sizes.append(noise_size(part, kind_of_part))
        first += size
    return Joint(tuple(parts), action_space, tuple(noise_sizes))


def noise_size(space: Space, kind: str = "gaussian") -> int:
    """The random numbers from which `sample` makes an action of a plain space."""
    inside = action_space_inside(space)
    if not isinstance(inside, Box):
        return sum(inside.counts)
    return beta_noise_size(inside.size) if kind == "beta" else inside.size


def bounds_of(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """(low, high), f32[*shape]."""
    low = np.broadcast_to(np.float32(space.low), space.shape)
    return low, np.broadcast_to(np.float32(space.high), space.shape)


def has_bounds(space: Box) -> bool:
    """Returns whether all bounds are finite."""
    return bool(np.all(np.abs(bounds_of(space)) < INFINITE))


def _impossible(logits: jax.Array) -> float:
    """The logit of a masked action: its softmax is 0, and it is finite after a subtraction."""
    return 0.5 * float(jnp.finfo(logits.dtype).min)


def _one_hot(action: jax.Array, num_categories: int) -> jax.Array:
    """bool[..., A]."""
    shape = (*action.shape, num_categories)
    return jnp.expand_dims(action, -1) == jax.lax.broadcasted_iota(action.dtype, shape, action.ndim)
