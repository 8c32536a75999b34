"""Observation filter: numbers normalised and pictures scaled, before a network reads them.

Each part of an observation is treated by its kind:

    a Box of numbers    with "MeanStdFilter" by its running mean and standard deviation
    a picture of bytes  brought from its bounds to [0, 1]: with "MeanStdFilter" where it is a part
                        of a Dict or Tuple, and with `normalize_images` anywhere
    integers            left as they are, since networks look them up in a table
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Space, is_tree, parts_of, tree_of
from jaxrl.core.types import PyTree
from jaxrl.models.cnn import is_image
from jaxrl.ops.running_stats import RunningMeanStd, init_running_stats, normalise

FILTERS = ("MeanStdFilter", None)


@dataclass(frozen=True)
class ObservationFilter:
    """The filter of observations of `space`, by two settings of these names.

    The statistics of a Box alone are arrays of its shape. Those of a Dict or Tuple are dicts of the
    parts that are normalised, by their names: "outer/inner".
    """

    space: Space
    observation_filter: str | None
    normalize_images: bool = False

    def is_scaled(self, part: Space) -> bool:
        """Returns whether a part is a picture of bytes that is scaled to [0, 1]."""
        if not is_image(part) or part.dtype != "uint8":
            return False
        return self.normalize_images or (self._is_on and is_tree(self.space))

    def is_normalised(self, part: Space) -> bool:
        """Returns whether there are statistics of a part."""
        is_number = isinstance(part, Box) and part.size > 0
        return self._is_on and is_number and not self.is_scaled(part)

    def initial(self) -> RunningMeanStd | None:
        """Statistics of no rows; None if no part is normalised."""
        spaces = self.numbers(tree_of(self.space))
        if not jax.tree.leaves(spaces):
            return None
        return init_running_stats(jax.tree.map(lambda part: part.shape, spaces))

    def numbers(self, obs: PyTree) -> PyTree:
        """The parts of an observation that are normalised, in the structure of the statistics."""
        if not is_tree(self.space):
            return obs if self.is_normalised(self.space) else {}
        parts = parts_of(self.space, obs)
        return {name: values for name, part, values in parts if self.is_normalised(part)}

    def read(self, moments: RunningMeanStd | None, obs: PyTree) -> PyTree:
        """Observations [..., *space.shape] as a network reads them."""
        if not self._is_on and not self.normalize_images:
            return obs
        normal = {}
        if moments is not None:
            as_floats = lambda values: values.astype(jnp.float32)
            normal = normalise(moments, jax.tree.map(as_floats, self.numbers(obs)))
        if not is_tree(self.space):
            return normal if self.is_normalised(self.space) else self._scaled(self.space, obs)
        parts = [
            normal[name] if name in normal else self._scaled(part, values)
            for name, part, values in parts_of(self.space, obs)
        ]
        return jax.tree.unflatten(jax.tree.structure(tree_of(self.space)), parts)

    @property
    def _is_on(self) -> bool:
        return self.observation_filter is not None

    def _scaled(self, part: Space, values: jax.Array) -> jax.Array:
        if not self.is_scaled(part):
            return values
        low, width = scale_of(part)
        axes = tuple(range(values.ndim - low.ndim))
        return (values.astype(jnp.float32) - np.expand_dims(low, axes)) / np.expand_dims(
            width, axes
        )


def has_numbers(space: Space) -> bool:
    """Returns whether some part is a Box, which a filter can read."""
    return any(isinstance(part, Box) for part in jax.tree.leaves(tree_of(space)))


def scale_of(picture: Box) -> tuple[np.ndarray, np.ndarray]:
    """(low, high - low) of a picture of bytes, f32[1, 1, 1] or f32[*shape]; no width is 0."""
    axes = (1,) * len(picture.shape)
    low, high = (
        bound if bound.ndim else bound.reshape(axes)
        for bound in (np.float32(picture.low), np.float32(picture.high))
    )
    return low, np.where(high > low, high - low, np.float32(1))
