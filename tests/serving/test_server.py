"""The policy server: its actions are the policy's, and a bad client harms nobody but itself."""

import asyncio
import contextlib
import socket
import threading
import time

import jax
import numpy as np
import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from websockets.exceptions import ConnectionClosed, InvalidStatus

from jaxrl import UsageError
from jaxrl.core.spaces import tree_of
from jaxrl.ops.distributions import num_logits
from jaxrl.serving import server as server_module
from jaxrl.serving.batched_inference import BatchedPolicy, Batcher, Row
from jaxrl.serving.server import Pace
from jaxrl.serving.settings import ServerSettings
from tests.export.kinds import _member, policy_of_kind
from tests.serving.served import Frames, plain, serving, small_policy, wait_until


@pytest.fixture(scope="module")
def server():
    """One server for all tests that need nothing special."""
    with serving() as server:
        yield server


def drawn(space, rng):
    return jax.tree.map(lambda part: _member(part, rng), tree_of(space))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("gru", True), ("lstm", False), ("tree", True), ("mask", False), ("tables", True)],
)
def test_the_servers_actions_are_those_of_the_policy(kind, text):
    """Two episodes side by side, of a policy with memory each with its own."""
    policy, rng = policy_of_kind(kind), np.random.default_rng(0)
    policy.reset()
    with serving(policy) as server, Frames(server, text=text) as client:
        agents, expected = ("left", "right"), {}
        client.begin("a")
        client.begin("b")
        for step in range(5):
            observations = {agent: drawn(policy.observation_space, rng) for agent in agents}
            message = {"obs": {agent: plain(obs) for agent, obs in observations.items()}}
            told = {agent: {} for agent in agents}
            if policy.masked:
                masks = rng.random((2, num_logits(policy.action_space))) < 0.7
                masks[:, 0] = True
                message["mask"] = dict(zip(agents, masks.tolist(), strict=True))
                told = {a: {"action_mask": m} for a, m in zip(agents, masks, strict=True)}
            rewards = dict(zip(agents, (0.5, -1.0), strict=True)) if step else {}
            message["reward"] = rewards
            for name in ("a", "b"):
                found = client.act(name=name, **message)["action"]
                for agent in agents:
                    if name == "a":
                        expected[agent] = policy.act(
                            observations[agent],
                            begins=step == 0,
                            agent=agent,
                            **({"prev_reward": rewards[agent]} if rewards else {}),
                            **told[agent],
                        )
                    np.testing.assert_allclose(found[agent], expected[agent], atol=1e-6)


@pytest.mark.long
def test_an_observation_may_be_the_bytes_of_an_array(server):
    obs = np.array([0.5, -1.0, 2.0], "<f4")
    with Frames(server, text=False) as client:
        client.begin()
        as_list, as_bytes = client.act(obs.tolist()), client.act(obs.tobytes())
    assert as_list["action"] == as_bytes["action"] == small_policy().act(obs)


def test_the_welcome_tells_agents_policies_and_spaces(server):
    with Frames(server) as client:
        assert client.welcome["agents"] == {"default_agent": "mover"}
        assert client.welcome["policies"]["mover"] == {
            "observation_space": {
                **{"space": "Box", "low": -2.0, "high": 2.0, "shape": [3], "dtype": "float32"}
            },
            "action_space": {"space": "Discrete", "n": 3},
            "mask": False,
        }
        assert client.welcome["protocol"] == 1 and not client.welcome["training"]


@pytest.mark.long
def test_rows_are_answered_in_one_call_with_the_probabilities_that_they_were_drawn_with():
    policy, rng = small_policy(), np.random.default_rng(0)
    batched = BatchedPolicy(policy)
    rows = [
        Row([rng.normal(size=3).astype(np.float32)], batched.fresh_state, None, 0, explore)
        for explore in (True, True, False, True, False)
    ]
    acted = batched.act(rows)
    for row, found in zip(rows, acted, strict=True):
        distribution = policy.distribution(row.obs[0])
        np.testing.assert_allclose(found.log_prob, distribution.log_prob(found.action), rtol=1e-5)
        assert found.sampled is None  # it is the environment's action
        if not row.explore:
            assert found.action == policy.act(row.obs[0])
    many = batched.act([rows[0]] * 150)  # three calls
    assert len(many) == 150
    frequency = np.bincount([found.action for found in many], minlength=3) / 150
    expected = np.asarray(policy.distribution(rows[0].obs[0]).probabilities())
    np.testing.assert_allclose(frequency, expected, atol=0.12)


