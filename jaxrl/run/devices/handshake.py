"""The first message of a process that joins a run, read with bounds: anybody may connect to the coordinator's port."""

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxrl.run.devices.transport import HEADER, Connection, Message, message_of

GREETING_BYTES = 4096  # of a whole greeting; true ones have about a hundred
GREETING_SECONDS = 5.0  # from connecting to the end of the greeting
MOST_PENDING = 128  # connections that have not said who they are; the oldest one goes for one more
ANSWER_SECONDS = 5.0  # that a connection may take to accept what it is told


class Greeting(NamedTuple):
    """What a process says of itself."""

    index: int
    number: int  # of processes that it was started with
    name: str  # of its machine
    cores: int

    @classmethod
    def of(cls, message: Message) -> "Greeting":
        """Raises ValueError, or AttributeError where it is not even a message."""
        values = [message.get(name) for name in cls._fields]
        kinds = (int, int, str, int)
        if any(type(value) is not kind for value, kind in zip(values, kinds, strict=True)):
            raise ValueError("no greeting of ours")
        return cls(*values)


@dataclass
class Pending:
    """A connection that has not said who it is."""

    connection: socket.socket
    expires: float
    data: bytearray = field(default_factory=bytearray)

    def read(self) -> Greeting | None:
        """The greeting once it is there.

        Raises:
            OSError, ValueError: the connection is closed, or whoever connected is no process of
            ours.
        """
        part = self.connection.recv(GREETING_BYTES)
        if not part:
            raise ConnectionResetError("closed")
        self.data += part
        if len(self.data) < HEADER.size:
            return None
        num_words, num_bytes = HEADER.unpack(self.data[: HEADER.size])
        end = HEADER.size + num_words
        if num_bytes or end > GREETING_BYTES or len(self.data) > end:
            raise ValueError("no greeting of ours")
        return Greeting.of(message_of(self.data[HEADER.size :])) if len(self.data) == end else None


class Arrivals:
    """Processes that connect to process 0's port, one after the other; strangers are let go of.

    Args:
        server: the listening socket; it stays the caller's.
    """

    def __init__(self, server: socket.socket):
        self.server, self.pending = server, dict[socket.socket, Pending]()
        self.selector = selectors.DefaultSelector()
        server.setblocking(False)
        self.selector.register(server, selectors.EVENT_READ)

    def __enter__(self) -> "Arrivals":
        return self

    def __exit__(self, *_: Any) -> None:
        for connection in list(self.pending):
            self._drop(connection)
        self.selector.close()

    def next(self, deadline: float) -> tuple[Connection, Greeting]:
        """The next process that says who it is.

        Raises:
            TimeoutError: none did before `deadline`, of `time.monotonic()`.
        """
        while (now := time.monotonic()) < deadline:
            for connection in [
                each.connection for each in self.pending.values() if each.expires <= now
            ]:
                self._drop(connection)
            until = min([deadline, *(each.expires for each in self.pending.values())])
            for key, _ in self.selector.select(max(0.0, until - now)):
                if key.fileobj is self.server:
                    self._accept()
                elif (greeting := self._read(key.fileobj)) is not None:
                    return self._line(key.fileobj), greeting
        raise TimeoutError

    def _accept(self) -> None:
        try:
            connection = self.server.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # it left again, or there are too many open files
            time.sleep(0.01)
            return
        if len(self.pending) >= MOST_PENDING:
            self._drop(next(iter(self.pending)))
        connection.setblocking(False)
        self.pending[connection] = Pending(connection, time.monotonic() + GREETING_SECONDS)
        self.selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> Greeting | None:
        if connection not in self.pending:  # dropped for another one a moment ago
            return None
        try:
            return self.pending[connection].read()
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            self._drop(connection)
            return None

    def _line(self, connection: socket.socket) -> Connection:
        self.selector.unregister(connection)
        del self.pending[connection]
        connection.settimeout(ANSWER_SECONDS)
        return Connection(connection)

    def _drop(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        del self.pending[connection]
        with contextlib.suppress(OSError):
            connection.close()
