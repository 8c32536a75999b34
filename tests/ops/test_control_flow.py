"""`cond_any`, `any_true`, and `scan_some`, which equals a loop over the wanted rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops.control_flow import any_true, cond_any
from jaxrl.ops.scan_some import scan_some


@pytest.mark.parametrize("number", [0, 1, 5000])
def test_any_true_is_any_however_many_are_true(number):
    mask = np.arange(5000).reshape(50, 100) >= 5000 - number
    assert bool(jax.jit(any_true)(mask)) == mask.any()
    every = jax.vmap(any_true)(jnp.asarray(mask))
    np.testing.assert_array_equal(every, mask.any(axis=1))


def double_where_negative(x, scale):
    """[...]; harmless where nothing is negative."""
    return jnp.where(x < 0, 2 * x * scale, x)


def run(x, scale):
    return cond_any(jnp.any(x < 0), double_where_negative, lambda x, scale: x, x, scale)


@pytest.mark.parametrize(
    "values", [[[1.0, 2.0], [3.0, 4.0]], [[1.0, -2.0], [3.0, 4.0]], [[-1.0, -2.0], [-3.0, 4.0]]]
)
@pytest.mark.parametrize("axes", [(None, None), (0, None), (0, 0)])
def test_alone_and_mapped_it_gives_what_the_work_gives(values, axes):
    x = jnp.array(values)
    scale = jnp.array(3.0) if axes[1] is None else jnp.array([3.0, 5.0])
    function = run if axes[0] is None else jax.vmap(run, axes)
    expected = np.where(x < 0, 2 * x * jnp.reshape(scale, (-1, 1)), x)
    np.testing.assert_array_equal(jax.jit(function)(x, scale), expected)
    nested = jax.jit(jax.vmap(function, (0, None)))(jnp.stack([x, -x]), scale)
    np.testing.assert_array_equal(nested[0], expected)


def test_only_the_test_may_be_mapped():
    needed = jnp.array([False, True])
    computed = jax.vmap(lambda needed: cond_any(needed, jnp.sin, jnp.sin, jnp.float32(1.0)))(needed)
    np.testing.assert_array_equal(computed, jnp.full(2, jnp.sin(jnp.float32(1.0))))


def test_mapped_work_is_left_out_while_nobody_needs_it():
    """`lax.cond` would become a select of both results; `cond_any` stays a conditional."""
    mapped = jax.jit(jax.vmap(jax.vmap(run, (0, None)), (0, None)))
    lowered = mapped.lower(jnp.ones((4, 3, 2)), jnp.float32(1.0)).as_text()
    assert lowered.count("stablehlo.case") == 1


def running_product(state, row):
    state = {"product": state["product"] * row["factor"] + row["add"], "count": state["count"] + 1}
    return state, (state["product"], row["add"])


@pytest.mark.parametrize("wanted", [[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
def test_scan_some_goes_through_the_wanted_rows_in_their_order(wanted):
    factor, add = np.array([2.0, 3.0, 5.0, 7.0]), np.array([1.0, 10.0, 100.0, 1000.0])
    product, count, results = 1.0, 0, np.zeros((4, 2))
    for i in np.flatnonzero(wanted):
        product, count = product * factor[i] + add[i], count + 1
        results[i] = product, add[i]

    def run(start, wanted):
        rows = {"factor": jnp.asarray(factor), "add": jnp.asarray(add)}
        return scan_some(running_product, {"product": start, "count": 0}, rows, wanted)

    state, found = jax.jit(run)(jnp.float32(1.0), jnp.array(wanted, bool))
    assert (state["product"], state["count"]) == (product, count)
    np.testing.assert_array_equal(np.stack(found, axis=1), results)

    each = jnp.array([wanted, [1, 1, 1, 1]], bool)
    mapped, _ = jax.jit(jax.vmap(run, (None, 0)))(jnp.float32(1.0), each)
    assert mapped["product"][0] == product
    assert mapped["count"].tolist() == [count, 4]
