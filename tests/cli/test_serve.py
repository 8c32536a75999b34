"""`jaxrl serve`: a run's policies over a socket, until Ctrl-C."""

import threading

import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from jaxrl import load_policy
from jaxrl.cli.main import main
from jaxrl.serving.batched_inference import BatchedPolicy
from jaxrl.serving.server import PolicyServer
from tests.serving.served import Frames


def test_the_policies_of_a_run_are_served_until_ctrl_c(run, monkeypatch, capsys):
    answers, serve = [], PolicyServer.serve

    def serve_one_client(server, ready):
        started = threading.Event()
        thread = threading.Thread(target=serve, args=(server, started.set))
        thread.start()
        assert started.wait(60)
        ready()
        with Frames(server) as client:
            client.begin()
            answers.append(client.act({"agent1": [3, 10], "agent2": [10, 3]})["action"])
        server.stop()
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(BatchedPolicy, "warm_up", lambda self: None)
    monkeypatch.setattr(PolicyServer, "serve", serve_one_client)
    main(["serve", run, "--port", "0", "--compile-cache", "off"])
    acting = (("agent1", "pol1", [3, 10]), ("agent2", "pol2", [10, 3]))
    assert answers == [{agent: load_policy(run, policy).act(obs) for agent, policy, obs in acting}]
    _, first, second, address, stopped = capsys.readouterr().out.splitlines()
    assert (first, second) == ("pol1         plays agent1", "pol2         plays agent2")
    assert address.startswith("connect to   ws://127.0.0.1:")
    assert stopped == (
        "stopped; 1 actions in 1 episodes of 1 clients; 1 episodes dropped, 0 messages refused"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines"),
        (["--private-key", "key.pem"], "private_key goes with certificate"),
        (["--port", "70000"], "port=70000 must be an integer of at most 65535"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(run, words, message, capsys):
    with pytest.raises(SystemExit):
        main(["serve", run, "--compile-cache", "off", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
