"""Fast random keys: Threefry in one kernel on the CPU, with the same bits as jax.random.

JAX draws by Threefry-2x32-20 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
On the CPU JAX reads and writes the whole array five times, for four rounds each. Here all twenty
rounds of an element stay in registers. Other devices use JAX's implementation.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as extend

from jaxrl.core.types import Key, PyTree

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def is_key(leaf: Any) -> bool:
    """Returns whether an array, or its shape, is of typed random keys, which NumPy lacks."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def keys_as_numbers(tree: PyTree) -> PyTree:
    """A tree with random keys as their numbers, so that values can be compared."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)


def to_fast_key(key: Key) -> Key:
    """The same keys [...], for faster draws; keys other than typed Threefry keys are unchanged.

    JAX treats the two kinds of keys as different types: convert with `to_standard_key` before
    storing or returning a key. `jax.random.poisson` accepts standard Threefry keys only; its error
    for any other ends in the tag of `_fast_impl`. Where jit is disabled keys are unchanged.
    """
    converts = _is_of_kind(key, "threefry2x32") and not jax.config.jax_disable_jit
    return _of_kind(key, _fast_impl()) if converts else key


def to_standard_key(key: Key) -> Key:
    """The inverse of `to_fast_key`."""
    return _of_kind(key, "threefry2x32") if _is_of_kind(key, _fast_impl()) else key


def with_fast_keys(function: Callable, key: Key, *arguments: PyTree) -> PyTree:
    """`function(key, *arguments)` with a fast key; the keys it returns are standard.

    A function that fails with fast keys, because it draws by `jax.random.poisson` or keeps another
    key in its state, is called with `key` itself.
    """
    fast = to_fast_key(key)
    if fast is key:
        return function(key, *arguments)
    try:
        returned = function(fast, *arguments)
    except Exception:
        return function(key, *arguments)  # an error with another cause is raised again
    return jax.tree.map(_standard_leaf, returned)


def _standard_leaf(leaf: PyTree) -> PyTree:
    return to_standard_key(leaf) if isinstance(leaf, jax.Array) else leaf


def _is_of_kind(key: Key, kind) -> bool:
    return is_key(key) and jax.random.key_impl(key) == kind


def _of_kind(key: Key, kind) -> Key:
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=kind)


@functools.cache
def _fast_impl():
    seed = extend.threefry_prng_impl.seed
    draw = {"seed": seed, "split": _split, "random_bits": _bits, "fold_in": _fold_in}
    # JAX prints the tag where it rejects such a key: in poisson, or in a scan's carry.
    return extend.define_prng_impl(
        key_shape=(2,), name="jaxrl_quick", tag="fast: use to_standard_key(key)", **draw
    )


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _blocks(math.prod(shape), both=True)(key, jnp.uint32(0)).reshape(*shape, 2)


def _fold_in(key: jax.Array, number: jax.Array) -> jax.Array:
    return _blocks(1, both=True)(key, number.astype(jnp.uint32))[0]


def _bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    words = _blocks(math.prod(shape), both=bit_width == 64)(key, jnp.uint32(0))
    if bit_width == 64:
        words = words[:, 0].astype(jnp.uint64) << 32 | words[:, 1]
    return words.reshape(shape).astype(f"uint{bit_width}")


@functools.cache
def _blocks(num: int, both: bool):
    """A function of keys u32[..., 2] and first counts u32[...] that encrypts `num` counts.

    It returns both words of each, u32[..., num, 2], or their exclusive or, u32[..., num].
    """

    @jax.custom_batching.custom_vmap
    def blocks(keys, first):
        return jax.lax.platform_dependent(keys, first, cpu=fused, default=in_jax)

    @blocks.def_vmap
    def blocks_of_all(axis_size, in_batched, keys, first):
        keys, first = (
            value if is_batched else jnp.broadcast_to(value, (axis_size, *value.shape))
            for value, is_batched in zip((keys, first), in_batched, strict=True)
        )
        return blocks(keys, first), True

    def encrypted(cipher, keys, first, sides=()):
        shape = (*sides, *first.shape, num)
        key0, key1, first = (
            jnp.broadcast_to(value[..., None], shape)
            for value in (keys[..., 0], keys[..., 1], first)
        )
        counts = first + jax.lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1)
        return cipher(key0, key1, jnp.zeros_like(counts), counts)

    def in_jax(keys, first):
        words = encrypted(extend.threefry2x32_p.bind, keys, first)
        return jnp.stack(words, axis=-1) if both else jnp.bitwise_xor(*words)

    def in_one_kernel(keys, first):
        if not both:
            return jnp.bitwise_xor(*encrypted(_threefry, keys, first))
        # A kernel has one result. Two results would be two kernels, of twenty rounds each.
        words = encrypted(_threefry, keys, first, (2,))
        side = jax.lax.broadcasted_iota(jnp.uint32, words[0].shape, 0)
        return jnp.moveaxis(jnp.where(side == 0, *words), 0, -1)

    def fused(keys, first):
        shape = (*first.shape, num, 2) if both else (*first.shape, num)
        nothing = lambda *_: jnp.zeros(shape, jnp.uint32)
        if not keys.size:
            return nothing()
        # XLA does not know that this branch is always taken. Without the branch it would compute
        # the rounds again for every element of each operation that reads a random number.
        always = keys.reshape(-1)[0] | 1 != 0
        return jax.lax.cond(always, in_one_kernel, nothing, keys, first)

    return jax.jit(blocks, inline=True)  # so that a draw outside any program is compiled once


def _threefry(key0, key1, word0, word1) -> tuple[jax.Array, jax.Array]:
    """Encrypts words of one shape; in `jax.lax`, which traces much faster than jax.numpy."""
    add, xor = jax.lax.add, jax.lax.bitwise_xor
    constant = functools.cache(functools.partial(jax.lax.full_like, key0))
    schedule = (key0, key1, xor(xor(key0, key1), constant(PARITY)))
    word0, word1 = add(word0, key0), add(word1, key1)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            word0 = add(word0, word1)
            left, right = constant(rotation), constant(32 - rotation)
            turned = jax.lax.bitwise_or(
                jax.lax.shift_left(word1, left), jax.lax.shift_right_logical(word1, right)
            )
            word1 = xor(word0, turned)
        word0 = add(word0, schedule[(group + 1) % 3])
        word1 = add(add(word1, schedule[(group + 2) % 3]), constant(group + 1))
    return word0, word1
