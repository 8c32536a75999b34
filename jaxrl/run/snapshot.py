"""Snapshot: the whole state of a run between two chunks, as hooks and checkpoints take it."""

from typing import Any, NamedTuple

from jaxrl.algorithms.base import RunnerState
from jaxrl.core.types import PyTree
from jaxrl.run.results import Lifetime, Result


class Snapshot(NamedTuple):
    """The whole state of a run between two chunks; its arrays are never written to."""

    runner: RunnerState
    hypers: PyTree
    env_params: PyTree
    lifetime: Lifetime
    result: Result | None  # of its last iteration
    hooks: dict[str, Any]  # their own states, by their names
