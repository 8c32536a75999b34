"""Convolutional network: convolutions as in RLlib's `conv_filters`, followed by an MLP."""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Space, is_tree, parts_of, space_of, tree_of
from jaxrl.core.types import Key, PyTree
from jaxrl.models.mlp import ACTIVATIONS, MLP, draw_layers
from jaxrl.models.network_inputs import Layout, is_image, layout_of
from jaxrl.ops.distributions import Distribution

# (number of filters, kernel size, stride) of each layer
ConvFilters = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class CNN:
    """Square, padded convolutions of images (height, width, channels), followed by an MLP.

    Images with their channels first are read with that axis moved to the end. The activation
    follows every convolution. Policy and value have separate convolutions, unless the MLP shares
    its layers (`vf_share_layers`). In a tree of spaces each image has separate convolutions, and
    the MLP reads their features together with all other parts. So the MLP's observation space has
    features in place of images, see `cnn`.

    value_space: what the value network reads, if it is not `observation_space`, as of an `MLP`; it
        need not hold an image.
    conv_channels, value_channels: as of `layout_of`, of the images in these two spaces.
    """

    observation_space: Space
    conv_filters: ConvFilters
    conv_activation: str
    mlp: MLP
    value_space: Space | None = None
    conv_channels: str | None = None
    value_channels: str | None = None

    def init(self, key: Key) -> PyTree:
        """{"conv": {part: layers}, "mlp": the MLP's parameters}.

        A layer's kernel is f32[kernel * kernel * in, out]. For a tree of spaces "conv" is {part:
        {name of the image: layers}}.
        """
        conv_key, mlp_key = jax.random.split(key)
        keys = jax.random.split(conv_key, len(self._spaces))
        drawn = map(self._draw_all, keys, self._spaces)
        return {
            "conv": dict(zip(self._spaces, drawn, strict=True)),
            "mlp": self.mlp.init(mlp_key),
        }

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        """(distribution [...], value f32[...]) of observations `[..., *observation_space.shape]`.

        For a tree of spaces `obs` is a tree of arrays.
        """
        apart = self.value_space is not None
        features = {
            part: self._features(params["conv"], part, getattr(obs, part) if apart else obs)
            for part in self._spaces
        }
        if self.mlp.vf_share_layers:
            return self.mlp.apply(params["mlp"], features["shared"])
        return self.mlp.apply_apart(params["mlp"], features["policy"], features["value"])

    @property
    def num_features(self) -> int:
        """The width of the layers that policy and value share."""
        return self.mlp.num_features

    def init_features(self, key: Key) -> PyTree:
        """The parameters of the shared layers only, for a network that has other heads."""
        params = self.init(key)
        return {"conv": params["conv"], "mlp": {"shared": params["mlp"]["shared"]}}

    def features(self, params: PyTree, obs: PyTree) -> jax.Array:
        """The outputs of the shared layers, f32[..., num_features]."""
        features = self._features(params["conv"], "shared", obs)
        return self.mlp.features(params["mlp"], features)

    @property
    def _spaces(self) -> dict[str, Space]:
        """The space that each part reads."""
        if self.mlp.vf_share_layers:
            return {"shared": self.observation_space}
        value = self.observation_space if self.value_space is None else self.value_space
        return {"policy": self.observation_space, "value": value}

    def _layout(self, image: Box, part: str) -> Layout:
        return layout_of(image, self.value_channels if part == "value" else self.conv_channels)

    def _draw_all(self, key: Key, part: str) -> PyTree:
        space = self._spaces[part]
        if not is_tree(space):
            return self._draw(key, self._layout(space, part).channels) if is_image(space) else []
        layers = {}
        for name, image, _ in parts_of(space, tree_of(space)):
            if is_image(image):
                image_key = jax.random.fold_in(key, len(layers))
                layers[name] = self._draw(image_key, self._layout(image, part).channels)
        return layers

    def _draw(self, key: Key, channels: int) -> list[dict[str, jax.Array]]:
        shapes = []
        for filters, kernel, _ in self.conv_filters:
            shapes.append((kernel * kernel * channels, filters))
            channels = filters
        return draw_layers(key, shapes, [math.sqrt(2)] * len(shapes), self.mlp.initializer)

    def _features(self, layers: PyTree, part: str, obs: PyTree) -> PyTree:
        """f32[..., features] in place of each image of what a part reads."""
        space, layers = self._spaces[part], layers[part]
        if obs is None:
            return obs

        def read(image: Space, layers: PyTree, values: jax.Array) -> jax.Array:
            if not is_image(image):
                return values
            return self._convolve(layers, self._layout(image, part).to_last(values))

        if not is_tree(space):
            return read(space, layers, obs)
        features = [
            read(inner, layers.get(name), values) for name, inner, values in parts_of(space, obs)
        ]
        return jax.tree.unflatten(jax.tree.structure(tree_of(space)), features)

    def _convolve(self, layers: list[dict[str, jax.Array]], images: jax.Array) -> jax.Array:
        """f32[..., features] of images with their channels last."""
        images, activation = images.astype(jnp.float32), ACTIVATIONS[self.conv_activation]
        for layer, (_, kernel, stride) in zip(layers, self.conv_filters, strict=True):
            images = patches(images, kernel, stride) @ layer["kernel"]
            images = activation(images + jnp.expand_dims(layer["bias"], range(images.ndim - 1)))
        return images.reshape(*images.shape[:-3], -1)


