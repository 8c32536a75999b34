"""Recurrent cores: cells against flax's, sequences against steps, and independent episodes."""

import functools
import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import PPOConfig
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.attention import Attention, _by_key
from jaxrl.models.cells import GRU, LSTM
from jaxrl.models.mlp import MLP
from jaxrl.models.recurrent_network import RecurrentNetwork

KEY = jax.random.key(0)
INPUTS, LENGTH, BATCH = 3, 7, 2
CORES = {
    "gru": GRU(4),
    "lstm": LSTM(4),
    "attention": Attention(
        num_outputs=6, num_units=2, num_heads=2, head_dim=3, memory=3, mlp_dim=5, gate_bias=0.0
    ),
    "attention that sees all": Attention(
        num_outputs=6, num_heads=1, head_dim=3, memory=9, mlp_dim=5
    ),
}


@functools.cache
def compiled(name):
    """(parameters, step, sequence) of a core."""
    core, random = CORES[name], np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: core.init(key, INPUTS), KEY)
    params = jax.tree.map(lambda leaf: np.float32(random.normal(0, 0.5, leaf.shape)), shapes)
    return params, jax.jit(core.step), jax.jit(core.sequence)


def one_after_the_other(name, inputs, carry):
    """The outputs of steps [L, ...] and the carry after them."""
    params, step, _ = compiled(name)
    outputs = []
    for row in inputs:
        output, carry = step(params, row, carry)
        outputs.append(output)
    return np.array(outputs), carry


@pytest.mark.parametrize(
    ("cell", "flax_cell"), [(GRU(4), nn.GRUCell(4)), (LSTM(4), nn.OptimizedLSTMCell(4))]
)
def test_a_cell_is_flaxs_cell_of_the_same_kernels(cell, flax_cell):
    random = np.random.default_rng(0)
    normal = lambda shape: random.normal(size=shape).astype(np.float32)
    params = jax.jit(cell.init, static_argnums=1)(KEY, INPUTS)
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.1 * normal(leaf.shape), params)
    x, h, c = normal((BATCH, INPUTS)), normal((BATCH, 4)), normal((BATCH, 4))
    names = ("r", "z", "n") if isinstance(cell, GRU) else ("i", "f", "g", "o")
    parts = {
        part: np.split(params[part], len(names), axis=-1) for part in ("input", "hidden", "bias")
    }
    layers = {}
    for i, name in enumerate(names):
        layers[f"i{name}"] = {"kernel": parts["input"][i]}
        layers[f"h{name}"] = {"kernel": parts["hidden"][i]}
        layers[f"i{name}" if isinstance(cell, GRU) else f"h{name}"]["bias"] = parts["bias"][i]
    if isinstance(cell, GRU):
        layers["hn"]["bias"] = params["candidate_bias"]
        expected, _ = jax.jit(flax_cell.apply)({"params": layers}, h, x)
        found, _ = jax.jit(cell.step)(params, x, h)
    else:
        (_, expected), _ = jax.jit(flax_cell.apply)({"params": layers}, (c, h), x)
        found, _ = jax.jit(cell.step)(params, x, {"c": c, "h": h})
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_forget_gate_starts_open():
    params = jax.jit(LSTM(4).init, static_argnums=1)(KEY, INPUTS)
    np.testing.assert_array_equal(params["bias"], np.repeat([0.0, 1.0, 0.0, 0.0], 4))


@pytest.mark.long
@pytest.mark.parametrize("name", CORES)
@settings(max_examples=25)
@given(data=st.data())
def test_episodes_back_to_back_in_one_sequence_give_what_each_gives_apart(name, data):
    """Whatever episodes begin where, after a carry of anything: rows, and the carry at the end."""
    begins = np.array(
        data.draw(st.lists(st.booleans(), min_size=LENGTH * BATCH, max_size=LENGTH * BATCH))
    )
    begins = begins.reshape(LENGTH, BATCH)
    params, _, sequence = compiled(name)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    num_before = data.draw(st.integers(0, 2))
    rows = random.normal(size=(num_before + LENGTH, BATCH, INPUTS)).astype(np.float32)
    before, inputs = rows[:num_before], rows[num_before:]
    fresh, fresh_row = jax.device_get([CORES[name].initial_carry(n) for n in ((BATCH,), ())])
    carry = jax.device_get(one_after_the_other(name, before, fresh)[1])
    together, after = jax.device_get(sequence(params, inputs, carry, begins))
    for b in range(BATCH):
        bounds = [0, *(t for t in range(1, LENGTH) if begins[t, b]), LENGTH]
        for first, last in itertools.pairwise(bounds):
            carried = jax.tree.map(lambda leaf, b=b: leaf[b], carry)
            start = fresh_row if begins[first, b] else carried
            apart, end = one_after_the_other(name, inputs[first:last, b], start)
            np.testing.assert_allclose(together[first:last, b], apart, atol=2e-5)
        last_carry = jax.tree.map(lambda leaf, b=b: leaf[b], after)
        held = _held(last_carry), _held(jax.device_get(end))
        chex.assert_trees_all_close(*held, rtol=1e-7, atol=2e-5)