def test_a_batch_waits_for_the_clients_that_asked_before_and_half_a_millisecond_for_no_more():
    async def scenario():
        batched = BatchedPolicy(small_policy())
        batcher, answers = Batcher({"mover": batched}), []
        row = Row([np.zeros(3, np.float32)], batched.fresh_state, None, 0, False)
        for size in (1, 2):  # compiled now
            batched.act([row] * size)

        def ask(client):
            batcher.ask(client, [("mover", row)], lambda _: answers.append(client))

        ask("a")
        ask("b")
        await asyncio.sleep(0.02)
        assert answers == ["a", "b"] and batcher.num_calls == 1
        ask("a")  # b is known and does not ask
        await asyncio.sleep(0.02)
        assert answers == ["a", "b", "a"] and batcher.num_calls == 2
        batcher.forget("b")
        ask("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert batcher.num_calls == 3  # at once: everybody has asked

    asyncio.run(scenario())


BAD = [  # (the message, a part of the reason)
    ({"type": "get_action", "episode": "other", "obs": [0, 0, 0]}, "there is no episode 'other'"),
    ({"type": "get_action", "obs": [0, 0]}, "must be [3] of float32, not [0, 0]"),
    ({"type": "get_action", "obs": "0 0 0"}, "must be [3] of float32"),
    ({"type": "get_action", "obs": [[1], [1, 2], 3]}, "must be [3] of float32"),
    ({"type": "get_action", "obs": [0, 0, 10**30]}, "must be [3] of float32"),
    ({"type": "get_action", "obs": [0, 0, 1e300]}, "finite"),
    ({"type": "get_action", "obs": None}, "must be [3] of float32"),
    ({"type": "get_action", "obs": [0, 0, 0], "mask": [1, 1, 1]}, "takes no mask"),
    ({"type": "get_action", "obs": [0, 0, 0], "reward": 1e31}, "finite number"),
    ({"type": "get_action", "obs": [0, 0, 0], "reward": {"him": 1}}, "unknown agent 'him'"),
    ({"type": "log_action", "obs": [0, 0, 0], "action": 3}, "takes actions of Discrete(n=3)"),
    ({"type": "start_episode"}, "has begun already"),
    ({"type": "get_weights", "policy": "mouver"}, "did you mean 'mover'?"),
]


@pytest.mark.parametrize(("message", "reason"), BAD)
def test_a_message_that_cannot_be_done_costs_its_episode_and_no_other(server, message, reason):
    with Frames(server) as client, Frames(server) as other:
        for who in (client, other):
            who.begin("e")
            who.begin("kept")
        message = {"id": 7, "episode": "e", **message}
        if message["type"] == "log_action":
            del message["id"]
        if message["type"] == "get_weights":
            del message["episode"]
        answer = client.ask(**message)
        assert answer["type"] == "error" and reason in answer["reason"], answer
        assert answer["id"] == message.get("id") and not answer["closing"]
        assert client.act([0, 0, 0], name="kept")["type"] == "action"
        assert other.act([0, 0, 0], name="e")["type"] == "action"
        gone = message.get("episode") == "e"
        assert (client.act([0, 0, 0], name="e")["type"] == "error") == gone


MALFORMED = [
    *(b"", b"{", b"[]", b"null", b'{"type": "hello"}', b'{"type": "jump"}', b"[" * 100_000),
    *(b'{"type": "get_action", "id": -1, "episode": "e", "obs": 1}', b"\xff\xfe"),
    b'{"type": "get_action", "id": 1, "episode": "e", "obs": 1, "and": 2}',
    b'{"type": "start_episode", "id": 1, "episode": "' + b"e" * 65 + b'"}',
    b'{"type": "hello", "protocol": 1}',
]


@pytest.mark.parametrize("frame", MALFORMED, ids=lambda frame: frame[:30].decode(errors="replace"))
def test_a_frame_that_is_no_message_ends_the_connection(server, frame):
    with Frames(server) as client:
        client.begin()
        client.socket.send(frame, text=True)
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                last = client.receive()
                assert last["type"] == "error" and last["closing"]
        assert closed.value.rcvd.code in (1007, 1008)
    with Frames(server) as client:
        client.begin()
        assert client.act([0, 0, 0])["type"] == "action"


def test_too_many_mistakes_end_the_connection(server):
    with Frames(server) as client:
        answers = [client.act([0, 0, 0], name="none") for _ in range(21)]
        assert [answer["closing"] for answer in answers] == [*[False] * 20, True]
        with pytest.raises(ConnectionClosed):
            client.receive()


def test_nothing_is_answered_before_the_hello(server):
    with Frames(server, hello=False) as client:
        assert client.ask(type="start_episode", id=0)["closing"]
    with Frames(server, hello=False) as client:
        answer = client.ask(type="hello", protocol=2)
        assert answer["reason"] == "this server speaks protocol 1, not 2"


def test_a_client_that_says_nothing_is_sent_away(monkeypatch):
    monkeypatch.setattr(server_module, "HELLO_SECONDS", 0.2)
    with serving() as server, Frames(server, hello=False) as client:
        with pytest.raises(ConnectionClosed):
            client.socket.recv(timeout=10)
        assert not server.sessions


@pytest.mark.long
def test_a_token_is_asked_for_where_there_is_one(tmp_path):
    (tmp_path / "token").write_text("correct horse battery\n")
    with serving(token_file=tmp_path / "token") as server:
        assert Frames(server, token="correct horse battery").welcome["type"] == "welcome"
        for wrong in ("", "correct horse", "correct horse batterx", "é"):
            assert Frames(server, token=wrong).welcome["reason"] == "wrong token"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "2130706433"])
