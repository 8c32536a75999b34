"""The page of a sweep: its table of trials, and its curves by setting."""

import importlib
import json
import os
import shutil

import jax.numpy as jnp
import pytest

from jaxrl.cli import report
from jaxrl.replay.live_sweep import LiveSweep
from jaxrl.replay.page import Column
from jaxrl.replay.run_pages import newest, open_folder, write_report
from tests.cli.test_plot import make_run
from tests.messages import refusal
from tests.play.test_recording import recorded_alone, untrained
from tests.probes import Probe

METRIC = "env_runners/episode_return_mean"
LAST = {"training_iteration": 3, "num_env_steps_sampled_lifetime": 300}


def make_sweep(folder, values, *, finished, **plan):
    """A sweep over lr, two seeds of each value, of which so many trials are finished.

    Trial i ends with the return 10 i. The one after the finished ones has begun.
    """
    trials = []
    for lr in values:
        trials += [{"settings": {"lr": lr}, "seed": seed} for seed in (0, 1)]
    folder.mkdir()
    order = {"halving": None, "scheduler": None, "devices": None, "batch_size": None, "stop": {}}
    facts = {"config_class": "", "objects": [], "config": {"env": "probe", "total_env_steps": 300}}
    written = {**order, **facts, "metric": METRIC, "trials": trials, **plan}
    written["named_by_settings"] = False
    (folder / "sweep.json").write_text(json.dumps(written))
    rows = []
    for i, trial in enumerate(trials[: finished + 1]):
        run = make_run(folder / "trials" / f"{i:04d}")
        log = run / "metrics.jsonl"
        results = [json.loads(line) for line in log.read_text().splitlines()]
        for result in results:
            result["env_runners"]["episode_return_mean"] *= 10.0 * i / 3
        log.write_text("".join(json.dumps(result) + "\n" for result in results))
        outcome = {"status": "terminated", "score": 10.0 * i, "curve": [[300], [10.0 * i]]}
        rows.append({"trial": i, **trial, **outcome, "result": LAST})
    lines = [json.dumps(row) + "\n" for row in rows[:finished]]
    (folder / "results.jsonl").write_text("".join(lines))
    return folder


def test_the_table_has_the_settings_that_differ_the_status_and_the_score(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=2)
    status = LiveSweep(sweep).status(0)
    table = status["trials"]
    assert table["columns"] == [
        *("trial", "lr", "seed", "status", "iteration", "steps", "episode_return_mean")
    ]
    cells = [row["cells"] for row in table["rows"]]
    assert cells[1] == ["0001", 0.1, 1, "terminated", 3, 300, 10.0]
    assert cells[2][3:] == ["running", 0, 300, 20.0]  # from its log
    assert cells[3] == ["0003", 0.2, 1, "pending", 0, 0, None]
    assert "2 of 4 trials finished" in status["note"]
    assert ("lr", "0.1, 0.2") in status["plan"]


def test_with_mode_min_the_lowest_is_the_best(tmp_path):
    live = LiveSweep(make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=4, mode="min"))
    assert "best setting lr=0.1: 5.00, median of 2 seeds" in live.status(0)["note"]


def test_the_curves_are_those_of_the_settings_the_best_first_in_the_tables_colours(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=3)
    status = LiveSweep(sweep).status(0)
    best, other = status["curves"][0]["lines"]
    assert [best["name"], other["name"]] == ["lr=0.2", "lr=0.1"]
    assert (best["low"][-1], best["ys"][-1], best["high"][-1]) == (20.0, 25.0, 30.0)
    assert (other["low"][-1], other["ys"][-1], other["high"][-1]) == (0.0, 5.0, 10.0)
    assert "best setting lr=0.2: " in status["note"]
    roles = [row["role"] for row in status["trials"]["rows"]]
    assert roles == [other["role"]] * 2 + [best["role"]] * 2
    titles = [panel["title"] for panel in status["curves"]]
    assert titles[0] == "episode_return_mean"


