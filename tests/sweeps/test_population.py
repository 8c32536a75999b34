"""Population-based training of small CartPoles, which REINFORCE compiles in half the time."""

import json
import os
import signal
import subprocess
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import (
    Callbacks,
    PopulationBasedTraining,
    UsageError,
    load_run,
    loguniform,
    resume_sweep,
    sweep,
)
from jaxrl.algorithms.base import RunnerState
from jaxrl.run.storage import checkpoint
from jaxrl.sweeps import lineage_plots, placement, population
from jaxrl.sweeps.trials import Trial, groups_of
from jaxrl.sweeps.vmapped import State
from tests.programs import SMALL_CARTPOLE, SMALL_REINFORCE

SMALL = SMALL_REINFORCE.replace(total_env_steps=64 * 12)
RATES = [1e-4, 1e-3, 1e-2, 1e-1]
PBT = PopulationBasedTraining(perturbation_interval=4)
ALONE = {"quiet": True, "devices": 1}


class Told(Callbacks):
    """Notes in which folder a trial begins and is resumed."""

    told: ClassVar[list] = []

    def on_algorithm_init(self, trainer):
        self.told.append(("begins", trainer.run_dir.name))

    def on_checkpoint_loaded(self, trainer):
        self.told.append(("resumes", trainer.run_dir.name))


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Four members, of which the worst copies the best after 4 and after 8 of 12 iterations."""
    path = tmp_path_factory.mktemp("population") / "whole"
    return sweep(SMALL, {"lr": RATES}, scheduler=PBT, run_dir=path, **ALONE)


def arrays_of(outcome):
    return checkpoint.read(checkpoint.find(outcome.folder)).arrays


def assert_equal_to_the_bit(done, expected):
    """Scores and every array of every trial, and what the logs hold but times."""
    assert len(done.outcomes) == len(expected.outcomes)
    for outcome, wanted in zip(done.outcomes, expected.outcomes, strict=True):
        assert outcome.trial.settings == wanted.trial.settings
        np.testing.assert_array_equal(outcome.curve[1], wanted.curve[1])
        arrays, wanted_arrays = arrays_of(outcome), arrays_of(wanted)
        assert arrays.keys() == wanted_arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, wanted_arrays[name], err_msg=name)
        returns = "env_runners/episode_return_mean"
        logged = [load_run(trial.folder).dataframe() for trial in (outcome, wanted)]
        assert logged[0]["training_iteration"].tolist() == list(range(1, 13))
        np.testing.assert_array_equal(logged[0][returns], logged[1][returns])


@pytest.mark.long
def test_without_a_round_of_copying_it_is_the_sweep_to_the_bit(tmp_path):
    never = PopulationBasedTraining(perturbation_interval=12)  # none after the last iteration
    options = {"seeds": [0, 1], **ALONE}
    space = {"lr": RATES[1:3]}
    done = sweep(SMALL, space, scheduler=never, run_dir=tmp_path / "population", **options)
    assert done.lineage.takeovers == []
    assert_equal_to_the_bit(done, sweep(SMALL, space, run_dir=tmp_path / "sweep", **options))


@pytest.mark.long
def test_the_worst_members_train_on_with_the_state_and_the_changed_numbers_of_the_best(copied):
    assert [takeover.iteration for takeover in copied.lineage.takeovers] == [4, 8]
    scores = [outcome.curve[1][3] for outcome in copied.outcomes]
    first = copied.lineage.takeovers[0]
    assert (first.source, first.target) == (np.argmax(scores), np.argmin(scores))
    assert first.settings["lr"] in RATES
    by_seed = [outcome.trial.config.seed for outcome in copied.outcomes]
    assert by_seed == [0, 1, 2, 3]
    assert all(outcome.iterations == 12 for outcome in copied.outcomes)
    settings = {outcome.trial.number: outcome.trial.settings for outcome in copied.outcomes}
    last = {takeover.target: takeover.settings for takeover in copied.lineage.takeovers}
    assert settings == {i: last.get(i, {"lr": rate}) for i, rate in enumerate(RATES)}


def test_with_mode_min_the_lowest_is_copied(copied):
    done = sweep(SMALL, {"lr": RATES}, scheduler=PBT, mode="min", run_dir=None, **ALONE)
    scores = [outcome.curve[1][3] for outcome in copied.outcomes]
    first = done.lineage.takeovers[0]
    assert (first.source, first.target) == (np.argmin(scores), np.argmax(scores))


def test_the_folder_tells_the_lineage_and_the_numbers_that_each_ended_with(copied):
    lines = (copied.folder / "lineage.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        takeover.to_dict() for takeover in copied.lineage.takeovers
    ]
    assert (copied.folder / "lineage.png").read_bytes().startswith(b"\x89PNG")
    assert not (copied.folder / "population").exists()  # the trials' own folders hold all
    for outcome in copied.outcomes:
        lr = outcome.trial.settings["lr"]
        assert json.loads((outcome.folder / "config.json").read_text())["lr"] == lr
        assert arrays_of(outcome)["hypers.default_policy.lr"] == np.float32(lr)
    way = copied.lineage_of(copied.best_trial())
    assert (way[0].begin, way[-1].end) == (0, 12)
    assert way[-1].settings == copied.best_trial().trial.settings


@pytest.mark.long
def test_a_finished_population_is_read_back(copied):
    again = resume_sweep(copied.folder, quiet=True, trust=True)
    assert again.lineage == copied.lineage
    assert again.table() == copied.table()
    assert again.plot_lineage()._repr_png_().startswith(b"\x89PNG")
    drawn = lineage_plots.figure(again.lineage, again.outcomes, again.best_lineage())
    (titled,) = [axis for axis in drawn.axes if axis.get_title(loc="left")]
    assert titled.get_title(loc="left").startswith("lr")


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 2])
def test_one_that_was_broken_off_resumes_to_the_bit(copied, rounds, tmp_path, monkeypatch):
    """Where there is no checkpoint yet, it begins again; the logs hold each iteration once."""
    monkeypatch.setattr(population, "SAVE_SECONDS", 0.0)
    perturb, begun = population.Population.perturb, []

    def broken(self, state, numbers):
        begun.append(self)
        if len(begun) == rounds:
            raise InterruptedError
        return perturb(self, state, numbers)

    monkeypatch.setattr(population.Population, "perturb", broken)
    path = tmp_path / "cut"
    with pytest.raises(InterruptedError):
        sweep(SMALL, {"lr": RATES}, scheduler=PBT, run_dir=path, **ALONE)
    monkeypatch.setattr(population.Population, "perturb", perturb)
    found = checkpoint.iterations(path / "population")
    assert list(found) == ([] if rounds == 1 else [4])
    again = resume_sweep(path, quiet=True, trust=True)
    assert again.lineage == copied.lineage
    assert_equal_to_the_bit(again, copied)


@pytest.mark.long
def test_ctrl_c_saves_the_population(copied, tmp_path, monkeypatch):
    perturb = population.Population.perturb

    def interrupted(self, state, numbers):
        os.kill(os.getpid(), signal.SIGINT)
        return perturb(self, state, numbers)

    monkeypatch.setattr(population.Population, "perturb", interrupted)
    config = SMALL.replace(callbacks=Told)
    monkeypatch.setattr(Told, "told", [])
    cut = sweep(config, {"lr": RATES}, scheduler=PBT, run_dir=tmp_path / "cut", **ALONE)
    assert cut.outcomes == []
    begun = [("begins", f"{number:04d}") for number in range(len(RATES))]
    assert Told.told == begun
    Told.told.clear()
    monkeypatch.setattr(population.Population, "perturb", perturb)
    assert list(checkpoint.iterations(tmp_path / "cut" / "population")) == [4]
    assert_equal_to_the_bit(resume_sweep(tmp_path / "cut", quiet=True, trust=True), copied)
    resumed = [(what, folder) for _, folder in begun for what in ("begins", "resumes")]
    assert Told.told == resumed


@pytest.mark.long
def test_split_over_devices_copies_are_the_same(copied):
    split = sweep(SMALL, {"lr": RATES}, scheduler=PBT, quiet=True, devices=2, run_dir=None)
    assert split.lineage == copied.lineage
    for outcome, wanted in zip(split.outcomes, copied.outcomes, strict=True):
        np.testing.assert_allclose(outcome.curve[1], wanted.curve[1], rtol=1e-4)


def test_a_diverged_member_is_replaced_and_trains_on(copied):
    done = sweep(
        SMALL, {"lr": [*RATES[:3], 3e38]}, scheduler=PBT, run_dir=None, loggers=(), **ALONE
    )
    assert done.lineage.takeovers[0].target == 3
    assert done.lineage.takeovers[0].source != 3
    lost = done.outcomes[3]
    assert (lost.status, lost.iterations, lost.reason) == ("terminated", 12, "")
    assert lost.result["num_env_steps_sampled_lifetime"] == 64 * 12
    assert len(lost.curve[1]) == 12
    assert np.isnan(lost.curve[1][2:4]).all()  # it stood still until it was replaced


def test_a_copy_has_every_array_of_its_source_but_the_random_key():
    keys = jax.random.split(jax.random.key(0), 4)
    rows = jnp.arange(8.0).reshape(4, 2)
    runner = RunnerState(keys, jnp.arange(4), (rows,), envs=rows + 10, window=rows + 20)
    state = State(runner, met=jnp.zeros(4, bool), diverged=jnp.array([False, True, False, True]))
    after = population.copied_members(state, np.array([0, 2, 2, 3], np.int32))
    sources = [0, 2, 2, 3]
    for name in ("num_updates", "envs", "window"):
        expected = np.asarray(getattr(runner, name))[sources]
        np.testing.assert_array_equal(getattr(after.runner, name), expected)
    np.testing.assert_array_equal(after.runner.learners[0], np.asarray(rows)[sources])
    np.testing.assert_array_equal(jax.random.key_data(after.runner.key), jax.random.key_data(keys))
    assert after.diverged.tolist() == [False, False, False, True]


@pytest.mark.long
def test_numbers_of_the_environment_are_changed_and_what_is_not_allowed_stays(copied):
    """Three of four values are no discount: those stay as the source has them."""
    changed = PopulationBasedTraining(
        perturbation_interval=4,
        hyperparam_mutations={"env_args.gravity": loguniform(5, 20), "gamma": loguniform(0.9, 1)},
        perturbation_factors=[2.0],
        resample_probability=0.0,
    )
    done = sweep(SMALL, num_samples=4, scheduler=changed, run_dir=None, **ALONE)
    first = {outcome.trial.number: outcome.trial.settings for outcome in done.outcomes}
    begun = [dict(settings) for settings in done.lineage.first]
    takeover = done.lineage.takeovers[0]
    source = begun[takeover.source]
    assert takeover.settings["env_args.gravity"] == 2 * source["env_args.gravity"]
    assert takeover.settings["gamma"] == source["gamma"]
    assert all(settings["gamma"] <= 1 for settings in first.values())


@pytest.mark.parametrize(
    ("space", "options", "words"),
    [
        ({"lr": RATES[:1]}, {}, "a population of 1 is too small: .* at least 3 members"),
        ({"lr": RATES[:2]}, {}, "a population of 2 is too small"),
        ({"lr": RATES[:3]}, {}, r"quantile_fraction=0.25 of 3 members is nobody: .* least 0.34"),
        ({"lr": RATES}, {"halving": 2}, "halving=2 drops members"),
        ({"lr": RATES}, {"batch_size": 3}, "4 members trains at once, and batch_size is 3"),
        ({"lr": RATES}, {"metric": "evaluation/env_runners/episode_return_mean",
                         "evaluation_interval": 3}, "must be a multiple of evaluation_interval=3"),
        ({"fcnet_hiddens": [(8,), (4,)]}, {"seeds": 2}, "fcnet_hiddens is built into the program"),
        ({"lr": RATES, "num_envs": [4, 8]}, {}, "num_envs is built into the program"),
        ({"lrr": RATES}, {}, "unknown setting 'lrr'; did you mean 'lr'"),
        ({}, {"seeds": 4}, "has no number to change: give hyperparam_mutations="),
        ({"lr": RATES}, {"scheduler": "pbt"}, "must be a jaxrl.PopulationBasedTraining or None"),
        ({"seed": [1, 2, 3, 4]}, {}, "seed is not a setting to sweep"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_a_folder_is_made(space, options, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        sweep(SMALL, space, **{"scheduler": PBT, "run_dir": tmp_path / "run", **ALONE, **options})
    assert not (tmp_path / "run").exists()


def test_a_coefficient_that_training_adapts_is_refused():
    with pytest.raises(UsageError, match="kl_coeff is where training begins, and adapts"):
        sweep(SMALL_CARTPOLE, {"kl_coeff": RATES}, scheduler=PBT, run_dir=None, **ALONE)


def test_a_population_that_does_not_fit_into_memory_is_refused(monkeypatch, tmp_path):
    each = placement.memory_of(groups_of([Trial(0, {}, SMALL)])[0])
    monkeypatch.setattr(placement, "free_memory", lambda: int(2.5 * each / 0.5))
    with pytest.raises(UsageError, match="4 members trains at once, and memory holds 2"):
        sweep(SMALL, {"lr": RATES}, scheduler=PBT, run_dir=tmp_path / "run", **ALONE)
    assert not (tmp_path / "run").exists()


KILLED = """
import os, signal
from jaxrl.sweeps import population
from tests.sweeps.test_population import ALONE, PBT, RATES, SMALL, sweep
population.SAVE_SECONDS = 0.0
perturb = population.Population.perturb
def killed(self, state, numbers):
    if self.lineage.takeovers:
        os.kill(os.getpid(), signal.SIGKILL)
    return perturb(self, state, numbers)
