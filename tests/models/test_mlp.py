"""The MLP against a forward pass in NumPy, RLlib's parameter counts, and its initialisers."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erfinv

from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple, parts_of
from jaxrl.models.lookups import lookup
from jaxrl.models.mlp import (
    ABOVE_MINUS_ONE,
    ACTIVATIONS,
    MLP,
    draw_layers,
    input_size,
    orthogonal,
)
from jaxrl.models.model import num_parameters
from jaxrl.ops.continuous import Beta, DiagGaussian, SquashedGaussian
from tests.messages import refused_by

KEY = jax.random.key(0)
FIVE, TWO = Box(-1.0, 1.0, (5,)), Box(-1.0, 1.0, (2,))
ACTIONS = Discrete(3)
SPACES = [
    Discrete(6),
    MultiDiscrete((4, 3)),
    Box(-1.0, 1.0, (5,)),
    Box(0, 255, (10, 10, 4), "uint8"),
    Box(0.0, 1.0, ()),
    Dict(
        {
            "b": MultiDiscrete((4, 3)),
            "a": Box(-1.0, 1.0, (5,)),
            "c": Tuple((Discrete(2), Box(0.0, 1.0, (2, 2)))),
        }
    ),
    Tuple((Box(0.0, 1.0, ()), Box(0, 255, (2, 1), "uint8"), Discrete(300), Discrete(2))),
    Dict({"only": Discrete(3)}),
]

NUMPY_ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "linear": lambda x: x,
}


def encoded(space, obs):
    """The inputs [B, in] of the first layer: one-hot or flattened; concatenated for a tree."""
    if isinstance(space, Dict | Tuple):
        return np.concatenate(
            [encoded(part, values) for _, part, values in parts_of(space, obs)], axis=1
        )
    obs = np.asarray(obs)
    if isinstance(space, Box):
        return obs.reshape(len(obs), -1).astype(np.float64)
    if isinstance(space, Discrete):
        return np.eye(space.n)[obs]
    return np.concatenate([np.eye(n)[obs[:, i]] for i, n in enumerate(space.nvec)], axis=1)


def forward(layers, inputs, activation):
    """Dense layers with the activation between them, none after the last."""
    for i, layer in enumerate(layers):
        inputs = inputs if i == 0 else activation(inputs)
        inputs = inputs @ np.float64(layer["kernel"]) + np.float64(layer["bias"])
    return inputs


@functools.cache
def observations(space):
    """Seven samples of a space."""
    return jax.device_get(jax.jit(jax.vmap(space.sample))(jax.random.split(KEY, 7)))


def assert_agrees_with_numpy(model, scale=1.0):
    random, shapes = np.random.default_rng(0), jax.eval_shape(model.init, KEY)
    params = jax.tree.map(
        lambda leaf: np.float32(scale * random.normal(0, 0.5, leaf.shape)), shapes
    )
    obs = observations(model.observation_space)
    distribution, value = jax.device_get(jax.jit(model.apply)(params, obs))
    inputs, activation = encoded(model.observation_space, obs), NUMPY_ACTIVATIONS[model.activation]
    shared = params.get("shared", [])
    for part, output in (("policy", distribution.logits), ("value", value[:, None])):
        expected = forward([*shared, *params[part]], inputs, activation)
        np.testing.assert_allclose(
            output, expected, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected).max())
        )


def test_the_default_network_has_rllibs_134915_parameters_on_cartpole():
    assert num_parameters(MLP(Box(-5.0, 5.0, (4,)), Discrete(2))) == 134_915


def test_rllibs_waterworld_policy_of_shared_layers_and_a_gaussian_has_129285_parameters():
    model = MLP(Box(-1.5, 1.5, (242,)), Box(-1.0, 1.0, (2,)), vf_share_layers=True)
    assert num_parameters(model) == 129_285


@pytest.mark.long
def test_the_log_std_of_box_actions_is_an_output_or_a_parameter_of_its_own():
    observations, actions = Box(-1.0, 1.0, (5,)), Box(-1.0, 1.0, (2,))
    obs = jax.random.normal(KEY, (9, 5))
    for free, spread in ((False, 1e-3), (True, 0.0)):
        model = MLP(observations, actions, (8,), free_log_std=free)
        params = jax.jit(model.init)(KEY)
        distribution, _ = jax.jit(model.apply)(params, obs)
        assert distribution.mean.shape == distribution.log_std.shape == (9, 2)
        assert (np.ptp(distribution.log_std, axis=0) >= spread).all()
        assert num_parameters(model) == (6 * 8 + 9 * (2 if free else 4) + 2 * free) + (6 * 8 + 9)
    params["log_std"] = np.float32([0.5, -0.5])
    distribution, _ = jax.jit(model.apply)(params, obs)
    np.testing.assert_allclose(distribution.log_std, np.tile([[0.5, -0.5]], (9, 1)))


@pytest.mark.parametrize("first", [0, -2, -2.0])
def test_a_gaussian_starts_with_the_log_std_that_is_asked_for(first):
    model = MLP(FIVE, TWO, (8,), free_log_std=True, log_std_init=first)
    params = model.init(KEY)
    distribution, _ = model.apply(params, jnp.ones((9, 5)))
    np.testing.assert_allclose(distribution.log_std, np.full((9, 2), first))
    # Of a weak type the first update would be traced again, and an integer has no gradient.
    assert (params["log_std"].dtype, params["log_std"].weak_type) == (jnp.float32, False)


@pytest.mark.parametrize(
    ("kind", "made"),
    [("gaussian", DiagGaussian), ("beta", Beta), ("squashed_gaussian", SquashedGaussian)],
)
def test_the_distribution_of_box_actions_is_the_one_that_is_asked_for(kind, made):
    model = MLP(Box(-1.0, 1.0, (5,)), Box(-1.0, 1.0, (2,)), (8,), action_distribution=kind)

    def look():
        distribution, value = model.apply(model.init(KEY), jnp.ones((9, 5)))
        assert type(distribution) is made
        return distribution.mode(), distribution.entropy(), value

    assert [leaf.shape for leaf in jax.eval_shape(look)] == [(9, 2), (9,), (9,)]


BETA = {"action_distribution": "beta"}
FREE = {"free_log_std": True}
test_what_does_not_fit_the_actions_is_refused = refused_by(
    lambda observations, actions, settings: MLP(observations, actions, **settings),
    [
        (FIVE, Discrete(2), BETA, "'beta' needs Box actions with finite bounds, not Disc"),
        (FIVE, TWO, BETA | FREE, "free_log_std=True does not fit action_distribution='beta'"),
        (FIVE, Discrete(2), FREE, "free_log_std=True needs Box actions, not Discrete"),
        (Discrete(3), Box(0, 5, (0,)), {}, "not supported; allowed"),
    ],
)


def test_two_one_hots_of_100_and_four_actions_make_235781_parameters():
    assert num_parameters(MLP(MultiDiscrete((100, 100)), Discrete(4))) == 235_781


def test_shared_layers_are_counted_once():
    model = MLP(Box(-5.0, 5.0, (4,)), MultiDiscrete((2, 3)), hiddens=(32, 16), vf_share_layers=True)
    shared, heads = (4 + 1) * 32 + (32 + 1) * 16, (16 + 1) * (2 + 3) + (16 + 1)
    assert num_parameters(model) == shared + heads
    params = jax.jit(model.init)(KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == shared + heads


@pytest.mark.parametrize("vf_share_layers", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_forward_pass_is_the_product_of_the_encoded_observation_and_the_layers(
    space, vf_share_layers
):
    assert_agrees_with_numpy(MLP(space, ACTIONS, (8, 6), vf_share_layers=vf_share_layers))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_the_function_of_its_name(activation):
    assert_agrees_with_numpy(MLP(Box(-1.0, 1.0, (5,)), ACTIONS, (8, 6), activation), scale=4.0)


@pytest.mark.parametrize("vf_share_layers", [False, True])
def test_without_hidden_layers_the_heads_read_the_observation(vf_share_layers):
    for space in (MultiDiscrete((4, 3)), Box(-1.0, 1.0, (5,))):
        model = MLP(space, ACTIONS, (), vf_share_layers=vf_share_layers)
        assert num_parameters(model) == (input_size(space) + 1) * (3 + 1)
        assert_agrees_with_numpy(model)


@pytest.mark.parametrize("vf_share_layers", [False, True])
def test_policy_and_value_each_have_the_layers_of_the_heads(vf_share_layers):
    space, heads = Box(-1.0, 1.0, (5,)), (6, 4)
    model = MLP(space, ACTIONS, (8,), vf_share_layers=vf_share_layers, head_hiddens=heads)
    below = (5 + 1) * 8 * (1 if vf_share_layers else 2)
    above = 2 * ((8 + 1) * 6 + (6 + 1) * 4) + (4 + 1) * (3 + 1)
    assert num_parameters(model) == below + above
    assert_agrees_with_numpy(model)


def test_with_shared_layers_the_value_trains_the_layers_below_the_policy_and_without_does_not():
    for vf_share_layers in (True, False):
        model = MLP(Box(-1.0, 1.0, (5,)), ACTIONS, (8,), vf_share_layers=vf_share_layers)
        params = jax.jit(model.init)(KEY)
        gradients = jax.jit(
            jax.grad(lambda params, model=model: model.apply(params, jnp.ones(5))[1])
        )(params)
        below = gradients["shared"][0] if vf_share_layers else gradients["policy"][0]
        assert bool(jnp.any(below["kernel"] != 0)) == vf_share_layers


def test_lookup_is_the_one_hot_product():
    kernel = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    index = np.random.default_rng(1).integers(0, 7, size=(5, 2, 3))
    one_hots = np.eye(7)[index].sum(axis=-2)  # [5, 2, 7]
    np.testing.assert_allclose(jax.jit(lookup)(kernel, index), one_hots @ kernel, atol=1e-5)


def test_every_category_reads_its_own_row_and_no_other():
    """MultiDiscrete((2, 3)): the rows 0, 1 are the first entry's, 2, 3, 4 the second's."""
    model = MLP(MultiDiscrete((2, 3)), ACTIONS, ())
    params = jax.jit(model.init)(KEY)
    value = lambda params, obs: model.apply(params, obs)[1]
    gradient = jax.jit(jax.grad(value))(params, np.array([1, 0]))
    assert gradient["value"][0]["kernel"][:, 0].tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("batch", [(), (3,), (2, 3, 1)])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_batch_axes_lead_and_come_back(space, batch):
    model = MLP(space, MultiDiscrete((2, 3)), (4,))
    sample = jax.eval_shape(space.sample, KEY)
    obs = jax.tree.map(lambda leaf: np.zeros((*batch, *leaf.shape), leaf.dtype), sample)
    distribution, value = jax.eval_shape(lambda: model.apply(model.init(KEY), obs))
    assert distribution.logits.shape == (*batch, 5)
    assert (value.shape, value.dtype) == (batch, jnp.float32)


@pytest.mark.long
def test_a_tree_of_one_part_reads_as_the_part_does():
    for space in (Discrete(6), MultiDiscrete((4, 3)), Box(-1.0, 1.0, (5,))):
        plain, tree = (MLP(observed, ACTIONS, (8,)) for observed in (space, Dict({"part": space})))
        params, obs = jax.jit(plain.init)(KEY), observations(space)
        chex.assert_trees_all_equal(params, jax.jit(tree.init)(KEY))
        read = jax.jit(plain.apply)(params, obs)
        chex.assert_trees_all_equal(read, jax.jit(tree.apply)(params, {"part": obs}))


def test_small_integers_find_their_rows_behind_many_others():
    """Of u8 a row beyond 255 would be another's."""
    model = MLP(Tuple((Discrete(300), Discrete(2))), ACTIONS, ())
    params = jax.jit(model.init)(KEY)
    value = lambda params, obs: model.apply(params, obs)[1]
    gradient = jax.jit(jax.grad(value))(params, (np.uint8(7), np.uint8(1)))
    assert np.flatnonzero(gradient["value"][0]["kernel"][:, 0]).tolist() == [7, 301]


