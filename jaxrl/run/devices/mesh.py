"""The devices and processes that the environments of a run are split over, and what lies where."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from jaxrl.algorithms.base import RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.sharding import check_devices, devices_worth_using
from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import is_key
from jaxrl.core.machine import num_cores
from jaxrl.core.types import PyTree
from jaxrl.rollout.env_step import RolloutSpec, env_axes
from jaxrl.run.settings import RunSettings

if TYPE_CHECKING:
    from jaxrl.rollout.recorded_steps import RecordedSteps

AXIS = "env"  # of the mesh
FORCED_COUNT = "xla_force_host_platform_device_count"  # the flag by which XLA itself splits a CPU


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The processes of this run, of which this is one."""

    index: int  # of this process; 0 decides, logs and saves
    number: int
    cores: int  # that each of them may use, at least
    channel: Any  # a `Channel` of jaxrl.cluster.hosts


_joined: list[Hosts] = []  # one entry at most


def mark_joined(joined: Hosts) -> None:
    """Marks this process as one of several from now on."""
    _joined.append(joined)


def hosts() -> Hosts | None:
    """The processes that `join` brought together; None where this one is alone."""
    return _joined[0] if _joined else None


def num_processes() -> int:
    return _joined[0].number if _joined else 1


def start_jax() -> None:
    """Starts JAX, with the devices that it was told of.

    Raises:
        UsageError: the platform that it was told to use is not here.
    """
    try:
        jax.devices()
    # The second: JAX has no plugin for that platform.
    except (RuntimeError, AssertionError) as error:
        why = " ".join(str(error).split()) or "no such device, or no plugin for it, is installed"
        platforms = jax.config.jax_platforms
        if not platforms:
            raise UsageError(f"JAX cannot start: {why:.300}") from None
        raise UsageError(
            f"JAX_PLATFORMS={platforms} cannot be used here: {why:.300}; unset it, or set it to cpu"
        ) from None


def settled(settings: RunSettings, config: AlgorithmConfig) -> RunSettings:
    """`settings` with a number for `devices`, and JAX with as many; before anything is computed.

    "auto" is one device, but on a CPU where the work is large enough for its cores, which `config`
    knows: one for each core that is used. In a process where JAX has started with fewer it is one.

    Raises:
        UsageError: more devices than there are, or than the environments can be split over.
    """
    automatic, together = settings.devices == "auto", hosts()
    if together is not None:
        return dataclasses.replace(
            settings, devices=_settled_over(together, settings.devices, config)
        )
    number = devices_worth_using(config, num_cores()) if automatic else settings.devices
    if number > 1:
        split_cpu(number)
    start_jax()
    if number > 1:
        available = len(jax.devices())
        if automatic and (available < number or jax.default_backend() != "cpu"):
            number = 1
        if available < number:
            raise UsageError(
                f"devices={number}: JAX has {available} here, and a CPU is split before anything "
                "is computed, later "
                f"not; choose devices={available} or fewer"
            )
    check_devices(config, number)
    return dataclasses.replace(settings, devices=number)


def _settled_over(together: Hosts, devices: int | str, config: AlgorithmConfig) -> int:
    """Number of devices of all processes together, each as many; "auto": all but of a CPU."""
    automatic, number = devices == "auto", together.number
    if not automatic and devices % number:
        raise UsageError(
            f"devices={devices} are those of all processes, which num_processes={number} does not "
            "divide"
        )
    if automatic:
        per_process = devices_worth_using(config, number * together.cores) // number
    else:
        per_process = devices // number
    per_process = max(1, per_process)
    split_cpu(number * per_process)
    here = jax.local_device_count()
    if automatic and (jax.default_backend() != "cpu" or here < per_process):
        per_process = here
    if here < per_process:
        raise UsageError(
            f"devices={devices} over num_processes={number} are {per_process} for each; "
            f"JAX has {here} here"
        )
    check_devices(config, number * per_process)
    return number * per_process


def mesh_of(number: int, axis: str = AXIS) -> jax.sharding.Mesh:
    """The first `number` devices along one axis, as many of every process."""
    per_process = number // jax.process_count()
    by_process: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    devices = [
        device for process in sorted(by_process) for device in by_process[process][:per_process]
    ]
    return jax.make_mesh((number,), (axis,), (AxisType.Auto,), devices=devices)


def by_environment(spec: RolloutSpec, axis: str = AXIS) -> RunnerState:
    """Sharding of a RunnerState: environments are split, everything else is replicated."""
    everywhere = PartitionSpec()
    split = lambda env_axis: PartitionSpec(*[None] * env_axis, axis)
    envs = jax.tree.map(split, env_axes(spec))
    return RunnerState(
        key=everywhere,
        num_updates=everywhere,
        learners=everywhere,
        envs=envs,
        window=everywhere,
        opponents=everywhere,
    )


def recorded_by_environment() -> "RecordedSteps":
    """Sharding of a chunk's recorded steps, [updates, T, ...]."""
    from jaxrl.rollout.recorded_steps import RecordedSteps

    by_env = PartitionSpec(None, None, AXIS)
    return RecordedSteps(PartitionSpec(None, None, None, AXIS), by_env, by_env)


def on_first_device(tree: PyTree) -> PyTree:
    """Arrays of several devices on the first one alone: what follows is computed once."""
    spread = any(
        isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 for leaf in jax.tree.leaves(tree)
    )
    return jax.device_put(jax.tree.map(copy_here, tree), jax.local_devices()[0]) if spread else tree


def copy_here(leaf: Any) -> Any:
    """This process's copy of an array that all processes hold; anything else as it is."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return leaf
    return leaf.addressable_data(0)


def placed(tree: PyTree, shardings: PyTree) -> PyTree:
    """`tree`, whole in every process or in its place already, where `shardings` says."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    return jax.tree.map(_part_here, tree, shardings)


def _part_here(leaf: Any, sharding: Any) -> Any:
    """Puts a leaf like `jax.device_put`, which would first compare the processes' arrays."""
    if sharding is None:  # the program does not use it
        return leaf
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable:
            return leaf
        if is_key(leaf):
            words = _part_here(jax.random.key_data(leaf), sharding)
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def on_host(leaf: jax.Array) -> Any:
    """An array in NumPy; random keys stay as they are, for NumPy has no type for them."""
    return leaf if is_key(leaf) else np.asarray(leaf)


def stacked(trees: Sequence[PyTree]) -> PyTree:
    """Trees of equal shapes as one, [S, ...], by way of the host: no shape compiles a program."""

    def stack(*leaves):
        if not is_key(leaves[0]):
            return np.stack(leaves)
        words = np.stack([jax.random.key_data(leaf) for leaf in leaves])
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaves[0]))

    return jax.device_put(jax.tree.map(stack, *trees))


def split_cpu(number: int | str) -> None:
    """Makes the CPU count as so many devices ("auto": its cores), if JAX has not started yet.

    A number in `XLA_FLAGS` (`--xla_force_host_platform_device_count=4`) is the user's own and
    stays.
    """
    together = hosts()
    if number == "auto":
        number = num_cores() if together is None else together.cores
    elif together is not None and isinstance(number, int):
        number = max(1, number // together.number)
    try:
        asked = FORCED_COUNT in os.environ.get("XLA_FLAGS", "")
        several = isinstance(number, int) and number > 1  # the settings refuse anything else
        if several and not asked and jax.config.jax_num_cpu_devices < number:
            jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:  # it has: what devices there are, there are
        pass
