"""Minibatch indices: shuffled rows for minibatches of any size.

Many rows are shuffled by a keyed bijection, few by a sort.
"""

import jax
import jax.numpy as jnp

from jaxrl.core.types import Key
from jaxrl.ops.control_flow import any_true

NUM_ROUNDS = 6  # of the Feistel network; random-looking from four (Luby & Rackoff 1988)
# Up to this number of rows a sort is used: it is cheap, and the network would give some orders
# twice as often as others.
MAX_SORTED_ROWS = 64


def num_minibatches(num_rows: int, minibatch_size: int, num_epochs: int) -> int:
    """The number of minibatches in `num_epochs` epochs; the last may begin a further epoch."""
    return -(-num_epochs * num_rows // minibatch_size)


def minibatch_rows(key: Key, num_rows: int, minibatch_size: int, num_epochs: int) -> jax.Array:
    """The rows of every minibatch: each epoch is a new order of all rows.

    A minibatch may continue in the next epoch. 4000 rows, 5 epochs, minibatches of 128: 157
    minibatches, and the visits of two rows differ by at most one.

    Args:
        minibatch_size: at most `num_rows`.

    Returns:
        i32[num_minibatches, minibatch_size].
    """
    count = num_minibatches(num_rows, minibatch_size, num_epochs)
    position = jnp.arange(count * minibatch_size, dtype=jnp.uint32)
    epoch, num_orders = position // num_rows, count * minibatch_size // num_rows + 1
    if num_rows <= MAX_SORTED_ROWS:
        orders = jnp.argsort(jax.random.bits(key, (num_orders, num_rows), jnp.uint32), axis=1)
        rows = orders[epoch, position % num_rows]
    else:
        round_keys = jax.random.bits(key, (NUM_ROUNDS, num_orders), jnp.uint32)
        rows = shuffled(position % num_rows, num_rows, round_keys[:, epoch])
    return rows.astype(jnp.int32).reshape(count, minibatch_size)


def shuffled(position: jax.Array, num_rows: int, round_keys: jax.Array) -> jax.Array:
    """The entries at `position` of a pseudo-random order of [0, num_rows): a bijection.

    A Feistel network over the next power of two, applied again where the result is too large (Black
    & Rogaway 2002, "cycle walking"). `jax.random.permutation` sorts, which on the CPU costs more
    than the update of a small network.

    Args:
        position: u32[B'], each below num_rows.
        round_keys: u32[NUM_ROUNDS, B'], random bits; entries with equal columns share one order.

    Returns:
        u32[B'].
    """
    num_bits = max(2, (num_rows - 1).bit_length())

    def walk(position):
        return _feistel(position, num_bits, round_keys)

    return jax.lax.while_loop(
        lambda position: any_true(position >= num_rows),
        lambda position: jnp.where(position >= num_rows, walk(position), position),
        walk(position),
    )


def _feistel(value: jax.Array, num_bits: int, round_keys: jax.Array) -> jax.Array:
    """A bijection of [0, 2**num_bits): each round adds, by xor, a hash of one half to the other."""
    low_bits = num_bits // 2
    low_mask, high_mask = jnp.uint32(2**low_bits - 1), jnp.uint32(2 ** (num_bits - low_bits) - 1)
    low, high = value & low_mask, value >> low_bits
    for i in range(0, NUM_ROUNDS, 2):
        low ^= _hash(high ^ round_keys[i]) & low_mask
        high ^= _hash(low ^ round_keys[i + 1]) & high_mask
    return (high << low_bits) | low


def _hash(value: jax.Array) -> jax.Array:
    """A 32-bit integer hash (MurmurHash3's finaliser): every input bit reaches every output bit."""
    value ^= value >> 16
    value *= jnp.uint32(0x85EBCA6B)
    value ^= value >> 13
    value *= jnp.uint32(0xC2B2AE35)
    return value ^ (value >> 16)
