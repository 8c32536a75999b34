"""Malformed messages by the thousand: the policy server stays up, and keeps nothing of them."""

import contextlib
import json
import random
import socket

import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

import msgspec
from websockets.exceptions import ConnectionClosed

from jaxrl.core.machine import process_memory
from jaxrl.serving.batched_inference import BatchedPolicy
from jaxrl.serving.session import MAX_MISTAKES, ServedPolicies, Session
from jaxrl.serving.settings import ServerSettings
from tests.serving.served import Frames, serving, small_policy, wait_until

pytestmark = pytest.mark.process  # a server and its clients wait for each other

GOOD = [
    {"type": "hello", "protocol": 1, "token": ""},
    {"type": "start_episode", "id": 1, "episode": "e", "explore": True},
    {"type": "get_action", "id": 2, "episode": "e", "obs": [0.1, 0.2, 0.3], "reward": 1.0},
    {"type": "log_action", "episode": "e", "obs": [0, 0, 0], "action": 1, "log_prob": -1.0},
    {"type": "log_returns", "episode": "e", "reward": {"default_agent": 1}},
    {"type": "end_episode", "id": 3, "episode": "e", "obs": [0, 0, 0], "truncated": True},
    {"type": "get_weights", "id": 4, "policy": "mover", "known": 0},
]
ODD = [
    *(None, True, -1, 0, 1, 10**20, -(2**63), 1e308, float("nan"), float("inf"), "", "e", "\0"),
    *("x" * 300, [], {}, [[]], [None], [0.1, 0.2], [[0.1, 0.2, 0.3]], {"": 1}, {"e": {"e": []}}),
    *(["1", "2", "3"], [True, False, True], [float("nan")] * 3, [1e39] * 3, "0.1", [[[[]]]]),
]


def mutated(rng):
    """A frame near a good one, or far from any."""
    message = dict(rng.choice(GOOD))
    for _ in range(rng.randrange(3)):
        field = rng.choice([*message, "obs", "mask", "reward", "done", "nonsense"])
        if rng.random() < 0.3:
            message.pop(field, None)
        else:
            message[field] = rng.choice(ODD)
    if rng.random() < 0.5:
        frame = json.dumps(message)
        return _broken(frame, rng, rng.choice) if rng.random() < 0.4 else frame
    try:
        frame = msgspec.msgpack.encode(message)
    except OverflowError:  # msgpack has no such number
        frame = b"\xc1"
    return _broken(frame, rng, lambda part: part[:1]) if rng.random() < 0.4 else frame


def _broken(frame, rng, pick):
    """A frame that was cut, doubled or filled with something else."""
    place = rng.randrange(len(frame) + 1)
    match rng.randrange(4):
        case 0:
            return frame[:place]
        case 1:
            return frame[:place] + frame
        case 2:
            noise = rng.randbytes(rng.randrange(1, 40))
            noise = noise.decode("latin-1") if isinstance(frame, str) else noise
            return frame[:place] + noise + frame[place:]
    return frame[:place] + (pick(frame) if frame else frame) * rng.randrange(3000)


class Unanswered:
    """Instead of a batcher: episodes wait for ever."""

    def ask(self, client, rows, answer):
        pass

    def forget(self, client):
        pass


def test_no_frame_makes_a_session_fail_or_keep_anything():
    """10,000 frames over sessions that have an episode, so that every verb is reached."""
    rng, counts = random.Random(0), dict.fromkeys(("refused", "dropped", "closed"), 0)
    served = ServedPolicies({"mover": BatchedPolicy(small_policy())}, explore=False)
    sent, sessions, handled, session = [], [], [], None

    def count(name):
        counts[name] = counts.get(name, 0) + 1

    while len(handled) < 10_000:
        if session is None or session.is_closed:
            session = Session(
                served,
                Unanswered(),
                send=lambda frame, is_text: sent.append(len(frame)),
                send_weights=lambda session, message: None,
                count=count,
                limits=ServerSettings(),
            )
            sessions.append(session)
            frame = msgspec.msgpack.encode if rng.random() < 0.5 else json.dumps
            for message in GOOD[:2]:
                session.handle(frame(message))
            assert session.is_greeted and list(session.episodes) == ["e"]
        frame = mutated(rng)
        if isinstance(frame, str) != session.codec.is_text and rng.random() < 0.9:
            continue
        session.handle(frame)
        handled.append(type(frame))
        counts["closed"] += session.is_closed
        assert len(session.episodes) <= MAX_MISTAKES
    assert all(not closed.episodes for closed in sessions if closed.is_closed)
    assert counts["closed"] > 1000 and counts["refused"] > 300 and counts["dropped"] > 300
    assert max(sent) < 1000  # no answer repeats what it was sent


def attack(server, rng, number):
    """Frames to a server over new connections, some of them not even WebSocket's."""
    for _ in range(number):
        if rng.random() < 0.05:
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(rng.randbytes(rng.randrange(1, 500)))
            continue
        frame = mutated(rng)
        hello = rng.random() < 0.9
        closing = contextlib.suppress(ConnectionClosed)
        with closing, Frames(server, text=isinstance(frame, str), hello=hello) as client:
            for message in GOOD[1 : rng.randrange(1, 4)]:
                client.send(**message)
            client.socket.send(frame)
            if rng.random() < 0.5:
                client.socket.close()


def check_still_serving(server):
    with Frames(server) as client:
        client.begin("good")
        for _ in range(10):
            assert client.act([0.1, 0.2, 0.3], name="good")["type"] == "action"
    wait_until(lambda: not server.sessions)


def test_a_server_outlives_malformed_messages():
    with serving() as server:
        attack(server, random.Random(1), 100)
        check_still_serving(server)
        assert server.counts["clients"] > 60


@pytest.mark.slow
def test_a_server_outlives_ten_thousand_malformed_messages_and_does_not_grow():
    with serving() as server:
        attack(server, random.Random(2), 1_000)
        check_still_serving(server)
        before = process_memory()
        attack(server, random.Random(3), 9_000)
        check_still_serving(server)
        assert process_memory() - before < 20e6
