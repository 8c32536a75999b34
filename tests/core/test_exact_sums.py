"""Tests of sums in two parts, against sums of fractions and sums in float64."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl.core.exact_sums import add, on_host, total, two_sum

# float32 numbers far from those that underflow.
FINITE = st.builds(math.ldexp, st.integers(-(2**24), 2**24), st.integers(-40, 40))


def added(value, number):
    """(sum, lower) of `number` times a value, one after the other, in a compiled loop."""
    step = lambda _, sums: add(*sums, value)
    start = jnp.zeros_like(value), jnp.zeros_like(value)
    return jax.jit(lambda: jax.lax.fori_loop(0, number, step, start))()


@pytest.mark.parametrize("number", [200_000, pytest.param(20_000_000, marks=pytest.mark.long)])
def test_a_compiled_loop_adds_up_as_float64_does(number):
    values = jnp.float32(np.array([0.1, -3.7, 1e-3, 1e8 / 3, 1.0]))
    sums, lower = jax.device_get(added(values, number))
    exact = number * np.asarray(values, np.float64)
    np.testing.assert_allclose(on_host(sums, lower), exact, rtol=1e-7)
    np.testing.assert_allclose(sums, exact, rtol=2e-7)
    assert on_host(sums, lower)[-1] == number


def test_whole_numbers_stay_exact_beyond_those_that_float32_has():
    before = jnp.float32(2**24), jnp.float32(0)
    sums, lower = before
    for _ in range(3):
        sums, lower = add(sums, lower, jnp.float32(1))
    assert float(sums) + float(lower) == 2**24 + 3
    assert float(before[0] + 1) == 2**24  # a float32 sum would have stayed where it was


@given(FINITE, FINITE)
def test_a_sum_of_two_and_its_rest_are_the_two(a, b):
    rounded, lower = (Fraction(float(part)) for part in two_sum(jnp.float32(a), jnp.float32(b)))
    assert rounded + lower == Fraction(a) + Fraction(b)
    assert rounded == Fraction(float(np.float32(a) + np.float32(b)))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_leaves_a_sum_that_is_not(value):
    sums, lower = add(jnp.float32(1), jnp.float32(0), jnp.float32(value))
    sums, lower = add(sums, lower, jnp.float32(1))
    np.testing.assert_equal(float(sums), value)
    assert lower == 0
    np.testing.assert_equal(float(total(jnp.array([1.0, value]))[0]), value)


@settings(max_examples=30)
@given(hnp.arrays(np.float32, 64, elements=FINITE))
def test_many_numbers_add_up_as_fractions_do(values):
    rounded, lower = jax.device_get(_total(values))
    exact = sum(map(Fraction, values.tolist()))
    most = max(map(abs, values.tolist()))
    assert abs(Fraction(float(rounded)) + Fraction(float(lower)) - exact) <= most * 2.0**-28


@pytest.mark.parametrize("size", [0, 1, 3, 100_000])
def test_many_whole_numbers_have_their_exact_sum(size):
    values = np.float32(np.random.default_rng(size).integers(-1, 500, size))
    rounded, lower = jax.device_get(_total(values))
    assert float(rounded) + float(lower) == values.astype(np.float64).sum()


def test_sums_over_an_axis_are_those_of_its_rows():
    values = np.float32(np.random.default_rng(0).normal(size=(5, 7)))
    lower = np.float32(1e-6 * values)
    for axis in (0, 1):
        found = on_host(*jax.device_get(total(jnp.array(values), jnp.array(lower), axis)))
        np.testing.assert_allclose(found, on_host(values, lower).sum(axis), rtol=1e-12)


_total = jax.jit(total)
