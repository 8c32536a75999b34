"""Convolutions under a fully connected network, as RLlib's `conv_filters` set them up."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Space, is_tree, parts_of, space_of, tree_of
from jaxrl.core.types import Key, PyTree
from jaxrl.models.mlp import ACTIVATIONS, MLP, draw_layer, noise_for
from jaxrl.ops.distributions import Distribution

ConvFilters = tuple[
    tuple[int, int, int], ...
]  # (number of filters, kernel size, stride) of each layer


@dataclass(frozen=True)
class CNN:
    """Images (height, width, channels) through square convolutions, padded to cover the image, and an MLP.

    The activation follows every convolution. Policy and value each have convolutions of their own,
    unless the MLP shares its layers (`vf_share_layers`). Of a tree of spaces each image goes
    through convolutions of its own, and the MLP reads their features beside all other parts: its
    observation space holds features for images, see `cnn`.
    """

    observation_space: Space
    conv_filters: ConvFilters
    conv_activation: str
    mlp: MLP

    def init(self, key: Key) -> PyTree:
        """{"conv": {part: layers}, "mlp": the MLP's}; a layer's kernel is f32[kernel * kernel * in, out].

        Of a tree of spaces {"conv": {part: {name of the image: layers}}, ...}.
        """
        conv_key, mlp_key = jax.random.split(key)
        parts = ("shared",) if self.mlp.vf_share_layers else ("policy", "value")
        keys = jax.random.split(conv_key, len(parts))
        return {
            "conv": {part: self._draw_all(key) for part, key in zip(parts, keys, strict=True)},
            "mlp": self.mlp.init(mlp_key),
        }

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """obs `[..., height, width, channels]`, or a tree of such, to (distribution [...], value f32[...])."""
        features = {part: self._features(layers, obs) for part, layers in params["conv"].items()}
        if self.mlp.vf_share_layers:
            return self.mlp.apply(params["mlp"], features["shared"])
        return self.mlp.apply_apart(params["mlp"], features["policy"], features["value"])

    @property
    def num_features(self) -> int:
        """Of the layers that policy and value share."""
        return self.mlp.num_features

    def init_features(self, key: Key) -> PyTree:
        """The parameters of the shared layers alone, for whoever sets something else above them."""
        params = self.init(key)
        return {"conv": params["conv"], "mlp": {"shared": params["mlp"]["shared"]}}

    def features(self, params: PyTree, obs: PyTree) -> jax.Array:
        """What the shared layers make of obs, f32[..., num_features]."""
        return self.mlp.features(params["mlp"], self._features(params["conv"]["shared"], obs))

    def _draw_all(self, key: Key) -> PyTree:
        space = self.observation_space
        if not is_tree(space):
            return self._draw(key, space.shape[-1])
        images = [
            (name, part) for name, part, _ in parts_of(space, tree_of(space)) if is_image(part)
        ]
        return {
            name: self._draw(jax.random.fold_in(key, i), part.shape[-1])
            for i, (name, part) in enumerate(images)
        }

    def _draw(self, key: Key, channels: int) -> list[dict[str, jax.Array]]:
        layers = []
        for i, (filters, kernel, _) in enumerate(self.conv_filters):
            shape = (kernel * kernel * channels, filters)
            noise = noise_for(
                self.mlp.initializer, jax.random.fold_in(key, i), ((shape[0] + 1) * filters,)
            )
            layers.append(draw_layer(noise, shape, math.sqrt(2), self.mlp.initializer))
            channels = filters
        return layers

    def _features(self, layers: PyTree, obs: PyTree) -> PyTree:
        """f32[..., features] in place of each image."""
        space = self.observation_space
        if not is_tree(space):
            return self._convolve(layers, obs)
        features = [
            self._convolve(layers[name], values) if is_image(part) else values
            for name, part, values in parts_of(space, obs)
        ]
        return jax.tree.unflatten(jax.tree.structure(tree_of(space)), features)

    def _convolve(self, layers: list[dict[str, jax.Array]], images: jax.Array) -> jax.Array:
        """f32[..., features]."""
        images = images.astype(jnp.float32)
        for layer, (_, kernel, stride) in zip(layers, self.conv_filters, strict=True):
            images = patches(images, kernel, stride) @ layer["kernel"]
            images = ACTIVATIONS[self.conv_activation](
                images + jnp.expand_dims(layer["bias"], range(images.ndim - 1))
            )
        return images.reshape(*images.shape[:-3], -1)


def cnn(
    observation_space: Space, conv_filters: ConvFilters, conv_activation: str = "relu", **mlp
) -> CNN:
    """A CNN over `observation_space`; `mlp` are the other fields of its `MLP`.

    Raises:
        UsageError: observations with no image in them.
    """

    def features(part: Space) -> Space:
        if not is_image(part):
            return part
        *size, _ = part.shape
        for filters, _, stride in conv_filters:
            size, channels = [-(-length // stride) for length in size], filters
        return Box(-math.inf, math.inf, (math.prod(size) * channels,))

    parts = tree_of(observation_space)
    if not any(map(is_image, jax.tree.leaves(parts))):
        raise UsageError(
            f"conv_filters={conv_filters} need images, a Box of (height, width, channels), not {observation_space}"
        )
    read = space_of(jax.tree.map(features, parts))
    return CNN(observation_space, conv_filters, conv_activation, MLP(read, **mlp))


def is_image(space: Space) -> bool:
    """A Box of three axes: (height, width, channels)."""
    return isinstance(space, Box) and len(space.shape) == 3


def patches(images: jax.Array, kernel: int, stride: int) -> jax.Array:
    """What a convolution's kernel sees at each of its places: [..., H, W, C] to [..., H', W', kernel * kernel * C].

    H' = ceil(H / stride), zeros around the image, one more below and right where they are odd
    ("same" padding). A product with these is a convolution that stays fast on the CPU when the
    kernels of several policies are stacked.
    """
    *batch, height, width, _ = images.shape
    out = [-(-length // stride) for length in (height, width)]
    missing = [
        max((n - 1) * stride + kernel - length, 0)
        for n, length in zip(out, (height, width), strict=True)
    ]
    around = [(total // 2, total - total // 2) for total in missing]
    images = jnp.pad(images, [(0, 0)] * len(batch) + around + [(0, 0)])
    rows, columns = ((n - 1) * stride + 1 for n in out)
    return jnp.concatenate(
        [
            images[..., y : y + rows : stride, x : x + columns : stride, :]
            for y in range(kernel)
            for x in range(kernel)
        ],
        axis=-1,
    )
