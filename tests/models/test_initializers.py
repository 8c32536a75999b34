"""Initialisers by the names of torch.nn.init: their bounds and deviations by formula."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.initializers import BIASES, KERNELS, NamedMLP
from jaxrl.models.mlp import MLP
from jaxrl.models.networks import network_of

KEY = jax.random.key(0)
IN, OUT = 300, 200
SPACES = Box(-1.0, 1.0, (6,)), Discrete(3)
XAVIER = math.sqrt(2 / (IN + OUT))
DRAWS = [  # name, arguments, mean, deviation, the largest distance from the mean
    ("uniform_", {}, 0.5, 1 / math.sqrt(12), 0.5),
    ("uniform_", {"a": -3.0, "b": 1.0}, -1.0, 4 / math.sqrt(12), 2.0),
    ("normal_", {"mean": 2.0, "std": 0.1}, 2.0, 0.1, math.inf),
    ("trunc_normal_", {}, 0.0, 0.8796, 2.0),  # of a normal distribution cut at 2 deviations
    ("trunc_normal_", {"mean": 1.0, "std": 0.5, "a": 0.0, "b": 2.0}, 1.0, 0.5 * 0.8796, 1.0),
    ("constant_", {"val": 0.3}, 0.3, 0.0, 0.0),
    ("ones_", {}, 1.0, 0.0, 0.0),
    ("zeros_", {}, 0.0, 0.0, 0.0),
    ("xavier_uniform_", {}, 0.0, XAVIER, math.sqrt(3) * XAVIER),
    ("xavier_uniform_", {"gain": 3.0}, 0.0, 3 * XAVIER, 3 * math.sqrt(3) * XAVIER),
    ("xavier_normal_", {"gain": 0.5}, 0.0, 0.5 * XAVIER, math.inf),
    ("kaiming_uniform_", {}, 0.0, math.sqrt(2 / IN), math.sqrt(6 / IN)),
    ("kaiming_uniform_", {"a": math.sqrt(5)}, 0.0, 1 / math.sqrt(3 * IN), 1 / math.sqrt(IN)),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "tanh"}, 0, 5 / 3 / OUT**0.5, math.inf),
]


def layer_of(name, **arguments):
    return np.asarray(KERNELS[name](**arguments)(KEY, (IN, OUT)))


@pytest.mark.parametrize(("name", "arguments", "mean", "deviation", "most"), DRAWS)
def test_a_kernel_has_the_mean_deviation_and_bound_of_its_name(
    name, arguments, mean, deviation, most
):
    kernel = layer_of(name, **arguments)
    assert kernel.mean() == pytest.approx(mean, abs=5 * deviation / math.sqrt(IN * OUT) + 1e-6)
    assert kernel.std() == pytest.approx(deviation, rel=0.02, abs=1e-6)
    farthest = np.abs(kernel - mean).max()
    assert farthest <= most * (1 + 1e-5) + 1e-6
    assert most == math.inf or farthest >= 0.99 * most


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5)])
def test_an_orthogonal_kernel_times_itself_is_the_gain_squared(shape):
    kernel = np.asarray(KERNELS["orthogonal_"](gain=1.5)(KEY, shape))
    product = kernel.T @ kernel if shape[0] >= shape[1] else kernel @ kernel.T
    np.testing.assert_allclose(product, 1.5**2 * np.eye(min(shape)), atol=1e-5)
    np.testing.assert_array_equal(layer_of("eye_"), np.eye(IN, OUT))


def network(**settings):
    config = PPOConfig(env="cartpole", fcnet_hiddens=(5, 4), head_fcnet_hiddens=(4,), **settings)
    return network_of(config, *SPACES, None)


@pytest.mark.parametrize("vf_share_layers", [False, True])
def test_the_layers_of_fcnet_hiddens_begin_by_name_and_those_above_as_pytorch_has_it(
    vf_share_layers,
):
    model = network(
        vf_share_layers=vf_share_layers,
        fcnet_kernel_initializer="orthogonal_",
        fcnet_kernel_initializer_kwargs={"gain": 2.0},
        fcnet_bias_initializer="constant_",
        fcnet_bias_initializer_kwargs={"val": 0.25},
    )
    plain = network(vf_share_layers=vf_share_layers, fcnet_kernel_initializer="uniform")
    params, like = jax.jit(model.init)(KEY), jax.jit(plain.init)(KEY)
    chex.assert_trees_all_equal_shapes(params, like)
    for part, layers in params.items():
        named = {"shared": 2, "policy": 0, "value": 0}[part] if vf_share_layers else 2
        for layer in layers[:named]:  # 6 to 5, 5 to 4
            product = layer["kernel"].T @ layer["kernel"]
            np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)
            assert np.all(layer["bias"] == 0.25)
        for layer in layers[named:]:
            assert max(map(np.max, map(np.abs, layer.values()))) <= 1 / math.sqrt(4)
            assert np.all(np.asarray(layer["bias"]) != 0)


@pytest.mark.long
def test_no_two_layers_draw_the_same_numbers():
    draws = network(fcnet_kernel_initializer="normal_", fcnet_bias_initializer="normal_").init(KEY)
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(draws)])
    assert len(np.unique(numbers)) == len(numbers)


def test_biases_alone_leave_the_orthogonal_kernels_of_the_default():
    model = network(fcnet_bias_initializer="ones_")
    default = network()
    assert type(default) is MLP
    assert isinstance(model, NamedMLP)
    layer = model.init(KEY)["policy"][0]
    np.testing.assert_allclose(layer["kernel"].T @ layer["kernel"], 2 * np.eye(5), atol=1e-5)
    assert np.all(layer["bias"] == 1)


@pytest.mark.long
def test_layers_above_convolutions_and_below_a_memory_begin_by_name_too():
    image = Box(0.0, 1.0, (6, 6, 3))
    named = {"fcnet_kernel_initializer": "zeros_", "fcnet_hiddens": (4,)}
    config = PPOConfig(env="cartpole", conv_filters=((2, 3, 2),), **named)
    params = network_of(config, image, SPACES[1], None).init(KEY)
    assert not np.any(params["mlp"]["policy"][0]["kernel"])
    assert np.all(params["conv"]["policy"][0]["kernel"] != 0)
    config = PPOConfig(env="cartpole", use_lstm=True, lstm_cell_size=4, **named)
    leaves = jax.tree_util.tree_leaves_with_path(network_of(config, *SPACES, None).init(KEY))
    zero = {jax.tree_util.keystr(path) for path, leaf in leaves if not jnp.any(leaf)}
    assert zero
    assert all("torso" in path and "kernel" in path for path in zero)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "xavier_unifrm_"}, "did you mean 'xavier_uniform_'"),
        ({"kernel": "Orthogonal"}, "did you mean 'orthogonal"),
        ({"bias": "xavier_uniform_"}, "unknown fcnet_bias_initializer 'xavier_uniform_'"),
        ({"kernel_kwargs": {"gain": 1.0}}, "needs a fcnet_kernel_initializer of torch.nn.init"),
        ({"kernel": "orthogonal_", "kernel_kwargs": {"gian": 1.0}}, "did you mean 'gain'"),
        ({"kernel": "orthogonal_", "kernel_kwargs": {"gain": "big"}}, "must be a number"),
        ({"kernel": "kaiming_normal_", "kernel_kwargs": {"mode": "fan"}}, "did you mean 'fan_in'"),
        ({"bias": "constant_"}, "needs fcnet_bias_initializer_kwargs={'val': NUMBER}"),
        ({"bias": "uniform_", "bias_kwargs": {"a": 2.0}}, "a=2.0 must be less than b=1.0"),
        ({"bias": "normal_", "bias_kwargs": {"std": 0.0}}, "must be a number > 0"),
    ],
)
def test_a_wrong_name_or_argument_is_refused_in_one_line(settings, message):
    parts = ("kernel", "bias")
    settings = {
        f"fcnet_{part}_initializer{end}": settings[part + end]
        for part in parts
        for end in ("", "_kwargs")
        if part + end in settings
    }
    with pytest.raises(UsageError) as refused:
        PPOConfig(env="cartpole", **settings)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_biases_have_no_fans_and_every_name_of_theirs_is_one_of_kernels():
    assert BIASES.keys() < KERNELS.keys()
    assert {name: KERNELS[name] for name in BIASES} == BIASES
