"""A trainer in each of several processes: process 0 leads, and the others do on their devices what it does on its own.

Every process calls the same methods in the same order. Process 0 runs them as if it were alone,
with its clock, its callbacks and its files, and says each program that it starts; the others start
the same one, so that whatever is decided is decided once, and nobody waits in a collective while
process 0 evaluates or draws.
"""

import contextlib
import functools
import json
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxrl.algorithms.base import Metrics, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PyTree
from jaxrl.run.advice import to_resume
from jaxrl.run.devices.compiled import CompiledAlgorithm
from jaxrl.run.devices.gather import bytes_here, whole
from jaxrl.run.devices.hosts import Hosts, hosts
from jaxrl.run.devices.transport import Channel, Message
from jaxrl.run.health import Diverged
from jaxrl.run.logging.text_logs import dumped
from jaxrl.run.results import Lifetime
from jaxrl.run.signals import StopSignal

ERRORS = {"UsageError": UsageError, "Diverged": Diverged, "KeyboardInterrupt": KeyboardInterrupt}
Method = TypeVar("Method", bound=Callable)
TRAINING = ("train", "fit")  # methods that need the compiled programs


def together(method: Method) -> Method:
    """Decorates a method that all processes call, with a result that all get."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return self.company.call(self, method, args, kwargs)

    return call


def company() -> "SingleProcess | Leader | Follower":
    """What a new trainer does beside those of the other processes."""
    joined = hosts()
    if joined is None:
        if jax.distributed.is_initialized() and jax.process_count() > 1:
            raise UsageError(
                "several processes train together after jaxrl.join, not jax.distributed.initialize"
            )
        return SingleProcess()
    return Leader(joined.channel) if joined.index == 0 else Follower(joined.channel)


class SingleProcess:
    """One process: everything is as it is written."""

    writes = True  # to the run's folder and on the screen

    def call(self, trainer: Any, method: Callable, args: tuple, kwargs: dict) -> Any:
        return method(trainer, *args, **kwargs)

    def compile(self, executable: CompiledAlgorithm, *, start: bool) -> float:
        return executable.compile(start=start)

    def chunk(self, executable: CompiledAlgorithm, *arguments: Any) -> tuple[RunnerState, Metrics]:
        return executable.chunk(*arguments)

    def whole(self, runner: RunnerState) -> RunnerState:
        """`runner` with all its environments in this process."""
        return runner

    def check_replaceable(self) -> None:
        """Whether the state may be changed from outside: not once the others have states that it came of."""
        if getattr(self, "states", None):
            raise UsageError(
                "weights cannot be set after several processes have joined: set them in all before"
            )


class Leader(SingleProcess):
    """Process 0. States are called by numbers; 0 is the one that training began with or took up."""

    def __init__(self, channel: Channel):
        self.channel, self.inside, self.last = channel, False, 0
        self.states: dict[int, weakref.ref] = {}  # those that anybody here still holds

    def call(self, trainer: Any, method: Callable, args: tuple, kwargs: dict) -> Any:
        if (
            self.inside
        ):  # a callback's own wish, of which the others need to know no more than its programs
            return method(trainer, *args, **kwargs)
        self.channel.on_asked = lambda text: trainer.interrupt.hear(text)
        self.channel.last_words = lambda: trainer.keeping.hurry()
        self.inside = self.channel.busy = True
        folder = None if trainer.run_dir is None else str(trainer.run_dir.absolute())
        self.channel.advice = advice(folder, trainer.facts)
        self.channel.tell({"call": method.__name__, "folder": folder})
        value = error = None
        try:
            value = method(trainer, *args, **kwargs)
            return value
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._over(trainer, value, error)
            self.inside = self.channel.busy = False

    def compile(self, executable: CompiledAlgorithm, *, start: bool) -> float:
        self.channel.tell({"do": "compile", "start": start})
        begin = time.perf_counter()
        executable.compile(start=start)
        for (
            peer
        ) in self.channel.lines:  # a collective would not wait as long as a slow machine compiles
            self._answer(peer, "ready")
        return time.perf_counter() - begin

    def chunk(
        self,
        executable: CompiledAlgorithm,
        runner: RunnerState,
        hypers: PyTree,
        env_params: PyTree,
        count: int,
    ) -> tuple[RunnerState, Metrics]:
        state, self.last = self._number(runner), self.last + 1
        self.channel.tell(
            {"do": "chunk", "of": state, "to": self.last, "count": count, **self._kept()}
        )
        after, metrics = _or_lost(self.channel, executable.chunk, runner, hypers, env_params, count)
        self.states[self.last] = weakref.ref(after)
        return after, metrics

    def whole(self, runner: RunnerState) -> RunnerState:
        def parts() -> dict[int, bytes]:
            self.channel.tell({"do": "gather", "of": self._number(runner), **self._kept()})
            return {peer: self._answer(peer, "part") for peer in self.channel.lines}

        return whole(runner, parts)

    def _answer(self, peer: int, kind: str) -> bytes:
        """The bytes with the next answer of a kind; what was asked for before something failed is passed over."""
        while True:
            message, payload = self.channel.hear(peer)
            if kind in message:
                return payload

    def _number(self, runner: RunnerState) -> int:
        for number, state in self.states.items():
            if state() is runner:
                return number
        self.states[0] = weakref.ref(runner)  # nobody has trained yet
        return 0

    def _kept(self) -> Message:
        self.states = {
            number: state for number, state in self.states.items() if state() is not None
        }
        return {"kept": list(self.states)}

    def _over(self, trainer: Any, value: Any, error: BaseException | None) -> None:
        message = {"over": json.loads(dumped(str(value) if isinstance(value, Path) else value))}
        if error is not None:
            message["error"] = type(error).__name__, str(error)
        state = trainer._runner
        message |= {
            "is": None if state is None else self._number(state),
            "lifetime": asdict(trainer.lifetime),
        }
        self.channel.tell({**message, "result": json.loads(dumped(trainer.last_result))})


class Follower(SingleProcess):
    """Any other process."""

    writes = False

    def __init__(self, channel: Channel):
        self.channel, self.states = channel, {}

    def call(self, trainer: Any, method: Callable, args: tuple, kwargs: dict) -> Any:
        name, channel = method.__name__, self.channel
        channel.busy = True
        with (
            StopSignal(lambda text: channel.tell({"asked": text.partition(":")[0]})).listening(),
            self._reporting(),
        ):
            order = channel.hear()[0]
            channel.advice = advice(order.get("folder"), trainer.facts)
            if order.get("call") != name:
                raise UsageError(
                    f"{name} was called here and {order.get('call')} in process 0: all call the same"
                )
            if name in TRAINING and trainer.executable is None:  # traced while process 0 traces
                trainer.executable = trainer.program.executable(
                    trainer._key(), trainer.hypers, trainer.env_params
                )
            while "over" not in (order := channel.hear()[0]):
                self._obey(trainer, order)
        channel.busy = False
        trainer._runner = None if order["is"] is None else self._state(trainer, order["is"])
        trainer.lifetime, trainer.last_result = Lifetime(**order["lifetime"]), order["result"]
        if "error" in order:
            kind, text = order["error"]
            raise ERRORS.get(kind, RuntimeError)(
                text if kind in ERRORS else f"process 0: {kind}: {text}"
            )
        return order["over"]

    def _obey(self, trainer: Any, order: Message) -> None:
        if order["do"] == "compile":
            trainer.executable.compile(start=order["start"])
            return self.channel.tell({"ready": True})
        state = self._state(trainer, order["of"])
        self.states = {
            number: kept for number, kept in self.states.items() if number in order["kept"]
        }
        if order["do"] == "gather":
            return self.channel.tell({"part": True}, bytes_here(state))
        arguments = state, trainer.hypers, trainer.env_params, order["count"]
        self.states[order["to"]], _ = _or_lost(self.channel, trainer.executable.chunk, *arguments)

    def _state(self, trainer: Any, number: int) -> RunnerState:
        if number == 0 and 0 not in self.states:
            self.states[0] = trainer.runner
        return self.states[number]

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.channel.tell(
                {"failed": f"{type(error).__name__}: {' '.join(str(error).split()):.300}"}
            )
            raise


def _or_lost(channel: Channel, program: Callable, *arguments: Any) -> Any:
    """What `program` returns; if it fails because another process is gone, this one ends with it."""
    try:
        return program(*arguments)
    except jax.errors.JaxRuntimeError:
        channel.wait_for_the_lost()
        raise


def advice(folder: str | None, facts: dict[str, Any]) -> str:
    """How to resume after a loss."""
    if folder is None:
        return "nothing was written to resume from"
    return (
        f"resume from the last checkpoint, with any number of processes: {to_resume(folder, facts)}"
    )


def agreed(build: Method) -> Method:
    """Decorates what makes a trainer: in every process, or, if one cannot or was started with something else, in none.

    Raises:
        UsageError: in every process.
    """

    @functools.wraps(build)
    def call(*args, **kwargs):
        joined = hosts()
        if joined is None or joined.channel.busy:  # alone, or from within another such
            return build(*args, **kwargs)
        joined.channel.busy, joined.channel.advice = True, "nothing was started"
        made = error = None
        try:
            made = build(*args, **kwargs)
        except UsageError as raised:
            error = raised
        trainer = (
            args[0] if made is None else made
        )  # of a constructor, or of a function that calls one
        verdict = _verdict(
            joined, {"error": str(error)} if error else {"facts": json.loads(dumped(trainer.facts))}
        )
        joined.channel.busy = False
        if error or verdict:
            raise error or UsageError(verdict)
        return made

    return call


def _verdict(joined: Hosts, mine: Message) -> str | None:
    if joined.index:
        joined.channel.tell(mine)
        return joined.channel.hear()[0]["verdict"]
    verdict = None
    for process, theirs in [
        (0, mine),
        *((peer, joined.channel.hear(peer)[0]) for peer in joined.channel.lines),
    ]:
        if verdict is None and "error" in theirs:
            verdict = f"process {process}: {theirs['error']}"
        elif verdict is None and theirs != mine and "error" not in mine:
            what, there, here = difference(theirs, mine)
            verdict = (
                f"process {process} was started with {what}={there}, process 0 with {what}={here}"
            )
    joined.channel.tell({"verdict": verdict})
    return verdict


def difference(theirs: Any, ours: Any, path: str = "") -> tuple[str, Any, Any]:
    """(name, their value, our value) of the first leaf of two trees that differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**ours, **theirs}:
            if theirs.get(name) != ours.get(name):
                return difference(theirs.get(name), ours.get(name), name)
    return path, f"{theirs!r:.60}", f"{ours!r:.60}"
