"""The devices that the environments of a run are split over, and what lies where."""

import dataclasses
import os
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.loop.runner import Runner
from jaxrl.loop.stage import Worlds
from jaxrl.run.settings import RunSettings

AXIS = "env"  # of the mesh


def settled(settings: RunSettings, config: Any) -> RunSettings:
    """`settings` with a number for `devices`, and JAX with as many; before anything is computed.

    "auto" is one device but on a CPU where the work is large enough for its cores, which `config` decides by itself:
    the same configuration on the same machine always has the same number. The CPU counts as several devices, one for
    each core that is used.

    Raises:
        UsageError: more devices than there are, or than the environments can be split over.
    """
    wanted, cores = settings.devices, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    number = config.devices_worth_using(cores) if wanted == "auto" else wanted
    if number > 1:
        _split_cpu(number)
        if wanted == "auto" and jax.default_backend() != "cpu":
            number = 1
    available = len(jax.devices()) if number > 1 else 1
    if number > available:
        if wanted != "auto":
            raise UsageError(
                f"devices={number}: JAX has {available} here; a CPU is split before anything is computed, later not"
            )
        number = available
    config.check_devices(number)
    return dataclasses.replace(settings, devices=number)


def mesh_of(number: int) -> jax.sharding.Mesh:
    """The first `number` devices along one axis."""
    return jax.make_mesh((number,), (AXIS,), (AxisType.Auto,), devices=jax.devices()[:number])


def by_environment(axis: str = AXIS) -> Runner:
    """Where the parts of a Runner lie: environments are split, everything else is everywhere."""
    here, everywhere = PartitionSpec(axis), PartitionSpec()
    worlds = Worlds(state=here, obs=PartitionSpec(None, axis), running=here, data=here)
    return Runner(key=everywhere, num_updates=everywhere, learners=everywhere, worlds=worlds, window=everywhere)


def on_one(tree: PyTree) -> PyTree:
    """Arrays on the first device alone: what is computed from them is computed once."""
    return jax.device_put(tree, jax.devices()[0])


def _split_cpu(number: int) -> None:
    """Makes the CPU count as so many devices, if JAX has not started yet."""
    try:
        if jax.config.jax_num_cpu_devices < number:
            jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:  # it has: what devices there are, there are
        pass
