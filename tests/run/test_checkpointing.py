"""When checkpoints are due by the clock, and which state is the best."""

from types import SimpleNamespace
from unittest.mock import MagicMock

from jaxrl.run import checkpointing
from jaxrl.run.hooks import Chunk
from jaxrl.run.processes import SingleProcess
from jaxrl.run.results import RETURN


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


def best_of(*episodes, attribute=RETURN):
    """The score of the best state after results with these episodes, each a chunk of its own."""
    best, state = checkpointing.BestState(attribute), MagicMock(result={})
    for found in episodes:
        best.update(state, [{"env_runners": found}], state)
    return None if (popped := best.pop()) is None else popped[1]["value"]


def episodes(*returns, spread=0.0, win_rate=0.5):
    total = sum(returns)
    return {
        "episode_return_mean": total,
        "episode_return_min": total - spread,
        "episode_return_max": total + spread,
        "agent_episode_returns_mean": dict(enumerate(returns)),
        "opponents": {"win_rate": win_rate},
    }


def test_no_state_of_a_game_is_best_by_the_sum_of_returns():
    assert best_of(episodes(0.5, -0.5), episodes(0.9, -0.9)) is None
    assert best_of(episodes(0.5, -0.5), episodes(0.9, -0.4, spread=0.3)) == 0.5
    assert best_of(episodes(3.0), episodes(5.0)) == 5.0
    games = episodes(0.5, -0.5), episodes(0.9, -0.9, win_rate=0.8), episodes(0.6, -0.6)
    assert best_of(*games, attribute="env_runners/opponents/win_rate") == 0.8


def test_a_sum_that_is_constant_within_each_result_alone_has_a_best_state():
    """As that of likeliest actions in an environment without chance."""
    sums = episodes(3.0, -1.0), episodes(7.0, -1.0), episodes(5.0, -1.0)
    assert best_of(*sums) == 6.0
    assert best_of(sums[0], sums[0]) is None  # nothing tells them apart


def test_rounding_makes_no_state_of_a_game_the_best():
    rounded = episodes(6.0, 4.0), episodes(7.0000002, 3.0), episodes(2.9999999, 7.0)
    assert best_of(*rounded) is None
