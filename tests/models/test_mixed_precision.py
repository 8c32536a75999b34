"""Mixed precision: which products have bfloat16 operands, and that all else stays as it was."""

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.core.spaces import Box, Dict, Discrete, tree_of
from jaxrl.models.mixed_precision import PRECISION, MixedPrecision
from jaxrl.models.model import has_memory
from jaxrl.models.networks import BFLOAT16, NETWORK_DTYPES, network_of
from tests.export.kinds import CONV
from tests.messages import refused_by
from tests.probes import Probe
from tests.programs import SMALL_CARTPOLE, TINY

SEEN = Dict({"near": Box(0.0, 1.0, (6, 6, 2)), "speed": Box(-1.0, 1.0, (3,))})
LSTM = {"use_lstm": True, "lstm_cell_size": 4}
ATTENTION = {"use_attention": True, "attention_dim": 8, "attention_head_dim": 4}
KINDS = {
    "dense": {"fcnet_kernel_initializer": "xavier_uniform_"},
    "convolutions": CONV,
    "lstm": LSTM,
    "gru, shared": {"use_gru": True, "lstm_cell_size": 4, "vf_share_layers": True},
    "attention, convolutions": {**ATTENTION, **CONV},
}


SLOW = {"lstm", "attention, convolutions"}


def is_program(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def products(program):
    """(precision, shapes of the operands) of every matrix product, inside loops too."""
    found = []
    for equation in program.eqns:
        if equation.primitive.name == "dot_general":
            shapes = tuple(operand.aval.shape for operand in equation.invars)
            found.append((str(equation.params["precision"]), shapes))
        for value in jax.tree.leaves(equation.params, is_leaf=is_program):
            if is_program(value):
                found += products(getattr(value, "jaxpr", value))
    return found


def networks_of(**settings):
    """The network of a picture and a row in float32 and in bfloat16."""
    config = PPOConfig(env="cartpole", fcnet_hiddens=(8, 8), **settings)
    spaces = SEEN, Discrete(3), None
    return [network_of(config.replace(network_dtype=kind), *spaces) for kind in NETWORK_DTYPES]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind in SLOW)) for kind in KINDS]
)
def test_every_product_of_a_network_is_rounded_forward_and_backward(kind):
    plain, rounded = networks_of(**KINDS[kind])
    obs = jax.tree.map(lambda space: jnp.zeros((5, 2, *space.shape)), tree_of(SEEN))
    params = jax.eval_shape(plain.init, jax.random.key(0))
    assert has_memory(rounded) == has_memory(plain)

    def size(params, network):
        if has_memory(network):
            begins = jnp.zeros((5, 2), bool)
            inputs = obs, network.initial_carry((2,)), begins
            distribution, value, carry = network.apply_sequence(params, *inputs)
            step = jax.tree.map(lambda leaf: leaf[0], obs)
            _, last, _ = network.apply(params, step, carry)
            return distribution.entropy().sum() + value.sum() + last.sum()
        distribution, value = network.apply(params, obs)
        return distribution.entropy().sum() + value.sum()

    found = []
    for network in (plain, rounded):
        program = jax.make_jaxpr(lambda params, network=network: jax.grad(size)(params, network))
        found.append(products(program(params).jaxpr))
    without, with_setting = found
    assert {precision for precision, _ in without} == {"None"}
    assert with_setting == [(PRECISION, shapes) for _, shapes in without]


def test_the_products_that_draw_orthogonal_weights_are_not_rounded():
    plain, rounded = (
        products(jax.make_jaxpr(network.init)(jax.random.key(0)).jaxpr) for network in networks_of()
    )
    assert plain == rounded != []


@dataclass(frozen=True)
class Turning(Probe):
    """A probe whose reward comes from a product of its own."""

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, reward + (jnp.ones((7, 7)) @ jnp.ones((7, 7)))[0, 0], terminated, info


@pytest.mark.long
@pytest.mark.parametrize("memory", [{}, LSTM], ids=["dense", "lstm"])
def test_an_update_rounds_the_products_of_its_networks_and_no_others(memory):
    found, on_a_gpu = [], []
    for network_dtype in NETWORK_DTYPES:
        config = PPOConfig(env=Turning(), network_dtype=network_dtype, **TINY, **memory)
        algorithm = config.build()
        traced = jax.jit(algorithm.update).trace(jax.eval_shape(algorithm.init, jax.random.key(0)))
        found.append(products(traced.jaxpr.jaxpr))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        on_a_gpu.append(text.count("lhs_precision_type = bf16, rhs_precision_type = bf16"))
    without, with_setting = found
    elsewhere = lambda precision, shapes: precision != "None" or shapes == ((7, 7), (7, 7))
    assert with_setting == [
        (precision if elsewhere(precision, shapes) else PRECISION, shapes)
        for precision, shapes in without
    ]
    others = [product for product in without if elsewhere(*product)]
    assert ("None", ((7, 7), (7, 7))) in others
    assert PRECISION not in {precision for precision, _ in without}
    assert on_a_gpu[0] == 0 < on_a_gpu[1]


@pytest.mark.long
def test_it_trains_is_saved_and_loaded_with_parameters_in_float32(tmp_path):
    """On a CPU the numbers are those of float32, where JAX multiplies in it."""
    weights = []
    for network_dtype in NETWORK_DTYPES:
        config = SMALL_CARTPOLE.replace(network_dtype=network_dtype)
        folder = tmp_path / network_dtype
        with Trainer(config, run_dir=folder, quiet=True, pictures=False) as trainer:
            trainer.fit({"training_iteration": 2})
            learners = trainer.runner.learners
        policy = load_policy(folder)
        assert policy.act(np.zeros(4)) in (0, 1)
        assert isinstance(policy.policy_spec.model, MixedPrecision) == (network_dtype == BFLOAT16)
        weights.append(policy.weights)
        numbers = [
            leaf for leaf in jax.tree.leaves(learners) if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        assert {leaf.dtype.name for leaf in numbers} == {"float32"}
    chex.assert_trees_all_close(*weights, rtol=1e-6)


def test_the_plan_says_that_products_are_rounded():
    config = PPOConfig(env="cartpole", fcnet_hiddens=(8,))
    assert "bfloat16" not in config.describe()
    plan = config.replace(network_dtype=BFLOAT16).describe()
    assert "network 8 tanh, a value network of its own, products in bfloat16, " in plan


test_a_wrong_type_and_one_beside_a_users_model_are_refused = refused_by(
    lambda settings: PPOConfig(env="cartpole", **settings),
    [
        ({"network_dtype": "bfloat"}, "unknown network_dtype 'bfloat'; did you mean 'bfloat16'"),
        ({"network_dtype": 16}, "unknown network_dtype '16'; known: bfloat16, float32"),
        (
            {"network_dtype": BFLOAT16, "model": "tests.probes:Curious"},
            "network_dtype='bfloat16' and model=tests.probes:Curious: your own model chooses",
        ),
    ],
    literal=True,
)
