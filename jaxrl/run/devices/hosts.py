"""Several processes, mostly on several machines, as one JAX: how they find each other, and what each brings along.

They meet at the coordinator's address over connections of our own, before JAX is told of it: there
every mistake is a line of text, while JAX ends a process that waited in vain from within C++.
"""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax

from jaxrl.core.errors import UsageError
from jaxrl.run.devices.handshake import Arrivals, Greeting
from jaxrl.run.devices.transport import Channel, Connection

AUTO = "auto"
JOIN_SECONDS = 60.0
THREE = ("coordinator", "num_processes", "process_id")


@dataclass(frozen=True)
class Hosts:
    """The processes of this run, of which this is one."""

    index: int  # of this process; 0 decides, logs and saves
    number: int
    cores: int  # that each of them may use, at least
    channel: Channel


_joined: list[Hosts] = []  # one entry at most


def hosts() -> Hosts | None:
    """The processes that `join` brought together; None where this one is alone."""
    return _joined[0] if _joined else None


def num_processes() -> int:
    return _joined[0].number if _joined else 1


def join(
    coordinator: str = AUTO,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    seconds: float = JOIN_SECONDS,
) -> None:
    """Makes this process one of several that train together; to be called in each, before anything is computed.

    Args:
        coordinator: HOST:PORT where process 0 waits for the others, the same in all; "auto": as JAX
            finds it on SLURM, cloud TPUs, Open MPI and Kubernetes, the other two as well.
        seconds: that the processes have to come together.

    Raises:
        UsageError: values that cannot be, or processes that did not come together in time; one
        line.
    """
    check(coordinator, num_processes, process_id, seconds)
    if _joined or jax.distributed.is_initialized():
        raise UsageError(
            "this process has joined others already; join (or jax.distributed.initialize) is called once"
        )
    local_devices = None
    if coordinator == AUTO:
        coordinator, num_processes, process_id, local_devices = detected(seconds)
        check(coordinator, num_processes, process_id, seconds)
    if num_processes == 1:
        return
    channel, port, cores = meet(coordinator, num_processes, process_id, seconds)
    if hasattr(
        jax.config, "jax_enable_preemption_service"
    ):  # it takes SIGTERM, which a run hears itself
        jax.config.update("jax_enable_preemption_service", False)
    before = _sockets()
    try:
        jax.distributed.initialize(
            f"{coordinator.rpartition(':')[0]}:{port}",
            num_processes,
            process_id,
            local_device_ids=local_devices,
            initialization_timeout=int(max(10, seconds)),
            shutdown_timeout_seconds=20,
        )
    except RuntimeError as error:
        channel.leave()
        raise UsageError(
            f"coordinator={coordinator}: {' '.join(str(error).split()):.200}"
        ) from None
    _joined.append(Hosts(process_id, num_processes, cores, channel))
    atexit.register(_leave, channel, _kept_open(_sockets() - before) if process_id == 0 else None)


def check(
    coordinator: Any, num_processes: Any, process_id: Any, seconds: Any = JOIN_SECONDS
) -> None:
    """Refuses values that cannot be meant."""
    given = dict(zip(THREE, (coordinator, num_processes, process_id), strict=True))
    if not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
        raise UsageError(f"join_seconds={seconds!r} must be a number > 0")
    if coordinator == AUTO:
        for name in THREE[1:]:
            if given[name] is not None:
                raise UsageError(
                    f"coordinator=auto finds {name} by itself: leave {name}={given[name]!r} out"
                )
        return
    missing = [name for name in THREE if given[name] is None]
    if missing:
        there = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        raise UsageError(
            f"{missing[0]} is missing with {there}: several processes need {', '.join(THREE)}, or auto"
        )
    address_of(coordinator)
    for name, least in (("num_processes", 1), ("process_id", 0)):
        if isinstance(given[name], bool) or not isinstance(given[name], int) or given[name] < least:
            raise UsageError(f"{name}={given[name]!r} must be an integer of at least {least}")
    if process_id >= num_processes:
        raise UsageError(
            f"process_id={process_id} must be below num_processes={num_processes}: they count from 0"
        )


def address_of(coordinator: Any) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":") if isinstance(coordinator, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(
            f"coordinator={coordinator!r} must be HOST:PORT, the port from 1 to 65535, or auto"
        )
    return host.strip("[]"), int(port)


def detected(seconds: float) -> tuple[str, int, int, Any]:
    """(coordinator, num_processes, process_id, local devices) as JAX finds them where it knows the cluster."""
    try:
        from jax._src.clusters import (
            ClusterEnv,  # which `jax.distributed.initialize` asks; there is no public name
        )

        found = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(seconds)
        )
    except Exception as error:  # a half-set environment, or a metadata server that does not answer
        raise UsageError(
            f"coordinator=auto: the cluster cannot be read: {type(error).__name__}: {error}"
        ) from None
    if None in found[:3]:
        raise UsageError(
            "coordinator=auto: JAX finds no cluster here (SLURM, cloud TPU, Open MPI, Kubernetes); "
            "give coordinator=HOST:PORT, num_processes and process_id"
        )
    return found


