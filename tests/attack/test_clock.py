"""The machine's clock is set back by a year: nothing that training does goes by it."""

import re
import time
from pathlib import Path

import pytest

import jaxrl
from jaxrl import Trainer
from jaxrl.run.recorder import CURVES
from jaxrl.run.storage import checkpoint, runs
from tests.programs import SMALL_CARTPOLE, lines_of
from tests.run.test_resume import assert_equal_to_the_bit, without_times

PACKAGE = Path(jaxrl.__file__).parent
YEAR = 365 * 86_400.0
SETTINGS = {"quiet": True, "pictures": False, "loggers": ("jsonl", "csv", "tensorboard")}


@pytest.mark.long
def test_a_clock_that_is_set_back_changes_neither_training_nor_resuming(tmp_path, monkeypatch):
    now = time.time
    with Trainer(SMALL_CARTPOLE, run_dir=tmp_path / "whole", **SETTINGS) as whole:
        whole.fit()
    with Trainer(SMALL_CARTPOLE, run_dir=tmp_path / "back", **SETTINGS) as begun:
        begun.train()
        monkeypatch.setattr(time, "time", lambda: now() - YEAR)
        begun.train()
        begun.save()
    monkeypatch.setattr(time, "time", lambda: now() - 2 * YEAR)
    with Trainer.from_checkpoint(tmp_path / "back", quiet=True, pictures=False) as resumed:
        resumed.fit()
    assert_equal_to_the_bit(resumed.runner, whole.runner)
    logged = [list(map(without_times, lines_of(tmp_path / name))) for name in ("whole", "back")]
    for lines in logged:
        for line in lines:
            line.pop("pid", None)
    assert list(map(repr, logged[0])) == list(map(repr, logged[1]))  # text, in which NaN is NaN
    assert max(checkpoint.iterations(tmp_path / "back" / "checkpoints")) == len(logged[0])
    stamps = [line["timestamp"] for line in lines_of(tmp_path / "back")]
    assert stamps[1] < stamps[0] - YEAR / 2 and stamps[2] < stamps[1] - YEAR / 2


@pytest.fixture
def set_back(monkeypatch):
    """A function that sets the clock back by a year; what measures seconds goes on."""
    now, strftime = time.time, time.strftime

    def back():
        monkeypatch.setattr(time, "time", lambda: now() - YEAR)
        told = lambda form, when=None: strftime(form, when or time.localtime(now() - YEAR))
        monkeypatch.setattr(time, "strftime", told)

    return back


def test_latest_is_the_run_that_was_begun_last_though_the_clock_was_set_back(
    set_back, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    begun = []
    for _ in range(3):
        with Trainer(SMALL_CARTPOLE, quiet=True, pictures=False) as trainer:
            begun.append(trainer.run_dir.resolve())
        set_back()
        assert runs.resolve("runs/cartpole/latest").resolve() == begun[-1]
    assert len(set(begun)) == 3


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        (["29991231-235959-s0"], "30000101-000000"),
        (["99991231-235959-s0"], "99991231-235959"),
        (["99999999-999999-s0", "mine", "19990101-000000-s0"], None),
        ([], None),
    ],
)
def test_a_new_folders_time_follows_those_that_are_there(there, wanted, tmp_path):
    for name in there:
        (tmp_path / name).mkdir()
    before = time.strftime("%Y%m%d-%H%M%S")
    found = runs.next_time(tmp_path)
    assert found == wanted if wanted else before <= found <= time.strftime("%Y%m%d-%H%M%S")
    assert runs.next_time(tmp_path / "nowhere") >= before


@pytest.mark.long
def test_pictures_from_before_the_clock_was_set_back_are_drawn_again(set_back, tmp_path):
    pytest.importorskip("matplotlib")
    config = SMALL_CARTPOLE.replace(total_env_steps=64)
    with Trainer(config, run_dir=tmp_path / "run", quiet=True) as trainer:
        trainer.fit()
    drawn = (tmp_path / "run" / CURVES).stat().st_mtime_ns
    set_back()
    with Trainer.from_checkpoint(tmp_path / "run", quiet=True) as trainer:
        trainer.fit()
    assert (tmp_path / "run" / CURVES).stat().st_mtime_ns > drawn


def test_the_clock_on_the_wall_is_asked_for_times_to_show_and_of_files_alone():
    """Seconds that pass are those of `time.monotonic` and `time.perf_counter`."""
    asked = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\btime\.time\(\)|datetime\.now|from time import", file.read_text())
    }
    to_show = {"run/loop.py", "run/logging/tensorboard.py", "run/logging/mlflow.py"}
    beside_times_of_files = {"replay/live_run.py", "run/recorder.py", "run/storage/own_files.py"}
    beside_times_of_files.add("run/devices/kept_programs.py")
    assert asked == to_show | beside_times_of_files
