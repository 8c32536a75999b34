"""Masks of possible actions that are a part "action_mask" of a Dict observation."""

from collections.abc import Mapping

from jaxrl.core.mask_parts import MASK, beside_mask
from jaxrl.core.spaces import Dict, Space
from jaxrl.core.types import PyTree


def has_mask(space: Space) -> bool:
    """Whether observations have a part "action_mask" that says which actions are possible."""
    return isinstance(space, Dict) and MASK in space.spaces and len(space.spaces) > 1


def without_mask(space: Space) -> Space:
    """The space without its part "action_mask"; a single remaining part is returned itself."""
    if not has_mask(space):
        return space
    rest = {name: part for name, part in space.spaces.items() if name != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else Dict(rest)


def mask_apart(space: Space, obs: PyTree) -> tuple[PyTree, PyTree | None]:
    """(an observation of the space, the mask that the environment gave as a part of it or None).

    Where training read the masks apart, as of Python environments, the space has no such part.
    """
    if not isinstance(obs, Mapping) or MASK not in obs or has_mask(space):
        return obs, None
    return beside_mask(obs), obs[MASK]
