"""Messages between process 0 and each of the other processes of a run; and all end when one of them is lost.

JAX's own coordination ends a process from within C++, with a stack trace, after minutes of silence;
a collective waits as long. So every process is told of the loss here, in one line, before those
notice.
"""

import json
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

BEAT_SECONDS = 5.0  # between two signs of life
SILENCE_SECONDS = (
    25.0  # after which a process is lost; one that was killed closes its connection at once
)
LOST = 3  # the exit status of those that are left
LAST_WORDS_SECONDS = 10.0  # for what is being written when another process is lost
HEADER = struct.Struct(">IQ")  # the lengths of a message and of the bytes that go with it
LONGEST_MESSAGE = 2**26
LONGEST_ANSWER = 2**22  # of process 0 to one that joins: about a hundred bytes for each process

Message = dict[str, Any]


class Connection:
    """A connection that messages go over whole, in JSON, with raw bytes behind them."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection, self._sending = connection, threading.Lock()

    def send(self, message: Message, payload: bytes = b"") -> None:
        words = json.dumps(message).encode()
        with self._sending:
            self.connection.sendall(HEADER.pack(len(words), len(payload)) + words)
            self.connection.sendall(payload)

    def receive(self, seconds: float) -> tuple[Message, bytes]:
        """The next message; `seconds` is how long nothing at all may come.

        Raises:
            TimeoutError, OSError: it did not come, or the connection closed.
            ValueError: whoever sends speaks another language.
        """
        self.connection.settimeout(seconds)
        num_words, num_bytes = HEADER.unpack(self._read(HEADER.size))
        if num_words > LONGEST_MESSAGE:
            raise ValueError("no message of ours")
        message = message_of(self._read(num_words))
        return message, bytes(self._read(num_bytes))

    def receive_answer(self, seconds: float) -> Message:
        """The first message from process 0, at most `LONGEST_ANSWER` bytes and `seconds` in all; raises as `receive`.

        Whether process 0 is at the other end is only known once it has answered.
        """
        deadline = time.monotonic() + seconds
        num_words, num_bytes = HEADER.unpack(self._read(HEADER.size, deadline))
        if num_words > LONGEST_ANSWER or num_bytes:
            raise ValueError("no message of ours")
        return message_of(self._read(num_words, deadline))

    def _read(self, size: int, deadline: float | None = None) -> bytearray:
        data = bytearray()
        while len(data) < size:
            if deadline is not None:
                self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = self.connection.recv(min(size - len(data), 2**20))
            if not part:
                raise ConnectionResetError("closed")
            data += part
        return data


def message_of(words: bytes | bytearray) -> Message:
    """Raises ValueError where it is none."""
    try:
        message = json.loads(bytes(words))
    except RecursionError:
        message = None
    if not isinstance(message, dict):
        raise ValueError("no message of ours")
    return message


class Channel:
    """Process 0 has a line to each of the others, they have one to it.

    Args:
        index: of this process.
        lines: by the process at the other end.
        names: of the machines, by process.
    """

    def __init__(self, index: int, lines: Mapping[int, Connection], names: list[str]):
        self.index, self.lines, self.names = index, dict(lines), names
        self.busy = False  # whether the others wait for this process, or it for them
        self.advice = ""  # how to resume after a loss
        self.on_asked: Callable[[str], None] = lambda text: (
            None
        )  # another process was asked to stop
        self.last_words: Callable[[], None] = lambda: (
            None
        )  # what a process that is left still has to write
        self._inbox: dict[int, queue.SimpleQueue] = {
            peer: queue.SimpleQueue() for peer in self.lines
        }
        self._leaving, self._ending = False, threading.Lock()
        for peer in self.lines:
            threading.Thread(
                target=self._listen, args=(peer,), daemon=True, name=f"jaxrl-from-{peer}"
            ).start()
        threading.Thread(target=self._beat, daemon=True, name="jaxrl-alive").start()

    def tell(self, message: Message, payload: bytes = b"") -> None:
        """To everybody at the other end of a line."""
        for peer, line in self.lines.items():
            try:
                line.send(message, payload)
            except OSError:
                self.lost(peer, "its connection closed")

    def hear(self, peer: int = 0) -> tuple[Message, bytes]:
        """The next message of a process, however long it takes; signals are heard meanwhile."""
        while True:
            try:
                return self._inbox[peer].get(timeout=1.0)
            except queue.Empty:
                continue

    def lost(self, peer: int, why: str) -> None:
        """Ends this process and, from process 0, all others; returns only where this process is leaving anyway."""
        if self._leaving:
            return
        text = f"process {peer} of {len(self.names)} ({self.names[peer]}) was lost: {why}"
        for other, line in self.lines.items():
            if other != peer:
                try:
                    line.send({"lost": text})
                except OSError:
                    continue
        self._end(text)

    def wait_for_the_lost(self) -> None:
        """After a collective failed: whoever broke it is found within this time, and then this process ends."""
        time.sleep(SILENCE_SECONDS + BEAT_SECONDS)

    def leave(self) -> None:
        """Says good-bye; a process that goes while others wait for it is lost to them."""
        self._leaving = True
        for line in self.lines.values():
            try:
                line.send({"bye": True})
                line.connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue

    def _listen(self, peer: int) -> None:
        line = self.lines[peer]
        try:
            while True:
                message, payload = line.receive(SILENCE_SECONDS)
                if "lost" in message:
                    self._end(message["lost"])
                elif "failed" in message:
                    self.lost(peer, message["failed"])
                elif "asked" in message:
                    self.on_asked(f"process {peer}: {message['asked']}")
                elif "bye" in message:
                    return self._left(peer)
                elif "alive" not in message:
                    self._inbox[peer].put((message, payload))
        except TimeoutError:
            self.lost(peer, f"nothing was heard of it for {SILENCE_SECONDS:.0f} s")
        except (OSError, ValueError):
            self.lost(peer, "its connection closed")
        finally:
            line.connection.close()

    def _left(self, peer: int) -> None:
        """It has ended, which is its right unless somebody waits for more than it has said, now or later."""
        waiting = 0
        while not self._leaving:
            waiting = waiting + 1 if self.busy and self._inbox[peer].empty() else 0
            if waiting > 10:
                self.lost(peer, "it ended before the others; it says why")
            time.sleep(0.1)

    def _beat(self) -> None:
        while not self._leaving:
            for line in self.lines.values():
                try:
                    line.send({"alive": True})
                except OSError:  # its listener sees that as well, and says so
                    continue
            time.sleep(BEAT_SECONDS)

    def _end(self, text: str) -> None:
        with self._ending:  # held for good: the first to come ends the process
            if self._leaving:
                return
            os.write(2, f"\njaxrl: {text}; {self.advice}\n".encode())
            writing = threading.Thread(target=self.last_words, daemon=True)
            writing.start()
            writing.join(LAST_WORDS_SECONDS)
            if self.index == 0:
                time.sleep(0.5)  # the others have been told: let them end by themselves, not by JAX
            os._exit(LOST)
