"""Who guesses a server's token, or does not speak its TLS, gets nowhere and disturbs nobody."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import time

import numpy as np
import pytest
from jaxrl_client import PolicyClient

from jaxrl.serving import guesses
from tests.serving.served import Frames, serving

TOKEN = "correct horse battery"


@pytest.fixture
def token_file(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path / "token"


@pytest.mark.long
def test_after_a_wrong_token_the_next_ones_of_that_address_wait(token_file, monkeypatch):
    monkeypatch.setattr(guesses, "GUESS_SECONDS", 0.2)
    with serving(token_file=token_file) as server:
        began = time.monotonic()
        for guess in range(4):
            assert Frames(server, token=f"guess number {guess}").welcome["reason"] == "wrong token"
        assert time.monotonic() - began > 3 * 0.2  # all but the first
        assert Frames(server, token=TOKEN).welcome["type"] == "welcome"


@pytest.mark.long
def test_who_guesses_does_not_slow_those_who_are_connected(token_file, monkeypatch):
    monkeypatch.setattr(guesses, "GUESS_SECONDS", 0.5)
    with serving(token_file=token_file) as server:
        settings = {"token": TOKEN, "reconnect_seconds": 0}
        with PolicyClient(server.address, **settings) as client:
            client.get_action(client.start_episode(), np.zeros(3))  # compiles
            guessers = [Frames(server, hello=False) for _ in range(5)]
            for frames in guessers:
                frames.send(type="hello", protocol=1, token="a wrong token, again")
            began = time.monotonic()
            for _ in range(10):
                client.get_action(client.start_episode(), np.zeros(3))
            assert time.monotonic() - began < 0.4
            said = [frames.receive() for frames in guessers]
            assert [answer["reason"] for answer in said] == ["wrong token"] * 5


@pytest.mark.long
def test_of_many_connections_at_once_one_token_a_second_is_read_and_the_right_one_gets_in(
    token_file, monkeypatch
):
    monkeypatch.setattr(guesses, "GUESS_SECONDS", 0.1)
    with serving(token_file=token_file) as server:
        honest, *guessers = [Frames(server, hello=False) for _ in range(21)]
        began = time.monotonic()
        for frames in guessers:
            frames.send(type="hello", protocol=1, token="a wrong token, again")
        honest.send(type="hello", protocol=1, token=TOKEN)
        assert honest.receive()["type"] == "welcome"
        assert {frames.receive()["reason"] for frames in guessers} == {"wrong token"}
        assert time.monotonic() - began > 0.1 * 19


def test_the_addresses_that_one_guesser_may_have_count_as_one():
    assert guesses.network_of("10.0.0.1") != guesses.network_of("10.0.0.2")
    assert guesses.network_of("::ffff:10.0.0.1") == guesses.network_of("10.0.0.1")
    assert guesses.network_of("2001:db8::1") == guesses.network_of("2001:db8:0:0:ffff::9%eth0")
    assert guesses.network_of("2001:db8::1") != guesses.network_of("2001:db8:0:1::1")


def certificate(folder, name, subject, days="1"):
    files = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", days, "-subj", "/CN=here", "-addext", f"subjectAltName={subject}"]
    words += ["-out", files[0], "-keyout", files[1]]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    return files


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates"
)


@needs_openssl
def test_a_server_sends_no_session_tickets(tmp_path):
    served = certificate(tmp_path, "served", "IP:127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(served[0]))
    with (
        serving(certificate=served[0], private_key=served[1]) as server,
        socket.create_connection(("127.0.0.1", server.port)) as plain,
        trusting.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert encrypted.recv(100)
        assert encrypted.version() == "TLSv1.3"
        assert not encrypted.session.has_ticket


@needs_openssl
def test_a_wrong_certificate_a_wrong_name_and_no_tls_at_all_are_refused(tmp_path, token_file):
    served = certificate(tmp_path, "served", "IP:127.0.0.1")
    other = certificate(tmp_path, "other", "IP:127.0.0.1")
    elsewhere = certificate(tmp_path, "elsewhere", "DNS:elsewhere.example")
    trusting = lambda file: ssl.create_default_context(cafile=str(file))
    settings = {"token": TOKEN, "reconnect_seconds": 0}
    files = {"token_file": token_file, "certificate": served[0], "private_key": served[1]}
    with serving(**files) as server:
        for context in (trusting(other[0]), ssl.create_default_context()):
            with pytest.raises(ConnectionError, match="certificate verify failed"):
                PolicyClient(server.address, ssl_context=context, **settings)
        old = trusting(served[0])
        with contextlib.suppress(ValueError), pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(ConnectionError):
                PolicyClient(server.address, ssl_context=old, **settings)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 5000, b"\0" * 9999):
            with socket.create_connection(("127.0.0.1", server.port)) as plain:
                plain.settimeout(60)
                with contextlib.suppress(ConnectionError):
                    plain.sendall(garbage)
                    assert b"101" not in plain.recv(100)
        with PolicyClient(server.address, ssl_context=trusting(served[0]), **settings) as client:
            client.get_action(client.start_episode(), np.zeros(3))
    files = {"token_file": token_file, "certificate": elsewhere[0], "private_key": elsewhere[1]}
    with serving(**files) as server, pytest.raises(ConnectionError, match="certificate verify"):
        PolicyClient(server.address, ssl_context=trusting(elsewhere[0]), **settings)
