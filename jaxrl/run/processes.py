"""The processes of a training, mostly one; several are those of `jaxrl.cluster.multiprocess`."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax

from jaxrl.algorithms.base import Metrics, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.run.devices.compiled import CompiledAlgorithm
from jaxrl.run.devices.mesh import hosts
from jaxrl.run.signals import StopSignal

Method = TypeVar("Method", bound=Callable)
Value = TypeVar("Value")


class Processes(Protocol):
    """The processes that train together, as a trainer sees them."""

    is_leader: bool  # process 0, which alone calls callbacks, prints and writes files
    inside: bool  # whether process 0 runs something that the others wait for
    apart: bool  # whether this process failed by itself, so that the others do not follow

    def broadcast(self, make: Callable[[], Value]) -> Value:
        """The value that `make` returns or raises in process 0, which JSON must hold."""

    def stop_asked(self, interrupt: StopSignal) -> bool:
        """Returns whether any process was asked to stop."""

    def wait(self) -> None:
        """Waits until all processes are here."""

    def run_chunk(
        self, executable: CompiledAlgorithm, *arguments: Any
    ) -> tuple[RunnerState, Metrics, Any]:
        """`executable.chunk`, in all processes."""

    def gather(self, runner: RunnerState) -> RunnerState:
        """`runner` with the environments of all processes."""

    def calling(self, method: str) -> contextlib.AbstractContextManager:
        """Around a method that all processes call."""

    def failed(self, error: BaseException) -> None:
        """Ends the other processes, unless they raise the same error."""


class SingleProcess:
    """One process decides by itself and has everything."""

    is_leader, inside, apart = True, False, False

    def broadcast(self, make: Callable[[], Value]) -> Value:
        return make()

    def stop_asked(self, interrupt: StopSignal) -> bool:
        return interrupt.heard

    def wait(self) -> None:
        pass

    def run_chunk(
        self, executable: CompiledAlgorithm, *arguments: Any
    ) -> tuple[RunnerState, Metrics, Any]:
        return executable.chunk(*arguments)

    def gather(self, runner: RunnerState) -> RunnerState:
        return runner

    def calling(self, method: str) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def failed(self, error: BaseException) -> None:
        pass


def together(method: Method) -> Method:
    """Decorates a method of a trainer that all processes call."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        with self.processes.calling(method.__name__):
            return method(self, *args, **kwargs)

    return call


def processes() -> Processes:
    """The processes that a new trainer belongs to."""
    joined = hosts()
    if joined is not None:
        from jaxrl.cluster.multiprocess import SeveralProcesses

        return SeveralProcesses(joined.channel)
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        raise UsageError(
            "several processes train together after jaxrl.join(), which may follow "
            "jax.distributed.initialize"
        )
    return SingleProcess()


def agreed(build: Method) -> Method:
    """Decorates what makes a trainer: all processes make the same one, or none does.

    Raises:
        UsageError: in every process.
    """

    @functools.wraps(build)
    def call(*args, **kwargs):
        joined = hosts()
        if joined is None or joined.channel.busy:  # alone, or from within another such
            return build(*args, **kwargs)
        from jaxrl.cluster.multiprocess import built_alike

        return built_alike(joined.channel, build, args, kwargs)

    return call
