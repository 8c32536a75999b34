"""Joint distribution: an action of several independent parts, of a Dict or a Tuple space.

Inside of a policy such an action is one row of numbers, f32[..., K], in which all parts follow each
other in JAX's order; so are the random numbers that it is sampled from, and a mask, which has the
choices of all parts of integers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import numbers_of, packed, unpacked
from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.core.types import Key
from jaxrl.ops.sampled import Sampled

Distribution = Any  # of one part


class Joint(Sampled, struct.PyTreeNode):
    """Independent distributions of the parts: probabilities are products, entropies are sums."""

    parts: tuple[Distribution, ...]  # in JAX's order
    action_space: Space = struct.field(pytree_node=False)  # the program's
    noise_sizes: tuple[int, ...] = struct.field(pytree_node=False)  # of each part

    def by_part(self, function: Callable[[Distribution], Distribution]) -> "Joint":
        """The joint distribution with `function` applied to each part."""
        return self.replace(parts=tuple(map(function, self.parts)))

    def noise(self, key: Key) -> jax.Array:
        keys = jax.random.split(key, len(self.parts))
        drawn = [part.noise(keys[i]) for i, part in enumerate(self.parts)]
        return jnp.concatenate(drawn, axis=-1)

    def sample(self, noise: jax.Array | Key | None = None) -> jax.Array:
        noise = self.noise_of(noise)
        rows = zip(self.parts, _split(noise, self.noise_sizes), strict=True)
        return self._packed([part.sample(row) for part, row in rows])

    def mode(self) -> jax.Array:
        return self._packed([part.mode() for part in self.parts])

    def log_prob(self, action: jax.Array) -> jax.Array:
        actions = jax.tree.leaves(unpacked(self.action_space, jnp.asarray(action)))
        return sum(part.log_prob(value) for part, value in zip(self.parts, actions, strict=True))

    def entropy(self) -> jax.Array:
        return sum(part.entropy() for part in self.parts)

    def kl(self, other: "Joint") -> jax.Array:
        pairs = zip(self.parts, other.parts, strict=True)
        return sum(part.kl(other_part) for part, other_part in pairs)

    def masked(self, mask: jax.Array) -> "Joint":
        """Masks the parts of integers like `Categorical.masked`; bool[..., A] of all of them."""
        counts = [sum(space.counts) for space in self._spaces if not isinstance(space, Box)]
        if not counts:
            raise UsageError(
                f"an action mask needs discrete actions, which {self.action_space} does not have"
            )
        masks = iter(_split(mask, counts))
        is_box = iter(isinstance(space, Box) for space in self._spaces)
        return self.by_part(lambda part: part if next(is_box) else part.masked(next(masks)))

    def probabilities(self) -> jax.Array:
        """f32[..., A], of the choices of the parts of integers; A is 0 where there are none."""
        found = [part.probabilities() for part, is_box in self._told() if not is_box]
        return jnp.concatenate(found, axis=-1) if found else self._no_numbers()

    def spread(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(mean - std, mean, mean + std) of the numbers of all Boxes in a row, f32[..., d] each."""
        if not any(is_box for _, is_box in self._told()):
            return (self._no_numbers(),) * 3
        actions = (unpacked(self.action_space, row) for row in self.spread_rows())
        return tuple(numbers_of(self.action_space, action) for action in actions)

    def spread_rows(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Three actions: the likeliest integers, with numbers as `spread` has them."""
        found = [part.spread() if is_box else (part.mode(),) * 3 for part, is_box in self._told()]
        return tuple(self._packed(list(actions)) for actions in zip(*found, strict=True))

    @property
    def _spaces(self) -> list[Space]:
        return jax.tree.leaves(tree_of(self.action_space))

    def _told(self) -> list[tuple[Distribution, bool]]:
        """(part, whether it is of a Box)."""
        boxes = [isinstance(space, Box) for space in self._spaces]
        return list(zip(self.parts, boxes, strict=True))

    def _no_numbers(self) -> jax.Array:
        return jnp.zeros((*self.entropy().shape, 0))

    def _packed(self, actions: list[jax.Array]) -> jax.Array:
        structure = jax.tree.structure(tree_of(self.action_space))
        return packed(self.action_space, structure.unflatten(actions), jnp)


def _split(row: jax.Array, sizes: Any) -> list[jax.Array]:
    """Parts of the last axis."""
    return jnp.split(row, np.cumsum(np.asarray(sizes))[:-1], axis=-1)
