"""The machine's clock is set back by a year: nothing that training does goes by it."""

import time

import pytest

from jaxrl import Trainer
from jaxrl.run.storage import checkpoint
from tests.probes import SMALL_CARTPOLE
from tests.run.test_resume import assert_equal_to_the_bit, lines_of, without_times

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
