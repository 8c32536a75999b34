"""The devices that the environments of a run are split over, and what lies where."""

import dataclasses
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.loop.runner import Runner
from jaxrl.loop.stage import Worlds
from jaxrl.run.settings import RunSettings

AXIS = "env"  # of the mesh


def settled(settings: RunSettings, config: Any) -> RunSettings:
    """`settings` with a number for `devices`, and JAX with as many; before anything is computed.

    "auto" is one device, but on a CPU where the work is large enough for its cores, which `config` knows: one for each
    core that is used. In a process where JAX has started with fewer it is one.

    Raises:
        UsageError: more devices than there are, or than the environments can be split over.
    """
    automatic = settings.devices == "auto"
    number = config.devices_worth_using(num_cores()) if automatic else settings.devices
    if number > 1:
        split_cpu(number)
        available = len(jax.devices())
        if automatic and (available < number or jax.default_backend() != "cpu"):
            number = 1
        if available < number:
            raise UsageError(
                f"devices={number}: JAX has {available} here, and a CPU is split before anything is computed, later "
                f"not; choose devices={available} or fewer"
            )
    config.check_devices(number)
    return dataclasses.replace(settings, devices=number)


def mesh_of(number: int, axis: str = AXIS) -> jax.sharding.Mesh:
    """The first `number` devices along one axis."""
    return jax.make_mesh((number,), (axis,), (AxisType.Auto,), devices=jax.devices()[:number])


def by_environment(axis: str = AXIS) -> Runner:
    """Where the parts of a Runner lie: environments are split, everything else is everywhere."""
    here, everywhere = PartitionSpec(axis), PartitionSpec()
    by_group = PartitionSpec(None, axis)
    worlds = Worlds(state=here, obs=by_group, running=here, data=here, memory=by_group, returns=by_group)
    return Runner(key=everywhere, num_updates=everywhere, learners=everywhere, worlds=worlds, window=everywhere)


def on_one(tree: PyTree) -> PyTree:
    """Arrays that lie on several devices on the first one alone: what is computed from them is computed once."""
    spread = any(isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 for leaf in jax.tree.leaves(tree))
    return jax.device_put(tree, jax.devices()[0]) if spread else tree


def on_host(leaf: jax.Array) -> Any:
    """An array in NumPy; random keys stay as they are, for NumPy has no type for them."""
    return leaf if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf)


def split_cpu(number: int | str) -> None:
    """Makes the CPU count as so many devices ("auto": its cores), if JAX has not started yet."""
    number = num_cores() if number == "auto" else number
    try:
        if isinstance(number, int) and jax.config.jax_num_cpu_devices < number:  # the settings refuse anything else
            jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:  # it has: what devices there are, there are
        pass


def num_cores() -> int:
    """Of the CPU, that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