def meet(coordinator: str, number: int, index: int, seconds: float) -> tuple[Channel, int, int]:
    """(channel, a port for JAX's own coordination, cores of each process) once all processes are there."""
    mine = {"index": index, "number": number, "name": socket.gethostname(), "cores": num_cores()}
    deadline = time.monotonic() + seconds
    if index == 0:
        lines, everyone, port = _wait_for_others(coordinator, mine, deadline, seconds)
    else:
        lines, everyone, port = _go_to(coordinator, mine, deadline, seconds)
    names = [each["name"] for each in everyone]
    cores = min(max(1, each["cores"] // names.count(each["name"])) for each in everyone)
    return Channel(index, lines, names), port, cores


def _wait_for_others(
    coordinator: str, mine: dict, deadline: float, seconds: float
) -> tuple[dict, list, int]:
    (_, port), number = address_of(coordinator), mine["number"]
    there, lines, server = {0: mine}, {}, _listening(coordinator, port)
    with server, Arrivals(server) as arrivals:
        while len(there) < number:
            try:
                line, other = arrivals.next(deadline)
            except TimeoutError:
                missing = ", ".join(str(i) for i in range(number) if i not in there)
                text = f"coordinator={coordinator}: after {seconds:g} s process {missing} of {number} is missing"
                raise _refused(text, lines) from None
            index = other.index
            if other.number != number:
                text = f"process {index} has num_processes={other.number}, process 0 num_processes={number}"
                raise _refused(text, {**lines, "it": line})
            if not 0 <= index < number:  # `check` lets no process of ours come so far
                _refused(f"process_id={index} must be from 0 to {number - 1}", {"it": line})
                continue
            if index in there:
                text = f"process_id={index} was given to two processes, on {there[index]['name']} and {other.name}"
                raise _refused(text, {**lines, "it": line})
            there[index], lines[index] = other._asdict(), line
    everyone = [there[i] for i in range(number)]
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    for line in lines.values():
        line.send({"everyone": everyone, "port": port})
    return lines, everyone, port


def _listening(coordinator: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024
        )
    except OSError as error:
        raise UsageError(
            f"coordinator={coordinator}: process 0 cannot open the port: {error.strerror}"
        ) from None


def _refused(text: str, lines: dict) -> UsageError:
    """The error, of which everybody who is there is told."""
    for line in lines.values():
        with line.connection, contextlib.suppress(OSError):
            line.send({"refused": text})
    return UsageError(text)


def _go_to(coordinator: str, mine: dict, deadline: float, seconds: float) -> tuple[dict, list, int]:
    host, port = address_of(coordinator)
    while True:  # process 0 may start last
        try:
            line = Connection(
                socket.create_connection(
                    (host, port), timeout=max(0.1, deadline - time.monotonic())
                )
            )
            break
        except OSError as error:
            if time.monotonic() >= deadline:
                why = error.strerror or str(error)
                text = f"coordinator={coordinator} does not answer within {seconds:g} s: {why}"
                raise UsageError(text) from None
            time.sleep(0.2)
    try:
        line.send(mine)
        answer = line.receive_answer(
            max(1.0, deadline - time.monotonic()) + 10.0
        )  # process 0 knows the deadline, too
        if "refused" not in answer:
            everyone = [Greeting.of(each)._asdict() for each in answer["everyone"]]
            return {0: line}, everyone, int(answer["port"])
        text = f"{' '.join(str(answer['refused']).split()):.300}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"coordinator={coordinator} gives no answer of ours: {error}; is another program at that port?"
    line.connection.close()
    raise UsageError(text)


def _leave(channel: Channel, keeper: subprocess.Popen | None) -> None:
    """At the end of the process: all leave JAX together, unless this one ends amid something."""
    orderly = not channel.busy
    channel.leave()
    if orderly:
        jax.distributed.shutdown()
    if keeper is not None:
        keeper.communicate(b"over\n")


def _sockets() -> set[int]:
    """Those that are open, where the system tells as Linux does."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    found.add(int(name))
    return found


def _kept_open(sockets: set[int]) -> subprocess.Popen | None:
    """A small process that holds JAX's sockets open for seconds after process 0 was killed.

    JAX aborts the other processes as soon as these close; like this they hear of it from the
    channel, and end in order.
    """
    if not sockets:
        return None
    program = "import sys, time; sys.stdin.readline() or time.sleep(10)"
    closed = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    return subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, pass_fds=sockets, **closed
    )


def num_cores() -> int:
    """Of the CPU, that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
