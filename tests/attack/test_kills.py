"""Trainings that are killed at random moments go on as if nothing had been, and leave nothing.

`JAXRL_KILLS` is the number of kills of each test, 3 by default; tests/attack/killed.py is what
runs. The seed of the moments is fixed, but what runs at them is not.
"""

import os
import signal
import sys
import time
from collections import Counter

import numpy as np
import pytest

from jaxrl.run.storage import checkpoint
from tests.attack import killed, processes
from tests.programs import lines_of
from tests.run.test_killed_training import played


def numbers_of_kills(many):
    """The parameters of a test."""
    few = int(os.environ.get("JAXRL_KILLS", 3))
    return pytest.mark.parametrize(
        "num_kills",
        [pytest.param(few, marks=pytest.mark.process), pytest.param(many, marks=pytest.mark.slow)],
    )


SECONDS = 180  # for anything to happen
SHARED = "/dev/shm"
OFTEN = {"checkpoint_frequency": 5}
WORKERS = {**OFTEN, "workers": 2, "max_consecutive_faults": killed.ENDLESS}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")


@pytest.fixture
def random(num_kills):
    return np.random.default_rng(num_kills)


def size_of(run):
    """Of the log, in bytes."""
    try:
        return (run / "metrics.jsonl").stat().st_size
    except FileNotFoundError:
        return 0


def wait_until(process, is_true):
    end = time.monotonic() + SECONDS
    while not is_true():
        assert process.exitcode is None and time.monotonic() < end, f"ended: {process.exitcode}"
        time.sleep(0.01)


def wait_for_rows(process, run):
    """Until the training logs, which cuts the log back to the checkpoint first."""
    before = size_of(run)
    wait_until(process, lambda: size_of(run) != before)


def kill(process):
    """Kills a trainer that runs."""
    assert process.exitcode is None
    process.kill()
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL


def train(run, config, settings, iteration):
    """Trains up to an iteration, unharmed."""
    process = killed.start(run, config, settings, iteration)
    process.join(SECONDS)
    assert process.exitcode == 0


def iterations(run):
    """Of the log's whole rows: the last one may have been cut by a kill."""
    text = (run / "metrics.jsonl").read_text() if size_of(run) else ""
    names = (
        line.partition('"training_iteration": ')[2]
        for line in text.splitlines(True)
        if line.endswith("\n")
    )
    return [int(name.partition(",")[0]) for name in names]


def assert_no_gap(run):
    """No row of the log is missing or twice; returns their number."""
    found = iterations(run)
    assert found == list(range(1, len(found) + 1))
    return len(found)


def newest_checkpoint(run):
    """The iteration of the newest checkpoint, which is whole; 0 where there is none."""
    found = checkpoint.iterations(run / "checkpoints")
    if not found:
        return 0
    checkpoint.read(found[max(found)])
    return max(found)


def assert_tidy(run):
    """Nothing that a kill left unfinished outlasts the run."""
    names = [path.name for folder in (run, run / "checkpoints") for path in folder.iterdir()]
    assert [name for name in names if name.startswith(".") and name != ".lock"] == []


def assert_as_unbroken(run, unbroken):
    assert assert_no_gap(run) == assert_no_gap(unbroken)
    assert_tidy(run)
    logged, expected = ([played(row) for row in lines_of(path)] for path in (run, unbroken))
    assert logged == expected
    arrays, whole = (
        checkpoint.read(path / "checkpoints" / f"{newest_checkpoint(path):06d}").arrays
        for path in (run, unbroken)
    )
    assert list(arrays) == list(whole)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, whole[name], err_msg=name, strict=True)


