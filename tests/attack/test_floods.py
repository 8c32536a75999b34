"""Floods of lines: each kind of trouble with connections says itself once, and is then counted."""

import asyncio
import contextlib
import json
import logging
import socket
import struct
from types import SimpleNamespace

import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from jaxrl.serving import godot
from jaxrl.serving import server as server_module
from jaxrl.serving.godot import SceneFailed, Scenes
from jaxrl.serving.server import PolicyServer
from tests.serving.served import Frames, serving, small_policy, wait_until

NO_DESCRIPTOR = OSError(24, "Too many open files")


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.process
def test_a_server_without_descriptors_says_so_once_and_serves_again(caplog, monkeypatch):
    accept, is_full = socket.socket.accept, []

    def limited(listening):
        if is_full:
            raise NO_DESCRIPTOR
        return accept(listening)

    with serving() as server:
        monkeypatch.setattr(socket.socket, "accept", limited)
        is_full.append(True)
        waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        wait_until(lambda: sum(server.troubles.counts.values()) > 50)
        assert lines(caplog) == ["socket.accept() out of system resource: Too many open files"]
        is_full.clear()
        for connection in waiting:
            connection.close()
        with Frames(server) as client:
            client.begin()
        assert "socket.accept() out of system resource: " in server.summary()


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_nothing_is_written_to_a_client_that_was_cut_off(is_cut_off, monkeypatch):
    """Asyncio says a line for each such write from the fifth on."""
    written = []
    monkeypatch.setattr(server_module, "broadcast", lambda to, frame: written.append(frame))
    transport = SimpleNamespace(is_closing=lambda: is_cut_off, get_write_buffer_size=lambda: 0)
    server = PolicyServer({"mover": small_policy()})
    server._send(SimpleNamespace(transport=transport), b"{}", True)
    assert written == ([] if is_cut_off else ["{}"])


class Unread(socket.socket):
    """A client of bytes that never reads, with the smallest window that the system gives."""

    def __init__(self, server):
        super().__init__()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self.settimeout(20)
        self.connect(("127.0.0.1", server.port))
        self.sendall(UPGRADE)
        answer = b""
        while b"\r\n\r\n" not in answer:  # the server is a WebSocket's now
            answer += self.recv(1)
        self.sendall(frame_of(type="hello", protocol=1, token=""))
        self.setblocking(False)

    def flood(self, frames):
        """Sends as much as the system takes, and more while the server reads."""
        with contextlib.suppress(OSError):
            for _ in range(100):
                self.send(frames)

    def reset(self):
        """Ends the connection without a goodbye, what was sent lost."""
        self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame_of(**message):
    """A message as a client's frame of text, masked with zeros."""
    text = json.dumps(message).encode()
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text


@pytest.mark.process
def test_clients_that_never_read_half_close_or_reset_in_mid_frame_make_no_lines(
    caplog, monkeypatch
):
    """Asyncio said 50,369 for 60 of them."""
    monkeypatch.setattr(server_module, "MAX_UNREAD_BYTES", 2**14)
    begin = frame_of(type="start_episode", id=0, episode="e")
    turn = begin + frame_of(type="end_episode", id=0, episode="e")
    act = begin + frame_of(type="get_action", id=1, episode="e", obs=[0.0, 0.0, 0.0])
    floods = [frame_of(type="get_weights", id=1) * 20, turn * 20, act * 20]
    with serving() as server:
        clients = [Unread(server) for _ in range(12)]
        for number, client in enumerate(clients):
            client.flood(floods[number % len(floods)])
        for client in clients[:4]:
            client.reset()
        for client in clients[4:8]:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
        for cut in (act[:20], act + b"\x81", act + b"\xff\xff\xff", b"\x81\xff" + b"\xff" * 8):
            broken, half = Unread(server), Unread(server)
            broken.flood(cut)
            broken.reset()
            half.flood(cut)
            half.shutdown(socket.SHUT_RD)
            clients.append(half)
        for client in clients:
            client.close()
        wait_until(lambda: not server.sessions)
        with Frames(server) as client:
            client.begin()
    assert lines(caplog) == []


@pytest.mark.process
def test_a_port_of_scenes_without_descriptors_says_so_once_and_accepts_again(caplog, monkeypatch):
    monkeypatch.setattr(godot, "RETRY_SECONDS", 0.001)
    scenes, refusals = Scenes(0), [NO_DESCRIPTOR] * 20

    async def first():
        loop = asyncio.get_running_loop()
        sock_accept = loop.sock_accept

        async def limited(listening):
            if refusals:
                raise refusals.pop()
            return await sock_accept(listening)

        monkeypatch.setattr(loop, "sock_accept", limited)
        with socket.create_connection(("127.0.0.1", scenes.port)):
            scene = await scenes.accept()
            scene.close()

    asyncio.run(first())
    scenes.close()
    assert lines(caplog) == ["a scene could not connect: Too many open files"]
    assert scenes.troubles.summary == "a scene could not connect: 20 times"


def test_scenes_that_come_and_go_are_said_once_for_each_reason(caplog):
    scenes, stranger, scene = Scenes(0), SimpleNamespace(form=None), SimpleNamespace(form=object())
    for number in range(100):
        scenes.say_ended(stranger, SceneFailed("it has gone"))
        scenes.say_ended(scene, SceneFailed("it has gone"))
        scenes.say_ended(scene, SceneFailed(f"its step cannot be read: {number}"))
    scenes.close()
    assert lines(caplog) == [
        *["a scene has ended: it has gone"] * 2,  # strangers do not hide that a scene has gone
        "a scene has ended: its step cannot be read: 0",
    ]
