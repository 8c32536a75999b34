"""Hooks of a run by themselves: what a checkpoint keeps of them, and what ends training.

The order of their methods: tests/run/test_loop.py.
"""

from jaxrl.run.hooks import Hook, StopCriteria, states_of
from tests.programs import SMALL_ARENA


class Counting(Hook):
    name = "counting"

    def state(self):
        return {"counts": 7}


def test_a_checkpoint_holds_the_state_of_each_hook_that_has_one(start):
    trainer = start(SMALL_ARENA)
    trainer.hooks.append(Counting())
    assert trainer.snapshot().hooks == {"callbacks": [], "counting": {"counts": 7}}
    assert states_of([Hook(), StopCriteria()]) == {}


def test_criteria_keep_the_results_up_to_the_first_that_meets_one():
    criteria, results = StopCriteria(), [{"score": score} for score in (1.0, 2.0, 3.0)]
    assert criteria.keep(results) == 3
    criteria.stop = {"score": 2.0, "other": 0.0}
    assert criteria.keep(results) == 2
