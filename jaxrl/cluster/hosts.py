"""Several processes as one JAX (`jax.distributed`): joining, messages, and the loss of one.

JAX's coordination service connects the processes, and its key-value store carries their messages.
Two things are added, because JAX 0.10 ends a process from within C++, with a stack trace and
status 134, where a user needs one line:

- `join` connects in a thread. JAX would abort each process whose partners do not come in time.
- Each process writes a count into the store every few seconds, and is lost when that stands still.
  JAX's own heartbeat aborts the processes that are left, and its Python callback cannot be used
  (`missed_heartbeat_callback` ends in `std::bad_cast`). Without the heartbeat a collective waits
  for a silent process without end. `jax_enable_recoverability` changes neither that nor the abort
  of all as soon as process 0 is gone, hence `_kept_open`.

The store has no public name: `jax.experimental.multihost_utils` offers collectives alone, which
need arrays of one shape in all processes and cannot be interrupted.
"""

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import count, text
from jaxrl.core.machine import num_cores, require_descriptors
from jaxrl.run.devices.mesh import Hosts, hosts, mark_joined

AUTO = "auto"
JOIN_SECONDS = 60.0
THREE = ("coordinator", "num_processes", "process_id")
BEAT_SECONDS = 3.0  # between two signs of life
SILENCE_SECONDS = 25.0  # after which a process is lost
LAST_WORDS_SECONDS = 10.0  # for what is being written when another process is lost
LOST = 3  # the exit status of those that are left
FOREVER = 10**6  # seconds
FEWEST_DESCRIPTORS = 24  # for JAX's connections and the files of a run; and one for each process


