"""The page of a run: the health monitor's words, the plan, and checkpoints side by side."""

import json
import os
import shutil

import jax.numpy as jnp
import pytest

from jaxrl.replay.live_episodes import observation_warnings
from jaxrl.replay.live_run import SILENT_SECONDS, LiveRun
from jaxrl.replay.run_pages import write_report
from jaxrl.run.health import WARN_AFTER_ITERATIONS
from tests.messages import refusal
from tests.play.test_recording import recorded_alone, untrained
from tests.probes import Probe


def rewritten(folder, change, number):
    """The log of a run, with its first result changed and repeated, iteration by iteration."""
    log = folder / "metrics.jsonl"
    first = json.loads(log.read_text().splitlines()[0])
    lines = []
    for i in range(1, number + 1):
        counts = {"training_iteration": i, "num_env_steps_sampled_lifetime": 64 * i, "done": False}
        result = {**json.loads(json.dumps(first)), **counts}
        change(result)
        lines.append(json.dumps(result) + "\n")
    log.write_text("".join(lines))


def played(folder):
    """The page of a run whose configuration is loaded, and its newest checkpoint played."""
    run = LiveRun(folder)
    run.play()
    return run


def clipped(result):
    for learner in result["learners"].values():
        learner["vf_clip_fraction"] = 0.9


def test_the_page_says_what_the_health_monitor_says_of_the_log(run):
    rewritten(run, clipped, WARN_AFTER_ITERATIONS - 1)
    assert played(run).status(0)["warnings"] == []
    rewritten(run, clipped, WARN_AFTER_ITERATIONS)
    (warning,) = played(run).status(0)["warnings"]
    assert "most value targets (90%) are clipped" in warning


def test_results_that_the_monitor_cannot_read_cost_no_page(run):
    def odd(result):
        result["learners"] = {"p": {"vf_clip_fraction": "much"}}

    rewritten(run, odd, 3)
    assert "iteration 3" in played(run).status(0)["note"]


def test_a_run_whose_code_may_not_be_imported_says_that_nobody_checked_it(run):
    config = json.loads((run / "config.json").read_text())
    config["env"] = "a_strangers.module:Env"
    (run / "config.json").write_text(json.dumps(config))
    (warning,) = played(run).status(0)["warnings"]
    assert warning.startswith("the health monitor did not look: ") and "a_strangers" in warning


def test_an_observation_outside_its_space_is_a_warning_that_names_the_policy():
    recording = recorded_alone(untrained(Probe(num_steps=3)))
    assert observation_warnings(recording) == []
    ((agent, steps),) = recording.steps.items()
    far = steps._replace(obs=jnp.full_like(steps.obs, 1e6))
    recording.steps[agent] = far
    (warning,) = observation_warnings(recording)
    assert "outside its space" in warning and "(policy 'default_policy')" in warning


def test_the_settings_are_the_plan_that_training_begins_with(run):
    plan = dict(played(run).status(0)["plan"])
    assert plan["environment"].startswith("arena")
    assert plan["batch"].startswith("4 environments x 16 steps")


def test_the_headline_says_how_far_it_is_and_whether_it_still_trains(run, monkeypatch):
    def training(result):
        result["time_total_s"] = 75.0

    rewritten(run, training, 3)
    log = run / "metrics.jsonl"
    note = LiveRun(run).status(0)["note"]
    assert "iteration 3, 192 steps of 2,560 · 1 min 15 s of training" in note
    assert "no result for" not in note
    os.utime(log, (1000, 1000))
    monkeypatch.setattr("time.time", lambda: 1000 + 2 * SILENT_SECONDS)
    assert "no result for 2 min 0 s" in LiveRun(run).status(0)["note"]
    rewritten(run, lambda result: result.update(done=True), 3)
    assert "finished" in LiveRun(run).status(0)["note"]


@pytest.mark.long
def test_a_page_that_asks_sees_untrained_best_and_last_side_by_side(run):
    page = LiveRun(run)
    page.play()
    assert page.status(0)["number"] == 1
    asked = page.status(1, compared=True)  # nothing to compare was played yet
    assert (asked["number"], asked["episode"]) == (1, None)
    assert "the checkpoints to compare begin to play" in asked["note"]
    page.play()
    compared = page.status(1, compared=True)
    names = [column["name"] for column in compared["episode"]["columns"]]
    assert "begin to play" not in compared["note"]
    assert compared["number"] == 2 and names[0] == "untrained" and names[-1] == "iteration 3"
    assert len(names) == len(set(names))
    assert page.status(0)["episode"]["columns"][0]["name"] == "iteration 3"


@pytest.mark.long
def test_a_report_is_one_file_with_the_curves_and_the_checkpoints(run, tmp_path):
    out = write_report(run, tmp_path / "sent.html", checkpoints=["untrained", "last"])
    text = out.read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert [column["name"] for column in data["episode"]["columns"]] == ["untrained", "iteration 3"]
    assert data["curves"][0]["title"].startswith("return") and "as of 20" in data["note"]
    assert "Copyright (c) 2022 Leon Sorokin" in text  # the licence of uPlot asks for it
    assert "live?episode" not in text


def test_a_report_of_a_run_without_a_checkpoint_has_its_curves_alone(run):
    shutil.rmtree(run / "checkpoints")
    out = write_report(run, checkpoints=["last"])
    assert out == run / "report.html" and '"episode":null' in out.read_text()


def test_a_report_that_cannot_be_is_refused_before_anything_is_played(run, tmp_path):
    for out, message in (
        (tmp_path / "report.pdf", "the name must end in .html"),
        (tmp_path / "none" / "report.html", "there is no folder"),
    ):
        with refusal(message):
            write_report(run, out, checkpoints=["last"])
    with refusal("no checkpoint"):
        write_report(run, checkpoints=[77])
