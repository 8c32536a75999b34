"""Masks of possible actions that an environment gives as a part of a Dict observation.

Worker processes use this module, so it must not import JAX.
"""

from collections.abc import Mapping
from typing import Any

from jaxrl.core.fields import without

MASK = "action_mask"
ALONE = ({"observation"}, {"observations"})  # names of what is left beside a mask: it is meant


def beside_mask(parts: Mapping[str, Any]) -> Any:
    """The parts of an observation, or of its space, without the mask.

    A single part of one of the usual names is returned itself.
    """
    rest = without(parts, {MASK})
    return next(iter(rest.values())) if rest.keys() in ALONE else rest