class Channel:
    """Messages between the processes through JAX's key-value store, and a watch over the processes.

    All processes call `allgather` and `broadcast` in the same order.

    Args:
        client: of JAX's coordination service.
    """

    def __init__(self, client: Any, index: int, number: int):
        self.client, self.index, self.number = client, index, number
        self.names = [""] * number  # of the machines
        self.busy = False  # whether the others wait for this process, or it for them
        self.advice = "nothing was started"  # how to resume after a loss
        # What a process that is left still has to write.
        self.last_words: Callable[[], None] = lambda: None
        self._step = 0
        self._unread: list[str] = []  # keys of this process that another may still have to read
        self._waiting_since: float | None = None
        self._threads: list[threading.Thread] = []
        self._leaving, self._ending = threading.Event(), threading.Lock()

    def watch(self) -> None:
        """Begins to give signs of life, and to look for those of the others."""
        self._start(self._beat)
        self._start(self._look_after)

    def allgather(self, value: Any) -> list[Any]:
        """Sends a value that JSON holds to all processes, and returns those of all, by process."""
        self._step += 1
        self._say(value)
        values = [self._hear(process) for process in range(self.number)]
        # Everybody has begun this step, so everybody has read what came before.
        for key in self._unread[:-1]:
            self.client.key_value_delete(key)
        self._unread = self._unread[-1:]
        return values

    def broadcast(self, value: Any = None) -> Any:
        """Sends the value of process 0 to all processes, and returns it."""
        self._step += 1
        if self.index == 0:
            self._say(value)
            return value
        return self._hear(0)

    def lost(self, process: int, why: str) -> None:
        """Ends all processes, this one too; returns only where it is leaving anyway."""
        if not self._leaving.is_set():
            self._end(self.tell_lost(process, why))

    def tell_lost(self, process: int, why: str) -> str:
        """Lets the others end, with the line that is returned; returns at once."""
        text = f"process {process} of {self.number} ({self.names[process]}) was lost: {why}"
        self._start(lambda: self.set("lost", text))
        return text

    def fail(self, why: str) -> None:
        """This process ends by itself, with its own error; the others end with one line."""
        self._leaving.set()
        self.tell_lost(self.index, why)

    def wait_for_the_lost(self) -> None:
        """Waits after a failed collective, until the watch finds the lost process and ends ours.

        On a busy machine the watch needs several seconds more than `SILENCE_SECONDS`: each of its
        questions to a store whose process is gone takes its whole time.
        """
        self._waiting_since = time.monotonic()
        time.sleep(2 * SILENCE_SECONDS)

    def leave(self) -> None:
        """Says good-bye; a process that goes while others wait for it is lost to them."""
        self._leaving.set()
        for thread in self._threads:
            thread.join(4.0)  # one that is inside JAX when Python ends would abort the process
        self.set(f"alive/{self.index}", "left")

    def have_all_left(self, seconds: float) -> bool:
        """Returns whether the other processes leave as well, within this time."""
        deadline = time.monotonic() + seconds
        left = set()
        while len(left) < self.number and time.monotonic() < deadline:
            for process in range(self.number):
                if self.get(f"alive/{process}", 0.5) == "left":
                    left.add(process)
            if self.get("lost", 0.1):
                return False
        return len(left) == self.number

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _say(self, value: Any) -> None:
        key = f"jaxrl/{self._step}/{self.index}"
        self._unread.append(key)
        self.client.key_value_set(key, json.dumps(value))

    def _hear(self, process: int) -> Any:
        """The value of a process in this step; waits without end, but reacts to signals."""
        self._waiting_since = time.monotonic()
        try:
            while (value := self.get(f"{self._step}/{process}", 1.0)) is None:
                pass
        finally:
            self._waiting_since = None
        return json.loads(value)

    def get(self, key: str, seconds: float) -> str | None:
        """A value of the store; None if none comes within this time."""
        try:
            return self.client.blocking_key_value_get(f"jaxrl/{key}", int(1000 * seconds))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                time.sleep(seconds)
            return None

    def set(self, key: str, value: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.client.key_value_set(f"jaxrl/{key}", value, allow_overwrite=True)

    def _beat(self) -> None:
        count = 0
        while not self._leaving.wait(BEAT_SECONDS):
            count += 1
            self.set(f"alive/{self.index}", str(count))

    def _look_after(self) -> None:
        """Process 0 looks after all others, and they after it, which holds the store."""
        watched = range(1, self.number) if self.index == 0 else [0]
        last = {process: ("", time.monotonic()) for process in watched}
        while not self._leaving.is_set():
            if text := self.get("lost", 1.0):
                return self._end(text)
            for process, (before, since) in last.items():
                value = self.get(f"alive/{process}", 1.0)
                if value == "left":
                    if self._is_waiting():
                        return self.lost(process, "it ended before the others; it says why")
                elif value not in (None, before):
                    last[process] = value, time.monotonic()
                elif time.monotonic() - since > SILENCE_SECONDS:
                    why = f"nothing was heard of it for {SILENCE_SECONDS:.0f} s"
                    return self.lost(process, why)
        return None

    def _is_waiting(self) -> bool:
        since = self._waiting_since
        return since is not None and time.monotonic() - since > 2.0

    def _end(self, text: str) -> None:
        with self._ending:  # held for good: the first to come ends the process
            if self._leaving.is_set():
                return
            os.write(2, f"\njaxrl: {text}; {self.advice}\n".encode())
            writing = threading.Thread(target=self.last_words, daemon=True)
            writing.start()
            writing.join(LAST_WORDS_SECONDS)
            if self.index == 0:  # which holds the store: the others read there why they end
                time.sleep(4.0)
            os._exit(LOST)


def join(
    coordinator: str = AUTO,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    seconds: float = JOIN_SECONDS,
) -> None:
    """Makes this process one of several that train together; call it before any computation.

    Args:
        coordinator: HOST:PORT of process 0, the same in all; "auto": as JAX finds it on SLURM,
            cloud TPUs, Open MPI and Kubernetes, the other two as well; or the processes that
            `jax.distributed.initialize` has connected already, as Ray's JaxTrainer does.
        seconds: that the processes have to come together.

    Raises:
        UsageError: values that cannot be, or processes that did not come together in time; one
            line.
    """
    text("HOST:PORT, or auto")("coordinator", coordinator)
    check(coordinator, num_processes, process_id, seconds)
    connected = jax.distributed.is_initialized()
    if hosts() is not None or (connected and coordinator != AUTO):
        raise UsageError(
            "this process has joined others already; join is called once, and without arguments "
            "after jax.distributed.initialize"
        )
    if num_processes == 1:
        return
    sockets: set[int] = set()
    if not connected:
        # JAX would take SIGTERM, which a run hears itself.
        if hasattr(jax.config, "jax_enable_preemption_service"):
            jax.config.update("jax_enable_preemption_service", False)
        _require_descriptors(num_processes or 1)
        before = _sockets()
        _connect(coordinator, num_processes, process_id, seconds)
        sockets = _sockets() - before
    from jax._src.distributed import global_state  # which has no public name

    index, number = global_state.process_id, global_state.num_processes
    if number == 1:
        return
    channel = Channel(global_state.client, index, number)
    channel.watch()
    cores = _introduced(channel)
    mark_joined(Hosts(index, number, cores, channel))
    atexit.register(_leave, channel, _kept_open(sockets) if index == 0 else None)


def check(
    coordinator: Any, num_processes: Any, process_id: Any, seconds: Any = JOIN_SECONDS
) -> None:
    """Refuses values that cannot be meant."""
    options = dict(zip(THREE, (coordinator, num_processes, process_id), strict=True))
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < FOREVER:
        raise UsageError(f"join_seconds={brief(seconds)} must be a number > 0")
    if coordinator == AUTO:
        for name in THREE[1:]:
            if options[name] is not None:
                raise UsageError(
                    f"coordinator=auto finds {name} by itself: "
                    f"leave {name}={brief(options[name])} out"
                )
        return
    missing = [name for name in THREE if options[name] is None]
    if missing:
        there = ", ".join(
            f"{name}={brief(value)}" for name, value in options.items() if value is not None
        )
        raise UsageError(
            f"{missing[0]} is missing with {there}: several processes need "
            f"{', '.join(THREE)}, or auto"
        )
    address_of(coordinator)
    for name, least in (("num_processes", 1), ("process_id", 0)):
        count(least)(name, options[name])
    if process_id >= num_processes:
        raise UsageError(
            f"process_id={process_id} must be below num_processes={num_processes}: "
            "they count from 0"
        )


def address_of(coordinator: Any) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":") if isinstance(coordinator, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(
            f"coordinator={brief(coordinator)} must be HOST:PORT, the port from 1 to 65535, or auto"
        )
    return host.strip("[]"), int(port)


def _connect(coordinator: str, number: int | None, index: int | None, seconds: float) -> None:
    """`jax.distributed.initialize` with an error in one line."""
    where = {"initialization_timeout": FOREVER, "shutdown_timeout_seconds": 20}
    if coordinator != AUTO:
        three = ("coordinator_address", "num_processes", "process_id")
        where |= zip(three, (coordinator, number, index), strict=True)
    failed: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(**where)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=initialize, daemon=True, name="jaxrl-join")
    thread.start()
    thread.join(seconds)
    if failed and coordinator == AUTO:
        raise UsageError(
            "coordinator=auto: JAX finds no cluster here (SLURM, cloud TPU, Open MPI, Kubernetes): "
            f"{one_line(failed[0])}; give coordinator=HOST:PORT, num_processes and process_id"
        )
    if failed:
        raise UsageError(f"coordinator={coordinator}: {one_line(failed[0])}")
    if thread.is_alive():
        _forget_connection()
        raise UsageError(_why_alone(coordinator, number, index, seconds))


