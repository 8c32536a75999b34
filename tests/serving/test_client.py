"""The Python client: it acts as the policy does, here or there, and survives a server's restart."""

import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from jaxrl_client import EpisodeLost, PolicyClient, ServerError
from jaxrl_client.local_policy import log_prob

from jaxrl.core.spaces import tree_of
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.ops.distributions import num_logits
from tests.export.kinds import _member, policy_of_kind
from tests.serving.served import serving, small_policy

pytestmark = pytest.mark.process  # a server and its clients wait for each other

ROOT = Path(__file__).resolve().parents[2]
AGENTS = ("left", "right")


@pytest.mark.parametrize("mode", ["remote", "local"])
@pytest.mark.parametrize("kind", ["gru", "tree", "mask", "squashed", "convolutions"])
def test_a_client_acts_as_the_policy_does(kind, mode):
    policy, rng = policy_of_kind(kind), np.random.default_rng(0)
    policy.reset()
    with serving(policy) as server, PolicyClient(server.address, mode) as client:
        episode = client.start_episode()
        for step in range(4):
            observations, masks, told = {}, {}, {agent: {} for agent in AGENTS}
            for agent in AGENTS:
                observations[agent] = jax.tree.map(
                    lambda part: _member(part, rng), tree_of(policy.observation_space)
                )
                if policy.masked:
                    masks[agent] = rng.random(num_logits(policy.action_space)) < 0.7
                    told[agent]["action_mask"] = masks[agent]
                if step:
                    told[agent]["prev_reward"] = float(step)
            actions = client.get_action(episode, observations, masks or None)
            assert list(actions) == list(AGENTS)
            for agent in AGENTS:
                expected = policy.act(
                    observations[agent], begins=step == 0, agent=agent, **told[agent]
                )
                np.testing.assert_allclose(actions[agent], expected, atol=1e-5)
            for _ in range(2):  # in two parts
                client.log_returns(episode, dict.fromkeys(AGENTS, (step + 1) / 2))
        client.end_episode(episode)
        assert server.counts["actions"] == (4 if mode == "remote" else 0)


def test_episodes_of_json_and_of_msgpack_are_the_same():
    with serving() as server:
        actions = []
        for text in (True, False):
            with PolicyClient(server.address, text=text) as client:
                episode = client.start_episode("match")
                actions.append([client.get_action(episode, [x, 0, 1]) for x in (-2, 0, 2)])
                client.end_episode(episode, np.zeros(3), truncated=True)
        assert actions[0] == actions[1] and server.counts["ended"] == 2


def test_local_actions_come_with_the_probabilities_that_they_were_drawn_with(tmp_path):
    policy = policy_of_kind("dense")
    policy.export(tmp_path / "p.npz", explore=True)
    player, rng = NumpyPolicy(tmp_path / "p.npz", seed=0), np.random.default_rng(0)
    for _ in range(5):
        obs, mask = rng.normal(size=3).astype(np.float32), np.array([True, False, True])
        action = player.act(obs, mask=mask)
        expected = policy.distribution(obs, action_mask=mask).log_prob(action)
        np.testing.assert_allclose(log_prob(player, action), expected, rtol=1e-5)


def test_a_refused_observation_is_an_error_that_says_why():
    with serving() as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        with pytest.raises(ServerError, match=r"must be \[3\] of float32, not \[1.0, 2.0\]"):
            client.get_action(episode, np.array([1.0, 2.0]))
        with pytest.raises(ServerError, match="start_episode begins one"):
            client.get_action(episode, np.zeros(3))
        client.get_action(client.start_episode(), np.zeros(3))


def test_a_refused_logged_action_is_said_with_the_next_call():
    with serving() as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        client.log_action(episode, np.zeros(3), 7)
        with pytest.raises(ServerError, match="takes actions of Discrete"):
            client.end_episode(episode)


def test_a_client_connects_again_to_a_server_that_restarts():
    with serving() as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        client.get_action(episode, np.zeros(3))
        port = server.port
        server.stop()
        server._thread.join()
        again = []

        def restart():
            time.sleep(0.3)
            with serving(port=port) as second:
                again.append(second)
                done.wait(30)

        done = threading.Event()
        thread = threading.Thread(target=restart)
        thread.start()
        with pytest.raises(EpisodeLost, match="was lost"):
            client.get_action(episode, np.zeros(3))
        episode = client.start_episode()
        assert client.get_action(episode, np.zeros(3)) == small_policy().act(np.zeros(3, "f4"))
        done.set()
        thread.join()
    assert again[0].counts["actions"] == 1


def test_a_server_that_never_comes_is_an_error_in_one_line():
    with pytest.raises(ConnectionError, match=r"ws://127\.0\.0\.1:1 cannot be reached"):
        PolicyClient("ws://127.0.0.1:1", reconnect_seconds=0)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_client_connects_by_tls_with_a_token_and_not_without(tmp_path):
    certificate, key, token = (tmp_path / name for name in ("cert.pem", "key.pem", "token"))
    token.write_text("correct horse battery")
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=here"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    files = {"token_file": token, "certificate": certificate, "private_key": key}
    trusting = ssl.create_default_context(cafile=str(certificate))
    with serving(**files) as server:
        assert server.address.startswith("wss://")
        told = {"token": token.read_text(), "ssl_context": trusting, "reconnect_seconds": 0}
        with PolicyClient(server.address, **told) as client:
            client.get_action(client.start_episode(), np.zeros(3))
        with pytest.raises(ServerError, match="wrong token"):
            PolicyClient(server.address, **{**told, "token": "another horse battery"})
        with pytest.raises(ConnectionError, match="certificate verify failed"):
            PolicyClient(server.address, token=token.read_text(), reconnect_seconds=0)
        with pytest.raises(ConnectionError, match="cannot be reached"):
            PolicyClient(server.address.replace("wss", "ws"), reconnect_seconds=0)


def test_the_client_needs_no_jax_and_plays_a_local_policy_without_the_server():
    """A whole CartPole-like loop in a process in which JAX cannot be imported."""
    code = """
import sys
sys.modules.update(jax=None, jaxrl=None)
import numpy as np
from jaxrl_client import PolicyClient
client = PolicyClient(sys.argv[1], inference_mode="local", update_interval=None)
client.start_episode("e")
client.get_action("e", np.zeros(3))
client.close()
print([client.get_action("e", np.array([x, 0.0, 1.0])) for x in (-2, 0, 2)])
"""
    policy = small_policy()
    with serving(policy) as server:
        done = subprocess.run(
            [sys.executable, "-c", code, server.address],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["client/python", *sys.path])},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    expected = [int(policy.act(np.array([x, 0, 1], np.float32))) for x in (-2, 0, 2)]
    assert (done.stdout.strip(), done.stderr) == (str(expected), "")


def test_the_clients_reader_is_the_one_that_jaxrl_has():
    reader = ROOT / "client/python/jaxrl_client/numpy_policy.py"
    assert reader.resolve() == ROOT / "jaxrl/export/numpy_policy.py"
