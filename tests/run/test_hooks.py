"""The protocol of hooks: the order of methods, what ends training, what a checkpoint keeps."""

import pytest

from jaxrl import Callbacks
from jaxrl.run.hooks import Hook, StopCriteria, states_of
from tests.probes import SMALL_ARENA

ITERATION = "training_iteration"


class Notes(Hook):
    """Writes down what it is asked, with the number of updates of the state at hand."""

    def __init__(self, name, trainer, notes, counts=99):
        self.name, self.trainer, self.notes, self.counts = name, trainer, notes, counts

    def note(self, method, results):
        updates = int(self.trainer.runner.num_updates)
        self.notes.append((self.name, method, len(results), updates))
        return min(self.counts, len(results))

    def keep(self, results):
        self.note("keep", results)
        return len(results)

    def look(self, results):
        count = self.note("look", results)
        results[count - 1]["done"] |= count < len(results)
        return count

    def look_at_the_end(self, result):
        self.note("look_at_the_end", [result])

    def after(self, chunk):
        self.note("after", chunk.results)

    def state(self):
        return {"counts": self.counts}

    def restore(self, state):
        self.counts = state["counts"]


@pytest.fixture
def trainer(start):
    return start(SMALL_ARENA)


def test_each_method_is_called_for_all_hooks_before_the_next(trainer):
    trainer.train()
    notes = []
    first, record = Notes("first", trainer, notes), Notes("record", trainer, notes)
    record.is_record = True
    trainer.hooks[:0] = [record, first]
    trainer.train()
    methods = ("keep", "look", "after")
    before_and_after = {"keep": 1, "look": 2, "after": 2}
    expected = [
        (name, method, 1, before_and_after[method])
        for method in methods
        for name in (("first", "record") if method == "after" else ("record", "first"))
    ]
    assert notes == expected


def test_a_chunk_is_computed_again_up_to_the_result_that_a_hook_ends_with(trainer):
    trainer.train()
    trainer.loop.seconds_per_update = 0.2  # so that a chunk is five iterations
    notes = []
    trainer.hooks.append(Notes("ends", trainer, notes, counts=3))
    result = trainer.fit({ITERATION: 20})
    assert (result[ITERATION], result["done"], trainer.lifetime.training_iteration) == (4, True, 4)
    assert notes == [
        ("ends", "keep", 5, 1),
        ("ends", "look", 5, 6),
        ("ends", "look_at_the_end", 1, 4),
        ("ends", "after", 3, 4),
    ]


def test_records_are_kept_whatever_another_hook_raises(trainer):
    notes = []

    class Fails(Callbacks):
        def on_train_result(self, trainer, result):
            raise ZeroDivisionError

    record, other = Notes("record", trainer, notes), Notes("other", trainer, notes)
    record.is_record = True
    trainer.hooks += [record, other]
    trainer.callbacks.callbacks = (Fails(),)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert [(name, method) for name, method, *_ in notes] == [
        ("record", "keep"),
        ("other", "keep"),
        ("record", "after"),
    ]


def test_a_checkpoint_holds_the_state_of_each_hook_that_has_one(trainer):
    trainer.hooks.append(Notes("counting", trainer, [], counts=7))
    assert trainer.snapshot().hooks == {"callbacks": [], "counting": {"counts": 7}}
    assert states_of([Hook(), StopCriteria()]) == {}


def test_criteria_keep_the_results_up_to_the_first_that_meets_one():
    criteria, results = StopCriteria(), [{"score": score} for score in (1.0, 2.0, 3.0)]
    assert criteria.keep(results) == 3
    criteria.stop = {"score": 2.0, "other": 0.0}
    assert criteria.keep(results) == 2
