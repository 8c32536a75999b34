"""`cond_any` does the work only if it is needed by anybody, under any number of mapped axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops.control_flow import cond_any


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
