"""Hooks of a user's own: their moments, their state in checkpoints, and what is refused."""

import json
import signal
import subprocess
import sys

import pytest

from jaxrl import Every, Hook, Trainer, UsageError, load_run
from jaxrl.run.storage import checkpoint
from tests.probes import SMALL_ARENA
from tests.run.test_resume import lines_of

ITERATION = "training_iteration"
QUIET = {"quiet": True, "pictures": False, "loggers": ("jsonl",)}
COUNTS = f"{__name__}:Counts"


class Counts(Hook):
    """Counts the iterations that it has looked at, and adds the number to each result."""

    name = "counts"

    def __init__(self):
        self.number = 0

    def look(self, results):
        for result in results:
            self.number += 1
            result["counted"] = self.number
        return len(results)

    def state(self):
        return {"number": self.number}

    def restore(self, state):
        self.number = state["number"]


class Ends(Counts):
    """Ends training after the third iteration."""

    def look(self, results):
        super().look(results)
        for i, result in enumerate(results, start=1):
            if result["counted"] == 3:
                result["done"] = True
                return i
        return len(results)


class Chunks(Hook):
    """Notes after which iterations chunks end, and which of these are its moments."""

    def __init__(self, iterations):
        self.every, self.ends, self.due = Every(iterations=iterations), [], []

    def after(self, chunk):
        iteration = chunk.results[-1][ITERATION]
        assert int(chunk.now().runner.num_updates) == iteration
        self.ends.append(iteration)
        self.due += [iteration] if self.every.is_due(iteration) else []


class Breaks(Hook):
    """Raises in one of its methods, in the second iteration."""

    every = Every(iterations=1)

    def __init__(self, method):
        setattr(self, method, self.break_down)

    def break_down(self, seen):
        results = getattr(seen, "results", seen)
        if results[-1][ITERATION] == 2:
            raise ZeroDivisionError
        return len(results)


KILLED = f"""
import os, signal
from {__name__} import *
trainer = Trainer(SMALL_ARENA, run_dir=PATH, hooks=[COUNTS], **QUIET)
for iteration in range(1, 4):
    trainer.train()
    if iteration == 2:
        trainer.save()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_a_state_survives_a_kill_and_a_resume(tmp_path):
    code = f"PATH = {str(tmp_path / 'run')!r}\n{KILLED}"
    done = subprocess.run([sys.executable, "-c", code], timeout=300)
    assert done.returncode == -signal.SIGKILL
    path = checkpoint.find(tmp_path / "run")
    assert checkpoint.read_facts(path)["hooks"]["counts"] == {"number": 2}
    with pytest.raises(UsageError, match=f"the run's hook is '{COUNTS}', which is not part of"):
        Trainer.from_checkpoint(tmp_path / "run", quiet=True)
    with Trainer.from_checkpoint(tmp_path / "run", quiet=True, trust=True) as trainer:
        trainer.fit({ITERATION: 5})
    assert [line["counted"] for line in lines_of(tmp_path / "run")] == [1, 2, 3, 4, 5]


def test_a_hook_given_as_an_object_has_to_be_given_again(start, resume):
    trainer = start(hooks=[Counts()])
    trainer.fit({ITERATION: 2})
    trainer.stop()
    with pytest.raises(UsageError, match=r"hooks hold an object.*give hooks again"):
        resume(trust=True)
    again = Counts()
    resume(hooks=[again]).fit({ITERATION: 3})
    assert again.number == 3


def test_chunks_end_at_its_moments(start):
    chunks = Chunks(3)
    trainer = start(hooks=[chunks], run_dir=None)
    trainer.loop.seconds_per_update = 1e-3  # as if it knew already that a chunk may be long
    trainer.fit({ITERATION: 7})
    assert (chunks.ends, chunks.due) == ([3, 6, 7], [3, 6])
    assert chunks.trainer is trainer


def test_it_ends_training_in_the_very_iteration(start):
    trainer = start(hooks=[Ends], run_dir=None)
    trainer.loop.seconds_per_update = 1e-3
    result = trainer.fit()
    assert (result[ITERATION], result["done"], int(trainer.runner.num_updates)) == (3, True, 3)


def test_what_it_adds_is_logged_and_is_no_stop_criterion(start, tmp_path):
    trainer = start(hooks=Counts)
    with pytest.raises(UsageError, match="counted"):
        trainer.fit({"counted": 4})
    trainer.fit({ITERATION: 4})
    assert [line["counted"] for line in lines_of(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.parametrize(("method", "kept"), [("look", 2), ("after", 2), ("keep", 1)])
def test_one_that_raises_loses_no_results(method, kept, start, tmp_path):
    trainer = start(hooks=[Breaks(method)])
    with pytest.raises(ZeroDivisionError):
        trainer.fit({ITERATION: 5})
    assert [result[ITERATION] for result in load_run(tmp_path / "run").results()] == [
        *range(1, kept + 1)
    ]
    assert list(checkpoint.iterations(tmp_path / "run" / "checkpoints")) == [kept]
    assert int(trainer.runner.num_updates) == kept


class Named(Hook):
    name = "callbacks"


class Nameless(Hook):
    def state(self):
        return 1


class Rarely(Hook):
    every = 10


class Full(Counts):
    def state(self):
        return {"hook": self}


class NoneCounts(Hook):
    def look(self, results):
        return 0


class Mute(Hook):
    def keep(self, results):
        pass


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ([Counts, Counts()], "hook Counts: name='counts' is that of hook Counts, and a checkpoint"),
        ([Named], "hook Named: name='callbacks' is that of a hook of the run itself"),
        ([Nameless], "hook Nameless: name='' must be a text, by which checkpoints hold its state"),
        ([Rarely], "hook Rarely: every=10 must be a jaxrl.Every"),
        ([Chunks], "hook class Chunks: missing a required argument: 'iterations'; give an inst"),
        ([print], "must be a list of module:Class, or of classes or objects derived from jaxrl.H"),
        ("tests.probes:SMALL_ARENA", "'tests.probes:SMALL_ARENA' is .* not a class derived from"),
        ([Full], "state of hook Full must be what JSON holds: .*Full is not JSON serializable"),
        ([NoneCounts], "look of hook NoneCounts must return how many of the 1 results count, 1 or"),
        ([Mute], "keep of hook Mute must return how many of the 1 results count, .* not None"),
    ],
)
def test_what_no_run_can_have_is_refused_in_one_line(hooks, words):
    with pytest.raises(UsageError, match=words) as caught:
        Trainer(SMALL_ARENA, hooks=hooks, run_dir=None, quiet=True).train()
    assert len(str(caught.value).splitlines()) == 1


def test_a_runs_folder_names_its_hooks(start, tmp_path):
    start(hooks=COUNTS).stop()
    facts = json.loads((tmp_path / "run" / "metadata.json").read_text())
    assert facts["run_settings"]["hooks"] == [COUNTS]
