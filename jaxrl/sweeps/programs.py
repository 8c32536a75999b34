"""The compiled programs of a process; one for the same trials, and as many, is not compiled twice."""

import threading
from collections.abc import Sequence
from typing import Any

import jax

from jaxrl.sweeps.metric_readers import reader
from jaxrl.sweeps.trials import TrialGroup
from jaxrl.sweeps.vmapped import Numbers, VmappedTrials

MOST_PROGRAMS = 16  # that a process keeps
PROGRAMS: dict[Any, VmappedTrials] = {}  # by all that they depend on
KEEPING = threading.Lock()  # programs are compiled side by side


def known(
    group: TrialGroup, numbers: Numbers, metric: str, criteria: Sequence[str], devices: int
) -> VmappedTrials | None:
    return PROGRAMS.get(_key(group, numbers, metric, criteria, devices))


def program_of(
    group: TrialGroup, numbers: Numbers, metric: str, criteria: Sequence[str], devices: int
) -> VmappedTrials:
    """Compiles what is not compiled yet.

    Args:
        numbers: of as many members as the program is to train at once.
        metric: path in the result tree that ranks them.
        criteria: paths that may stop them.

    Raises:
        UsageError: no result has such a path.
    """
    key = _key(group, numbers, metric, criteria, devices)
    if key not in PROGRAMS:
        algorithm, shapes = group.algorithm, group.shapes.metrics
        score = reader(algorithm, shapes, metric, "metric")
        stop = [reader(algorithm, shapes, path, "stop criterion") for path in criteria]
        members = VmappedTrials(algorithm, shapes, numbers, score, stop, devices)
        with KEEPING:
            while len(PROGRAMS) >= MOST_PROGRAMS:
                PROGRAMS.pop(next(iter(PROGRAMS)))
            PROGRAMS[key] = members
        return members
    return PROGRAMS[key]


def _key(
    group: TrialGroup, numbers: Numbers, metric: str, criteria: Sequence[str], devices: int
) -> tuple:
    shapes = str(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), numbers))
    where = str(jax.config.jax_default_device)  # a program is that of one device
    return group.static, group.env, shapes, metric, tuple(criteria), devices, where
