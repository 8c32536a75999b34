"""Host hooks: when they are called, what they may add, how they end training, what a checkpoint keeps of them."""

import json

import pytest

from jaxrl import Callbacks, UsageError


class Counts(Callbacks):
    """Adds the number of iterations that it has seen, and writes down what else it is told."""

    def __init__(self):
        self.seen, self.told = 0, []

    def on_train_result(self, trainer, result):
        self.seen += 1
        result["seen"] = self.seen

    def on_evaluate_end(self, trainer, evaluation):
        self.told.append(("evaluation", trainer.lifetime.training_iteration))
        evaluation["mine"] = 1.0

    def on_checkpoint(self, trainer, path):
        self.told.append(("checkpoint", path.name))

    def on_train_end(self, trainer, result):
        self.told.append(("end", result["training_iteration"]))

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]


class StopsAt(Callbacks):
    def __init__(self, iteration):
        self.iteration = iteration

    def on_train_result(self, trainer, result):
        result["done"] = result["training_iteration"] == self.iteration


class SeesTheFirst(Callbacks):
    def on_train_result(self, trainer, result):
        result["doubled"] = 2 * result["seen"]


def test_every_iteration_is_told_in_order_and_what_is_added_is_logged_by_the_next_ones_too(small, start, tmp_path):
    trainer = start(small.replace(callbacks=(Counts(), SeesTheFirst())))
    trainer.fit({"training_iteration": 5})
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["seen"], line["doubled"]) for line in lines] == [(i, 2 * i) for i in range(1, 6)]


def test_the_other_hooks_hear_of_evaluations_checkpoints_and_the_end(small, start):
    counts = Counts()
    trainer = start(small.replace(callbacks=counts), evaluation_interval=2, checkpoint_frequency=2)
    trainer.fit({"training_iteration": 4})
    assert [name for kind, name in counts.told if kind == "checkpoint" and name.isdigit()] == ["000002", "000004"]
    assert counts.told[-1] == ("end", 4)
    assert len([1 for kind, _ in counts.told if kind == "evaluation"]) == 2
    assert trainer.last_result["evaluation"]["mine"] == 1.0


def test_a_hook_ends_training_in_the_very_iteration(small, start):
    trainer = start(small.replace(callbacks=StopsAt(7)), run_dir=None)
    trainer._seconds_per_update = 1e-3  # as if it knew already that a chunk may be long
    result = trainer.fit()
    assert (result["training_iteration"], result["done"]) == (7, True)
    assert int(trainer.runner.num_updates) == 7


def test_a_hooks_own_state_is_resumed(small, start, resume):
    trainer = start(small.replace(callbacks=Counts()))
    trainer.fit({"training_iteration": 3})
    trainer.stop()
    rest = resume(config=small.replace(callbacks=Counts()))
    assert rest.fit({"training_iteration": 5})["seen"] == 5


def test_callbacks_that_cannot_work_are_refused_before_the_folder_is_made(small, start, tmp_path):
    with pytest.raises(UsageError, match="on_train_result"):
        start(small.replace(callbacks=object()))
    with pytest.raises(UsageError, match=r"unknown callbacks class 'ArenaMetric'.*did you mean 'ArenaMetrics'"):
        start(small.replace(callbacks="scripts.arena_callbacks:ArenaMetric"))
    assert not (tmp_path / "run").exists()
