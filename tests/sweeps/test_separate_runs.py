"""Sweeps over environments outside JAX: each trial is a run of its own."""

import chex
import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.outside import program
from jaxrl.sweeps.outcomes import STOPPED, TERMINATED
from tests.outside.workers.environments import Counter
from tests.programs import SMALL_CARTPOLE, SMALL_REINFORCE

LENGTH = "env_runners/episode_len_mean"  # which is 5 for each episode of a `Counter`
QUIET = {"quiet": True, "workers": 0, "sync": True}
CONFIG = SMALL_REINFORCE.replace(
    env=Counter, num_envs=4, rollout_length=16, total_env_steps=64 * 3, seed=4
)


class Told(jaxrl.Callbacks):
    """Notes each iteration of each trial; ends the sweep as an error or Ctrl-C would."""

    def __init__(self):
        self.seen, self.fails_at, self.stops_at = [], None, None

    def on_train_result(self, trainer, result):
        now = trainer.trial.number, result["training_iteration"]
        self.seen.append(now)
        if now == self.stops_at:
            trainer.interrupt.hear("Ctrl-C")
        if now == self.fails_at:
            raise RuntimeError("the machine is gone")


@pytest.mark.long
def test_a_trial_is_the_run_of_its_settings_and_its_seed(tmp_path, monkeypatch):
    program._structure_of.cache_clear()
    traced_once = chex.assert_max_traces(program.OutsideProgram._trace, n=1)
    monkeypatch.setattr(program.OutsideProgram, "_trace", traced_once)
    folder = tmp_path / "sweep"
    done = jaxrl.sweep(CONFIG, {"lr": [1e-3, 1e-2]}, run_dir=folder, metric=LENGTH, **QUIET)
    first, second = done.outcomes
    assert [first.status, second.status] == [TERMINATED, TERMINATED]
    assert (first.score, first.curve) == (5.0, ([64, 128, 192], [5.0] * 3))
    assert second.folder == folder / "trials" / "0001_lr=0.01"
    assert "0001   0.01" in done.table()
    with jaxrl.Trainer(CONFIG.replace(lr=1e-2), run_dir=None, **QUIET) as trainer:
        trainer.fit()
        wanted = trainer.get_weights()
    found = jaxrl.load_policy(second.folder, trust=True).weights
    jax.tree.map(np.testing.assert_array_equal, found, next(iter(wanted.values())))
    rows = jaxrl.load_run(second.folder).results()
    assert [row["trial_id"] for row in rows] == [second.trial.name] * 3


@pytest.mark.long
def test_a_resumed_sweep_goes_on_with_the_trial_that_was_broken_off(tmp_path):
    told = Told()
    config, folder = CONFIG.replace(callbacks=told), tmp_path / "sweep"
    told.fails_at = (0, 2)
    with pytest.raises(RuntimeError, match="the machine is gone"):
        jaxrl.sweep(config, seeds=2, run_dir=folder, metric=LENGTH, **QUIET)
    assert told.seen == [(0, 1), (0, 2)]
    told.seen, told.fails_at, told.stops_at = [], None, (1, 1)
    stopped = jaxrl.resume_sweep(folder, config=config, quiet=True)
    assert told.seen == [(0, 3), (1, 1)] and len(stopped.outcomes) == 1
    told.seen = []
    done = jaxrl.resume_sweep(folder, config=config, quiet=True)
    assert told.seen == [(1, 2), (1, 3)]  # the finished trial is not trained again
    assert [outcome.iterations for outcome in done.outcomes] == [3, 3]
    assert [len(outcome.curve[1]) for outcome in done.outcomes] == [3, 3]
    assert {outcome.status for outcome in done.outcomes} == {TERMINATED}


def test_a_criterion_ends_each_trial_alone():
    stop = {LENGTH: 5, "training_iteration": 2}
    done = jaxrl.sweep(CONFIG, seeds=2, run_dir=None, metric=LENGTH, stop=stop, **QUIET)
    assert [(outcome.status, outcome.iterations) for outcome in done.outcomes] == [(STOPPED, 1)] * 2
    assert [outcome.folder for outcome in done.outcomes] == [None, None]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"halving": 2}, "halving=2 needs trials that train together"),
        ({"batch_size": 3}, "batch_size=3 needs trials that train together"),
        (
            {"scheduler": jaxrl.PopulationBasedTraining(hyperparam_mutations={"lr": [1e-3, 1e-2]})},
            "needs trials that train together",
        ),
        ({"devices": 2}, "devices=2: Counter trains on one device"),
        ({"metric": "episode_length"}, "unknown metric 'episode_length'"),
        ({"metric": "evaluation/env_runners/episode_len_mean"}, "needs evaluations"),
        ({"stop": {"returns": 3}}, "unknown stop criterion 'returns'"),
    ],
)
def test_what_separate_runs_cannot_have_is_refused_in_one_line(asked, message, tmp_path):
    folder = tmp_path / "sweep"
    with pytest.raises(jaxrl.UsageError) as caught:
        jaxrl.sweep(CONFIG, seeds=2, run_dir=folder, quiet=True, **asked)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not folder.exists()


def test_settings_of_environments_outside_are_refused_where_all_are_in_jax():
    with pytest.raises(jaxrl.UsageError, match="workers=0 changes nothing: cartpole runs in JAX"):
        jaxrl.sweep(SMALL_CARTPOLE, seeds=2, run_dir=None, workers=0)
