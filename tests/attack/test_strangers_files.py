"""Folders of runs and sweeps from a stranger: resuming them changes nothing outside of them."""

import shutil
from pathlib import Path

import pytest

import jaxrl
from jaxrl.run import advice
from jaxrl.run.storage import checkpoint, runs
from tests.attack.forged import forged

QUIET = {"quiet": True, "pictures": False}
VICTIMS = ("episodes-0123abcd-000000.parquet", "episodes-89abcdef-000003.parquet", "notes.txt")


@pytest.fixture
def victim(tmp_path):
    """A folder of the user's, with files as a writer of episodes names them."""
    folder = tmp_path / "victim"
    folder.mkdir()
    for name in VICTIMS:
        (folder / name).write_text("mine")
    return folder


def is_untouched(folder):
    return {file.name: file.read_text() for file in folder.iterdir()} == dict.fromkeys(
        VICTIMS, "mine"
    )


def with_output(run, folder, output, **position):
    settings = checkpoint.read_facts(checkpoint.find(run))["run_settings"] | {"output": output}
    position = {"prefix": "0123abcd", "number": 0, **position}
    return forged(run, folder, run_settings=settings, episodes=position)


OUTPUTS = {
    "absolute": "{victim}",
    "dots": "{run}/../victim",
    "link": "{run}/link",
    "NUL": "{run}/\0",
    "megabyte": "{victim}/" + "a" * 1_000_000,
    "relative": "episodes",
}


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_a_run_that_writes_episodes_outside_of_its_folder_is_not_resumed_without_trust(
    output, run, victim, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "run"
    output = output.format(victim=victim, run=copy)
    with_output(run, copy, output)
    (copy / "link").symlink_to(victim)
    facts = checkpoint.read_facts(checkpoint.find(copy))
    with pytest.raises(jaxrl.UsageError, match=r"give --output again .*, or --trust") as error:
        jaxrl.Trainer.from_checkpoint(copy, **QUIET)
    assert len(str(error.value)) < 400
    assert is_untouched(victim) and not (tmp_path / "episodes").exists()
    assert advice.to_resume(copy, facts).endswith(" --trust")


@pytest.mark.parametrize(
    "position",
    [
        {"prefix": "*"},
        {"prefix": "x/../../../victim/*"},
        {"prefix": "0123abc?"},
        {"prefix": "0123ABCD"},
        {"prefix": "0" * 1_000_000},
        {"prefix": "0123abc\0"},
        {"prefix": None},
        {"number": -1},
        {"number": "0"},
        {"number": True},
        {"path": "/"},
    ],
    ids=lambda position: next(f"{k}={v!r:.12}" for k, v in position.items()),
)
def test_a_forged_position_removes_no_file_even_where_the_output_is_trusted(
    position, run, victim, tmp_path
):
    copy = with_output(run, tmp_path / "run", str(victim), **position)
    with pytest.raises(jaxrl.UsageError, match="names no files of episodes") as error:
        jaxrl.Trainer.from_checkpoint(copy, trust=True, **QUIET)
    assert is_untouched(victim) and len(str(error.value)) < 400


def test_a_run_that_writes_into_its_own_folder_is_resumed_without_a_word(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    position = checkpoint.read_facts(checkpoint.find(run))["episodes"]
    with_output(copy, tmp_path / "moved", str(tmp_path / "moved" / "episodes"), **position)
    with jaxrl.Trainer.from_checkpoint(tmp_path / "moved", **QUIET) as trainer:
        assert trainer.output.position == position
    assert "--trust" not in advice.to_resume(tmp_path / "moved", trainer.facts)


@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", "progress.csv", "config.json", "metadata.json", ".lock"),
        *("checkpoints", "checkpoints/000001", "episodes"),
    ],
)
def test_a_link_in_a_runs_folder_is_refused_and_its_target_stays(name, run, victim, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    if name == "checkpoints":
        shutil.move(copy / name, victim.with_name("theirs"))
        target = victim.with_name("theirs")
    else:
        (shutil.rmtree if (copy / name).is_dir() else Path.unlink)(copy / name)
        target = victim / "notes.txt"
        if name in ("config.json", "metadata.json"):
            target = tmp_path / name
            shutil.copyfile(run / name, target)
    before = target.read_bytes() if target.is_file() else sorted(target.rglob("*"))
    (copy / name).symlink_to(target)
    with pytest.raises(jaxrl.UsageError, match=r"is a link to .*: replace the link by what it"):
        jaxrl.Trainer.from_checkpoint(copy, **QUIET, **{"output": copy / "other"})
    assert (target.read_bytes() if target.is_file() else sorted(target.rglob("*"))) == before
    assert is_untouched(victim)


def test_a_folder_that_is_reached_through_a_link_is_resumed(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "newest").symlink_to(tmp_path / "run")
    settings = {"output": tmp_path / "run" / "episodes", **QUIET}
    with jaxrl.Trainer.from_checkpoint(tmp_path / "newest", **settings) as trainer:
        assert trainer.lifetime.training_iteration == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["results.jsonl", "sweep.json", "trials/0000", "trials/0000/metrics.jsonl", "trials"]
)
def test_a_link_in_a_sweeps_folder_is_refused_and_its_target_stays(name, tmp_path, swept):
    copy, target = tmp_path / "sweep", tmp_path / "theirs"
    shutil.copytree(swept, copy)
    name = name.replace("0000", runs.resolve(copy / "trials" / "0000").name)
    shutil.move(copy / name, target)
    (copy / name).symlink_to(target)
    held = lambda: {
        file: file.read_bytes() for file in (target, *target.rglob("*")) if file.is_file()
    }
    before = held()
    with pytest.raises(jaxrl.UsageError, match=r"is a link to .*: replace the link by what it"):
        jaxrl.resume_sweep(copy, quiet=True)
    assert held() == before


def test_a_log_that_becomes_a_link_while_training_is_not_written_through(run, victim, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    settings = {"output": copy / "episodes", "loggers": ("jsonl",), **QUIET}
    with jaxrl.Trainer.from_checkpoint(copy, **settings) as trainer:
        trainer.train()
        link = copy / "link"
        link.symlink_to(victim / "notes.txt")
        link.replace(copy / "metrics.jsonl")  # at once: rows are written beside the training
        trainer.train()
    assert is_untouched(victim)
