"""Training by several processes: each runs the same program on its devices, and all decide alike.

The compiled chunk gives every process the same metrics. What depends on one process alone is made
by process 0 and broadcast: the clock, callbacks, evaluations, files. So all take the same branches,
and nobody waits in a collective while process 0 evaluates or draws.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxrl.algorithms.base import Metrics, RunnerState
from jaxrl.cluster.hosts import Channel
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fast_prng import is_key
from jaxrl.run.advice import to_resume
from jaxrl.run.devices.compiled import CompiledAlgorithm
from jaxrl.run.devices.mesh import copy_here
from jaxrl.run.health import Diverged
from jaxrl.run.signals import StopSignal
from jaxrl.run.storage.json_lines import dumped

ERRORS = {"UsageError": UsageError, "Diverged": Diverged, "KeyboardInterrupt": KeyboardInterrupt}
Value = TypeVar("Value")


class SeveralProcesses:
    """This process among those that `jaxrl.join` brought together."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.is_leader = channel.index == 0
        self.inside = self.apart = False

    def broadcast(self, make: Callable[[], Value]) -> Value:
        if self.inside or self.apart:
            return make() if self.is_leader else None
        if not self.is_leader:
            said = self.channel.broadcast()
            if "error" not in said:
                return said["value"]
            kind, text = said["error"]
            message = text if kind in ERRORS else f"process 0: {kind}: {text}"
            error = ERRORS.get(kind, RuntimeError)(message)
            error.is_shared = True
            raise error
        self.inside = True
        try:
            value = make()
        except BaseException as error:
            self.channel.broadcast({"error": (type(error).__name__, str(error))})
            error.is_shared = True
            raise
        finally:
            self.inside = False
        plain = str(value) if isinstance(value, Path) else value
        self.channel.broadcast({"value": json.loads(dumped(plain))})
        return value

    def stop_asked(self, interrupt: StopSignal) -> bool:
        for process, heard in enumerate(self.channel.allgather(interrupt.heard)):
            if heard:
                interrupt.hear(f"process {process}: {heard}")
        return bool(interrupt.heard)

    def wait(self) -> None:
        if not self.inside:
            self.channel.allgather(None)

    def run_chunk(
        self, executable: CompiledAlgorithm, *arguments: Any
    ) -> tuple[RunnerState, Metrics, Any]:
        if self.inside:
            raise UsageError("several processes train: a callback, which process 0 runs, cannot")
        with self._collective():
            return executable.chunk(*arguments)

    def gather(self, runner: RunnerState) -> RunnerState:
        """Collectively, by JAX: every process gets all environments, in NumPy."""
        with self._collective():
            return jax.tree.map(_everywhere, runner)

    @contextlib.contextmanager
    def _collective(self) -> Iterator[None]:
        """Inside it JAX talks to the other processes, which fails once one of them is gone."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, ValueError):  # gloo's
            self.channel.wait_for_the_lost()
            raise

    @contextlib.contextmanager
    def calling(self, method: str) -> Iterator[None]:
        if self.channel.busy:  # from within another such method, or a callback
            yield
            return
        self.channel.busy = True
        called = self.channel.allgather(method)
        if len(set(called)) > 1:
            self.channel.busy = False
            raise UsageError(
                f"all processes call the same methods, but now: {', '.join(map(str, called))}"
            )
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            self.channel.busy = self.apart

    def failed(self, error: BaseException) -> None:
        if self.apart or is_shared(error):
            return
        self.apart = True
        why = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        self.channel.fail(why)


def built_alike(channel: Channel, build: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of `build`, a trainer or None; all processes must build the same.

    Raises:
        UsageError: in every process.
    """
    channel.busy, channel.advice = True, "nothing was started"
    made = error = None
    try:
        made = build(*args, **kwargs)
    except UsageError as raised:
        error = raised
    if error is None:
        trainer = args[0] if made is None else made
        said = {"facts": trainer.facts, "writes": trainer.keeping.writes}
        folder = None if trainer.run_dir is None else str(trainer.run_dir.absolute())
    else:
        said, folder = {"error": str(error)}, None
    everyone = channel.allgather(json.loads(dumped({**said, "folder": folder})))
    channel.busy = False
    folders = [facts.pop("folder") for facts in everyone]
    refused = error or disagreement(everyone)
    if refused:
        raise refused
    channel.advice = advice(folders[0], trainer.facts)
    channel.last_words = trainer.keeping.hurry
    return made


def disagreement(everyone: list[dict[str, Any]]) -> UsageError | None:
    """The reason why the processes, which each sent an error or settings, cannot train together."""
    for process, said in enumerate(everyone):
        if "error" in said:
            return UsageError(f"process {process}: {said['error']}")
    for process, said in enumerate(everyone):
        if said != everyone[0]:
            name, there, here = difference(said, everyone[0])
            return UsageError(
                f"process {process} was started with {name}={there}, process 0 with {name}={here}"
            )
    return None


def difference(left: Any, right: Any, path: str = "") -> tuple[str, str, str]:
    """(name, left value, right value) of the first leaf of two trees that differs."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in {**right, **left}:
            if left.get(name) != right.get(name):
                return difference(left.get(name), right.get(name), name)
    return path, brief(left), brief(right)


def advice(folder: str | None, facts: dict[str, Any]) -> str:
    """The advice on how to resume after a loss."""
    if folder is None:
        return "nothing was written to resume from"
    return (
        f"resume from the last checkpoint, with any number of processes: {to_resume(folder, facts)}"
    )


def is_shared(error: BaseException) -> bool:
    """Returns whether all processes raise it: its cause is known to all, or was broadcast."""
    return getattr(error, "is_shared", isinstance(error, UsageError | Diverged))


def _everywhere(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return copy_here(leaf)
    if is_key(leaf):
        words = _everywhere(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(np.asarray(words), impl=jax.random.key_impl(leaf))
    return multihost_utils.process_allgather(leaf, tiled=True)
