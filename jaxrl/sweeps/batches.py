"""How many trainings fit side by side."""

import math

import jax

from jaxrl.core.errors import UsageError
from jaxrl.core.memory_limits import in_units
from jaxrl.core.types import PyTree
from jaxrl.run.devices.compiled import CAPACITY
from jaxrl.run.devices.memory_usage import free_memory, free_on_device
from jaxrl.sweeps.trials import TrialGroup

MOST_AT_ONCE = 64  # members on each device; more bring no speed
SHARE_OF_MEMORY = 0.5  # of what is free, that a batch may take


def memory_of(group: TrialGroup) -> int:
    """Bytes that one member takes, about: its state thrice, a rollout four times, and a chunk's metrics."""
    shapes = group.shapes
    return (
        3 * _bytes(shapes.runner) + 4 * _bytes(shapes.rollout) + CAPACITY * _bytes(shapes.metrics)
    )


def most_that_fit(group: TrialGroup, devices: int, beside: int = 1) -> float:
    """How many members have room in memory side by side; infinity where nobody can tell.

    Args:
        beside: the number of programs, this one among them, that train at a time on devices of
            their own: on a CPU all of them take of the same memory, and there may be room for none.

    Raises:
        UsageError: not even one.
    """
    on_cpu = jax.default_backend() == "cpu"
    free, each = (free_memory() if on_cpu else free_on_device()), memory_of(group)
    if free is None:
        return math.inf
    fit = int(SHARE_OF_MEMORY * free / each)
    if fit < 1:
        raise UsageError(
            f"one trial of {group.static.num_envs:,} x {group.static.rollout_length:,} takes about "
            f"{in_units(each)}, and {in_units(int(SHARE_OF_MEMORY * free))} are available; fewer environments or "
            "shorter rollouts need less"
        )
    return fit // beside if on_cpu else fit * devices


def batch_size(
    group: TrialGroup, number: int, devices: int, beside: int = 1, wanted: int | str = "auto"
) -> int:
    """How many of `number` members train at once: as many as fit, in batches of about one size.

    Raises:
        UsageError: not even one fits.
    """
    if wanted != "auto":
        return max(1, min(number, wanted))
    limit = min(MOST_AT_ONCE * devices, most_that_fit(group, devices, beside))
    return math.ceil(number / math.ceil(number / limit)) if number else 1


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