def test_observations_of_another_tree_are_refused():
    model = MLP(Dict({"a": Discrete(2), "b": Discrete(2)}), ACTIONS, ())
    params = jax.eval_shape(model.init, KEY)
    with pytest.raises(ValueError, match="Dict key mismatch"):
        jax.eval_shape(model.apply, params, {"a": jnp.array(0), "c": jnp.array(0)})


def test_rows_of_a_batch_do_not_mix():
    model = MLP(Box(-1.0, 1.0, (2, 2)), ACTIONS, (8,))
    params, apply = jax.jit(model.init)(KEY), jax.jit(model.apply)
    obs = np.asarray(jax.random.normal(KEY, (2, 3, 2, 2)))
    distribution, value = apply(params, obs)
    for index in np.ndindex(2, 3):
        row_distribution, row_value = apply(params, obs[index])
        np.testing.assert_allclose(distribution.logits[index], row_distribution.logits, atol=1e-6)
        np.testing.assert_allclose(value[index], row_value, atol=1e-6)


def layers(params):
    """(part, whether it is the part's last layer, kernel, bias) of every layer."""
    for part, stack in params.items():
        for i, layer in enumerate(stack):
            yield part, i == len(stack) - 1, np.asarray(layer["kernel"]), np.asarray(layer["bias"])


