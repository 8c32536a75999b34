"""How a policy plays: observations through its filter and its model, its actions to the environment's."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import Model
from jaxrl.ops.distributions import Distribution, environment_action, sampling_noise
from jaxrl.ops.filters import Moments, no_moments, normalise

FILTERS = ("MeanStdFilter", None)


class Weights(struct.PyTreeNode):
    """All the numbers that a policy acts by."""

    params: PyTree  # the model's, trained
    filter: Moments | tuple = ()  # of the observations; () without a filter


@dataclass(frozen=True)
class Player:
    """What is static about playing; hashable.

    observation_filter: "MeanStdFilter" (running mean and standard deviation, as RLlib's; the first iteration sees
        the observations as they are), or None.
    normalize_actions, clip_actions: see `environment_action`; what is learned from is always the action as sampled.
    """

    model: Model
    observation_space: Space
    action_space: Space
    observation_filter: str | None = None
    normalize_actions: bool = True
    clip_actions: bool = False

    def __post_init__(self):
        if self.observation_filter is not None and not isinstance(self.observation_space, Box):
            raise UsageError(
                f"observation_filter={self.observation_filter!r} needs Box observations, not {self.observation_space}"
            )

    def initial_filter(self) -> Moments | tuple:
        return () if self.observation_filter is None else no_moments(self.observation_space.shape)

    def filtered(self, moments: Moments | tuple, obs: PyTree) -> PyTree:
        """Observations `[..., *observation_space.shape]` as the model reads them."""
        return obs if self.observation_filter is None else normalise(moments, obs.astype(jnp.float32))

    def apply(self, weights: Weights, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """(distribution over actions, value f32[...]) of observations as the environment gives them."""
        return self.model.apply(weights.params, self.filtered(weights.filter, obs))

    def noise(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """What actions are sampled by, f32[*shape, D]."""
        return sampling_noise(self.action_space, key, shape)

    @functools.cached_property
    def in_environment(self) -> Callable[[PyTree], PyTree]:
        """From sampled actions `[..., *action_space.shape]` to the environment's."""
        return environment_action(self.action_space, normalize=self.normalize_actions, clip=self.clip_actions)
