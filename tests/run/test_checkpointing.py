"""When checkpoints are due by the clock."""

from types import SimpleNamespace
from unittest.mock import MagicMock

from jaxrl.run import checkpointing
from jaxrl.run.hooks import Chunk
from jaxrl.run.processes import SingleProcess


def moments(monkeypatch, interval, *, compiling, seconds):
    """The seconds after compiling at which a run in chunks of a second writes checkpoints."""
    clock, saved = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(checkpointing.time, "monotonic", lambda: clock.now)
    settings = SimpleNamespace(checkpoint_frequency=None, checkpoint_interval_s=interval)
    trainer = MagicMock(settings=settings, processes=SingleProcess())
    trainer.best.pop.return_value = None
    recorder = MagicMock(written=[], remade=False, unwritten=None)
    recorder.save = lambda now, episodes: saved.append(clock.now - compiling)
    manager = checkpointing.CheckpointManager(trainer, recorder, writes=True)
    for second in range(seconds):
        clock.now = compiling + second
        manager.after(Chunk([{}], 1, MagicMock()))
    return saved


def test_early_checkpoints_lie_closer_together(monkeypatch):
    assert moments(monkeypatch, 60.0, compiling=3, seconds=250) == [7, 17, 34, 68, 128, 188, 248]
    assert moments(monkeypatch, 60.0, compiling=75, seconds=250) == [0, 10, 20, 40, 80, 140, 200]


def test_a_shorter_interval_counts_from_the_start_and_none_is_none(monkeypatch):
    assert moments(monkeypatch, 5.0, compiling=1, seconds=20) == [4, 9, 14, 19]
    assert moments(monkeypatch, None, compiling=75, seconds=250) == []
