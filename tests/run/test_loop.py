"""The loop of training, for a run (S absent), for one trial and for three trials of one program."""

import jax
import numpy as np
import pytest

from jaxrl import Callbacks, RunSettings, Trainer
from jaxrl.run.every import Every
from jaxrl.run.hooks import Hook
from jaxrl.run.loop import advance, train
from jaxrl.run.results import ITERATIONS, RETURN
from jaxrl.sweeps.reporting import Reporter, TrialLoop
from jaxrl.sweeps.trial_state import numbers_for
from jaxrl.sweeps.trials import groups_of, trials_of
from jaxrl.sweeps.vmapped import program_of
from tests.programs import SMALL_REINFORCE

LAST = SMALL_REINFORCE.num_updates


def loop_of(size, config=SMALL_REINFORCE, **settings):
    """The loop of a run (None), or of as many trials, which differ in their rates."""
    if size is None:
        trainer = Trainer(config, run_dir=None, quiet=True, devices=1, **settings)
        trainer.criteria.stop = {ITERATIONS: LAST}
        trainer._prepare({})
        return trainer.loop
    trials = trials_of(config, [{"lr": 1e-3 * (i + 1)} for i in range(size)], 1)
    (group,) = groups_of(trials)
    settings = RunSettings(loggers=(), devices=1, **settings)
    reporters = [Reporter(trial, group.algorithm, LAST, settings) for trial in trials]
    numbers = numbers_for(trials, [LAST] * size, [])
    program = program_of(group, numbers, RETURN, (), 1)
    return TrialLoop(program, program.start(numbers), numbers, reporters)


def runners_of(loop):
    """The present state of each member."""
    if not isinstance(loop, TrialLoop):
        return [loop.trainer.runner]
    return [
        jax.tree.map(lambda leaf, i=i: leaf[i], loop.state.runner) for i in range(members(loop))
    ]


def members(loop):
    return len(loop.members)


def updates_of(loop):
    return [int(runner.num_updates) for runner in runners_of(loop)]


def weights_of(loop):
    return [runner.learners[0].weights for runner in runners_of(loop)]


class Notes(Hook):
    """Writes down what it is asked, with the number of updates of its member at that moment.

    Args:
        kept, looked: the results that count by `keep` and by `look`, which then ends training.
    """

    adds_to_each = True

    def __init__(self, name, loop, member, notes, kept=99, looked=99):
        self.name, self.loop, self.member, self.notes = name, loop, member, notes
        self.kept, self.looked = kept, looked

    def note(self, method, count):
        updates = updates_of(self.loop)[self.member]
        self.notes.append((self.member, self.name, method, count, updates))

    def keep(self, results):
        self.note("keep", len(results))
        return min(self.kept, len(results))

    def look(self, results):
        self.note("look", len(results))
        count = min(self.looked, len(results))
        results[count - 1]["done"] |= count < len(results)
        return count

    def look_at_the_end(self, result):
        self.note("look_at_the_end", 1)

    def after(self, chunk):
        self.note("after", chunk.count)


class Fails(Hook):
    def look(self, results):
        raise ZeroDivisionError


class StopsAt(Callbacks):
    """Ends a training after an iteration, that of the first rate alone where there are several."""

    def __init__(self, iteration):
        self.iteration, self.heard, self.evaluated = iteration, [], []

    def on_train_result(self, trainer, result):
        is_first = getattr(trainer, "trial", None) is None or trainer.trial.number == 0
        self.heard += [result[ITERATIONS]] if is_first else []
        result["done"] = is_first and result[ITERATIONS] == self.iteration

    def on_evaluate_end(self, trainer, evaluation):
        self.evaluated.append(
            (int(trainer.runner.num_updates), trainer.lifetime.training_iteration)
        )


@pytest.fixture(params=[None, 1, 3], ids=["S absent", "S=1", "S=3"])
def size(request):
    return request.param


@pytest.mark.long
def test_each_method_is_called_for_all_hooks_before_the_next(size):
    loop, notes = loop_of(size), []
    advance(loop, 1)
    for i, member in enumerate(loop.members):
        first, record = Notes("first", loop, i, notes), Notes("record", loop, i, notes)
        record.is_record = True
        member.hooks[:0] = [record, first]
    advance(loop, 1)
    for i in range(members(loop)):
        # `keep` of a run sees the numbers before the state, which trials have in their program.
        before = 1 if size is None else 2
        assert [note[1:] for note in notes if note[0] == i] == [
            ("record", "keep", 1, before),
            ("first", "keep", 1, before),
            ("record", "look", 1, 2),
            ("first", "look", 1, 2),
            ("first", "after", 1, 2),
            ("record", "after", 1, 2),
        ]


