"""Main program of a worker process: it steps copies in shared memory at its parent's commands.

It is started as a file, not as a module: importing `jaxrl` would import JAX, which takes seconds
and 200 MB in every process. It gets three file descriptors (commands, reports, the shared memory)
and its parent's number. A command or a report is one byte, and some are followed by a message.
"""

import contextlib
import importlib.util
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

# Other bytes are the numbers of parts to step.
RESET, RESTART, INFOS, CALL, MESSAGE = b"r", b"n", b"i", b"c", b"m"
LENGTH = struct.Struct("<Q")
LOOK_EVERY_S = 0.2  # whether the parent is still there


class Start(NamedTuple):
    """The first message to a worker; the rest of it needs the path that it gives."""

    path: list[str]  # where modules are found
    source: bytes  # the pickled Source
    layout: bytes  # the pickled Layout


class Layout(NamedTuple):
    """The copies that a worker steps."""

    form: Any  # EnvForm
    num_envs: int  # in all
    worker: int
    parts: tuple[range, ...]  # the worker's rows of each part


def with_length(message: Any) -> bytes:
    """A message as bytes that follow `MESSAGE`."""
    data = pickle.dumps(message)
    return MESSAGE + LENGTH.pack(len(data)) + data


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_exactly(descriptor: int, count: int) -> bytes:
    """`count` bytes; EOFError if the other side is gone."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(descriptor, count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def read_message(descriptor: int) -> Any:
    kind = read_exactly(descriptor, 1)
    assert kind == MESSAGE, kind
    (length,) = LENGTH.unpack(read_exactly(descriptor, LENGTH.size))
    return pickle.loads(read_exactly(descriptor, length))


def main(commands: int, reports: int, memory: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    import_jaxrl_when_used()
    from jaxrl.outside.workers import family

    mark = os.environ[family.MARK]
    threading.Thread(target=_end_with_parent, args=(parent, mark), daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        start = Start(*read_message(commands))  # a tuple: this file's classes have two names
        sys.path[:] = start.path
        try:
            _serve(start, commands, reports, memory)
        except BaseException as error:
            if isinstance(error, EOFError | BrokenPipeError):
                raise
            _report(reports, _reason(error))
    family.end_others(os.getpid(), mark)


def _report(reports: int, reason: str) -> None:
    """Says why this process ends, unless the environment has closed the pipe."""
    try:
        write_all(reports, with_length(reason))
    except OSError:
        sys.exit(1)


def _serve(start: Start, commands: int, reports: int, memory: int) -> None:
    from jaxrl.outside.workers import family
    from jaxrl.outside.workers.arrays import StepArrays
    from jaxrl.outside.workers.shared_generators import seed_process
    from jaxrl.outside.workers.stepper import Stepper

    source, layout = pickle.loads(start.source), Layout(*pickle.loads(start.layout))
    shared = mmap.mmap(memory, 0)
    arrays = StepArrays(layout.form, layout.num_envs, shared)
    family.keep_from_children(memory, arrays.blocks[0].ctypes.data, len(shared))

    def report(fault):
        write_all(reports, with_length(tuple(fault)))

    steppers = [Stepper(source, arrays, rows, report, layout.worker) for rows in layout.parts]
    for stepper in steppers:
        stepper.worker_index = layout.worker + 1
    first_row = next(rows[0] for rows in layout.parts if rows)
    actions = {RESET: Stepper.reset, RESTART: Stepper.restart}
    with contextlib.suppress(EOFError):
        while True:
            command = read_exactly(commands, 1)
            if command in actions:
                seed_process(arrays.seed(first_row))
                for stepper in steppers:
                    actions[command](stepper)
            elif command == INFOS:
                write_all(reports, with_length(_pickled_infos(steppers)))
            elif command == CALL:
                write_all(reports, with_length(_answer(steppers, read_message(commands))))
            else:
                steppers[command[0]].step()
            os.write(reports, command)
    for stepper in steppers:
        stepper.close()


def _answer(steppers: list[Any], function: bytes) -> bytes:
    """The results of a function of all environments, {row: result}, or why there are none."""
    try:
        function, results = pickle.loads(function), {}
        for stepper in steppers:
            results |= stepper.foreach_env(function)
        return pickle.dumps(results)
    except BaseException as error:  # as sys.exit
        return pickle.dumps(_reason(error))


def _pickled_infos(steppers: list[Any]) -> bytes:
    """The infos of all copies, without what cannot be sent to another process."""
    infos = {}
    for stepper in steppers:
        infos |= stepper.infos()
    try:
        return pickle.dumps(infos)
    except Exception:  # of many kinds
        for of_copy in infos.values():
            for agent, info in of_copy.items():
                of_copy[agent] = dict(filter(_can_be_sent, info.items()))
        return pickle.dumps(infos)


def _can_be_sent(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _end_with_parent(parent: int, mark: str) -> None:
    """Ends this process and those that environments started, when the parent is gone."""
    from jaxrl.outside.workers import family

    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    family.end(os.getpid(), mark)


def _reason(error: BaseException) -> str:
    """A UsageError's message says all; of others the kind and the place in the user's file."""
    from jaxrl.core.errors import UsageError, reason_of
    from jaxrl.outside.workers.stepper import BrokenEnvironment

    return str(error) if isinstance(error, UsageError | BrokenEnvironment) else reason_of(error)


def import_jaxrl_when_used() -> None:
    """Makes `import jaxrl.outside.workers` possible without running `jaxrl/__init__.py`.

    That one is run when something of `jaxrl` itself is used, as by an environment that is made by
    `jaxrl.to_gymnasium`.
    """
    folder = Path(__file__).parents[2]
    init, folders = folder / "__init__.py", [str(folder)]
    spec = importlib.util.spec_from_file_location(
        folder.name, init, submodule_search_locations=folders
    )
    package = importlib.util.module_from_spec(spec)

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        del package.__getattr__
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = load
    sys.modules[folder.name] = package


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