def _held(carry):
    """A carry without what an attention's past holds of no step at all."""
    if not (isinstance(carry, dict) and "past" in carry):
        return carry
    steps = carry["past"].shape[0]
    there = (np.arange(steps) >= steps - carry["count"])[:, None, None]
    return {"past": np.where(there, carry["past"], 0.0), "count": carry["count"]}


@pytest.mark.long
def test_attention_looks_back_as_far_as_its_memory_and_no_farther():
    core = Attention(num_outputs=6, head_dim=3, memory=2, mlp_dim=5, gate_bias=0.0)
    params = jax.jit(core.init, static_argnums=1)(KEY, INPUTS)
    inputs, carry = jax.random.normal(KEY, (6, 1, INPUTS)), core.initial_carry((1,))
    last = lambda inputs: core.sequence(params, inputs, carry, jnp.zeros((6, 1), bool))[0][-1, 0, 0]
    felt = np.abs(np.asarray(jax.jit(jax.grad(last))(inputs))).sum(axis=(1, 2))
    np.testing.assert_array_equal(felt > 0, [False, False, False, True, True, True])


def test_scores_by_distance_become_scores_by_key():
    """With two steps back and three steps, step i and key j are 2 + i - j apart."""
    scores = jnp.arange(9.0).reshape(3, 3)  # [i, distance]
    found = np.asarray(_by_key(scores))
    assert found.shape == (3, 5)
    for i in range(3):
        for j in range(5):
            if 0 <= 2 + i - j <= 2:
                assert found[i, j] == scores[i, 2 + i - j]


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("shared", [True, False])
def test_a_network_takes_any_leading_axes_and_gives_its_carry_back_in_its_form(name, shared):
    space, actions = Box(-1.0, 1.0, (5,)), Discrete(3)
    features = Box(-np.inf, np.inf, (CORES[name].num_outputs,))
    torso = MLP(space, actions, hiddens=(INPUTS,), vf_share_layers=True)
    heads = MLP(features, actions, hiddens=())
    network = RecurrentNetwork(torso, CORES[name], heads, shared)
    params = jax.eval_shape(network.init, KEY)
    for shape in ((), (4,), (2, 3)):
        obs = jax.ShapeDtypeStruct((*shape, 5), jnp.float32)
        carry = jax.eval_shape(lambda shape=shape: network.initial_carry(shape))
        distribution, value, after = jax.eval_shape(network.apply, params, obs, carry)
        assert (distribution.logits.shape, value.shape) == ((*shape, 3), shape)
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, carry)


@pytest.mark.parametrize("shared", [True, False])
def test_layers_of_the_heads_read_what_the_memory_gives(shared):
    config = PPOConfig(
        env="cartpole",
        **{"use_gru": True, "lstm_cell_size": 4, "vf_share_layers": shared},
        **{"fcnet_hiddens": (5,), "head_fcnet_hiddens": (6,), "fcnet_activation": "relu"},
    )
    network = config.policy_spec("mover", Box(-1.0, 1.0, (2,)), Discrete(3), 1).model
    random, shapes = np.random.default_rng(0), jax.eval_shape(network.init, KEY)
    params = jax.tree.map(lambda leaf: np.float32(random.normal(size=leaf.shape)), shapes)
    obs, carry = random.normal(size=(7, 2)).astype(np.float32), network.initial_carry((7,))
    # A GRU gives its state.
    distribution, value, memory = jax.device_get(jax.jit(network.apply)(params, obs, carry))
    for part, output in (("policy", distribution.logits), ("value", value[:, None])):
        layer, last = params["heads"][part]
        assert layer["kernel"].shape == (4, 6)
        given = memory["shared" if shared else part] @ layer["kernel"] + layer["bias"]
        expected = np.maximum(given, 0) @ last["kernel"] + last["bias"]
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
