"""Running moments against NumPy's over everything seen."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.ops.filters import Moments, no_moments, normalise, update

few = settings(max_examples=10, deadline=None, database=None)
update_jit, normalise_jit = jax.jit(update), jax.jit(normalise)


def batches(offset, scale, seed, count=4, size=16):
    random = np.random.default_rng(seed)
    return np.float32(offset + scale * random.normal(size=(count, size, 3))), random.random((count, size)) < 0.7


@few
@given(st.floats(-1000, 1000), st.floats(0.1, 10), st.integers(0, 1000))
def test_the_moments_of_several_batches_are_those_of_all_their_weighted_rows(offset, scale, seed):
    rows, masks = batches(offset, scale, seed)
    moments = no_moments((3,))
    for values, mask in zip(rows, masks, strict=True):
        moments = update_jit(moments, jnp.asarray(values), jnp.float32(mask))
    seen = np.float64(rows[masks])
    assert moments.count == len(seen)
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_allclose(moments.variance, seen.var(0), rtol=2e-3)


def test_rows_split_over_a_mapped_axis_give_the_moments_of_all():
    rows, masks = batches(5.0, 2.0, seed=0, count=2)
    whole = update(no_moments((3,)), jnp.asarray(rows.reshape(-1, 3)), jnp.float32(masks.reshape(-1)))
    split = jax.vmap(lambda values, mask: update(no_moments((3,)), values, mask, "devices"), axis_name="devices")
    members = split(jnp.asarray(rows), jnp.float32(masks))
    for device in (0, 1):
        jax.tree.map(lambda ours, all_, d=device: np.testing.assert_allclose(ours[d], all_, rtol=1e-5), members, whole)


def test_a_batch_without_rows_changes_nothing():
    moments = Moments(jnp.float32(5.0), jnp.array([1.0, 2.0]), jnp.array([3.0, 0.5]))
    after = update_jit(moments, jnp.full((4, 2), 7.0), jnp.zeros(4))
    jax.tree.map(np.testing.assert_array_equal, after, moments)


def test_normalised_rows_have_mean_0_and_variance_1_within_the_clip():
    rows, _ = batches(100.0, 3.0, seed=1, count=1, size=500)
    moments = update_jit(no_moments((3,)), jnp.asarray(rows[0]), jnp.ones(500))
    normal = np.asarray(normalise_jit(moments, jnp.asarray(rows[0])))
    np.testing.assert_allclose(normal.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(normal.std(0), 1.0, atol=1e-3)
    np.testing.assert_array_equal(normalise_jit(moments, jnp.full((1, 3), 1e6)), np.full((1, 3), 10.0))


def test_an_element_that_never_moved_stays_finite_and_observations_unseen_stay_as_they_are():
    moments = update_jit(no_moments((1,)), jnp.full((8, 1), 4.0), jnp.ones(8))
    np.testing.assert_array_equal(normalise_jit(moments, jnp.array([[4.0], [4.1]])), [[0.0], [10.0]])
    np.testing.assert_array_equal(normalise_jit(no_moments((1,)), jnp.array([[123.0]])), [[123.0]])