def test_a_chunk_is_computed_again_up_to_the_result_that_a_hook_ends_with(size):
    loop, plain, notes = loop_of(size), loop_of(size), []
    loop.members[0].hooks.append(Notes("ends", loop, 0, notes, looked=2))
    chunks = advance(loop, 4)
    advance(plain, 2)
    assert notes.pop(0)[2:4] == ("keep", 4)
    expected = [("look", 4, 4), ("look_at_the_end", 1, 2), ("after", 2, 2)]
    assert [note[2:] for note in notes] == expected
    assert updates_of(loop) == [2] + [4] * (members(loop) - 1)
    assert [chunk.results[-1][ITERATIONS] for chunk in chunks] == updates_of(loop)
    assert [chunk.results[-1]["done"] for chunk in chunks] == [True] + [False] * (members(loop) - 1)
    assert loop.members[0].last_result is chunks[0].results[-1]
    assert loop.members[0].lifetime.training_iteration == 2
    jax.tree.map(np.testing.assert_array_equal, weights_of(loop)[0], weights_of(plain)[0])


def test_no_other_member_notices_that_one_was_ended(size):
    loop, plain = loop_of(size), loop_of(size)
    loop.members[0].hooks.append(Notes("ends", loop, 0, [], looked=2))
    for both in (loop, plain):
        advance(both, 3)
    jax.tree.map(np.testing.assert_array_equal, weights_of(loop)[1:], weights_of(plain)[1:])


def test_training_goes_on_after_the_last_result_that_is_kept(size):
    loop, plain, notes = loop_of(size), loop_of(size), []
    keeps = Notes("keeps", loop, 0, notes, kept=1)
    loop.members[0].hooks.append(keeps)
    (chunk, *_) = advance(loop, 3)
    assert (updates_of(loop)[0], chunk.count, chunk.results[-1]["done"]) == (1, 1, False)
    assert ("look", 1, 1) in [note[2:] for note in notes]
    keeps.kept = 99
    advance(loop, 2)
    advance(plain, 3)
    jax.tree.map(np.testing.assert_array_equal, weights_of(loop)[0], weights_of(plain)[0])


def test_a_chunk_is_cut_twice_where_fewer_results_count_once_they_are_looked_at(size):
    loop, plain, notes = loop_of(size), loop_of(size), []
    loop.members[0].hooks.append(Notes("ends", loop, 0, notes, kept=3, looked=2))
    (chunk, *_) = advance(loop, 4)
    advance(plain, 2)
    expected = [("look", 3, 3), ("look_at_the_end", 1, 2), ("after", 2, 2)]
    assert [note[2:] for note in notes[1:]] == expected
    assert [result[ITERATIONS] for result in chunk.results] == [1, 2]
    jax.tree.map(np.testing.assert_array_equal, weights_of(loop)[0], weights_of(plain)[0])


def test_records_are_kept_whatever_another_hook_raises(size):
    loop, notes = loop_of(size), []
    for i, member in enumerate(loop.members):
        record, other = Notes("record", loop, i, notes), Notes("other", loop, i, notes)
        record.is_record = True
        member.hooks[:0] = [Fails(), record, other]
    with pytest.raises(ZeroDivisionError):
        advance(loop, 1)
    expected = [("record", "keep"), ("other", "keep"), ("record", "after")]
    assert [note[1:3] for note in notes if note[0] == members(loop) - 1] == expected


def test_chunks_end_at_the_moments_and_training_at_its_last_iteration(size):
    loop, ends = loop_of(size), []
    for chunks in train(loop, [Every(4), Every()]):
        ends.append({chunk.results[-1][ITERATIONS] for chunk in chunks})
    assert {1} in ends
    assert {4} in ends
    assert ends[-1] == {LAST}
    assert loop.iterations_left == 0
    assert all(len(end) == 1 for end in ends)


def test_a_stop_is_heard_between_two_chunks(size):
    loop, asked = loop_of(size), iter([False, True])
    loop.stop_asked = lambda: next(asked)
    assert len(list(train(loop, []))) == 1
    assert loop.iterations_left == LAST - 1


@pytest.mark.parametrize("long_chunks", [False, True])
def test_the_state_that_a_callback_ends_training_in_is_evaluated(size, long_chunks):
    callback = StopsAt(3)
    config = SMALL_REINFORCE.replace(callbacks=callback)
    interval = 5 if long_chunks else 2  # a long chunk runs past the end
    loop = loop_of(size, config, evaluation_interval=interval, evaluation_duration=2)
    for count in [4] if long_chunks else [2, 2]:
        (chunk, *_) = advance(loop, count)
    assert callback.heard == [1, 2, 3]
    result = chunk.results[-1]
    assert (result[ITERATIONS], result["done"], updates_of(loop)[0]) == (3, True, 3)
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2
    assert result["timers"]["evaluation"] > 0
    expected = {(3, 3)} if long_chunks else {(2, 2), (3, 3)}
    assert expected <= set(callback.evaluated)


def test_a_result_is_done_where_training_ends_by_itself(size):
    loop = loop_of(size, SMALL_REINFORCE.replace(callbacks=StopsAt(99)))
    chunks = advance(loop, LAST)
    for chunk in chunks:
        assert [result["done"] for result in chunk.results] == [False] * (LAST - 1) + [True]
    assert loop.iterations_left == 0