def cnn(
    observation_space: Space,
    conv_filters: ConvFilters,
    conv_activation: str = "relu",
    value_space: Space | None = None,
    conv_channels: str | None = None,
    value_channels: str | None = None,
    **mlp,
) -> CNN:
    """A CNN that reads `observation_space`; `mlp` are the other fields of its `MLP`.

    Raises:
        UsageError: observations with no image in them.
    """

    def read(space: Space, channels: str | None) -> Space:
        features = functools.partial(_features_of, conv_filters=conv_filters, channels=channels)
        return space_of(jax.tree.map(features, tree_of(space)))

    if not any(map(is_image, jax.tree.leaves(tree_of(observation_space)))):
        raise UsageError(
            f"conv_filters={conv_filters} need images, a Box of (height, width, channels), "
            f"not {observation_space}"
        )
    value_read = None if value_space is None else read(value_space, value_channels)
    value_channels = conv_channels if value_space is None else value_channels
    layers = MLP(read(observation_space, conv_channels), value_space=value_read, **mlp)
    kind = {"conv_channels": conv_channels, "value_channels": value_channels}
    return CNN(observation_space, conv_filters, conv_activation, layers, value_space, **kind)


def _features_of(part: Space, conv_filters: ConvFilters, channels: str | None) -> Space:
    """The space of what the convolutions make of an image; other parts themselves."""
    if not is_image(part):
        return part
    size, width, _ = layout_of(part, channels)
    for filters, _, stride in conv_filters:
        size, width = [-(-length // stride) for length in size], filters
    return Box(-math.inf, math.inf, (math.prod(size) * width,))


def patches(images: jax.Array, kernel: int, stride: int) -> jax.Array:
    """The inputs of a convolution's kernel: [..., H, W, C] to [..., H', W', kernel * kernel * C].

    H' = ceil(H / stride), with zeros around the image, one more below and right if their number is
    odd ("same" padding). The product with the patches is a convolution that stays fast on the CPU
    when the kernels of several policies are stacked.
    """
    *batch, height, width, _ = images.shape
    rows, above_and_below = _same_padding(height, kernel, stride)
    columns, left_and_right = _same_padding(width, kernel, stride)
    padding = [(0, 0)] * len(batch) + [above_and_below, left_and_right, (0, 0)]
    images = jnp.pad(images, padding)
    shifted = []
    for y in range(kernel):
        for x in range(kernel):
            shifted.append(images[..., y : y + rows : stride, x : x + columns : stride, :])
    return jnp.concatenate(shifted, axis=-1)


def _same_padding(length: int, kernel: int, stride: int) -> tuple[int, tuple[int, int]]:
    """(the extent of the kernel's first entry over all its places, (zeros before, zeros after))."""
    extent = (-(-length // stride) - 1) * stride + 1
    missing = max(extent - 1 + kernel - length, 0)
    return extent, (missing // 2, missing - missing // 2)
