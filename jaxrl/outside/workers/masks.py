"""Masks of possible actions, in the forms that environments give them, as one row of flags.

A row has the choices of all integers of an action, one after the other. It is given as such, or as
the action space's own `sample(mask=...)` takes it: an array for each integer of a MultiDiscrete,
0, 1 or 2 (both) for each of a MultiBinary, or a dict or tuple of masks for the parts of one. Masks
are found in `info`, in a part of a Dict observation, or in a method `action_masks()`. This module
must not import JAX.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from jaxrl.core.errors import brief
from jaxrl.core.mask_parts import MASK, beside_mask
from jaxrl.outside.workers.space_forms import Leaf, SpaceForm

METHOD = "action_masks"  # sb3-contrib's


class MaskReader:
    """Reads the masks of an action space, and checks that they leave something to choose."""

    def __init__(self, form: SpaceForm):
        self._form, counts = form, [form.counts_of(leaf) for leaf in form.leaves]
        self._leaves = list(zip(form.leaves, counts, strict=True))
        ends = np.cumsum([0, *chain(*counts)])
        self.size, self._starts = int(ends[-1]), ends[:-1]

    def read(self, mask: Any, is_acting: bool = True) -> np.ndarray:
        """bool[A]: which actions are possible.

        Args:
            is_acting: whether an action is chosen by it; else it may have none.

        Raises:
            ValueError: another shape than the space's, numbers that are no flags, or an integer
                for which nothing is possible.
        """
        if mask is None:
            return np.ones(self.size, bool)
        if not self.size:
            raise ValueError("an action_mask needs discrete actions")
        row = self._row(mask)
        if not np.logical_or.reduceat(row, self._starts).all():
            if is_acting:
                raise ValueError(f"the action_mask {brief(mask)} leaves no possible action")
            row = np.ones(self.size, bool)
        return row

    def _row(self, mask: Any) -> np.ndarray:
        if isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (self.size,):
            return mask
        if self._form.is_plain or not isinstance(mask, Mapping | tuple | list):
            parts = [self._part(mask, self._form.leaves[0], self.size)]
        elif isinstance(mask, list) and all(isinstance(flag, int | float) for flag in mask):
            parts = [self._part(np.asarray(mask), self._form.leaves[0], self.size)]
        else:
            parts = []
            for leaf, counts in self._leaves:
                parts.append(self._part(_at(mask, leaf.path), leaf, sum(counts)))
        return np.concatenate(parts)

    def _part(self, mask: Any, leaf: Leaf, size: int) -> np.ndarray:
        """The flags of a part, or of all where they are in one row."""
        if mask is None or not size:
            return np.ones(size, bool)
        row = np.concatenate([np.ravel(leaf) for leaf in _flat(mask)])
        if row.dtype.kind not in "biuf":
            raise ValueError(f"the action_mask is {brief(mask)}, not an array of flags")
        if 2 * row.size == size and leaf.shape and set(leaf.count) == {2}:
            if not np.isin(row, (0, 1, 2)).all():
                raise ValueError(f"the action_mask {brief(mask)} holds more than 0, 1 and 2")
            return np.ravel(np.stack([row != 1, row != 0], axis=1))
        if row.size != size:
            raise ValueError(f"the action_mask has {row.size} entries; {size} actions need {size}")
        if row.dtype != bool and not np.array_equal(row * row, row):
            raise ValueError(f"the action_mask {brief(mask)} holds more than 0 and 1")
        return row.astype(bool)


class ObservedMask:
    """An observation space, of which a part may be the mask.

    Attributes:
        space: what is learned from: the rest, or all.
        is_part: whether a part is the mask.
    """

    def __init__(self, space: Any, actions: SpaceForm):
        parts = getattr(space, "spaces", None)
        has_more = isinstance(parts, Mapping) and MASK in parts and len(parts) > 1
        self.is_part = has_more and actions.num_actions > 0
        self.space = _without_mask(space) if self.is_part else space

    def split(self, obs: Any) -> tuple[Any, Any]:
        """(what is learned from, the mask) of an observation."""
        if not self.is_part:
            return obs, None
        return beside_mask(obs), obs[MASK]


class MaskSource:
    """The place of an agent's masks, which is always the same.

    Args:
        method: gives the mask; None: there is none.
    """

    def __init__(self, method: Callable[[], Any] | None = None):
        self._method = method
        self._is_in_info: bool | None = None  # None: nobody has acted

    def find(self, info: Any) -> tuple[bool, Any]:
        """(whether there is a mask, the mask) for the next action; None: all are possible.

        Raises:
            ValueError: it is there only sometimes.
        """
        if not isinstance(info, Mapping):
            raise ValueError(f"info is {brief(info)}, not a dict")
        is_there = MASK in info
        if self._is_in_info is None:
            self._is_in_info = is_there
        if is_there != self._is_in_info:
            place = "is in this info, and was not"
            if self._is_in_info:
                place = "is missing in this info, and was"
            raise ValueError(
                f"info['action_mask'] {place} there before: give one for each action, also in the "
                "reset (None: all are possible)"
            )
        if is_there:
            return True, info[MASK]
        if self._method is None:
            return False, None
        return True, self._method()


def method_of(env: Any) -> Callable[[], Any] | None:
    """An environment's `action_masks`, also below wrappers."""
    found = getattr(env, METHOD, None)
    if found is None:
        found = getattr(getattr(env, "unwrapped", None), METHOD, None)
    return found if callable(found) else None


def _without_mask(space: Any) -> Any:
    from gymnasium import spaces

    rest = beside_mask(space.spaces)
    return spaces.Dict(rest) if isinstance(rest, Mapping) else rest


def _flat(mask: Any) -> list[Any]:
    """The arrays of nested tuples and lists of them."""
    if isinstance(mask, tuple | list) and mask and not np.isscalar(mask[0]):
        return list(chain.from_iterable(map(_flat, mask)))
    return [np.asarray(mask)]


def _at(mask: Any, path: tuple) -> Any:
    """The part of a mask; None: nothing is said of it."""
    for key in path:
        if mask is None:
            return None
        mask = mask.get(key) if isinstance(mask, Mapping) else mask[key]
    return mask
