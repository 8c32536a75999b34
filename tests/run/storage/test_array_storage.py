"""Arrays after a removed folder, a full disk, a reader at the wrong moment, a kill at the end."""

import json
import os
import shutil
import signal
import threading
import tracemalloc

import numpy as np
import pytest

from jaxrl import UsageError, load_policy
from jaxrl.run.resume import read_run
from jaxrl.run.storage import array_storage, checkpoint


def facts(iteration):
    return {"lifetime": {"training_iteration": iteration}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_arrays_are_written_and_read_by_a_path_that_leads_up_and_through_a_link(tmp_path):
    (tmp_path / "deep" / "here").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "here", target_is_directory=True)
    up = tmp_path / "link" / ".." / "arrays"  # of `deep`, where the link leads
    array_storage.write(up, {"a": np.arange(3.0)})
    assert (tmp_path / "deep" / "arrays").is_dir()
    for path in (up, tmp_path / "deep" / "here" / ".." / "arrays"):
        assert array_storage.read(path, ["a"])["a"].tolist() == [0.0, 1.0, 2.0]


# A run's folder that goes away


@pytest.mark.long
@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_folder_that_is_gone_is_made_again_and_can_be_resumed(
    how, start, resume, tmp_path, capsys
):
    run = tmp_path / "run"
    trainer = start(checkpoint_frequency=1, quiet=False)
    trainer.train()
    trainer.keeping.recorder.wait()
    shutil.rmtree(run) if how == "removed" else run.rename(tmp_path / "elsewhere")
    trainer.train()
    trainer.keeping.recorder.wait()
    assert f"run folder {run} was removed or moved; it is made again" in capsys.readouterr().out
    assert {"config.json", "metadata.json", "metrics.jsonl"} <= set(names(run))
    with pytest.raises(UsageError, match="is in use by another trainer"):
        resume(run)
    trainer.train()
    assert trainer.stop() is None
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["training_iteration"] for line in lines] == [2, 3]
    assert resume(run).train()["training_iteration"] == 4
    if how == "moved":
        assert resume(tmp_path / "elsewhere").lifetime.training_iteration == 1


def test_a_folder_made_again_gets_a_checkpoint_at_once(start, tmp_path):
    trainer = start(checkpoint_interval_s=None)
    trainer.train()
    trainer.keeping.recorder.wait()
    shutil.rmtree(tmp_path / "run")
    for _ in range(3):
        trainer.train()
        trainer.keeping.recorder.wait()
    assert checkpoint.iterations(tmp_path / "run" / "checkpoints")


def test_another_runs_folder_of_the_same_name_is_left_alone(start, tmp_path):
    run = tmp_path / "run"
    trainer = start(checkpoint_frequency=1)
    trainer.train()
    trainer.keeping.recorder.wait()
    run.rename(tmp_path / "elsewhere")
    other = start(run_dir=run)
    trainer.train()
    assert "is another folder now" in trainer.stop()
    assert other.stop() is None
    assert not (run / "checkpoints").exists()


def test_a_config_that_was_removed_is_written_again(start, resume, tmp_path):
    trainer = start(checkpoint_frequency=1)
    trainer.train()
    trainer.keeping.recorder.wait()
    before = (tmp_path / "run" / "config.json").read_text()
    (tmp_path / "run" / "config.json").unlink()
    trainer.train()
    assert trainer.stop() is None
    assert (tmp_path / "run" / "config.json").read_text() == before
    assert resume().lifetime.training_iteration == 2


# A full disk


def full_after_some(folder, arrays):
    folder.mkdir()
    (folder / "some").write_bytes(b"0" * 100)
    raise OSError(28, "No space left on device")


def test_checkpoints_that_fail_on_a_full_disk_leave_nothing_behind(start, tmp_path, monkeypatch):
    trainer = start(checkpoint_frequency=1, keep=9)
    trainer.train()
    trainer.keeping.recorder.wait()
    monkeypatch.setattr(array_storage, "write", full_after_some)
    for _ in range(3):
        trainer.train()
    trainer.keeping.recorder.wait()
    shelf = tmp_path / "run" / "checkpoints"
    assert [name for name in names(shelf) if not name.startswith("best-")] == ["000001"]
    assert "No space left on device" in trainer.keeping.recorder.failed
    monkeypatch.undo()
    trainer.train()
    assert trainer.stop() is None
    assert list(checkpoint.iterations(shelf)) == [1, 5]