@pytest.mark.parametrize("vf_share_layers", [False, True])
def test_orthogonal_layers_are_orthogonal_with_the_stated_gains(vf_share_layers):
    model = MLP(
        Box(-1.0, 1.0, (5,)),
        ACTIONS,
        (16, 12),
        vf_share_layers=vf_share_layers,
        initializer="orthogonal",
    )
    for part, is_last, kernel, bias in layers(jax.jit(model.init)(KEY)):
        gain = (
            {"policy": 0.01, "value": 1.0, "shared": math.sqrt(2)}[part]
            if is_last
            else math.sqrt(2)
        )
        products = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(
            products, gain**2 * np.eye(min(kernel.shape)), atol=1e-5 * gain**2
        )
        assert np.all(bias == 0)


def test_matrices_that_are_drawn_together_are_each_the_q_of_its_own_normal_numbers():
    """Columns of one length are one computation; more than 64 of them are walked in blocks."""
    shapes = [(4, 16), (16, 12), (16, 1), (200, 70), (150, 200), (200, 128), (200, 3)]
    noise = [
        jax.random.uniform(key, shape, minval=ABOVE_MINUS_ONE)
        for key, shape in zip(jax.random.split(KEY, len(shapes)), shapes, strict=True)
    ]
    for numbers, matrix in zip(noise, jax.jit(orthogonal)(noise), strict=True):
        tall = numbers.shape[0] >= numbers.shape[1]
        normal = math.sqrt(2) * np.asarray(erfinv(numbers if tall else numbers.T), np.float64)
        q, r = np.linalg.qr(normal)
        q = q * np.sign(np.diag(r))  # Gram-Schmidt's: the first column keeps its direction
        np.testing.assert_allclose(matrix, q if tall else q.T, atol=1e-5)


