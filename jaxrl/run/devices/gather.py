"""A state whose environments lie in several processes, brought into one: over the processes' own connection.

No collective is needed, nor room on a device for the environments of all.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np

from jaxrl.algorithms.base import RunnerState
from jaxrl.run.devices.mesh import copy_here


def whole(runner: RunnerState, parts: Callable[[], dict[int, bytes]]) -> RunnerState:
    """`runner` with all environments in NumPy, and of everything else this process's copy.

    Args:
        parts: fetches what `bytes_here` gives in each of the other processes; called if there is
        something to fetch.
    """
    if not any(is_spread(leaf) for leaf in jax.tree.leaves(runner)):
        return jax.tree.map(copy_here, runner)
    here = jax.process_index()
    streams = {
        **{process: memoryview(data) for process, data in parts().items()},
        here: memoryview(bytes_here(runner)),
    }
    leaves, structure = jax.tree.flatten(runner)
    return structure.unflatten(
        [_joined(leaf, streams) if is_spread(leaf) else copy_here(leaf) for leaf in leaves]
    )


def bytes_here(runner: RunnerState) -> bytes:
    """What this process alone holds of a state, in the order of its leaves and of its devices."""
    spread = [_words(leaf) for leaf in jax.tree.leaves(runner) if is_spread(leaf)]
    return b"".join(
        np.ascontiguousarray(_shard(leaf, device)).tobytes()
        for leaf in spread
        for device, _ in _places(leaf)
        if device.process_index == jax.process_index()
    )


def is_spread(leaf: jax.Array) -> bool:
    """Whether no single process holds all of an array."""
    return (
        isinstance(leaf, jax.Array)
        and not leaf.is_fully_addressable
        and not leaf.is_fully_replicated
    )


def _joined(leaf: jax.Array, streams: dict[int, memoryview]) -> jax.Array | np.ndarray:
    """An array put together from the heads of the processes' streams, which move on."""
    words = _words(leaf)
    array = np.empty(words.shape, words.dtype)
    for device, index in _places(words):
        shape = array[index].shape
        size = int(np.prod(shape)) * array.itemsize
        stream = streams[device.process_index]
        if size:
            array[index] = np.frombuffer(stream[:size], array.dtype).reshape(shape)
        streams[device.process_index] = stream[size:]
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if is_key else array


def _places(leaf: jax.Array) -> Iterator[tuple[jax.Device, tuple]]:
    places = leaf.sharding.devices_indices_map(leaf.shape)
    return iter(sorted(places.items(), key=lambda place: place[0].id))


def _shard(leaf: jax.Array, device: jax.Device) -> np.ndarray:
    return next(
        np.asarray(shard.data) for shard in leaf.addressable_shards if shard.device == device
    )


def _words(leaf: jax.Array) -> jax.Array:
    return (
        jax.random.key_data(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf
    )
