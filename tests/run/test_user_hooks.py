"""Hooks of a user's own: their moments, their state in checkpoints, and what is refused."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from jaxrl import Callbacks, Every, Hook, Trainer, UsageError, load_run
from jaxrl.cluster.multiprocess import is_shared
from jaxrl.run.loop import advance
from jaxrl.run.storage import checkpoint
from jaxrl.run.user_hooks import CheckedHook
from tests.programs import SMALL_ARENA, lines_of

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


def test_a_hook_given_as_an_object_has_to_be_given_again(stopped_after, resume):
    stopped_after(2, hooks=[Counts()])
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


def hook_class(class_name, base=Hook, **attributes):
    return type(class_name, (base,), attributes)


def fail(*arguments):
    raise ZeroDivisionError("no hook")


class Added(Hook):
    """Adds to a result of each chunk that is long enough.

    Args:
        more: that it adds.
        index: of the result that it adds to.
    """

    def __init__(self, more, index=-1):
        self.more, self.index = more, index

    def look(self, results):
        if len(results) >= abs(self.index):
            results[self.index].update(self.more)
        return len(results)


class Short(Counts):
    """Lets fewer results count, without an end."""

    def look(self, results):
        super().look(results)
        return 1


class Failing(Counts):
    """Has no state from the second iteration on."""

    every = Every(iterations=1)

    def state(self):
        if self.number >= 2:
            raise ZeroDivisionError
        return super().state()


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ([Counts, Counts()], "hook Counts: name='counts' is that of hook Counts, and a checkpoint"),
        (
            [hook_class("Named", name="callbacks")],
            "hook Named: name='callbacks' is that of a hook of the run itself",
        ),
        (
            [hook_class("Nameless", state=lambda self: 1)],
            "hook Nameless has a state, so it needs a `name`$",
        ),
        ([type("Plain", (), {})], "Plain is not derived from jaxrl.Hook"),
        (
            [hook_class("Unmade", __init__=fail)],
            "hook Unmade cannot be made: ZeroDivisionError: no hook .test_user_hooks.py:",
        ),
        ("a:R,a:K", "hooks='a:R,a:K': separate several names by spaces"),
        ([hook_class("Rarely", every=10)], "hook Rarely: every=10 must be a jaxrl.Every"),
        ([Chunks], "hook class Chunks: missing a required argument: 'iterations'; give an inst"),
        ([print], "must be a list of module:Class, or of classes or objects derived from jaxrl.H"),
        (
            "tests.programs:SMALL_ARENA",
            "'tests.programs:SMALL_ARENA' is .* not a class derived from",
        ),
        (
            [hook_class("Full", Counts, state=lambda self: {"hook": self})],
            "state of hook Full must be what JSON holds: .*Full is not JSON serializable",
        ),
        (
            [hook_class("NoneCounts", look=lambda self, results: 0)],
            "look of hook NoneCounts must return how many of the 1 results count, 1 or",
        ),
        (
            [hook_class("Mute", keep=lambda self, results: None)],
            "keep of hook Mute must return how many of the 1 results count, .* not None; did",
        ),
        (
            [Added({"done": "yes"})],
            'look of hook Added: result."done". must be True or False, not ',
        ),
        ([Added({"x": 10**400})], "look of hook Added: result.'x'. "),
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


def test_a_record_that_raises_takes_no_other_record_away(start, tmp_path):
    trainer = start(hooks=[hook_class("RecordBreaks", Breaks, is_record=True)("after")])
    with pytest.raises(ZeroDivisionError):
        trainer.fit({ITERATION: 5})
    assert [line[ITERATION] for line in lines_of(tmp_path / "run")] == [1, 2]
    assert list(checkpoint.iterations(tmp_path / "run" / "checkpoints")) == [2]


def test_a_state_that_fails_takes_neither_the_log_nor_the_checkpoint_nor_the_lock(
    start, resume, tmp_path, capsys
):
    trainer = start(hooks=[Failing])
    with pytest.raises(UsageError, match=r"state of hook Failing must be .* ZeroDivisionError"):
        trainer.fit({ITERATION: 5})
    assert trainer.stop() is None
    assert [line[ITERATION] for line in lines_of(tmp_path / "run")] == [1, 2]
    path = checkpoint.find(tmp_path / "run")
    assert checkpoint.read_facts(path)["lifetime"][ITERATION] == 2
    assert checkpoint.read_facts(path)["hooks"]["counts"] == {"number": 1}
    printed = "".join(capsys.readouterr())
    assert printed.count("the checkpoint has its state of an earlier chunk") == 1
    assert resume(hooks=[Counts]).fit({ITERATION: 3})["counted"] == 2


def test_a_folder_is_unlocked_though_its_end_cannot_be_written(start, resume, monkeypatch):
    trainer = start()
    trainer.fit({ITERATION: 1})
    trainer.train()
    monkeypatch.setattr(trainer.keeping, "conclude", lambda now: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.stop()
    assert resume().fit({ITERATION: 3})[ITERATION] == 3


def long_chunk(start, *hooks):
    """The last result of a chunk of four iterations, after one of a single iteration."""
    trainer = start(hooks=hooks, run_dir=None)
    trainer.loop.seconds_per_update = 0.25
    trainer._prepare({})
    return trainer, advance(trainer.loop, 4)[0]


def test_a_look_at_fewer_results_needs_an_end_so_that_no_hook_sees_one_twice(start):
    with pytest.raises(UsageError, match="Renamed lets 1 of 4 results count, so the last of them"):
        long_chunk(start, Counts(), hook_class("Renamed", Short, name="renamed")())


def test_the_first_result_that_is_done_ends_the_list(start):
    trainer, chunk = long_chunk(start, Added({"done": np.True_}, index=1))
    assert [result["done"] for result in chunk.results] == [False, True]
    assert chunk.results[-1]["done"] is True
    assert int(trainer.runner.num_updates) == 2


class Ending(Callbacks):
    def on_train_result(self, trainer, result):
        result |= {"done": result[ITERATION] == 2, "lifetime": result[ITERATION]}


class Last(Hook):
    def look(self, results):
        for result in results:
            result["done"] = result["done"] or result[ITERATION] == 2
        return len(results)


@pytest.mark.parametrize(
    ("callbacks", "stop", "end"),
    [
        ((), {}, ["hook Last has ended training"]),
        (Ending, {}, ["a callback has ended training"]),
        (Ending, {"lifetime": 2}, ["lifetime=2 has reached the stop criterion 2"]),
        (Ending, {ITERATION: 2}, []),
    ],
)
def test_the_last_line_says_what_has_ended_training(callbacks, stop, end, start, capsys):
    config, settings = SMALL_ARENA.replace(callbacks=callbacks), {"hooks": [Last], "stop": stop}
    trainer = start(config, run_dir=None, quiet=False, **settings)
    trainer.fit()
    lines = capsys.readouterr().out.splitlines()
    (shown,) = [i for i, text in enumerate(lines) if text.startswith("iter") and " 2 " in text[:12]]
    assert lines[shown + 1 :] == end


def test_a_hook_is_restored_when_the_trainer_is_ready(stopped_after, resume):
    stopped_after(2, hooks=[Counts])

    class Reads(Counts):
        def restore(self, state):
            trainer = self.trainer
            self.found = trainer.run_dir.name, int(trainer.runner.num_updates), trainer.session

    assert resume(hooks=[hook := Reads()]).hook_states["counts"] == {"number": 2}
    assert hook.found[:2] == ("run", 2)


def test_a_restore_that_fails_lets_go_of_the_folder(stopped_after, resume):
    stopped_after(2, hooks=[Counts])
    with pytest.raises(ZeroDivisionError):
        resume(hooks=[hook_class("Unrestored", Counts, restore=fail)])
    assert resume(hooks=[Counts]).fit({ITERATION: 3})["counted"] == 3


def test_the_state_of_a_hook_that_a_resumed_run_lacks_is_dropped_in_one_line(
    stopped_after, tmp_path, capsys
):
    stopped_after(2, hooks=[Counts])
    with Trainer.from_checkpoint(tmp_path / "run", hooks=(), pictures=False):
        pass
    printed = "".join(capsys.readouterr())
    assert printed.count("the state of hook counts is dropped: this run has no such hook") == 1


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_moments_need_a_number_of_iterations(wrong):
    with pytest.raises(UsageError, match=r"Every: iterations=.* must be an integer of at least 1"):
        Every(iterations=wrong)


@pytest.mark.parametrize("wrong", [-1, "2", float("nan")])
def test_moments_need_a_number_of_seconds(wrong):
    with pytest.raises(UsageError, match=r"Every: seconds=.* must be a number >= 0"):
        Every(seconds=wrong)


class Leader:
    """Processes of which this one is the first, or another that gets the first one's count."""

    def __init__(self, answer=None):
        self.answer = answer

    def broadcast(self, make):
        return make() if self.answer is None else self.answer


def test_process_0_alone_decides_how_many_results_a_user_keeps():
    asked = []
    hook = Hook()
    hook.keep = lambda results: asked.append(1) or 1
    results = [{"done": False}, {"done": False}]
    assert CheckedHook(hook, "Clock", Leader(2)).keep(results) == 2
    assert asked == []
    assert CheckedHook(hook, "Clock", Leader()).keep(results) == 1


def test_an_error_after_a_chunk_is_perhaps_of_one_process_alone():
    hook = Hook()
    hook.after = lambda chunk: Every(iterations=0)
    with pytest.raises(UsageError) as caught:
        CheckedHook(hook, "After", Leader()).after(None)
    assert not is_shared(caught.value)
    assert is_shared(UsageError("of the settings"))
