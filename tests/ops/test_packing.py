"""Packing and unpacking gives the same tree, also if leading axes change in between."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops.packing import pack


def rows(num_rows):
    random = np.random.default_rng(0)
    return {
        "obs": np.float32(random.normal(size=(num_rows, 2, 3))),
        "value": np.float32(random.normal(size=num_rows)),
        "action": random.integers(0, 9, num_rows, np.int32),
        "cells": random.integers(-5, 5, (num_rows, 2), np.int32),
        "done": random.random(num_rows) < 0.5,
        "image": np.float32(random.normal(size=(num_rows, 5, 5))),
    }


def assert_equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    jax.tree.map(
        lambda leaf, other: pytest.fail("type") if leaf.dtype != other.dtype else None,
        actual,
        expected,
    )


def test_what_is_unpacked_is_what_was_packed_and_arrays_are_few():
    tree = rows(7)
    packed = jax.jit(lambda tree: pack(tree, num_axes=1, widest=20))(tree)
    expected = {"float32": (7, 7), "int32": (7, 3)}
    assert {name: wide.shape for name, wide in packed.wide.items()} == expected
    assert [leaf.shape for leaf in packed.alone] == [
        (7,),
        (7, 5, 5),
    ]  # one of its type; wider than 20
    assert_equal(jax.jit(lambda packed: packed.unpack())(packed), tree)


def test_rows_may_be_picked_stacked_and_mapped_before_they_are_unpacked():
    tree, index = rows(7), np.array([[3, 0], [6, 6]])

    @jax.jit
    def run(tree):
        picked = jax.tree.map(lambda leaf: leaf[index], pack(tree, num_axes=1))
        mapped = jax.vmap(lambda row: pack(row, num_axes=0))(tree)
        _, stacked = jax.lax.scan(lambda _, row: (None, pack(row, 0)), None, tree)
        return picked.unpack(), mapped.unpack(), stacked.unpack()

    picked, mapped, stacked = run(tree)
    assert_equal(picked, jax.tree.map(lambda leaf: leaf[index], tree))
    assert_equal(mapped, tree)
    assert_equal(stacked, tree)


def test_gradients_pass_through():
    tree = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    square = lambda tree: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))
    gradient = jax.grad(lambda tree: square(pack(tree, 0, None).unpack()))(tree)
    assert_equal(gradient, {"a": jnp.array([2.0, 4.0]), "b": jnp.array(6.0)})
