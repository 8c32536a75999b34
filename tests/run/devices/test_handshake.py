"""What strangers may send to the coordinator's port: little, briefly, and without keeping anybody from joining."""

import json
import socket
import threading
import time

import pytest

from jaxrl.core.errors import UsageError
from jaxrl.run.devices import handshake, hosts
from jaxrl.run.devices.handshake import Arrivals, Greeting
from jaxrl.run.devices.transport import HEADER

TRUE = {"index": 1, "number": 2, "name": "here", "cores": 4}


def greeting(message=TRUE, **changes):
    words = json.dumps({**message, **changes}).encode() if isinstance(message, dict) else message
    return HEADER.pack(len(words), 0) + words


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connect(server):
    connection = socket.create_connection(server.getsockname())
    connection.settimeout(10.0)
    return connection


def is_closed(connection):
    """Whether the other end closed it; waits for that."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


STRANGERS = [
    HEADER.pack(2**26, 0) + b" " * 10_000,  # claims a long message, and begins to send it
    HEADER.pack(2**32 - 1, 2**64 - 1),
    HEADER.pack(100, 2**40) + b" " * 100,  # claims bytes behind it
    HEADER.pack(5000, 0) + b" " * 5000,
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    greeting(b"[" * 4000),
    greeting(b"7"),
    greeting(b"\xff\xfe"),
    greeting(index="1"),
    greeting(index=1.5),
    greeting(index=True),
    greeting(cores=None),
    greeting(name=["here"]),
    greeting({"index": 1}),
    greeting() + b"more",
]


@pytest.mark.parametrize("sent", STRANGERS, ids=range(len(STRANGERS)))
def test_a_stranger_is_let_go_of_and_a_process_is_met(server, sent):
    with Arrivals(server) as arrivals, connect(server) as stranger, connect(server) as process:
        stranger.sendall(sent)
        time.sleep(0.05)
        process.sendall(greeting())
        line, met = arrivals.next(time.monotonic() + 10.0)
        assert met == Greeting(**TRUE)
        assert is_closed(stranger)
        line.connection.close()


def test_whoever_says_nothing_or_only_a_byte_now_and_then_is_let_go_of(server, monkeypatch):
    monkeypatch.setattr(handshake, "GREETING_SECONDS", 0.3)
    with Arrivals(server) as arrivals, connect(server) as silent, connect(server) as slow:
        stop = threading.Event()

        def drip():
            for byte in greeting():
                if stop.wait(0.02):
                    return
                try:
                    slow.sendall(bytes([byte]))
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(TimeoutError):
            arrivals.next(time.monotonic() + 1.0)
        stop.set()
        thread.join()
        assert is_closed(silent)
        assert is_closed(slow)
        assert arrivals.pending == {}


def test_a_greeting_in_pieces_is_read(server):
    with Arrivals(server) as arrivals, connect(server) as process:
        whole = greeting()
        thread = threading.Thread(
            target=lambda: [
                (process.sendall(whole[i : i + 7]), time.sleep(0.005))
                for i in range(0, len(whole), 7)
            ]
        )
        thread.start()
        line, met = arrivals.next(time.monotonic() + 10.0)
        thread.join()
        assert met == Greeting(**TRUE)
        line.connection.close()


def test_more_connections_than_may_wait_put_the_oldest_out(server, monkeypatch):
    monkeypatch.setattr(handshake, "MOST_PENDING", 4)
    with Arrivals(server) as arrivals:
        silent = [connect(server) for _ in range(10)]
        with pytest.raises(TimeoutError):
            arrivals.next(time.monotonic() + 0.5)
        assert len(arrivals.pending) == 4
        assert all(map(is_closed, silent[:6]))
        with connect(server) as process:
            process.sendall(greeting())
            line, _ = arrivals.next(time.monotonic() + 10.0)
            line.connection.close()
        for connection in silent:
            connection.close()


@pytest.mark.parametrize("index", [7, -1, 2])
def test_an_index_out_of_range_is_refused_and_the_others_meet(index):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    met = {}

    def come(i):
        met[i] = hosts.meet(f"127.0.0.1:{port}", 2, i, 20.0)

    threads = [threading.Thread(target=come, args=(0,))]
    threads[0].start()
    stranger = None
    while stranger is None:
        try:
            stranger = socket.create_connection(("127.0.0.1", port), timeout=10.0)
        except OSError:
            time.sleep(0.02)
    with stranger:
        stranger.sendall(greeting(index=index))
        answer = stranger.recv(4096)
        assert json.loads(answer[HEADER.size :]) == {
            "refused": f"process_id={index} must be from 0 to 1"
        }
        assert is_closed(stranger)
    threads.append(threading.Thread(target=come, args=(1,)))
    threads[1].start()
    for thread in threads:
        thread.join()
    assert met[0][1:] == met[1][1:]
    for channel, _, _ in met.values():
        channel.leave()


@pytest.mark.parametrize(
    "answer",
    [
        HEADER.pack(2**26, 0) + b" " * 10_000,
        HEADER.pack(2, 2**40) + b"{}",
        greeting(b"[" * 4000),
        greeting(b"{}"),
    ],
    ids=["long", "bytes", "deep", "empty"],
)
def test_what_a_false_coordinator_answers_is_bounded_and_refused_in_one_line(server, answer):
    def serve():
        connection = server.accept()[0]
        with connection:
            connection.recv(4096)
            connection.sendall(answer)
            is_closed(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(UsageError, match="gives no answer of ours") as refused:
        hosts.meet(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, 1.0)
    thread.join()
    assert "\n" not in str(refused.value)
