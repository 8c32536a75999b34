"""A batch of trials that another loop trains, saves and restores, against sweeps and trainings."""

import jax
import numpy as np
import pytest

from jaxrl import RunSettings, Trainer, UsageError, evaluate, load_policy, sweep
from jaxrl.run.results import lookup
from jaxrl.run.storage import checkpoint
from jaxrl.sweeps import placement, trial_batch
from jaxrl.sweeps.trial_batch import TrialBatch
from jaxrl.sweeps.trials import trials_of
from tests.programs import SMALL_REINFORCE

METRIC = "env_runners/episode_return_mean"
RATES = [{"lr": 1e-3}, {"lr": 1e-2}]


def block_of(settings=RATES, config=SMALL_REINFORCE, seeds=1, **more):
    return TrialBatch(trials_of(config, settings, seeds), metric=METRIC, **more)


def weights_of(path):
    arrays = checkpoint.read(checkpoint.find(path)).arrays
    return {name: array for name, array in arrays.items() if name.startswith("runner.")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Trained to the end, and kept."""
    path, batch = tmp_path_factory.mktemp("block"), block_of()
    batch.train(6)
    batch.save(path)
    return batch, path


def test_its_results_are_the_sweeps(whole):
    batch, _ = whole
    swept = sweep(SMALL_REINFORCE, {"lr": [1e-3, 1e-2]}, quiet=True, devices=1, run_dir=None)
    for result, outcome in zip(batch.results, swept.outcomes, strict=True):
        assert result["training_iteration"] == outcome.result["training_iteration"] == 6
        for name in ("env_runners", "learners"):
            leaves, expected = jax.tree.leaves(result[name]), jax.tree.leaves(outcome.result[name])
            np.testing.assert_allclose(leaves, expected, rtol=1e-4, atol=1e-5)
    assert batch.is_over


def test_saved_and_restored_it_ends_as_it_would_have_in_one_go(whole, tmp_path):
    first = block_of()
    first.train(2)
    first.save(tmp_path / "half")
    second = block_of()
    second.load(tmp_path / "half")
    assert [result["training_iteration"] for result in second.results] == [2, 2]
    second.train(1)
    second.train(100)
    second.save(tmp_path / "end")
    for name in ("0000", "0001"):
        weights, expected = weights_of(tmp_path / "end" / name), weights_of(whole[1] / name)
        assert weights.keys() == expected.keys()
        for path, array in weights.items():
            np.testing.assert_array_equal(array, expected[path], err_msg=path)
    assert second.results[1]["env_runners"] == whole[0].results[1]["env_runners"]
    assert second.results[1]["num_env_steps_sampled_lifetime"] == 6 * 64


def test_restored_with_other_numbers_it_goes_on_with_those_in_the_same_program(whole):
    other = block_of([{"lr": 5e-3}, {"lr": 0.0}], SMALL_REINFORCE.replace(total_env_steps=64 * 8))
    other.load(whole[1])
    before = np.asarray(jax.tree.leaves(other._state.runner.learners[0].weights)[0])
    other.train(2)
    after = np.asarray(jax.tree.leaves(other._state.runner.learners[0].weights)[0])
    moved = [bool(np.any(after[i] != before[i])) for i in (0, 1)]
    assert moved == [True, False]  # a rate of 0 learns nothing
    assert [result["training_iteration"] for result in other.results] == [8, 8]


def test_a_members_folder_is_a_runs_folder(whole):
    assert load_policy(whole[1] / "0001", trust=True).act(np.zeros(4, np.float32)) in (0, 1)
    trainer = Trainer.from_checkpoint(whole[1] / "0000", run_dir=None, quiet=True, trust=True)
    assert trainer.lifetime.training_iteration == 6


@pytest.mark.long
def test_members_are_evaluated_and_keep_their_newest_evaluation_between_two(tmp_path):
    settings = RunSettings(evaluation_interval=2, evaluation_duration=3, loggers=(), devices=1)
    make = lambda: TrialBatch(
        trials_of(SMALL_REINFORCE, RATES, 1), metric=METRIC, settings=settings
    )
    block = make()
    path = "evaluation/env_runners/episode_return_mean"
    assert path in block.result_names
    assert [lookup(result, path) for result in block.train(1)] == [None, None]
    evaluated = [lookup(result, path) for result in block.train(2)]
    assert all(isinstance(value, float) for value in evaluated)
    assert [result["training_iteration"] for result in block.results] == [3, 3]
    block.save(tmp_path / "block")
    again = make()
    again.load(tmp_path / "block")
    assert [lookup(result, path) for result in again.results] == evaluated
    by_hand = evaluate(tmp_path / "block" / "0000", episodes=3, trust=True)
    assert by_hand["env_runners"]["num_episodes"] == 3


@pytest.mark.long
def test_members_that_do_not_divide_the_devices_are_filled_up(whole):
    three = block_of([*RATES, {"lr": 1e-4}], devices=2)
    results = three.train(6)
    assert len(results) == 3
    for result, expected in zip(results, whole[0].results, strict=False):
        assert result["env_runners"][METRIC.split("/")[1]] == pytest.approx(
            expected["env_runners"][METRIC.split("/")[1]], rel=1e-4
        )


def test_what_diverges_stops_alone_and_stays_so_when_restored(tmp_path):
    wild = block_of([{"lr": 1e-3}, {"lr": 3e38}])
    wild.train(6)
    assert wild.diverged == [False, True]
    assert wild.is_over
    wild.save(tmp_path / "wild")
    again = block_of([{"lr": 1e-3}, {"lr": 3e38}])
    again.load(tmp_path / "wild")
    assert again.diverged == [False, True]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: block_of([{"fcnet_hiddens": (8,)}, {"fcnet_hiddens": (16,)}]),
            r"not in fcnet_hiddens=\(8,\) and \(16,\)",
        ),
        (
            lambda: TrialBatch(trials_of(SMALL_REINFORCE, [{}], 1), metric="return"),
            "unknown metric 'return'",
        ),
        (lambda: block_of().load(trial_batch.Path("nowhere")), "nowhere holds no saved members"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, words):
    with pytest.raises(UsageError, match=words) as caught:
        make()
    assert len(str(caught.value).splitlines()) == 1


def test_a_saved_block_of_another_number_of_members_or_other_shapes_is_refused(whole):
    with pytest.raises(UsageError, match="holds 2 members, here are 1"):
        block_of([{}]).load(whole[1])
    with pytest.raises(UsageError, match="does not fit"):
        block_of(config=SMALL_REINFORCE.replace(fcnet_hiddens=(16,))).load(whole[1])


def test_members_that_do_not_fit_side_by_side_are_refused(monkeypatch):
    each = placement.memory_of(trial_batch.only_group(trials_of(SMALL_REINFORCE, RATES, 1)))
    monkeypatch.setattr(
        placement, "free_memory", lambda: int(2.5 * each / placement.SHARE_OF_MEMORY)
    )
    assert block_of().trials
    with pytest.raises(UsageError, match="4 members do not fit into memory, 2 do"):
        block_of(seeds=2)
