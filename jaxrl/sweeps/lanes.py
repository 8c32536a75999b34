"""Programs of a sweep side by side: one trains while another is compiled, each on a device of its own."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import jax

SPLIT = -1  # in place of a lane: the program has all devices, its trials are split over them


def lanes_of(sizes: Mapping[int, int], devices: int) -> dict[int, int]:
    """{program: the device that it has for itself, from 0, or SPLIT}, for {program: how many trials are left of it}.

    Programs with fewer trials than there are devices have one each. Of the others as many go side
    by side as the devices divide, if none has more than twice the trials of another: else the
    largest would be left with one device.
    """
    lanes = dict.fromkeys(sizes, SPLIT)
    if devices == 1:
        return lanes
    few = [program for program, size in sizes.items() if size < devices]
    many = [program for program in sizes if program not in few]
    alike = many and max(sizes[program] for program in many) <= 2 * min(
        sizes[program] for program in many
    )
    whole = len(many) // devices * devices if alike else 0
    return lanes | {program: i % devices for i, program in enumerate([*many[:whole], *few])}


def num_lanes(lanes: Mapping[int, int]) -> int:
    return len(set(lanes.values()) - {SPLIT})


def side_by_side(
    work: Callable[[int], None], lanes: Mapping[int, int], break_off: Callable[[], None]
) -> None:
    """`work(program)` for those with a lane: a thread for each lane, with the lane's device as JAX's default.

    Args:
        break_off: has all work end soon; called when some has failed, or when this thread is to
        stop.

    Raises:
        what failed in the first lane with a failure, when all have ended.
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
    with ThreadPoolExecutor(len(used)) as pool:
        futures = [
            pool.submit(
                in_lane,
                jax.devices()[lane],
                [program for program, own in lanes.items() if own == lane],
            )
            for lane in used
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:
            break_off()
            raise
