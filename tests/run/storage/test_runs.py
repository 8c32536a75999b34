"""Folders of runs: the latest one, and what is inside one that is no run."""

import json
import os

import pytest

import jaxrl
from jaxrl import UsageError, evaluate, load_policy, resume_sweep
from jaxrl.cli.evaluate import evaluate as evaluate_command
from jaxrl.cli.plot import runs_in
from jaxrl.run.resume import read_run
from jaxrl.run.storage import checkpoint, runs
from jaxrl.run.storage.runs import LATEST, PLAN, contents, link_latest, resolve


@pytest.fixture
def arena(tmp_path):
    """`runs/arena`: three runs, the middle one named by its user, and a sweep of four trials."""
    folder = tmp_path / "runs" / "arena"
    for name in ("20260102-030405-s10", "20260102-030405-s9", "mine", "20260301-000000-s0"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    os.utime(folder / "20260102-030405-s9" / "config.json", (1, 1))
    os.utime(folder / "mine" / "config.json", (0, 0))  # 1970
    sweep = folder / "20260401-000000-sweep"
    for trial in range(4):
        (sweep / "trials" / f"{trial:04d}").mkdir(parents=True)
        (sweep / "trials" / f"{trial:04d}" / "config.json").write_text("{}")
    (sweep / "sweep.json").write_text("{}")
    rows = [{"trial": 1, "score": 20.0}, {"trial": 2, "score": 31.5}, {"trial": 0, "score": None}]
    (sweep / "results.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"trial": 3, "sc'
    )
    return folder


def test_latest_is_the_newest_run_by_the_time_in_its_name(arena):
    assert resolve(arena / LATEST).name == "20260301-000000-s0"
    assert resolve(str(arena / LATEST), (PLAN,)).name == "20260401-000000-sweep"
    (arena / "20260301-000000-s0" / "config.json").unlink()
    assert (
        resolve(arena / LATEST).name == "20260102-030405-s10"
    )  # of one second, the one written last


def test_latest_is_by_the_time_of_its_files_where_a_name_has_none(arena):
    os.utime(arena / "mine" / "config.json")  # now
    assert resolve(arena / LATEST).name == "mine"


def test_a_link_leads_to_the_run_that_was_begun_last_and_no_command_takes_it_for_another(arena):
    for name in ("mine", "20260102-030405-s9"):
        link_latest(arena / name)
        assert os.readlink(arena / LATEST) == name
        assert (arena / LATEST / "config.json").read_text() == "{}"
    assert resolve(arena / LATEST) == arena / "20260301-000000-s0"  # not by the link
    assert "holds 4 runs and 1 sweep" in contents(arena)
    (arena / "mine" / "metrics.jsonl").touch()
    link_latest(arena / "mine")
    assert runs_in(arena) == [arena / "mine"]
    assert not list(arena.glob(".latest*"))


def test_what_a_user_has_named_latest_is_not_replaced_by_a_link(arena):
    (arena / LATEST).write_text("my notes")
    link_latest(arena / "mine")
    assert (arena / LATEST).read_text() == "my notes"


def test_a_folder_that_is_named_latest_is_itself(arena):
    (arena / LATEST).mkdir()
    assert resolve(arena / LATEST) == arena / LATEST
    assert resolve(arena / "mine") == arena / "mine"


def test_a_run_that_is_removed_while_its_folder_is_listed_is_left_out(arena, monkeypatch):
    begin = runs.begin

    def removed(path, kind):
        (path / kind).unlink()
        monkeypatch.setattr(runs, "begin", begin)
        return begin(path, kind)

    monkeypatch.setattr(runs, "begin", removed)
    assert "holds 3 runs and 1 sweep" in contents(arena)


def test_latest_of_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"latest: .* holds no run"):
        load_policy(tmp_path / LATEST)
    with pytest.raises(UsageError, match=r"latest: .* holds no sweep"):
        resume_sweep(tmp_path / "nowhere" / LATEST)


def test_what_takes_a_run_takes_latest(arena):
    with pytest.raises(UsageError, match=r"20260301-000000-s0 has no checkpoint yet"):
        checkpoint.find(arena / LATEST)
    with pytest.raises(UsageError, match=r"20260301-000000-s0 is not a run.s folder"):
        read_run(arena / LATEST)


def test_a_folder_of_runs_says_what_it_holds(arena):
    words = r"holds 4 runs and 1 sweep: 20260301-000000-s0, 2026.*latest is the newest run"
    for take in (load_policy, evaluate, read_run):
        with pytest.raises(UsageError, match=words):
            take(arena)


def test_a_sweeps_folder_names_its_trials_the_best_first(arena, capsys):
    sweep = arena / "20260401-000000-sweep"
    with pytest.raises(SystemExit):
        evaluate_command([str(sweep), "--compile-cache", "off"])
    said = capsys.readouterr().err
    assert (
        "is a sweep of 4 trials, not a run: choose one of trials/0002 (31.50), trials/0001 "
        "(20.00), trials" in said
    )
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("take", [load_policy, jaxrl.Trainer.from_checkpoint, evaluate])
def test_a_populations_checkpoint_is_no_runs_and_names_the_trials(arena, take):
    members = arena / "20260401-000000-sweep" / "population" / "000001"
    members.mkdir(parents=True)
    (members / checkpoint.FACTS).write_text("{}")
    with pytest.raises(
        UsageError, match=r"000001 has all of a population: .* choose one of trials/"
    ):
        take(members)


def test_many_names_are_cut_and_an_empty_folder_holds_nothing(arena, tmp_path):
    for i in range(10):
        (arena / f"run{i}").mkdir()
        (arena / f"run{i}" / "config.json").write_text("{}")
    assert "and 9 more" in contents(arena)
    assert contents(tmp_path) == contents(tmp_path / "nowhere") == ""
