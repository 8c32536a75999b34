"""Programs side by side: while one is compiled another one trains, and a trial alone leaves no device idle."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import jax

ALL = -1  # in place of a lane: the program's trials are split over all devices


def lanes_of(sizes: Mapping[int, int], devices: int) -> dict[int, int]:
    """{program: the device that it has for itself, from 0, or ALL}, for programs of so many trials, {program: trials}.

    As many at a time as there are devices; of those that are left the ones with a trial for every device have all.
    """
    if devices == 1:
        return dict.fromkeys(sizes, ALL)
    programs = list(sizes)
    whole = len(programs) // devices * devices
    few = [program for program in programs[whole:] if sizes[program] < devices]
    lanes = dict.fromkeys(programs, ALL)
    lanes |= {program: i % devices for i, program in enumerate([*programs[:whole], *few])}
    return lanes


def side_by_side(work: Callable[[int], None], lanes: Mapping[int, int], break_off: Callable[[], None]) -> None:
    """`work(program)` for those with a lane: a thread each, with the lane's device as JAX's default.

    Args:
        break_off: has all other work end soon; called when some has failed.

    Raises:
        what the first failing work raised, when all have ended.
    """

    def in_lane(device: jax.Device, programs: Iterable[int]) -> None:
        try:
            with jax.default_device(device):
                for program in programs:
                    work(program)
        except BaseException:
            break_off()
            raise

    used = sorted(set(lanes.values()) - {ALL})
    if not used:
        return
    with ThreadPoolExecutor(len(used)) as pool:
        futures = [
            pool.submit(in_lane, jax.devices()[lane], [program for program, own in lanes.items() if own == lane])
            for lane in used
        ]
        for future in futures:
            future.result()
