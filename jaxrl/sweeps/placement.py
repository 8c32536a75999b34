"""Placement of trials: how many fit into memory side by side, and which devices they train on."""

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

import jax

from jaxrl.core.errors import UsageError
from jaxrl.core.machine import free_memory, free_on_device, in_units
from jaxrl.core.types import PyTree
from jaxrl.run.command_line import is_of_a_command
from jaxrl.run.devices.compiled import CAPACITY
from jaxrl.sweeps.trials import TrialGroup

MOST_AT_ONCE = 64  # members on each device; more bring no speed
SHARE_OF_MEMORY = 0.5  # of what is free, that a batch may take
SPLIT = -1  # in place of a lane: the program has all devices, its trials are split over them


def memory_of(group: TrialGroup) -> int:
    """Bytes that a member takes, about: three states, four rollouts and a chunk's metrics."""
    shapes = group.shapes
    return (
        3 * _bytes(shapes.runner) + 4 * _bytes(shapes.rollout) + CAPACITY * _bytes(shapes.metrics)
    )


def most_that_fit(group: TrialGroup, devices: int, beside: int = 1) -> float:
    """The number of members that fit into memory side by side; infinity where it is unknown.

    Args:
        beside: the number of programs, this one among them, that train at a time on devices of
            their own: on a CPU all of them take of the same memory, and there may be room for none.

    Raises:
        UsageError: not even one.
    """
    on_cpu = jax.default_backend() == "cpu"
    free, trial_bytes = (free_memory() if on_cpu else free_on_device()), memory_of(group)
    if free is None:
        return math.inf
    fit = int(SHARE_OF_MEMORY * free / trial_bytes)
    if fit < 1:
        raise UsageError(
            f"one trial of {group.static.num_envs:,} x {group.static.rollout_length:,} takes about "
            f"{in_units(trial_bytes)}, and {in_units(int(SHARE_OF_MEMORY * free))} are available; "
            "fewer environments or shorter rollouts need less"
        )
    return fit // beside if on_cpu else fit * devices


def batch_size(
    group: TrialGroup, number: int, devices: int, beside: int = 1, size: int | str = "auto"
) -> int:
    """The number of members that train at once: as many as fit, in batches of about one size.

    Raises:
        UsageError: not even one fits.
    """
    if size != "auto":
        return max(1, min(number, size))
    limit = min(MOST_AT_ONCE * devices, most_that_fit(group, devices, beside))
    return math.ceil(number / math.ceil(number / limit)) if number else 1


def lanes_of(sizes: Mapping[int, int], devices: int) -> dict[int, int]:
    """{program: its device, from 0, or SPLIT}, of {program: its number of unfinished trials}.

    Programs with fewer trials than there are devices have one each. Of the others as many go side
    by side as the devices divide, if none has more than twice the trials of another: else the
    largest would be left with one device.
    """
    lanes = dict.fromkeys(sizes, SPLIT)
    if devices == 1:
        return lanes
    few = [program for program, size in sizes.items() if size < devices]
    many = [program for program in sizes if program not in few]
    sizes_of_many = [sizes[program] for program in many]
    alike = many and max(sizes_of_many) <= 2 * min(sizes_of_many)
    whole = len(many) // devices * devices if alike else 0
    return lanes | {program: i % devices for i, program in enumerate([*many[:whole], *few])}


def num_lanes(lanes: Mapping[int, int]) -> int:
    return len(set(lanes.values()) - {SPLIT})


def side_by_side(
    work: Callable[[int], None], lanes: Mapping[int, int], break_off: Callable[[], None]
) -> None:
    """`work(program)` for those with a lane, each lane in a thread with its device as the default.

    Args:
        break_off: has all work end soon; called when some has failed, or when this thread is to
        stop.

    Raises:
        what failed in the first lane with a failure, when all have ended; in a command
        `KeyboardInterrupt` at once, for a lane may be compiling.
    """

    def in_lane(device: jax.Device, programs: Iterable[int]) -> None:
        try:
            with jax.default_device(device):
                for program in programs:
                    work(program)
        except BaseException:
            break_off()
            raise

    used = sorted(set(lanes.values()) - {SPLIT})
    if not used:
        return
    pool, futures = ThreadPoolExecutor(len(used)), []
    for lane in used:
        programs = [program for program in lanes if lanes[program] == lane]
        futures.append(pool.submit(in_lane, jax.devices()[lane], programs))
    pool.shutdown(wait=False)
    try:
        for future in futures:
            future.result()
    except BaseException as error:
        break_off()
        if not (isinstance(error, KeyboardInterrupt) and is_of_a_command()):
            wait(futures)
        raise


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
