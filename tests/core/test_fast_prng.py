"""Fast keys against standard keys of jax.random: the same numbers, bit by bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import Environment
from jaxrl.core.fast_prng import to_fast_key, to_standard_key, with_fast_keys

DRAWS = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "one word": lambda key: jax.random.bits(key),
    "no words": lambda key: jax.random.bits(key, (0, 2)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "half words": lambda key: jax.random.bits(key, (7,), jnp.uint16),
    "uniform": lambda key: jax.random.uniform(key, (4,), minval=-1.0),
    "normal": lambda key: jax.random.normal(key, (2, 3)),
    "gumbel": lambda key: jax.random.gumbel(key, (5,)),
    "randint": lambda key: jax.random.randint(key, (9,), 0, 7),
    "permutation": lambda key: jax.random.permutation(key, 11),
    "split": lambda key: jax.random.key_data(jax.random.split(key)),
    "split to a grid": lambda key: jax.random.key_data(jax.random.split(key, (3, 4))),
    "fold in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**31 + 5)),
    "split, then drawn": lambda key: jax.vmap(jax.random.bits)(
        jax.random.split(jax.random.fold_in(key, 3), 6)
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_every_draw_is_jax_randoms_own(draw, seed):
    key = jax.random.key(np.uint32(seed), impl="threefry2x32")
    np.testing.assert_array_equal(draw(to_fast_key(key)), draw(key))


@functools.cache
def drawn_in_a_scan(kind):
    """{name: draws [2, 2, 3, ...]} of many keys, compiled."""

    def step(keys, _):
        keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, 1)))(keys)
        every = lambda key: {name: draw(key) for name, draw in DRAWS.items()}
        return keys, jax.vmap(jax.vmap(every))(kind(keys))

    keys = jax.random.split(jax.random.key(3, impl="threefry2x32"), (2, 3))
    return jax.jit(lambda keys: jax.lax.scan(step, keys, length=2)[1])(keys)


@pytest.mark.parametrize("name", DRAWS)
def test_so_are_those_of_many_keys_in_a_compiled_scan(name):
    fast, standard = drawn_in_a_scan(to_fast_key), drawn_in_a_scan(to_standard_key)
    assert fast[name].shape[:3] == (2, 2, 3)
    np.testing.assert_array_equal(fast[name], standard[name])


def test_the_counter_may_be_what_is_mapped_over():
    key = jax.random.key(8, impl="threefry2x32")
    counts = jnp.arange(5)
    folded = jax.vmap(
        lambda count: jax.random.key_data(jax.random.fold_in(to_fast_key(key), count))
    )(counts)
    expected = jax.vmap(lambda count: jax.random.key_data(jax.random.fold_in(key, count)))(counts)
    np.testing.assert_array_equal(folded, expected)


def test_no_keys_draw_nothing_in_the_shapes_of_jax_random():
    draws = jax.vmap(lambda key: (jax.random.bits(key, (2,)), jax.random.split(key, 3)))
    none = jax.random.split(jax.random.key(0, impl="threefry2x32"), 0)
    words, keys = draws(to_fast_key(none))
    expected_words, expected_keys = draws(none)
    assert words.shape == expected_words.shape == (0, 2)
    assert keys.shape == expected_keys.shape == (0, 3)


def test_words_of_64_bits_are_jax_randoms_own():
    enable_x64 = (
        jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    )  # before jax 0.8
    with enable_x64(True):
        key = jax.random.key(5, impl="threefry2x32")
        np.testing.assert_array_equal(
            jax.random.bits(to_fast_key(key), (4,), jnp.uint64),
            jax.random.bits(key, (4,), jnp.uint64),
        )


def test_the_standard_key_is_what_the_fast_one_was_made_of():
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 4)
    assert to_fast_key(keys).dtype != keys.dtype
    assert to_standard_key(to_fast_key(keys)).dtype == keys.dtype
    np.testing.assert_array_equal(
        jax.random.key_data(to_standard_key(to_fast_key(keys))), jax.random.key_data(keys)
    )


def test_a_poisson_draw_takes_the_standard_key():
    key = jax.random.key(3, impl="threefry2x32")
    draw = jax.random.poisson(to_standard_key(to_fast_key(key)), 4.0, (100,))
    np.testing.assert_array_equal(draw, jax.random.poisson(key, 4.0, (100,)))


def test_where_jax_refuses_a_fast_key_it_says_what_to_use():
    key = jax.random.key(3, impl="threefry2x32")
    with pytest.raises(NotImplementedError, match=r"not fast: use to_standard_key\(key\)$"):
        jax.random.poisson(to_fast_key(key), 4.0)
    with pytest.raises(TypeError, match=r"fast: use to_standard_key\(key\)"):
        jax.lax.scan(lambda key, _: (to_fast_key(key), None), key, length=2)


@pytest.mark.parametrize(
    "key", [jax.random.PRNGKey(1), jax.random.key(1, impl="rbg")], ids=["raw", "rbg"]
)
def test_keys_of_another_kind_stay_as_they_are(key):
    assert to_fast_key(key) is key
    assert to_standard_key(key) is key


KEY = jax.random.key(3, impl="threefry2x32")


def test_with_fast_keys_hands_over_a_fast_key_and_returns_standard_ones():
    seen = []

    def draw(key, shape):
        seen.append(key.dtype)
        return {"bits": jax.random.bits(key, shape), "key": jax.random.fold_in(key, 1)}

    drawn = with_fast_keys(draw, KEY, (4,))
    assert seen == [to_fast_key(KEY).dtype]
    assert drawn["key"].dtype == KEY.dtype
    np.testing.assert_array_equal(drawn["bits"], jax.random.bits(KEY, (4,)))
    assert drawn["key"] == jax.random.fold_in(KEY, 1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda key, kept: jax.random.poisson(key, 4.0, (5,)),
        lambda key, kept: jnp.where(True, key, kept),
        lambda key, kept: jax.lax.scan(lambda kept, _: (key, None), kept, length=2)[0],
    ],
    ids=["poisson", "chosen beside a kept key", "carried in place of a kept key"],
)
def test_with_fast_keys_hands_over_the_key_itself_where_a_fast_one_cannot_be_taken(draw):
    assert jnp.all(with_fast_keys(draw, KEY, KEY) == draw(KEY, KEY))


def test_with_fast_keys_raises_a_functions_own_error():
    with pytest.raises(ZeroDivisionError):
        with_fast_keys(lambda key: 1 // 0, KEY)


def test_an_environment_may_draw_by_poisson_and_keep_a_key_in_its_state():
    class Arrivals(Environment):
        default_params = ()

        def reset_env(self, key, params):
            return jnp.zeros(1), {"key": key, "time": 0}

        def step_env(self, key, state, action, params):
            arrivals = jax.random.poisson(key, 4.0)
            state = {"key": jax.random.fold_in(state["key"], 1), "time": state["time"] + 1}
            return jnp.zeros(1), state, arrivals.astype(jnp.float32), False, {}

        def is_truncated(self, state, params):
            return state["time"] >= 5

    env = Arrivals()
    state = env.reset(KEY)[1]
    assert state["key"] == KEY
    _, reached, reward, _, _, _ = env.step(KEY, state, 0)
    step_key = jax.random.split(KEY)[0]
    assert reward == jax.random.poisson(step_key, 4.0)
    assert reached["key"] == jax.random.fold_in(KEY, 1)
