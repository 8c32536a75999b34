"""Minibatches visit every row once per epoch, in orders without visible structure."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.ops.minibatch import minibatch_rows, num_minibatches

KEY = jax.random.key(0)
NUM_KEYS = 400

rows = jax.jit(minibatch_rows, static_argnums=(1, 2, 3))


@functools.cache
def orders(num_rows):
    """i64[NUM_KEYS, num_rows]: one epoch of each of many keys."""
    order = jax.jit(jax.vmap(lambda key: minibatch_rows(key, num_rows, num_rows, 1)[0]))
    return np.asarray(order(jax.random.split(KEY, NUM_KEYS)), np.int64)


def assert_every_epoch_is_a_permutation(minibatches, num_rows, num_epochs):
    walked = np.asarray(minibatches).reshape(-1)
    epochs = walked[: num_epochs * num_rows].reshape(num_epochs, num_rows)
    np.testing.assert_array_equal(
        np.sort(epochs, axis=1), np.tile(np.arange(num_rows), (num_epochs, 1))
    )
    further = walked[num_epochs * num_rows :]
    assert len(np.unique(further)) == len(further)
    assert np.all((further >= 0) & (further < num_rows))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 127, 128, 129, 4000, 6400, 65536])
def test_every_row_comes_exactly_once_an_epoch(num_rows):
    minibatch_size = min(num_rows, 100)
    minibatches = rows(KEY, num_rows, minibatch_size, 3)
    assert minibatches.shape == (num_minibatches(num_rows, minibatch_size, 3), minibatch_size)
    assert minibatches.dtype == jnp.int32
    assert_every_epoch_is_a_permutation(minibatches, num_rows, 3)


@pytest.mark.long
@settings(max_examples=8, database=None)
@given(st.data())
def test_every_row_comes_exactly_once_an_epoch_whatever_the_sizes(data):
    num_rows = data.draw(st.integers(1, 700))
    minibatch_size = data.draw(st.integers(1, num_rows))
    num_epochs = data.draw(st.integers(1, 4))
    key = jax.random.key(data.draw(st.integers(0, 2**31 - 1)))
    assert_every_epoch_is_a_permutation(
        rows(key, num_rows, minibatch_size, num_epochs), num_rows, num_epochs
    )


def test_5_epochs_of_4000_rows_by_128_are_157_minibatches_that_visit_rows_equally_but_for_one():
    minibatches = rows(KEY, 4000, 128, 5)
    assert minibatches.shape == (157, 128)  # 20,000 / 128 = 156.25
    visits = np.bincount(np.asarray(minibatches).reshape(-1), minlength=4000)
    assert sorted(set(visits)) == [5, 6]
    assert np.sum(visits == 6) == 157 * 128 - 20_000


def test_another_epoch_and_another_key_have_other_orders():
    first, second = np.asarray(rows(KEY, 1000, 1000, 2))
    other = np.asarray(rows(jax.random.key(1), 1000, 1000, 2))[0]
    for left, right in [(first, second), (first, other), (second, other)]:
        assert np.sum(left == right) < 10  # one is expected of two random orders
    assert len(np.unique(orders(1000), axis=0)) == NUM_KEYS


@pytest.mark.parametrize("num_rows", [1000, 1024])
def test_position_and_row_are_uncorrelated(num_rows):
    """Of a random order the correlation is normal with deviation 1 / sqrt(num_rows - 1)."""
    positions = np.arange(num_rows)
    scores = np.array(
        [np.corrcoef(positions, order)[0, 1] for order in orders(num_rows)]
    ) * np.sqrt(num_rows - 1)
    assert np.abs(scores).max() < 4.5
    assert abs(scores.mean()) * np.sqrt(NUM_KEYS) < 4
    assert abs(scores.var() - 1) < 4 * np.sqrt(2 / NUM_KEYS)


@pytest.mark.parametrize("num_rows", [1000, 1024])
@pytest.mark.parametrize("lag", [1, 2, 32])
def test_the_differences_of_rows_in_succession_are_uniform(num_rows, lag):
    """Chi-square over all the differences 1 ... num_rows - 1 that two rows of an order can have."""
    order = orders(num_rows)
    counts = np.bincount(
        ((order[:, lag:] - order[:, :-lag]) % num_rows).reshape(-1), minlength=num_rows
    )
    assert counts[0] == 0
    expected = counts[1:].mean()
    chi_square, freedom = np.sum((counts[1:] - expected) ** 2 / expected), num_rows - 2
    assert abs(chi_square - freedom) < 4.5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("num_rows", [1000, 1024])
def test_every_position_holds_a_row_near_the_middle_on_average(num_rows):
    deviation = num_rows / np.sqrt(12 * NUM_KEYS)
    scores = (orders(num_rows).mean(axis=0) - (num_rows - 1) / 2) / deviation
    assert np.abs(scores).max() < 5
    assert abs(scores.var() - 1) < 5 * np.sqrt(2 / num_rows)


def test_every_quarter_of_the_positions_draws_equally_on_every_quarter_of_the_rows():
    """Single minibatches too: 250 rows have 62.5 of each quarter, hypergeometric deviation 5.9."""
    quarters = np.stack(
        [
            (orders(1000)[:, q * 250 : (q + 1) * 250, None] // 250 == np.arange(4)).sum(1)
            for q in range(4)
        ]
    )
    deviation = np.sqrt(250 * 0.25 * 0.75 * 750 / 999)
    assert np.abs(quarters - 62.5).max() < 5 * deviation
    assert np.abs(quarters.mean(axis=1) - 62.5).max() < 4.5 * deviation / np.sqrt(NUM_KEYS)


@pytest.mark.parametrize("num_rows", [2, 3, 4, 5, 6])
def test_of_a_handful_of_rows_all_orders_come_equally_often(num_rows):
    """Chi-square over all orders; recurrent networks have such blocks, of whole sequences."""
    shuffle = jax.jit(jax.vmap(lambda key: minibatch_rows(key, num_rows, num_rows, 2)))
    found = np.asarray(shuffle(jax.random.split(KEY, 20_000)))
    for epoch in (0, 1):
        _, counts = np.unique(found[:, epoch] @ num_rows ** np.arange(num_rows), return_counts=True)
        expected = len(found) / math.factorial(num_rows)
        chi_square = np.sum((counts - expected) ** 2 / expected)
        freedom = math.factorial(num_rows) - 1
        assert len(counts) == freedom + 1
        assert abs(chi_square - freedom) < 4.5 * np.sqrt(2 * freedom)


@pytest.mark.long
@pytest.mark.parametrize("num_rows", [7, 8, 12, 32, 64, 65, 100])
def test_of_few_rows_all_pairs_come_equally_often_at_neighbouring_and_distant_positions(num_rows):
    """Chi-square over ordered pairs of different rows, below and above the limit of sorting."""
    shuffle = jax.jit(jax.vmap(lambda key: minibatch_rows(key, num_rows, num_rows, 1)[0]))
    found = np.asarray(shuffle(jax.random.split(KEY, 20_000)), np.int64)
    for first, second in ((0, 1), (0, num_rows // 2), (num_rows - 2, num_rows - 1)):
        counts = np.bincount(found[:, first] * num_rows + found[:, second], minlength=num_rows**2)
        counts = counts.reshape(num_rows, num_rows)[~np.eye(num_rows, dtype=bool)]
        expected, freedom = counts.mean(), counts.size - 1
        assert abs(np.sum((counts - expected) ** 2 / expected) - freedom) < 4.5 * np.sqrt(
            2 * freedom
        )


@pytest.mark.long
def test_jit_and_vmap_give_the_same_rows_as_the_plain_function():
    keys = jax.random.split(KEY, 3)
    for num_rows in (50, 500):  # sorted, and by the bijection
        jitted = np.stack([rows(key, num_rows, 16, 2) for key in keys])
        np.testing.assert_array_equal(
            jax.vmap(lambda key, n=num_rows: minibatch_rows(key, n, 16, 2))(keys), jitted
        )
        np.testing.assert_array_equal(minibatch_rows(keys[0], num_rows, 16, 2), jitted[0])
        assert not np.array_equal(jitted[0], jitted[1])
