"""The body of a Ray actor that steps copies of a Python environment.

It holds the arrays of its own copies alone; what a step needs and what it gives travels as lists of
arrays. This module must not import JAX.
"""

import itertools
import pickle
from typing import NamedTuple

import numpy as np

from jaxrl.workers.arrays import StepArrays
from jaxrl.workers.stepper import Fault, Stepper


class Done(NamedTuple):
    """What an actor returns: all arrays of the copies, and the faults, whose rows are its own."""

    blocks: list[np.ndarray]
    faults: list[tuple]


class StepperActor:
    """Copies of an environment; Ray makes it in a process of a machine.

    Args:
        source, form: the pickled Source and EnvForm.
        counts: how many copies it has of each part.
    """

    def __init__(self, source: bytes, form: bytes, counts: tuple[int, ...]):
        self._faults: list[Fault] = []
        self._arrays = StepArrays(pickle.loads(form), sum(counts))
        made, rows = pickle.loads(source), rows_of(counts)
        self._steppers = [Stepper(made, self._arrays, part, self._faults.append) for part in rows]

    def work(self, part: int | None, blocks: list[np.ndarray], restarted: bool) -> tuple:
        """Steps the copies of a part, or begins new episodes in all; returns a `Done`.

        Args:
            blocks: `inputs` of those copies.
            restarted: the episodes begin because an actor was lost.
        """
        steppers = self._steppers if part is None else [self._steppers[part]]
        rows = slice(steppers[0].rows.start, steppers[-1].rows.stop)
        for block, values in zip(self._arrays.inputs, blocks, strict=True):
            block[rows] = values
        for stepper in steppers:
            if part is not None:
                stepper.step()
            else:
                stepper.reset()
        if part is None:
            self._arrays.restarted[:] = restarted
        faults = [tuple(fault) for fault in self._faults]
        self._faults.clear()
        return tuple(Done([block[rows] for block in self._arrays.blocks], faults))


def rows_of(counts: tuple[int, ...]) -> list[range]:
    """The rows of each part among an actor's own."""
    ends = np.cumsum([0, *counts]).tolist()
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]