def _require_descriptors(number: int) -> None:
    """Refuses few open files before JAX connects, which ends the process where it has too few."""
    needed = FEWEST_DESCRIPTORS + number
    try:
        require_descriptors(needed)
    except OSError as error:
        raise UsageError(
            f"a process among several needs {needed} more open files: {one_line(error)}; allow "
            "more (ulimit -n)"
        ) from error


def _forget_connection() -> None:
    """Leaves JAX's connection as it is until the process has ended.

    JAX would wait for the other processes, and abort where its service goes before its client.
    """
    from jax._src.distributed import global_state

    connection = global_state.client, global_state.service
    global_state.client = global_state.service = None
    # A thread's variables outlive Python itself.
    wait = lambda *connection: threading.Event().wait()
    threading.Thread(target=wait, args=connection, daemon=True).start()


def _why_alone(coordinator: str, number: int | None, index: int | None, seconds: float) -> str:
    """The known reason why processes did not come together."""
    if coordinator == AUTO:
        return f"coordinator=auto: the processes did not come together within {seconds:g} s"
    if index:
        try:
            socket.create_connection(address_of(coordinator), timeout=1.0).close()
        except OSError as error:
            why = error.strerror or str(error)
            return f"coordinator={coordinator} does not answer within {seconds:g} s: {why}"
    return (
        f"coordinator={coordinator}: the {number} processes did not come together "
        f"within {seconds:g} s; start each with the same coordinator and num_processes and another "
        "process_id"
    )


def _introduced(channel: Channel) -> int:
    """Checks that all count as many processes; returns the cores that each has, at least.

    Raises:
        UsageError: in all processes.
    """
    here = {"number": channel.number, "name": socket.gethostname(), "cores": num_cores()}
    channel.busy = True
    channel.set(f"hello/{channel.index}", json.dumps(here))
    everyone = []
    for process in range(channel.number):
        while (said := channel.get(f"hello/{process}", 1.0)) is None:
            pass
        everyone.append(json.loads(said))
        number, expected = everyone[-1]["number"], everyone[0]["number"]
        if number != expected:
            channel.leave()
            raise UsageError(
                f"process {process} has num_processes={number}, process 0 num_processes={expected}"
            )
    channel.busy = False
    channel.names = names = [facts["name"] for facts in everyone]
    return min(max(1, facts["cores"] // names.count(facts["name"])) for facts in everyone)


def _leave(channel: Channel, keeper: subprocess.Popen | None) -> None:
    """At the end of the process: all leave JAX together, unless this one ends amid something."""
    orderly = not channel.busy
    channel.leave()
    if orderly and channel.have_all_left(20.0):
        jax.distributed.shutdown()
    else:
        _forget_connection()
        if channel.index == 0:  # which holds the store: the others read there that it left
            time.sleep(2 * BEAT_SECONDS)
    if keeper is not None:
        keeper.communicate(b"over\n")


def _sockets() -> set[int]:
    """The open sockets, on systems that list them as Linux does."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    found.add(int(name))
    return found


def _kept_open(sockets: set[int]) -> subprocess.Popen | None:
    """A small process that holds JAX's sockets open for a minute after process 0 was killed.

    JAX aborts the other processes as soon as these close. So they miss its signs of life instead,
    and end in order.
    """
    if not sockets:
        return None
    program = "import sys, time; sys.stdin.readline() or time.sleep(60)"
    closed = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with contextlib.suppress(OSError):  # no room for a process: they end by JAX's abort then
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, pass_fds=sockets, **closed
        )
    return None