def test_of_many_settings_the_best_eight_have_curves(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", list(range(1, 11)), finished=19)
    status = LiveSweep(sweep).status(0)
    panel = status["curves"][0]
    assert [line["name"] for line in panel["lines"]] == [f"lr={i}" for i in range(10, 2, -1)]
    assert panel["note"].startswith("the best 8 of 10 settings")
    assert status["trials"]["rows"][0]["role"] is None


def test_settings_that_differ_in_late_digits_are_lines_of_their_own(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", [0.10001, 0.10002], finished=3)
    lines = LiveSweep(sweep).status(0)["curves"][0]["lines"]
    assert [line["name"] for line in lines] == ["lr=0.1 (0002)", "lr=0.1"]


def test_a_member_of_a_population_is_a_line_with_its_present_settings(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", [0.1], finished=1, scheduler={})
    config = sweep / "trials" / "0001" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lr": 0.4}))
    status = LiveSweep(sweep).status(0)
    assert [line["name"] for line in status["curves"][0]["lines"]] == ["0001", "0000"]
    assert [row["cells"][1] for row in status["trials"]["rows"]] == [0.1, 0.4]
    assert "best trial 0001" in status["note"]


def test_trials_that_diverged_say_why(tmp_path):
    folder = make_sweep(tmp_path / "sweep", [0.1, 0.2, 0.3], finished=5)
    results = folder / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    for row in rows:
        row |= {"status": "diverged", "reason": f"loss {row['trial']} is nan", "score": None}
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    warnings = LiveSweep(folder).status(0)["warnings"]
    assert warnings[0] == "trial 0000 diverged: loss 0 is nan" and len(warnings) == 4
    assert warnings[3] == "2 more trials diverged, as their rows say"


def test_a_page_follows_a_sweep_as_trials_end(tmp_path):
    folder = make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=3)
    results = folder / "results.jsonl"
    whole = results.read_text().splitlines(keepends=True)
    results.write_text(whole[0])
    sweep = LiveSweep(folder)
    assert "1 of 4 trials finished" in sweep.status(0)["note"]
    results.write_text("".join(whole))
    assert "3 of 4 trials finished" in sweep.status(0)["note"]


def test_trials_without_logs_are_drawn_from_their_results(tmp_path):
    folder = make_sweep(tmp_path / "sweep", [0.1], finished=1)
    for log in folder.glob("trials/*/metrics.jsonl"):
        log.unlink()
    (line,) = LiveSweep(folder).status(0)["curves"][0]["lines"]
    assert (line["xs"], line["ys"]) == ([300.0], [0.0])


def test_latest_is_the_newest_run_or_sweep(tmp_path):
    """By the times in their names, though the older one was written last."""
    make_sweep(tmp_path / "20260102-000000-sweep", [0.1], finished=1)
    older = make_run(tmp_path / "20260101-000000-s0")
    os.utime(older / "config.json", (4e9, 4e9))
    assert newest(tmp_path / "latest").name == "20260102-000000-sweep"
    shutil.rmtree(tmp_path / "20260102-000000-sweep")
    assert newest(tmp_path / "latest").name == "20260101-000000-s0"
    with refusal("holds no run or sweep"):
        newest(tmp_path / "empty" / "latest")


def test_the_command_writes_the_report_of_latest(tmp_path, capsys):
    folder = make_sweep(tmp_path / "20260102-000000-sweep", [0.1], finished=1)
    report([str(tmp_path / "latest")])
    assert capsys.readouterr().out == f"look at      {folder / 'report.html'}\n"
    assert (folder / "report.html").exists()


def test_a_sweep_without_checkpoints_has_a_report_without_an_episode(tmp_path):
    folder = make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=2)
    page = write_report(folder, checkpoints=["last"])
    assert page == folder / "report.html"
    text = page.read_text()
    assert '"columns":["trial","lr"' in text and '"episode":null' in text


def test_folders_that_are_neither_a_run_nor_a_sweep_are_refused(tmp_path):
    make_sweep(tmp_path / "runs", [0.1], finished=1)
    (tmp_path / "runs" / "sweep.json").write_text("[]")
    with refusal(r"is damaged: sweep\.json is \[\]"):
        open_folder(tmp_path / "runs")
    (tmp_path / "several" / "a").mkdir(parents=True)
    make_run(tmp_path / "several" / "b")
    with refusal("holds 1 run: b"):
        open_folder(tmp_path / "several")
    with refusal("is not a run's folder"):
        open_folder(tmp_path / "none")


def test_the_headline_names_the_trial_whose_episode_is_shown_with_its_warnings(
    tmp_path, run, monkeypatch
):
    """Trial 2 is better, but its episode fails: the page still shows that of trial 1."""
    episodes = importlib.import_module("jaxrl.replay.live_episodes")
    recording = recorded_alone(untrained(Probe(num_steps=3)))
    ((agent, steps),) = recording.steps.items()
    recording.steps[agent] = steps._replace(obs=jnp.full_like(steps.obs, 1e6))
    folder = make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=2)

    def played(trial, *_, **__):
        if trial.name == "0002":
            raise ValueError("the code is gone")
        return [Column("last", (recording,))]

    monkeypatch.setattr(episodes, "columns_for", played)
    sweep = LiveSweep(folder)
    for trial in ("0001", "0002"):
        shutil.copytree(run / "checkpoints", folder / "trials" / trial / "checkpoints")
        sweep.play()
        status = sweep.status(0)
        assert "an episode of trial 0001" in status["note"] and status["number"] == 1
        assert "outside its space" in status["warnings"][0]
    assert "the code is gone" in status["note"]


@pytest.mark.parametrize("steps", ["NaN", "Infinity", "1e999"])
def test_steps_that_are_no_number_are_a_text_of_the_table(tmp_path, steps):
    folder = make_sweep(tmp_path / "sweep", [0.1], finished=1)
    results = folder / "results.jsonl"
    old = '"num_env_steps_sampled_lifetime": 300'
    assert results.read_text().count(old) == 1
    results.write_text(results.read_text().replace(old, old.replace("300", steps)))
    status = json.loads(json.dumps(LiveSweep(folder).status(0), allow_nan=False))
    assert status["trials"]["rows"][0]["cells"][4:6] == [str(float(steps)).lower(), 0.0]


@pytest.mark.parametrize("row", ["[]", "{}", '{"trial": 7}'])
def test_a_damaged_line_of_the_results_costs_that_line(tmp_path, row):
    folder = make_sweep(tmp_path / "sweep", [0.1], finished=1)
    with open(folder / "results.jsonl", "a") as results:
        results.write(row + "\n")
    assert "1 of 2 trials finished" in LiveSweep(folder).status(0)["note"]