population.Population.perturb = killed
sweep(SMALL, {"lr": RATES}, scheduler=PBT, run_dir=PATH, **ALONE)
"""


@pytest.mark.process
def test_one_that_was_killed_resumes_to_the_bit(copied, tmp_path):
    path = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", f"PATH = {str(path)!r}\n{KILLED}"], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert list(checkpoint.iterations(path / "population")) == [4]
    assert_equal_to_the_bit(resume_sweep(path, quiet=True, trust=True), copied)


class EndsTheFirst(Callbacks):
    def on_train_result(self, trainer, result):
        result["done"] = trainer.trial.number == 0 and result["training_iteration"] == 3


def test_a_member_that_a_callback_ended_is_neither_copied_nor_replaced():
    config = SMALL.replace(callbacks=EndsTheFirst)
    done = sweep(config, {"lr": RATES}, scheduler=PBT, run_dir=None, **ALONE)
    assert [outcome.iterations for outcome in done.outcomes] == [3, 12, 12, 12]
    assert done.lineage.takeovers == []  # a quarter of three is nobody
    half = PopulationBasedTraining(perturbation_interval=4, quantile_fraction=0.5)
    done = sweep(config, {"lr": RATES}, scheduler=half, run_dir=None, **ALONE)
    assert [outcome.iterations for outcome in done.outcomes] == [3, 12, 12, 12]
    members = {(takeover.source, takeover.target) for takeover in done.lineage.takeovers}
    assert len(done.lineage.takeovers) == 2
    assert not any(0 in pair for pair in members)
