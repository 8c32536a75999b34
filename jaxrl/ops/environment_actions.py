"""Actions of the environment and of a policy: one from the other, and the bounds of a Box.

A policy's action is the one that its distribution samples: integers count from 0 and lie in a row
(`jaxrl.core.program_spaces`), and the numbers of a Box are not stretched to its bounds.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.program_spaces import action_from_program, action_to_program, countable, numbers_of
from jaxrl.core.spaces import Box, Space, beyond, is_tree, tree_of
from jaxrl.core.types import Key, PyTree
from jaxrl.ops.distributions import INFINITE, Distribution, bounds_of, num_log_stds
from jaxrl.ops.sampled import Sampled

BOUND_MARGIN = 1e-3  # distance from a bound of actions that tanh is to reach: 3.8 = atanh(0.999)


@dataclass(frozen=True)
class ActionForm:
    """The forms of an action in a policy and in its environment, one made of the other; hashable.

    Only the numbers of a Box are changed by these settings, each by its own bounds. Training always
    uses the action as sampled.

    normalize: stretches [-1, 1] to [low, high] where both are finite, and clips to every finite
        bound. Has priority over `clip`, as in RLlib.
    clip: to every finite bound.
    kind: the distribution of a Box's actions; "beta" and "squashed_gaussian" always fill
        [low, high]. The latter is squashed here.
    """

    space: Space  # the environment's
    normalize: bool = True
    clip: bool = False
    kind: str = "gaussian"

    def to_env(self, action: PyTree) -> PyTree:
        """The distribution's actions as the environment's, `[..., *space.shape]`."""
        return self._of_boxes(self._stretched, self.as_sampled(action))

    def from_env(self, action: PyTree, xp: Any = np) -> PyTree:
        """The distribution's actions for the environment's `[..., *space.shape]`.

        Of actions at a bound that the policy reaches only in the limit, or that were clipped there,
        the nearest that it can take.

        Args:
            xp: `numpy`, or `jax.numpy` inside a compiled program.
        """
        inside = self._of_boxes(functools.partial(self._shrunk, xp=xp), action)
        return action_to_program(self.space, inside, xp)

    def as_sampled(self, action: PyTree) -> PyTree:
        """The distribution's actions as the environment's, but a Box's numbers not stretched."""
        return action_from_program(self.space, action, jnp)

    def recorded(self, action: PyTree) -> tuple[PyTree, PyTree | None]:
        """The action as episodes record it: (`as_sampled`, `to_env` where that differs)."""
        sampled = self.as_sampled(action)
        stretched = self._of_boxes(self._stretched, sampled)
        leaves = zip(jax.tree.leaves(sampled), jax.tree.leaves(stretched), strict=True)
        return sampled, None if all(left is right for left, right in leaves) else stretched

    def spread(self, distribution: Distribution) -> tuple[jax.Array, ...] | None:
        """(mean - std, mean, mean + std) of a Box's numbers, as the environment has them.

        Of an action in parts those of all Boxes in a row, f32[..., d]. None: there are no numbers.
        """
        if not num_log_stds(self.space):
            return None
        if not is_tree(self.space):
            return tuple(map(self.to_env, distribution.spread()))
        rows = map(self.to_env, distribution.spread_rows())
        return tuple(numbers_of(self.space, row) for row in rows)

    def bounds(self, box: Box) -> "ActionBounds":
        """The bounds that actions of a Box are brought to."""
        low, high = bounds_of(box)
        normalize = self.normalize or self.kind != "gaussian"
        both = (np.abs(low) < INFINITE) & (np.abs(high) < INFINITE)
        has_any = np.any((np.abs(low) < INFINITE) | (np.abs(high) < INFINITE))
        are_kept = bool(has_any and (normalize or self.clip))
        return ActionBounds(low, high, both & normalize, are_kept)

    def _of_boxes(self, convert: Callable[[Box, Any], Any], action: PyTree) -> PyTree:
        """`convert(box, numbers)` of each Box; what else there is stays as it is."""
        choose = lambda part, leaf: convert(part, leaf) if num_log_stds(part) else leaf
        return jax.tree.map(choose, tree_of(self.space), action)

    def _stretched(self, box: Box, action: jax.Array) -> jax.Array:
        """The environment's numbers of a Box, for the policy's."""
        bounds = self.bounds(box)
        axes = tuple(range(action.ndim - bounds.low.ndim))
        wide = lambda bound: np.expand_dims(bound, axes)
        least, most = wide(bounds.low), wide(bounds.high)
        action = jnp.tanh(action) if self.kind == "squashed_gaussian" else action
        if bounds.stretched.any():
            stretched = least + (action + 1.0) * wide(bounds.half_width)
            is_all = bounds.stretched.all()
            action = stretched if is_all else jnp.where(wide(bounds.stretched), stretched, action)
        if bounds.are_kept:
            action = jnp.clip(action, least, most)
        return action.astype(jax.dtypes.canonicalize_dtype(box.dtype))

    def _shrunk(self, box: Box, action: Any, xp: Any) -> Any:
        """The policy's numbers of a Box, for the environment's."""
        bounds, action = self.bounds(box), xp.asarray(action, np.float32)
        sampled = xp.clip(action, bounds.low, bounds.high) if bounds.are_kept else action
        if bounds.stretched.any():
            start = np.where(bounds.stretched, bounds.low, 0.0)
            width = np.where(bounds.half_width > 0, 2.0 * bounds.half_width, 1.0)
            inside = xp.clip(2.0 * (action - start) / width - 1.0, -1.0, 1.0)
            sampled = xp.where(bounds.stretched, inside, sampled)
        if self.kind == "squashed_gaussian":
            inside = 1.0 - BOUND_MARGIN
            sampled = xp.arctanh(xp.clip(sampled, -inside, inside))
        return xp.float32(sampled)


