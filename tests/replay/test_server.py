"""The live view: what it serves, to whom, and what of a run it knows."""

import http.client
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jaxrl import Trainer
from jaxrl.cli import watch
from jaxrl.replay.curve_panels import run_panels
from jaxrl.replay.live_run import LiveRun
from jaxrl.replay.server import HOST, LiveServer
from jaxrl.run.logging.curves import Curves
from tests.messages import refusal
from tests.programs import SMALL_ARENA

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {"checkpoint_interval_s": None, "pictures": False}  # none by the clock
    with Trainer(SMALL_ARENA, run_dir=folder, quiet=True, **settings) as trainer:
        trainer.train()
        trainer.keeping.hurry()
        yield trainer


@pytest.fixture(scope="module")
def server(trainer):
    server = LiveServer(LiveRun(trainer.run_dir), port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def ask(server, path, host=None, method="GET", **more):
    """(status, headers, text) of a request that is sent as it is, with `more` headers."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    headers = {"Host": host or f"{HOST}:{server.server_port}"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def test_the_curves_and_an_episode_of_the_newest_checkpoint_follow_the_training(trainer, server):
    live = json.loads(ask(server, "/live?episode=0")[2])
    assert live["title"] == "arena" and live["number"] == 0 and live["episode"] is None
    assert "iteration 1, 64 steps" in live["note"] and "no checkpoint yet" in live["note"]
    trainer.train()
    trainer.save()
    server.run.play()
    live = json.loads(ask(server, "/live?episode=0")[2])
    assert "iteration 2, 128 steps" in live["note"] and "checkpoint" not in live["note"]
    returns = live["curves"][0]
    assert returns["title"] == "return" and returns["lines"][0]["xs"][-1] == 128
    track = live["episode"]["episodes"][0]["tracks"][0]
    assert track["steps"] == 20 and live["number"] == 1
    assert json.loads(ask(server, "/live?episode=1")[2])["episode"] is None  # it is known
    server.run.play()
    assert json.loads(ask(server, "/live?episode=1")[2])["number"] == 1  # nothing is new


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics.jsonl", "/config.json", "/../config.json", "//etc/passwd", "/live/../../x"),
        *("/%2e%2e/config.json", "/checkpoints/", "http://example.org/", "/live%00", "/index.html"),
    ],
)
def test_nothing_else_is_served(server, path):
    status, _, text = ask(server, path)
    assert (status, text) in [(404, "not found\n"), (200, server.page.decode())]
    assert status == 404 or path == "http://example.org/"  # whose path is "/"


def test_a_strangers_name_for_this_machine_is_refused_and_other_methods_are_unknown(server):
    for host in ("example.org", f"example.org:{server.server_port}", HOST):
        assert ask(server, "/live", host=host)[0] == 403
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, "/", method=method)[0] == 501


def test_the_page_is_for_this_machine_and_no_other_page_may_read_or_frame_it(server):
    assert server.server_address[0] == "127.0.0.1"
    status, headers, text = ask(server, "/")
    assert status == 200 and text == server.page.decode()
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_other_sites_may_link_to_the_page_but_not_ask_for_its_contents(server):
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert ask(server, "/live?compared=1", Sec_Fetch_Site=site)[0] == status
        assert ask(server, "/", Sec_Fetch_Site=site)[0] == 200


@pytest.fixture
def damaged(tmp_path, trainer):
    """A server of a run whose metadata.json has loggers that are no list."""
    for name in ("config.json", "metadata.json"):
        (tmp_path / name).write_bytes((trainer.run_dir / name).read_bytes())
    facts = json.loads((tmp_path / "metadata.json").read_text())
    facts["run_settings"]["loggers"] = None
    (tmp_path / "metadata.json").write_text(json.dumps(facts))
    server = LiveServer(LiveRun(tmp_path), port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_folder_that_cannot_be_read_is_an_answer_that_says_why(damaged):
    status, _, text = ask(damaged, "/live")
    (problem,) = json.loads(text).values()
    assert status == 200 and "is damaged: config.json or metadata.json holds no run" in problem
    (damaged.run.folder / "metrics.jsonl").write_text('{"training_iteration": 1}\n')
    assert "iteration 1" in json.loads(ask(damaged, "/live")[2])["note"]


def test_what_cannot_be_played_is_said_in_the_note_until_it_can(server, monkeypatch):
    def refused():
        raise PermissionError(13, "Permission denied")

    note = lambda: json.loads(server.contents(0, compared=False))["note"]
    with monkeypatch.context() as patched:
        patched.setattr(server.run, "play", refused)
        server.look()
        assert "nothing could be played: PermissionError: [Errno 13]" in note()
    server.look()
    assert "nothing could be played" not in note()


@pytest.mark.parametrize("known", ["x", "-1", "9" * 5000, ""])
def test_a_number_that_is_none_means_that_no_episode_is_known(server, known):
    assert ask(server, f"/live?episode={known}")[0] == 200


def test_a_log_that_was_cut_back_or_holds_anything_else_is_read_again(tmp_path, trainer):
    for name in ("config.json", "metadata.json"):
        (tmp_path / name).write_bytes((trainer.run_dir / name).read_bytes())
    line = (trainer.run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    run, log = LiveRun(tmp_path), tmp_path / "metrics.jsonl"
    assert run.status(0)["curves"] == []
    log.write_text(f"no result\n[]\n{line}{line[:50]}")  # the last one is still being written
    assert "iteration 1, 64 steps" in run.status(0)["note"]
    log.write_text(line)
    assert len(run.status(0)["curves"][0]["lines"][0]["xs"]) == 1


def test_results_that_are_no_numbers_are_named_and_the_rest_is_shown(tmp_path, trainer):
    for name in ("config.json", "metadata.json"):
        (tmp_path / name).write_bytes((trainer.run_dir / name).read_bytes())
    line = (trainer.run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    odd = json.loads(line)
    odd["env_runners"]["episode_return_mean"] = {"a": "callback"}
    run, log = LiveRun(tmp_path), tmp_path / "metrics.jsonl"
    log.write_text(line)
    assert len(run.status(0)["curves"][0]["lines"][0]["xs"]) == 1
    log.write_text(line + json.dumps(odd) + "\n")
    status = run.status(0)
    assert "results that are no numbers" in status["note"]
    assert len(status["curves"][0]["lines"][0]["xs"]) == 1


def test_many_lines_of_a_panel_are_shown_as_their_mean():
    curves = Curves()
    agents = {f"agent_{i}": float(i) for i in range(9)}
    for step in (1, 2):
        episodes = {"episode_return_mean": 36.0, "agent_episode_returns_mean": agents}
        curves.add([{"num_env_steps_sampled_lifetime": step, "env_runners": episodes}])
    (panel,) = run_panels(curves, ())
    assert [line["name"] for line in panel["lines"]] == ["sum", "mean of 9"]
    mean = panel["lines"][1]
    assert (mean["ys"], mean["low"], mean["high"]) == ([4.0, 4.0], [0.0, 0.0], [8.0, 8.0])


def test_a_port_in_use_and_a_run_that_is_not_there_are_said_in_one_line(server, capsys, tmp_path):
    with refusal("cannot be used"):
        LiveServer(server.run, port=server.server_port)
    for words, text in (
        ([str(tmp_path / "none")], "none"),
        ([str(tmp_path), "--port", "70000"], "port=70000 must be"),
        ([], "name one run's folder: "),
        (["one", "two"], "name one run's folder, not 'one' and 'two': "),
    ):
        with pytest.raises(SystemExit):
            watch(words)
        (line,) = capsys.readouterr().err.splitlines()
        assert text in line


@pytest.mark.long
def test_the_command_prints_the_address_and_ends_with_ctrl_c(trainer):
    """Also where SIGINT is ignored at the start, as shells do for what runs in the background."""
    watch_run = [sys.executable, str(ROOT / "scripts" / "watch.py"), str(trainer.run_dir)]
    deaf = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    command = [sys.executable, "-c", f"{deaf}; os.execv(sys.argv[1], sys.argv[1:])", *watch_run]
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        try:
            line = watching.stdout.readline()
            assert line.startswith("look at      http://127.0.0.1:")
            watching.send_signal(signal.SIGINT)
            said, complaints = watching.communicate(timeout=60)
        finally:
            watching.kill()
    assert (said, complaints) == ("stopped; the run itself is as it was\n", "")
    assert watching.returncode == 0
