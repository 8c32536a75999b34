"""`jaxrl watch`, `jaxrl report` and `jaxrl train --watch`."""

import os
import re
import signal
import subprocess
import sys
import time
import types
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from jaxrl.cli import report, watching
from jaxrl.cli.browser import open_page
from jaxrl.cli.main import main
from tests.cli.test_plot import make_run
from tests.replay.test_live_sweep import make_sweep

ROOT = Path(__file__).parents[2]
TRAIN = [sys.executable, "-m", "jaxrl", "train", "--env", "cartpole", "--num-envs", "4"]
TRAIN += ["--rollout-length", "16", "--minibatch-size", "32", "--fcnet-hiddens", "8"]


def test_a_report_says_which_file_was_written(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    report([str(run)])
    assert capsys.readouterr().out == f"look at      {run / 'report.html'}\n"
    sweep = make_sweep(tmp_path / "sweep", [0.1], finished=1)
    report([str(sweep), "--out", str(tmp_path / "sent.html")])
    assert capsys.readouterr().out == f"look at      {tmp_path / 'sent.html'}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name one run's folder"),
        (["none"], "none is not a run's folder: its config.json or metadata.json cannot be read"),
        (["run", "--out", "report.pdf"], "the name must end in .html"),
        (["run", "--out", "none/report.html"], "there is no folder none"),
        (["run", "--checkpoint", "1,2,3,4,5,6,7"], "up to 6"),
        (["run", "--chekpoint", "best"], "did you mean '--checkpoint'?"),
    ],
)
def test_a_mistake_in_report_is_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        main(["report", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("jaxrl report: ") and message in line


def test_a_training_without_a_folder_has_nothing_to_watch(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--env", "cartpole", "--run-dir", "None", "--watch"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "--watch shows what the run's folder holds: leave out --run-dir None" in line


def test_a_browser_is_opened_only_where_there_is_a_screen(monkeypatch):
    opened = []
    browser = types.SimpleNamespace(name="firefox", open=opened.append)
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not open_page("http://127.0.0.1:1/") and opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    open_page("http://127.0.0.1:1/")
    assert opened == ["http://127.0.0.1:1/"]
    browser.name = "/usr/bin/w3m"  # it would take the terminal
    assert not open_page("http://127.0.0.1:1/") and len(opened) == 1


def test_a_browser_that_cannot_be_started_is_no_error(monkeypatch):
    def fails():
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "get", fails)
    monkeypatch.setenv("DISPLAY", ":0")
    assert not open_page("http://127.0.0.1:1/")


def test_a_process_that_cannot_be_started_is_a_line_and_no_error(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with watching.shown_while_training(tmp_path, "off", said.append):
        pass
    assert said == ["the page of the run cannot be shown: No such file or directory"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "reason"),
    [("import none_of_this", "ModuleNotFoundError: No module named 'none_of_this'"), (None, "")],
)
def test_a_page_that_cannot_be_served_is_a_line(start, reason, tmp_path, monkeypatch):
    """The process fails before it is ours, or says itself that the folder holds no run."""
    monkeypatch.chdir(tmp_path)
    Path("queue.py").write_text("raise SystemExit('not the module of this name')")
    if start:
        monkeypatch.setattr(watching, "START", start)
    said = []
    with watching.shown_while_training(tmp_path / "none", "off", said.append):
        wait_for(lambda: said)
    (line,) = said
    assert line.startswith(f"the page of the run cannot be shown: {reason}")
    assert "none" in line and "queue" not in line


@pytest.fixture
def training(tmp_path):
    """`jaxrl train --watch` of some minutes, and what its browser was asked to open."""
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    env = {**os.environ, "BROWSER": str(browser), "PYTHONPATH": str(ROOT)}
    words = [*TRAIN, "--total-env-steps", "1_000_000_000", "--watch", "--pictures", "False"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    yield process, opened
    process.kill()
    process.communicate()


def wait_for(holds, seconds=90.0):
    last = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < last
        time.sleep(0.1)
    return value


def page_of(process):
    """The address that a training prints."""
    for line in process.stdout:
        if found := re.match(r"look at +(http://127\.0\.0\.1:\d+/)   while it trains", line):
            return found[1]
    raise AssertionError("it has ended without a page")


def wait_for_result(process):
    assert any(line.startswith("iter") for line in process.stdout), "it has ended"


def page_process(process):
    """The process beside a training that serves its page."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    (child,) = [
        int(pid)
        for pid in children.read_text().split()
        if b"jaxrl.cli.watching" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return child


def is_gone(pid):
    """Whether a process has ended, though its parent may not have asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def is_served(address):
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.process
def test_a_watched_training_opens_its_page_which_ends_with_it(training):
    process, opened = training
    address = page_of(process)
    wait_for(opened.exists)
    wait_for(lambda: opened.read_text() == address)
    assert is_served(address)
    page = page_process(process)
    wait_for_result(process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "resume" in said
    wait_for(lambda: is_gone(page), 30)


@pytest.mark.process
def test_a_training_that_is_killed_leaves_no_page_behind(training):
    process, _ = training
    page_of(process)
    page = page_process(process)
    process.kill()
    wait_for(lambda: is_gone(page), 30)


@pytest.mark.process
def test_a_page_that_is_killed_leaves_the_training_as_it_was(training):
    process, _ = training
    page_of(process)
    os.kill(page_process(process), signal.SIGKILL)
    wait_for_result(process)  # and another, which comes seconds later
    wait_for_result(process)
    process.send_signal(signal.SIGINT)
    assert "resume" in process.communicate(timeout=60)[0] and process.returncode == 0
