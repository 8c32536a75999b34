"""The convolutional network against XLA's own convolution."""

import functools

import jax
import numpy as np
import pytest

from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.models.cnn import cnn, patches
from jaxrl.models.model import num_parameters
from jaxrl.models.network_inputs import layout_of
from tests.messages import refused_by

KEY = jax.random.key(0)
IMAGE = Box(0.0, 8.0, (7, 6, 3))


@functools.partial(jax.jit, static_argnums=2)
def convolved(images, weights, stride):
    """XLA's convolution with "same" padding."""
    return jax.lax.conv_general_dilated(
        images, weights, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize(
    ("kernel", "stride"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3), (5, 4), (8, 4)]
)
def test_a_product_with_the_patches_is_the_convolution_with_same_padding(kernel, stride):
    random = np.random.default_rng(0)
    images = np.float32(random.normal(size=(2, 7, 6, 3)))
    weights = np.float32(random.normal(size=(kernel, kernel, 3, 5)))
    output = np.asarray(jax.jit(patches, static_argnums=(1, 2))(images, kernel, stride))
    expected = convolved(images, weights, stride)
    np.testing.assert_allclose(output @ weights.reshape(-1, 5), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vf_share_layers", [False, True])
@pytest.mark.parametrize("initializer", ["orthogonal", "uniform"])
def test_the_forward_pass_is_the_convolutions_then_the_dense_layers(vf_share_layers, initializer):
    model = cnn(
        IMAGE,
        ((4, 3, 2), (6, 2, 1)),
        action_space=Discrete(3),
        hiddens=(5,),
        vf_share_layers=vf_share_layers,
        initializer=initializer,
    )
    params = jax.jit(model.init)(KEY)
    params = jax.device_get(params)
    obs = np.float32(np.random.default_rng(0).random((2, 4, 7, 6, 3)))
    distribution, value = jax.device_get(jax.jit(model.apply)(params, obs))

    def features(layers):
        images = obs.reshape(8, 7, 6, 3)
        for layer, (filters, kernel, stride) in zip(layers, model.conv_filters, strict=True):
            weights = layer["kernel"].reshape(kernel, kernel, -1, filters)
            images = np.asarray(convolved(images, weights, stride))
            images = np.maximum(images + layer["bias"][None, None, None], 0)
        return images.reshape(8, -1)

    for part, output in (("policy", distribution.logits), ("value", value[..., None])):
        layers = [*params["mlp"].get("shared", []), *params["mlp"][part]]
        rows = features(params["conv"]["shared" if vf_share_layers else part])
        for i, layer in enumerate(layers):
            rows = (rows if i == 0 else np.tanh(rows)) @ np.asarray(layer["kernel"]) + np.asarray(
                layer["bias"]
            )[None]
        np.testing.assert_allclose(output.reshape(8, -1), rows, rtol=1e-4, atol=1e-5)


def test_the_parameters_are_those_of_rllibs_layers_counted_by_hand():
    model = cnn(IMAGE, ((16, 3, 2),), action_space=Discrete(5), hiddens=(8,), vf_share_layers=True)
    convolution, features = 3 * 3 * 3 * 16 + 16, 4 * 3 * 16
    assert num_parameters(model) == convolution + (features + 1) * 8 + (8 + 1) * (5 + 1)


TREE = Dict(
    {
        "eye": IMAGE,
        "sense": Tuple((Box(0, 255, (4, 4, 2), "uint8"), Discrete(5))),
        "speed": Box(-1.0, 1.0),
    }
)


@functools.cache
def observations():
    """Five samples of TREE."""
    return jax.device_get(jax.jit(jax.vmap(TREE.sample))(jax.random.split(KEY, 5)))


@pytest.mark.long
@pytest.mark.parametrize("vf_share_layers", [False, True])
def test_each_image_of_a_tree_has_its_own_convolutions_and_all_parts_join_before_the_dense_layers(
    vf_share_layers,
):
    filters = ((4, 3, 2),)
    model = cnn(
        TREE, filters, action_space=Discrete(3), hiddens=(8,), vf_share_layers=vf_share_layers
    )
    params = jax.device_get(jax.jit(model.init)(KEY))
    obs = observations()
    distribution, value = jax.device_get(jax.jit(model.apply)(params, obs))

    def features(layers, images):
        alone = cnn(Box(0, 255, images.shape[1:]), filters, action_space=Discrete(3), hiddens=())
        torso = {part: layers for part in ("policy", "value")}
        kernel = np.eye(
            alone.mlp.observation_space.size, dtype=np.float32
        )  # the heads give the features themselves
        heads = {
            part: [{"kernel": kernel, "bias": np.zeros(len(kernel), np.float32)}] for part in torso
        }
        return jax.jit(alone.apply)({"conv": torso, "mlp": heads}, images)[0].logits

    for part, output in (("policy", distribution.logits), ("value", value[:, None])):
        torsos = params["conv"]["shared" if vf_share_layers else part]
        assert sorted(torsos) == ["eye", "sense/0"]
        joined = [
            features(torsos["eye"], obs["eye"]),
            features(torsos["sense/0"], obs["sense"][0]),
            np.eye(5)[np.asarray(obs["sense"][1])],
            obs["speed"][:, None],
        ]
        rows = np.concatenate(joined, axis=1)
        for i, layer in enumerate([*params["mlp"].get("shared", []), *params["mlp"][part]]):
            rows = (rows if i == 0 else np.tanh(rows)) @ np.asarray(layer["kernel"]) + np.asarray(
                layer["bias"]
            )[None]
        np.testing.assert_allclose(output, rows, rtol=1e-4, atol=1e-4)


def test_no_two_images_of_a_tree_begin_with_the_same_convolutions():
    model = cnn(Tuple((IMAGE, IMAGE)), ((4, 3, 2),), action_space=Discrete(3))
    conv = jax.jit(model.init)(KEY)["conv"]
    kernels = [
        np.asarray(conv[part][name][0]["kernel"])
        for part in ("policy", "value")
        for name in ("0", "1")
    ]
    assert len(np.unique(np.concatenate([np.ravel(kernel) for kernel in kernels]))) == sum(
        k.size for k in kernels
    )


NEEDS = r"conv_filters=.* need images, a Box of \(height, width, channels\)"
test_observations_that_are_no_images_are_refused = refused_by(
    lambda space: cnn(space, ((4, 3, 1),), action_space=Discrete(2)),
    [
        (Discrete(4), NEEDS),
        (MultiDiscrete((2, 2)), NEEDS),
        (Box(0.0, 1.0, (7, 7)), NEEDS),
        (Dict({"speed": Box(0.0, 1.0), "gear": Discrete(4)}), NEEDS),
    ],
)


# Channels first


FILTERS = ((4, 3, 2),)


@pytest.mark.parametrize(
    ("image", "is_first"),
    [
        (Box(0, 255, (4, 84, 84), "uint8"), True),  # Gymnasium's frames of Atari
        (Box(0, 255, (84, 84, 4), "uint8"), False),
        (Box(0, 255, (3, 60, 80), "uint8"), True),
        (Box(0, 255, (3, 5, 8), "uint8"), True),
        (Box(0.0, 1.0, (4, 84, 84)), True),
        (Box(0.0, 1.0, (3, 60, 80)), True),
        (Box(0.0, 1.0, (3, 8, 8)), True),
        (Box(0, 255, (7, 7, 3), "uint8"), False),  # MiniGrid
        (Box(0, 1, (10, 10, 4), "bool"), False),  # MinAtar
        (Box(0, 1, (19, 19, 17), "bool"), False),  # Go
        (Box(0.0, 1.0, (8, 8, 8)), False),
        (Box(0.0, 255.0, (4, 5, 26)), False),  # a kitchen of 4 x 5 cells with 26 channels
        (Box(0.0, 1.0, (2, 3, 128)), False),
        (Box(0, 255, (84, 4, 84), "uint8"), False),
    ],
)
def test_channels_come_first_where_the_first_axis_is_the_smallest(image, is_first):
    layout = layout_of(image)
    assert layout.is_first == is_first
    assert layout.channels == image.shape[0 if is_first else 2]
    assert layout_of(image, "first").is_first and not layout_of(image, "last").is_first


def test_images_with_channels_first_are_read_as_the_same_images_with_channels_last():
    first, last = (Box(0, 255, shape, "uint8") for shape in ((2, 6, 8), (6, 8, 2)))
    models = [
        cnn(image, FILTERS, action_space=Discrete(3), hiddens=(5,)) for image in (first, last)
    ]
    params = jax.jit(models[0].init)(KEY)
    shapes = [jax.tree.map(np.shape, jax.eval_shape(model.init, KEY)) for model in models]
    assert shapes[0] == shapes[1] and params["conv"]["policy"][0]["kernel"].shape == (3 * 3 * 2, 4)
    obs = np.random.default_rng(0).integers(0, 256, (5, 2, 6, 8), np.uint8)
    outputs = [
        jax.device_get(jax.jit(model.apply)(params, seen))
        for model, seen in zip(models, (obs, np.moveaxis(obs, 1, -1)), strict=True)
    ]
    jax.tree.map(np.testing.assert_array_equal, *outputs)


def test_the_first_kernel_of_atari_is_as_wide_as_its_four_frames():
    model = cnn(
        Box(0, 255, (4, 84, 84), "uint8"), ((16, 8, 4), (32, 4, 2)), action_space=Discrete(6)
    )
    shapes = jax.eval_shape(model.init, KEY)["conv"]["policy"]
    assert [layer["kernel"].shape for layer in shapes] == [(256, 16), (256, 32)]


def test_each_image_of_a_tree_has_its_own_layout():
    space = Dict(
        {
            "eye": Box(0, 255, (3, 8, 8), "uint8"),
            "map": Box(0, 255, (8, 8, 2), "uint8"),
            "speed": Box(-1.0, 1.0, (2,)),
        }
    )
    model = cnn(space, FILTERS, action_space=Discrete(2), hiddens=(5,))
    shapes = jax.eval_shape(model.init, KEY)
    kernels = {name: layers[0]["kernel"].shape for name, layers in shapes["conv"]["value"].items()}
    assert kernels == {"eye": (27, 4), "map": (18, 4)}
    assert shapes["mlp"]["policy"][0]["kernel"].shape == (2 * 4 * 4 * 4 + 2, 5)