def test_a_checkpoint_whose_facts_do_not_fit_on_the_disk_leaves_nothing_behind(
    tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    checkpoint.write(tmp_path, {"a": np.arange(3)}, facts(1))
    monkeypatch.setattr(checkpoint.Path, "write_text", full)
    for iteration in (1, 2):
        with pytest.raises(OSError, match="No space left"):
            checkpoint.write(tmp_path, {"a": np.arange(3)}, facts(iteration))
    assert names(tmp_path) == ["000001"]


# A reader while a trainer keeps its newest checkpoint alone


@pytest.mark.long
def test_a_reader_meets_a_checkpoint_however_fast_older_ones_are_removed(tmp_path):
    shelf = tmp_path / "checkpoints"
    shelf.mkdir()
    checkpoint.write(shelf, {"a": np.full(3, 1)}, facts(1))
    done, errors = threading.Event(), []

    def write():
        try:
            for iteration in range(2, 30):
                checkpoint.write(shelf, {"a": np.full(3, iteration)}, facts(iteration))
                checkpoint.prune(shelf, keep=1)
        except Exception as error:
            errors.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set():
        read = checkpoint.open_found(tmp_path)
        assert set(read.arrays["a"]) == {read.facts["lifetime"]["training_iteration"]}
        reads += 1
    writer.join()
    assert errors == []
    assert reads >= 5


def test_a_checkpoint_removed_while_it_is_read_is_read_again_from_the_newer_one(tmp_path):
    for iteration in (1, 2):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        checkpoint.write(tmp_path / "checkpoints", {"a": np.full(3, iteration)}, facts(iteration))
    shelf = tmp_path / "checkpoints"
    newest = shutil.copytree(shelf / "000002", tmp_path / "kept")
    shutil.rmtree(shelf / "000002")
    met = []

    def reader(path):
        met.append(path.name)
        if path.name == "000001":  # the trainer writes the next one and removes this one
            shutil.copytree(newest, shelf / "000002")
            checkpoint.remove(path)
        return checkpoint.read(path)

    assert checkpoint.open_found(tmp_path, "last", reader).facts == {
        **checkpoint.read_facts(newest)
    }
    assert met == ["000001", "000002"]
    with pytest.raises(UsageError, match="000001 does not exist"):
        checkpoint.open_found(shelf / "000001")


def test_a_damaged_checkpoint_is_refused_at_the_first_reading(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    path = checkpoint.write(tmp_path / "checkpoints", {"a": np.arange(3)}, facts(1))
    met = []

    def reader(path):
        met.append(path)
        return checkpoint.read(path)

    (path / "checkpoint.json").unlink()
    with pytest.raises(UsageError, match=r"has no checkpoint\.json"):
        checkpoint.open_found(tmp_path, "last", reader)
    assert len(met) == 1


# The end of training


@pytest.mark.long
def test_pictures_that_a_kill_left_undrawn_are_drawn_where_nothing_is_left_to_train(
    start, resume, tmp_path
):
    trainer = start()
    trainer.fit({"training_iteration": 3})  # without pictures, as after a kill
    trainer.stop()
    pictures = [tmp_path / "run" / name for name in ("curves.png", "episode.gif", "episode.html")]
    assert not any(path.exists() for path in pictures)
    again = resume(pictures=True)
    assert again.fit({"training_iteration": 3})["training_iteration"] == 3
    again.stop()
    drawn = [path.stat().st_mtime_ns for path in pictures]
    third = resume(pictures=True)
    third.fit({"training_iteration": 3})
    third.stop()
    assert [path.stat().st_mtime_ns for path in pictures] == drawn  # they are up to date


@pytest.mark.long
@pytest.mark.parametrize("number", ["SIGHUP", "SIGTERM"])
def test_a_signal_ends_training_and_keeps_what_was_learned(number, small, start, tmp_path):
    trainer = start(small.replace(total_env_steps=64 * 10**7), checkpoint_interval_s=None)
    trainer.train()
    sent = getattr(signal, number)
    before = signal.signal(sent, signal.SIG_DFL)  # a suite started by nohup ignores SIGHUP
    threading.Timer(0.5, os.kill, (os.getpid(), sent)).start()
    try:
        last = trainer.fit()["training_iteration"]
    finally:
        signal.signal(sent, before)
    assert list(checkpoint.iterations(tmp_path / "run" / "checkpoints")) == [last]
    assert last < 10**7


def test_a_closed_terminal_that_nohup_ignores_ends_nothing(small, start):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trainer = start()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGHUP)).start()
        with trainer.interrupt.listening():
            threading.Event().wait(0.5)
            assert not trainer.interrupt.heard
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_the_last_checkpoint_is_written_does_not_lose_it(
    small, start, tmp_path, monkeypatch
):
    trainer, save, sent = start(), checkpoint.write, []

    def slow(*args, **kwargs):
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
            threading.Event().wait(0.2)
        return save(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "write", slow)
    trainer.fit({"training_iteration": 2})
    assert list(checkpoint.iterations(tmp_path / "run" / "checkpoints")) == [2]
    load_policy(tmp_path / "run", "pol1")
    assert read_run(tmp_path / "run").lifetime.training_iteration == 2


# Memory


@pytest.mark.long
def test_writing_keeps_no_memory_for_each_array(tmp_path):
    arrays = {f"part.{i}": np.zeros(2, np.float32) for i in range(100)}
    array_storage.write(tmp_path / "first", arrays)
    tracemalloc.start()
    try:
        for i in range(5):
            array_storage.write(tmp_path / str(i), arrays)
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    asked = [
        tracemalloc.Filter(True, f"*{name}.py") for name in ("tensorstore_utils", "array_storage")
    ]
    kept = sum(trace.size for trace in snapshot.filter_traces(asked).traces)
    assert kept < 50_000  # tensorstore's strings alone took 140,000