def test_beyond_this_machine_a_token_and_tls_are_needed(host):
    for given in ({}, {"token_file": "token"}, {"certificate": "cert.pem"}):
        with pytest.raises(UsageError, match="can be reached from other machines"):
            ServerSettings(host=host, **given)
    assert ServerSettings(host="::1").host == "::1"


def test_a_token_is_not_short(tmp_path):
    (tmp_path / "token").write_text("secret")
    with pytest.raises(UsageError, match="must hold 16 characters or more"):
        _ = ServerSettings(token_file=tmp_path / "token").token


def test_pages_of_other_origins_cannot_connect():
    with serving(origins=("http://127.0.0.1:8000",)) as server:
        with pytest.raises(InvalidStatus, match="403"):
            Frames(server, origin="http://evil.example")
        with pytest.raises(InvalidStatus, match="403"):
            Frames(server, origin="null")
        with Frames(server, origin="http://127.0.0.1:8000") as client:
            assert client.welcome["type"] == "welcome"


def test_clients_episodes_and_sizes_are_limited():
    with serving(max_clients=2, max_episodes=3, max_message_bytes=2000) as server:
        with Frames(server) as client, Frames(server):
            with pytest.raises(ConnectionClosed) as closed:
                Frames(server)
            assert closed.value.rcvd.code == 1013
            for name in "abc":
                client.begin(name)
            answer = client.ask(type="start_episode", id=0, episode="d")
            assert answer["reason"] == "no more than 3 episodes may be open"
            with pytest.raises(ConnectionClosed) as closed:
                client.act([0.0] * 2000, name="a")
            assert closed.value.rcvd.code == 1009
        wait_until(lambda: server.counts["dropped"] == 3)


