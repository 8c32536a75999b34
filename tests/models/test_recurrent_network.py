"""Recurrent cores: cells against flax's, sequences against steps, and independent episodes."""

import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
PARAMS = {name: jax.jit(core.init, static_argnums=1)(KEY, INPUTS) for name, core in CORES.items()}
SEQUENCE = {name: jax.jit(core.sequence) for name, core in CORES.items()}
STEP = {name: jax.jit(core.step) for name, core in CORES.items()}


def one_after_the_other(name, inputs, carry):
    """The outputs of steps [L, ...] and the carry after them."""
    outputs = []
    for step in inputs:
        output, carry = STEP[name](PARAMS[name], step, carry)
        outputs.append(output)
    return np.array(outputs), carry


@pytest.mark.parametrize(
    ("cell", "flax_cell"), [(GRU(4), nn.GRUCell(4)), (LSTM(4), nn.OptimizedLSTMCell(4))]
)
def test_a_cell_is_flaxs_cell_of_the_same_kernels(cell, flax_cell):
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(KEY, leaf.shape), cell.init(KEY, INPUTS)
    )
    x = jax.random.normal(KEY, (BATCH, INPUTS))
    h, c = jax.random.normal(jax.random.key(1), (2, BATCH, 4))
    names = ("r", "z", "n") if isinstance(cell, GRU) else ("i", "f", "g", "o")
    parts = {
        part: jnp.split(params[part], len(names), axis=-1) for part in ("input", "hidden", "bias")
    }
    layers = {}
    for i, name in enumerate(names):
        layers[f"i{name}"] = {"kernel": parts["input"][i]}
        layers[f"h{name}"] = {"kernel": parts["hidden"][i]}
        layers[f"i{name}" if isinstance(cell, GRU) else f"h{name}"]["bias"] = parts["bias"][i]
    if isinstance(cell, GRU):
        layers["hn"]["bias"] = params["candidate_bias"]
        expected, _ = flax_cell.apply({"params": layers}, h, x)
        found, _ = cell.step(params, x, h)
    else:
        (_, expected), _ = flax_cell.apply({"params": layers}, (c, h), x)
        found, _ = cell.step(params, x, {"c": c, "h": h})
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_forget_gate_starts_open():
    np.testing.assert_array_equal(PARAMS["lstm"]["bias"], np.repeat([0.0, 1.0, 0.0, 0.0], 4))


@pytest.mark.parametrize("name", CORES)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_episodes_back_to_back_in_one_sequence_give_what_each_gives_apart(name, data):
    """Whatever episodes begin where, after a carry of anything: rows, and the carry at the end."""
    begins = np.array(
        data.draw(st.lists(st.booleans(), min_size=LENGTH * BATCH, max_size=LENGTH * BATCH))
    )
    begins = begins.reshape(LENGTH, BATCH)
    core, keys = CORES[name], jax.random.split(jax.random.key(data.draw(st.integers(0, 99))), 2)
    inputs = jax.random.normal(keys[0], (LENGTH, BATCH, INPUTS))
    before = jax.random.normal(keys[1], (data.draw(st.integers(0, 2)), BATCH, INPUTS))
    carry = one_after_the_other(name, before, core.initial_carry((BATCH,)))[1]
    together, after = SEQUENCE[name](PARAMS[name], inputs, carry, jnp.asarray(begins))
    for b in range(BATCH):
        bounds = [0, *(t for t in range(1, LENGTH) if begins[t, b]), LENGTH]
        for first, last in itertools.pairwise(bounds):
            carried = jax.tree.map(lambda leaf, b=b: leaf[b], carry)
            start = core.initial_carry(()) if begins[first, b] else carried
            apart, end = one_after_the_other(name, inputs[first:last, b], start)
            np.testing.assert_allclose(together[first:last, b], apart, atol=2e-5)
        last_carry = jax.tree.map(lambda leaf, b=b: leaf[b], after)
        chex.assert_trees_all_close(_held(last_carry), _held(end), rtol=1e-7, atol=2e-5)


def _held(carry):
    """A carry without what an attention's past holds of no step at all."""
    if not (isinstance(carry, dict) and "past" in carry):
        return carry
    steps = carry["past"].shape[0]
    there = (jnp.arange(steps) >= steps - carry["count"])[:, None, None]
    return {"past": jnp.where(there, carry["past"], 0.0), "count": carry["count"]}


def test_attention_looks_back_as_far_as_its_memory_and_no_farther():
    core = Attention(num_outputs=6, head_dim=3, memory=2, mlp_dim=5, gate_bias=0.0)
    params = core.init(KEY, INPUTS)
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
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_a_network_takes_any_leading_axes_and_gives_its_carry_back_in_its_form(name, shape, shared):
    space, actions = Box(-1.0, 1.0, (5,)), Discrete(3)
    features = Box(-np.inf, np.inf, (CORES[name].num_outputs,))
    torso, heads = (
        MLP(space, actions, hiddens=(INPUTS,), vf_share_layers=True),
        MLP(features, actions, hiddens=()),
    )
    network = RecurrentNetwork(torso, CORES[name], heads, shared)
    params, obs, carry = network.init(KEY), jnp.ones((*shape, 5)), network.initial_carry(shape)
    distribution, value, after = jax.jit(network.apply)(params, obs, carry)
    assert (distribution.logits.shape, value.shape) == ((*shape, 3), shape)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, carry)
