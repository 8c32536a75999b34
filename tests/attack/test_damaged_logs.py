"""Damaged lines of a log: every reader passes over them, says so once, and reads the others."""

import json
import logging
import math
import shutil

import numpy as np
import pytest

import jaxrl
from jaxrl.replay.live_run import LiveRun
from jaxrl.run.logging.curves import Curves
from jaxrl.run.logging.result_rows import read_result
from jaxrl.run.logging.text_logs import start_after
from jaxrl.run.results import ENV_STEPS
from tests.messages import refusal


def row(iteration, **more):
    counts = {"training_iteration": iteration, ENV_STEPS: 64 * iteration}
    return {**counts, "env_runners": {"episode_return_mean": float(iteration)}, **more}


def line(value):
    return json.dumps(value).encode() + b"\n"


def sent(folder):
    """The status of a run's page as its server sends it."""
    return json.loads(json.dumps(LiveRun(folder).status(0), allow_nan=False))


@pytest.fixture
def run(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


DAMAGED = {
    "half a row": line(row(2))[:20] + b"\n",
    "two values": line(row(2)).strip() + line(row(2)),
    "a deep list": b'{"training_iteration": 2, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "many digits": b'{"training_iteration": 2, "a": ' + b"1" * 10_000 + b"}\n",
    "half a character": b'{"training_iteration": 2, "a": "\\ud800"}\n',
    "a mark of byte order": b"\xef\xbb\xbf" + line(row(2)),
    "no UTF-8": b'{"training_iteration": 2, "a": "\xff"}\n',
    "a list": b"[2]\n",
    "an empty line": b"\n",
    "a count that is a text": line(row(2, **{ENV_STEPS: "many"})),
    "a count without end": line(row(2, **{ENV_STEPS: math.inf})),
    "a count that is NaN": line(row(2, **{ENV_STEPS: math.nan})),
    "an iteration that is NaN": line(row(2, training_iteration=math.nan)),
}
WITHOUT_NUMBERS = {
    "a table that is a number": line(row(2, env_runners=5)),
    "a number that is a text": line(row(2, env_runners={"episode_return_mean": "high"})),
    "learners in a list": line(row(2, learners=[1])),
    "an evaluation that is a text": line(
        row(2, evaluation={"env_runners": {"episode_return_mean": "high"}})
    ),
}


@pytest.fixture
def log(run):
    """The log of a run with three rows, of which the second is to be damaged."""

    def written(middle):
        (run / "metrics.jsonl").write_bytes(line(row(1)) + middle + line(row(3)))
        return run / "metrics.jsonl"

    return written


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_passed_over_by_each_reader_which_says_so_once(damaged, run, log, caplog):
    path = log(damaged)
    with caplog.at_level(logging.WARNING):
        results = jaxrl.load_run(run).results()
    assert [result["training_iteration"] for result in results] == [1, 3]
    assert caplog.messages == [f"{path}: line 2 is damaged and left out"]
    caplog.clear()
    steps, values = Curves.from_jsonl(path).series()["return"]
    np.testing.assert_array_equal(steps, [64, 192])
    np.testing.assert_array_equal(values, [1, 3])
    assert caplog.messages == [f"{path}: line 2 is damaged and left out"]
    status = sent(run)
    assert status["curves"][0]["lines"][0]["xs"] == [64, 192]
    assert "iteration 3, 192 steps" in status["note"] and "no numbers: 1" in status["note"]


@pytest.mark.parametrize("damaged", WITHOUT_NUMBERS.values(), ids=WITHOUT_NUMBERS)
def test_a_row_without_numbers_has_no_place_in_the_curves(damaged, run, log, caplog):
    steps, _ = Curves.from_jsonl(log(damaged)).series()["return"]
    np.testing.assert_array_equal(steps, [64, 192])
    assert caplog.messages == [f"{run / 'metrics.jsonl'}: line 2 is damaged and left out"]
    status = sent(run)
    assert status["curves"][0]["lines"][0]["xs"] == [64, 192] and "no numbers: 1" in status["note"]


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_resumed_run_cuts_its_log_after_the_last_intact_row(damaged, log):
    path = log(damaged)
    kept = lambda text: (read_result(text) or row(9))["training_iteration"] <= 2
    start_after(path, kept)
    assert path.read_bytes() == line(row(1))


def test_many_damaged_lines_are_one_line_of_warning(log, run, caplog):
    path = log(b"?\n" * 1000)
    assert len(jaxrl.load_run(run).results()) == 2
    assert caplog.messages == [
        f"{path}: line 2 is damaged and left out, the first of 1,000 such lines"
    ]


def test_a_finished_run_with_checkpoints_is_not_said_to_have_none(run, tmp_path):
    assert "no checkpoint yet" not in LiveRun(run).status(0)["note"]
    for name in ("config.json", "metadata.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert "no checkpoint yet" in LiveRun(tmp_path).status(0)["note"]


def test_the_newest_intact_row_is_drawn_though_those_after_it_are_damaged(run, caplog):
    """After 2,000 rows only every second is read, and the newest."""
    path, rows = run / "metrics.jsonl", [line(row(i)) for i in range(1, 2003)]
    path.write_bytes(b"".join(rows) + b"?\n")
    steps, _ = Curves.from_jsonl(path).series()["return"]
    assert steps[-1] == 64 * 2002
    assert caplog.messages == [f"{path}: line 2003 is damaged and left out"]


@pytest.mark.parametrize("value", [math.nan, math.inf, "high"])
def test_a_newest_return_that_is_no_finite_number_has_no_place_in_the_headline(run, log, value):
    log(line(row(4, env_runners={"episode_return_mean": value})))
    path = run / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    note = sent(run)["note"]
    assert "iteration 4" in note and "return" not in note


def rewritten(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("target", [math.inf, math.nan, "much", None])
def test_a_target_that_is_no_number_is_no_line(run, log, target):
    learners = {"p": {"kl": 0.5}}
    (run / "metrics.jsonl").write_bytes(line(row(1, learners=learners)))
    rewritten(run / "metadata.json", panels=[["kl", "KL", "kl_target", False]])
    names = lambda: [entry["name"] for entry in sent(run)["curves"][1]["lines"]]
    rewritten(run / "config.json", kl_target=0.01)
    assert names() == ["p", "target"]
    rewritten(run / "config.json", kl_target=target)
    assert names() == ["p"]


def test_a_commit_that_is_a_number_is_shown_as_it_is(run):
    rewritten(run / "metadata.json", commit=5)
    assert "commit 5," in sent(run)["source"]


@pytest.mark.parametrize("loggers", [5, None, True])
def test_loggers_that_are_no_list_are_refused_in_one_line(run, loggers):
    settings = json.loads((run / "metadata.json").read_text())["run_settings"]
    rewritten(run / "metadata.json", run_settings={**settings, "loggers": loggers})
    (run / "metrics.jsonl").unlink()
    with refusal("is damaged: config.json or metadata.json holds no run: TypeError"):
        sent(run)
