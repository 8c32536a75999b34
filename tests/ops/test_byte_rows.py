"""Rows of bytes hold the same arrays for the host and for compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.ops.byte_rows import ALIGNMENT, ByteLayout

DTYPES = ("float32", "int32", "uint32", "uint8", "int8", "bool", "bfloat16", "int16")
ARRAYS = st.tuples(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES))


def tree_of(arrays, seed):
    """Any bits, as often as an array has them; those of floating point numbers may be NaN's."""
    random = np.random.default_rng(seed)
    leaves = []
    for shape, dtype in arrays:
        dtype = jnp.dtype(dtype)
        count = int(np.prod(shape, dtype=int))
        data = random.integers(
            0, 2 if dtype.name == "bool" else 256, count * dtype.itemsize, np.uint8
        )
        leaves.append(data.view(dtype).reshape(shape))
    return {"first": leaves[:1], "others": tuple(leaves[1:])}


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.long
@settings(max_examples=10)
@given(arrays=st.lists(ARRAYS, max_size=5), seed=st.integers(0, 99))
def test_every_bit_comes_back_whoever_writes_and_whoever_reads(arrays, seed):
    tree = tree_of(arrays, seed)
    layout = ByteLayout.of(tree)
    by_host = np.zeros(layout.size, np.uint8)
    for view, leaf in zip(
        jax.tree.leaves(layout.views(by_host)), jax.tree.leaves(tree), strict=True
    ):
        view[...] = leaf
    by_program = np.asarray(layout.pack(jax.tree.map(jnp.asarray, tree)))
    np.testing.assert_array_equal(by_program, by_host)
    for read in (layout.views(by_program), layout.unpack(jnp.asarray(by_host))):
        assert bits(read) == bits(tree)
        for leaf, other in zip(jax.tree.leaves(read), jax.tree.leaves(tree), strict=True):
            assert leaf.dtype == other.dtype and leaf.shape == other.shape


def test_views_of_several_rows_are_written_row_by_row():
    layout = ByteLayout.of({"obs": np.zeros((2, 3), "float32"), "done": np.zeros(2, bool)})
    assert layout.size == 3 * ALIGNMENT  # 24 bytes, rounded up, and 2
    rows = np.zeros((4, layout.size), np.uint8)
    views = layout.views(rows)
    views["obs"][1], views["done"][3] = 7.0, (False, True)
    assert [bool(row.any()) for row in rows] == [False, True, False, True]
    assert layout.views(rows[1])["obs"].tolist() == [[7.0] * 3] * 2
    assert layout.unpack(jnp.asarray(rows[3]))["done"].tolist() == [False, True]
