"""The inputs of policies' networks: observations, their filter and images, additional inputs.

An observation may hold the mask of the possible actions, as a part "action_mask".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.fields import without
from jaxrl.core.mask_parts import MASK, beside_mask
from jaxrl.core.program_spaces import action_space_inside, program_space
from jaxrl.core.spaces import Box, Dict, Discrete, Space, is_tree, parts_of, tree_of
from jaxrl.core.types import PyTree
from jaxrl.ops.running_stats import RunningMeanStd, init_running_stats, normalise

OBSERVATION, PRESENT = "observation", "present"
SOURCES = OWN, STATE, ALL_AGENTS = ("own", "state", "all-agents")  # of a critic's observation
FILTERS = ("MeanStdFilter", None)
CHANNELS = FIRST, LAST = ("first", "last")
SMALL_IMAGE = 16  # pixels of the longer side, up to which an image is a board of cells


@dataclass(frozen=True)
class InputsSpec:
    """The inputs of a model besides the observation; with any, it reads a dict (`input_space`)."""

    num_agents: int = 0  # of the policy, if the agent's number is an input, else 0
    prev_action: bool = False
    prev_reward: bool = False

    def input_space(self, observation_space: Space, action_space: Space) -> Space:
        """The model's input: the observation without its mask, or {"observation": ..., ...}."""
        observation = program_space(without_mask(observation_space))
        return _joined({OBSERVATION: observation} | self.spaces(action_space))

    def spaces(self, action_space: Space) -> dict[str, Space]:
        """The program's, by name."""
        parts = {}
        if self.num_agents:
            parts["agent_id"] = Discrete(self.num_agents)
        if self.prev_action:
            parts["prev_action"] = action_space_inside(action_space)
        if self.prev_reward:
            parts["prev_reward"] = Box(-jnp.inf, jnp.inf, ())
        return parts


@dataclass(frozen=True)
class CriticSpec:
    """The input of a centralised critic, in place of its policy's observation (Yu et al. 2022).

    source: "state" or "all-agents", see `jaxrl.rollout.critic_inputs`.
    space: {"observation": what it sees; "present": which agents have not left, where some may}.
    inputs_spec: as the policy's; but with the agent's number wherever the policy plays several
        agents, since they all have the same state.
    """

    source: str
    space: Dict
    inputs_spec: InputsSpec

    def input_space(self, action_space: Space) -> Space:
        """The value network's input."""
        return _joined(self.space.spaces | self.inputs_spec.spaces(action_space))


def _joined(parts: dict[str, Space]) -> Space:
    """The space of several parts; a single one is returned itself."""
    return Dict(parts) if len(parts) > 1 else one_or_all(parts)


def one_or_all(parts: dict[str, Any]) -> Any:
    """The parts; a single one is returned itself."""
    return parts if len(parts) > 1 else next(iter(parts.values()))


def has_mask(space: Space) -> bool:
    """Returns whether observations have a part "action_mask" with the possible actions."""
    return isinstance(space, Dict) and MASK in space.spaces and len(space.spaces) > 1


def without_mask(space: Space) -> Space:
    """The space without its part "action_mask"; a single remaining part is returned itself."""
    if not has_mask(space):
        return space
    return _joined(without(space.spaces, {MASK}))


def mask_apart(space: Space, obs: PyTree) -> tuple[PyTree, PyTree | None]:
    """(an observation of the space, the mask that the environment gave as a part of it or None).

    Where training read the masks apart, as of Python environments, the space has no such part.
    """
    if not isinstance(obs, Mapping) or MASK not in obs or has_mask(space):
        return obs, None
    return beside_mask(obs), obs[MASK]


# ---- images


class Layout(NamedTuple):
    """The axes of an image: its height and width, the number of channels, and where they are."""

    size: tuple[int, int]
    channels: int
    is_first: bool  # whether the channels are the first of the three axes

    def to_last(self, images: jax.Array) -> jax.Array:
        """Images [..., *shape] as [..., height, width, channels]."""
        return jnp.moveaxis(images, -3, -1) if self.is_first else images

    def __str__(self):
        height, width = self.size
        where = "first" if self.is_first else "last"
        return f"channels {where}: {height} x {width} with {self.channels} channels"


def layout_of(image: Box, conv_channels: str | None = None) -> Layout:
    """The layout of a Box with three axes.

    Args:
        conv_channels: "first" or "last"; None: recognised by the shape. The channels come first
            where that axis is the smallest one, as Stable-Baselines3 has it. Boards of cells may
            well have more channels than rows. So if it is not a picture of bytes, and its other
            axes are not alike, these have to be longer than `SMALL_IMAGE` as well.
    """
    first, middle, last = image.shape
    if conv_channels is None:
        sure = middle == last or min(middle, last) > SMALL_IMAGE or is_byte_picture(image)
        is_first = first < min(middle, last) and sure
    else:
        is_first = conv_channels == FIRST
    return Layout((middle, last), first, True) if is_first else Layout((first, middle), last, False)


def is_image(space: Space) -> bool:
    """Returns whether a space is a Box with three axes, of which one is its channels."""
    return isinstance(space, Box) and len(space.shape) == 3


def is_byte_picture(space: Space) -> bool:
    """Returns whether a space is an image of pixels, bytes from 0 to 255."""
    return is_image(space) and space.dtype == "uint8" and (space.low, space.high) == (0, 255)


# ---- the filter


@dataclass(frozen=True)
class ObservationFilter:
    """The filter of observations of `space`, by two settings of these names.

    Each part of an observation is treated by its kind:

        a Box of numbers    with "MeanStdFilter" by its running mean and standard deviation
        a picture of bytes  brought from its bounds to [0, 1]: with "MeanStdFilter" where it is a
                            part of a Dict or Tuple, and with `normalize_images` anywhere
        integers            left as they are, since networks look them up in a table

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
