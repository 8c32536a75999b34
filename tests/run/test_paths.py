"""Run folders under any path that the system takes: trained into, played, resumed, moved."""

import os

import numpy as np
import pytest

from jaxrl import load_policy
from jaxrl.run.storage import array_storage, checkpoint
from tests.run.test_resume import assert_equal_to_the_bit

LONG = os.path.join(*["x" * 100] * 30)
NAMES = [
    "proj[1]",
    "lr=[1,2]",
    "a*b?",
    "sp ace",
    "größe 日本",
    "new\nline",
    "back\\slash",
    "gs:",
    "{a}%41#b|c",
    "\udcff",  # bytes that are no UTF-8
    LONG,
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_checkpoint_is_written_and_read_under_any_path(tmp_path, name):
    arrays = {"a": np.arange(3), "b.0": np.zeros((2, 2))}
    (tmp_path / name).mkdir(parents=True)
    path = checkpoint.write(tmp_path / name, arrays, {"lifetime": {"training_iteration": 3}})
    read = checkpoint.read(checkpoint.find(path)).arrays
    assert sorted(read) == ["a", "b.0"]
    np.testing.assert_array_equal(read["a"], np.arange(3), strict=True)
    assert [entry.name for entry in path.parent.iterdir()] == ["000003"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["lr=[1,2] größe\n日本", LONG], ids=["special", "long"])
def test_a_run_is_trained_played_resumed_and_moved_under_any_path(start, resume, tmp_path, name):
    run = tmp_path / name / "run"
    trainer = start(run_dir=run, checkpoint_frequency=1)
    trainer.fit({"training_iteration": 2})
    assert trainer.stop() is None
    load_policy(run, "pol1")
    again = resume(run)
    assert_equal_to_the_bit(again.runner, trainer.runner)
    again.fit({"training_iteration": 3})
    assert again.stop() is None
    for other in ("plain", "back\\slash [0]"):  # out of such a folder, and into one
        run = run.rename(tmp_path / other)
        load_policy(run, "pol1", checkpoint=2)
        moved = resume(run)
        assert moved.lifetime.training_iteration == 3
        moved.stop()


def test_a_checkpoint_whose_arrays_are_not_there_after_writing_is_an_error(tmp_path, monkeypatch):
    class Forgetful:
        """Writes all arrays but one."""

        def __init__(self, whole):
            self.whole = whole

        def save(self, path, arrays):
            self.whole.save(path, {name: array for name, array in arrays.items() if name != "b"})

    whole = array_storage._checkpointer()
    monkeypatch.setattr(array_storage, "_checkpointer", lambda: Forgetful(whole))
    with pytest.raises(OSError, match="1 of 2 arrays are missing after writing, the first is b"):
        checkpoint.write(
            tmp_path, {"a": np.arange(3), "b": np.ones(2)}, {"lifetime": {"training_iteration": 3}}
        )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_links_that_has_special_characters_itself_is_passed_over(
    tmp_path, monkeypatch
):
    (odd := tmp_path / "tmp[1]").mkdir()
    monkeypatch.setattr(array_storage.tempfile, "gettempdir", lambda: str(odd))
    arrays = {"a": np.arange(3)}
    (tmp_path / "[run]").mkdir()
    path = checkpoint.write(tmp_path / "[run]", arrays, {"lifetime": {"training_iteration": 3}})
    assert sorted(checkpoint.read(path).arrays) == ["a"]
    assert list(odd.iterdir()) == []