@numbers_of_kills(12)
def test_self_play_with_a_curriculum_goes_on_to_the_bit_after_kills(tmp_path, random, num_kills):
    run, unbroken, resumed_at = tmp_path / "run", tmp_path / "unbroken", []
    for _ in range(num_kills):
        process = killed.start(run, killed.SELF_PLAY, OFTEN)
        wait_for_rows(process, run)
        time.sleep(random.uniform(0, 2))
        kill(process)
        assert_no_gap(run)
        resumed_at.append(newest_checkpoint(run))
    assert resumed_at == sorted(resumed_at) and resumed_at[-1] > 0
    last = len(iterations(run)) + 30
    for folder in (run, unbroken):
        train(folder, killed.SELF_PLAY, OFTEN, last)
    assert_as_unbroken(run, unbroken)
    print(f"{num_kills} kills in {last} iterations; resumed at {resumed_at}")


@numbers_of_kills(12)
def test_a_training_that_is_killed_before_its_first_checkpoint_begins_again(
    tmp_path, random, num_kills
):
    unbroken, runs = tmp_path / "unbroken", [tmp_path / f"run{i}" for i in range(3)]
    train(unbroken, killed.SELF_PLAY, {}, 40)  # which also fills the compile cache
    began, process = time.monotonic(), killed.start(tmp_path / "timed", killed.SELF_PLAY, {})
    wait_for_rows(process, tmp_path / "timed")
    seconds, found = time.monotonic() - began, Counter()
    kill(process)
    for count in range(num_kills):
        run = runs[count % len(runs)]
        before = size_of(run)
        process = killed.start(run, killed.SELF_PLAY, {})
        time.sleep(random.uniform(0, 1.4 * seconds))  # it imports, compiles, trains
        kill(process)
        found["rows" if size_of(run) != before else "folder" if run.exists() else "nothing"] += 1
        assert_no_gap(run)
        assert newest_checkpoint(run) == 0
    for run in runs:
        train(run, killed.SELF_PLAY, {}, 40)
        assert_as_unbroken(run, unbroken)
    print(f"{num_kills} kills, which left {dict(found)}")


def workers_of(run):
    return processes.with_variable(killed.MARK, str(run))


def kill_with_workers(run, process, random, moment):
    """Kills a trainer whose workers live; returns the seconds that these last.

    Args:
        moment: one of `MOMENTS`.
    """
    if moment == "as the workers start":
        wait_until(process, lambda: workers_of(run))
        time.sleep(random.uniform(0, 0.5))
    else:
        wait_for_rows(process, run)
        time.sleep(random.uniform(0, 1.5))
    if moment == "as a killed worker starts again":
        os.kill(int(random.choice(workers_of(run))), signal.SIGKILL)
        time.sleep(random.uniform(0, 0.5))
    assert workers_of(run)
    kill(process)
    began = time.monotonic()
    while left := workers_of(run):
        assert time.monotonic() < began + 10, left
        time.sleep(0.01)
    return time.monotonic() - began


MOMENTS = ("while it trains", "as the workers start", "as a killed worker starts again")


@numbers_of_kills(200)
def test_kills_of_a_trainer_leave_no_worker_no_shared_memory_and_no_gap(
    tmp_path, random, num_kills
):
    pytest.importorskip("gymnasium")
    run, newest, seconds = tmp_path / "run", 0, []
    shared, left = set(os.listdir(SHARED)), set()
    for count in range(num_kills):
        moment = MOMENTS[count % len(MOMENTS)]
        process = killed.start(run, killed.WITH_WORKERS, WORKERS)
        seconds.append(kill_with_workers(run, process, random, moment))
        left |= set(os.listdir(SHARED)) - shared
        rows, before, newest = assert_no_gap(run), newest, newest_checkpoint(run)
        assert before <= newest <= rows
        print(f"{count + 1}, {moment}: {seconds[-1]:.2f} s; {newest} of {rows}", flush=True)
    last = len(iterations(run)) + 30
    train(run, killed.WITH_WORKERS, WORKERS, last)
    assert assert_no_gap(run) == last
    assert newest > 0
    assert_tidy(run)
    assert workers_of(run) == []
    assert left & set(os.listdir(SHARED)) == set()  # what other programs had there has gone
    print(f"{num_kills} kills in {last} iterations; workers lasted {max(seconds):.2f} s at most")