class ActionBounds(NamedTuple):
    """The bounds of a Box's actions, by element; a bound beyond 1e30 counts as infinite."""

    low: np.ndarray  # f32[*shape]
    high: np.ndarray
    stretched: np.ndarray  # bool[*shape]  whether [-1, 1] of the policy is [low, high]
    are_kept: bool  # whether actions are clipped to the finite bounds

    @property
    def half_width(self) -> np.ndarray:
        """f32[*shape], 0 where [-1, 1] is not stretched."""
        low, high = (np.where(self.stretched, bound, 0.0) for bound in (self.low, self.high))
        return np.float32(0.5) * (high - low)


class InEnvironment(Sampled, struct.PyTreeNode):
    """A distribution over the environment's own integers, of one over the program's.

    Those count from 0 and lie in a row, as do all parts of a Dict or Tuple. A Box's numbers are the
    same in both.
    """

    inside: Distribution
    action_space: Space = struct.field(pytree_node=False)

    def noise(self, key: Key) -> jax.Array:
        return self.inside.noise(key)

    def sample(self, noise: jax.Array | Key | None = None) -> PyTree:
        return action_from_program(self.action_space, self.inside.sample(noise), jnp)

    def mode(self) -> PyTree:
        return action_from_program(self.action_space, self.inside.mode(), jnp)

    def log_prob(self, action: PyTree) -> jax.Array:
        """The log-probability of an action of the environment; a list is an array of them.

        Raises:
            UsageError: integers that the space does not have; where they are traced, they count as
                any others do.
        """
        if isinstance(action, list) and not is_tree(self.action_space):
            action = np.asarray(action)
        _refuse_others(self.action_space, action)
        return self.inside.log_prob(action_to_program(self.action_space, action, jnp))

    def entropy(self) -> jax.Array:
        return self.inside.entropy()

    def kl(self, other: "InEnvironment") -> jax.Array:
        return self.inside.kl(other.inside)

    def masked(self, mask: jax.Array) -> "InEnvironment":
        return self.replace(inside=self.inside.masked(mask))

    def probabilities(self) -> jax.Array:
        return self.inside.probabilities()

    def possible(self) -> jax.Array:
        return self.inside.possible()

    @property
    def logits(self) -> jax.Array:
        return self.inside.logits


def _refuse_others(space: Space, action: PyTree) -> None:
    """Refuses integers that a space does not have, of which a distribution gives no probability."""
    leaves, structure = jax.tree.flatten(action)
    if structure != jax.tree.structure(tree_of(space)):
        raise UsageError(f"log_prob takes actions of {space}, not {brief(action)}")
    for part, leaf in zip(jax.tree.leaves(tree_of(countable(space))), leaves, strict=True):
        if isinstance(part, Box) or isinstance(leaf, jax.core.Tracer):
            continue
        if np.any(beyond(part, np.asarray(leaf)) | (np.asarray(leaf) % 1 != 0)):
            raise UsageError(f"log_prob takes actions of {part}, not {brief(np.asarray(leaf))}")