def test_wide_square_layers_of_many_seeds_are_orthogonal():
    """As of 256 x 256, which is walked in blocks; its last columns are nearly dependent."""
    model = MLP(Box(-1.0, 1.0, (5,)), ACTIONS, (150, 150), initializer="orthogonal")
    params = jax.jit(jax.vmap(model.init))(jax.random.split(KEY, 3))
    kernels = params["policy"][1]["kernel"] / math.sqrt(2)
    products = jnp.einsum("sij,sik->sjk", kernels, kernels)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(150), products.shape), atol=1e-5)


def test_orthogonal_draws_have_no_preferred_sign():
    model = MLP(Box(-1.0, 1.0, (3,)), Discrete(3), (), initializer="orthogonal")
    kernels = jax.jit(jax.vmap(lambda key: model.init(key)["policy"][0]["kernel"]))(
        jax.random.split(KEY, 400)
    )
    assert np.abs(np.sign(kernels).mean(axis=0)).max() < 0.25  # 5 deviations


def test_uniform_layers_fill_the_stated_bound_weights_and_biases():
    model = MLP(Box(-1.0, 1.0, (9,)), ACTIONS, (400, 100))
    for _, _, kernel, bias in layers(jax.jit(model.init)(KEY)):
        bound = 1 / math.sqrt(kernel.shape[0])
        for numbers in (kernel, bias):
            assert np.abs(numbers).max() <= bound
            if numbers.size >= 100:
                assert np.abs(numbers).max() > 0.9 * bound
                assert abs(numbers.mean()) < 5 * bound / math.sqrt(3 * numbers.size)
                assert numbers.std() == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_no_two_layers_share_their_random_numbers():
    """Every layer has four inputs, so that all are drawn within the same bound."""
    params = jax.jit(MLP(Box(-1.0, 1.0, (4,)), Discrete(1), (4, 4)).init)(KEY)
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    assert len(np.unique(numbers)) == len(numbers)


@pytest.mark.parametrize("initializer", ["uniform", "orthogonal"])
def test_a_key_decides_the_parameters(initializer):
    init = jax.jit(MLP(Box(-1.0, 1.0, (5,)), ACTIONS, (8,), initializer=initializer).init)
    chex.assert_trees_all_equal(init(KEY), init(KEY))
    for part in ("policy", "value"):
        kernel, other = (init(jax.random.key(seed))[part][0]["kernel"] for seed in (0, 1))
        assert not np.any(np.asarray(kernel) == np.asarray(other))


def test_equal_models_are_one_static_key():
    model, equal = (MLP(Box(np.zeros(4), np.ones(4)), ACTIONS, (8,)) for _ in range(2))
    assert model == equal
    assert hash(model) == hash(equal)
    assert model != MLP(Box(np.zeros(4), np.ones(4)), ACTIONS, (9,))


def test_a_layer_of_no_inputs_has_finite_biases():
    (empty,) = draw_layers(jax.random.key(0), [(0, 3)], [1.0], "uniform")
    assert empty["kernel"].shape == (0, 3) and np.isfinite(empty["bias"]).all()