@pytest.mark.parametrize("limit", ["max_clients", "max_clients_per_address"])
def test_an_idle_client_gives_way_to_a_new_one_and_one_that_plays_does_not(limit, monkeypatch):
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.0)
    with serving(**{limit: 2}) as server, Frames(server) as playing, Frames(server) as idle:
        playing.begin("a")
        with Frames(server) as new:
            new.begin("b")
            assert idle.receive()["reason"] == "idle, while another client waits"
            with pytest.raises(ConnectionClosed):
                idle.receive()
            assert playing.act([0.0] * 3, name="a")["type"] == "action"
            with pytest.raises(ConnectionClosed) as closed:
                Frames(server)
            assert closed.value.rcvd.code == 1013
            assert len(server.sessions) == 2


def test_a_clients_pace_is_limited_and_a_pause_fills_it_again():
    pace = Pace(per_second=10)
    assert [pace.pause(now=5.0) for _ in range(10)] == [0.0] * 10
    np.testing.assert_allclose([pace.pause(now=5.0) for _ in range(2)], [0.1, 0.2])
    assert pace.pause(now=6.2) == 0.0


def test_an_episode_that_nothing_is_said_of_is_dropped(monkeypatch):
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.05)
    with serving(episode_timeout=1) as server, Frames(server) as client:
        client.begin("old")
        wait_until(lambda: server.counts["dropped"] == 1)
        client.begin("new")
        assert client.act([0, 0, 0], name="new")["type"] == "action"
        assert "no episode 'old'" in client.act([0, 0, 0], name="old")["reason"]


def test_a_client_that_does_not_read_is_cut_off_and_others_are_served(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_UNREAD_BYTES", 50_000)
    with serving(max_messages_per_second=10**6) as server, Frames(server) as other:
        deaf = socket.create_connection(("127.0.0.1", server.port))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        hello = b'{"type":"hello","protocol":1}'
        ask = b'{"type":"get_weights","id":1}'
        frames = b"".join(
            b"\x81" + bytes([0x80 | len(text)]) + bytes(4) + text for text in (hello, *[ask] * 2000)
        )
        threading.Thread(target=_send_quietly, args=(deaf, frames), daemon=True).start()
        other.begin()
        last = time.monotonic() + 30
        while len(server.sessions) == 2 or server.counts["clients"] < 2:
            assert other.act([0, 0, 0])["type"] == "action" and time.monotonic() < last
        deaf.close()


def _send_quietly(connection, content):
    with contextlib.suppress(OSError):
        connection.sendall(content)


def test_a_disconnected_clients_episodes_are_dropped(server):
    before = server.counts["dropped"]
    with Frames(server) as client:
        client.begin("a")
        client.begin("b")
    wait_until(lambda: server.counts["dropped"] == before + 2)
    assert not any(session.episodes for session in server.sessions.values())


def test_a_port_in_use_is_said_in_one_line(server):
    with pytest.raises(UsageError, match="cannot be used"), serving(port=server.port):
        pass


def test_a_certificate_that_cannot_be_read_is_said_in_one_line():
    message = "certificate='none.pem' cannot be used: No such file"
    with pytest.raises(UsageError, match=message), serving(certificate="none.pem"):
        pass


def test_a_policy_that_fails_costs_the_episodes_that_asked_and_serving_goes_on(monkeypatch):
    act = BatchedPolicy.act
    with serving() as server, Frames(server) as client:
        client.begin()
        monkeypatch.setattr(BatchedPolicy, "act", lambda self, rows: 1 / 0)
        answer = client.act([0, 0, 0])
        assert answer["reason"] == "the policy failed: division by zero"
        monkeypatch.setattr(BatchedPolicy, "act", act)
        client.begin()
        assert client.act([0, 0, 0])["type"] == "action"


def test_weights_are_sent_once_for_each_version(server):
    with Frames(server, text=False) as client:
        first = client.ask(type="get_weights", id=1)
        assert first["policy"] == "mover" and first["weights_version"] == 0
        assert first["npz"][:2] == b"PK"
        again = client.ask(type="get_weights", id=2, known=0)
        assert again["npz"] is None
