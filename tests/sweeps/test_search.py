"""Searches: what Optuna proposes, in which batches it trains, and how a killed search goes on."""

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest

from jaxrl import (
    Callbacks,
    UsageError,
    choice,
    lograndint,
    loguniform,
    quniform,
    randint,
    resume_sweep,
    sweep,
    uniform,
)
from jaxrl.cli.main import main
from jaxrl.replay.live_trials import LiveTrials
from jaxrl.sweeps import search as searches
from jaxrl.sweeps.outcomes import DIVERGED, DROPPED, TERMINATED, TrialResult
from jaxrl.sweeps.saved_sweep import read_plan
from jaxrl.sweeps.search import Search, Tried, name_of, propose, tried_of
from jaxrl.sweeps.space import grid_search, kinds_of
from jaxrl.sweeps.trials import Trial
from tests.messages import refusal, refused
from tests.outside.workers.environments import Counter
from tests.programs import SMALL_REINFORCE

optuna = pytest.importorskip("optuna", reason="the extra `optuna`")
SMALL = SMALL_REINFORCE.replace(total_env_steps=64 * 4)
LR = {"lr": loguniform(1e-5, 1e-1)}
SPACE = {
    **LR,
    "clip_param": uniform(0.1, 0.4),
    "num_epochs": randint(1, 5),
    "num_envs": lograndint(4, 64),
    "lambda_": quniform(0.5, 1.0, 0.1),
    "fcnet_hiddens": choice([(8,), (8, 8)]),
    "gamma": grid_search([0.9, 0.99]),
    "kl_target": 0.01,
}
OPTIONS = {"search": "tpe", "trials": 6, "batch_size": 2, "devices": 1, "quiet": True}


def search_of(space, trials=64, batch=8, seed=0):
    values = {"method": "tpe", "trials": trials, "batch": batch, "seed": seed, "seeds": (0,)}
    return Search(space=kinds_of(space), **values)


def allowed(settings):
    return ""


def scored(settings, score, **more):
    return Tried(settings, score, **{"iterations": 4, "is_dropped": False, **more})


def searched(search, score):
    """All that a search proposes where settings have a score."""
    tried = []
    while proposed := propose(search, tried, allowed):
        tried += [scored(settings, score(settings)) for settings in proposed]
    return tried


# Proposals


def test_proposals_lie_in_the_space_and_are_new():
    tried = searched(search_of(SPACE, trials=40), lambda settings: 0.0)
    assert len({name_of(before.settings) for before in tried}) == 40
    for settings, *_ in tried:
        assert list(settings) == list(SPACE)
        assert 1e-5 <= settings["lr"] <= 1e-1 and 0.1 <= settings["clip_param"] <= 0.4
        assert settings["num_epochs"] in (1, 2, 3, 4) and type(settings["num_epochs"]) is int
        assert 4 <= settings["num_envs"] <= 63 and type(settings["num_envs"]) is int
        assert 5 <= round(10 * settings["lambda_"], 6) == round(10 * settings["lambda_"]) <= 10
        assert settings["fcnet_hiddens"] in ((8,), (8, 8)) and settings["gamma"] in (0.9, 0.99)
        assert settings["kl_target"] == 0.01


def test_proposals_come_nearer_to_the_best_value_than_draws_do():
    """The score is minus the decades between lr and 1e-3; draws of 4 decades are 1 off on average.

    The last half of a search is nearer in each of 5 seeds.
    """
    distance = lambda settings: abs(math.log10(settings["lr"]) + 3)
    for seed in range(5):
        tried = searched(search_of(LR, seed=seed), lambda settings: -distance(settings))
        assert np.mean([distance(before.settings) for before in tried[32:]]) < 0.5


def test_a_search_for_the_lowest_score_proposes_as_one_for_the_highest_of_its_opposite():
    lowest = dataclasses.replace(search_of(LR), mode="min")
    down = searched(lowest, lambda settings: abs(math.log10(settings["lr"]) + 3))
    assert np.mean([before.score for before in down[32:]]) < 0.5


def test_a_batch_is_a_function_of_the_trials_before_it():
    search = search_of(SPACE)
    tried = searched(search, lambda settings: settings["lr"])[:16]
    again = [propose(search, tried, allowed) for _ in range(2)]
    assert again[0] == again[1]
    assert propose(search_of(SPACE, seed=1), tried, allowed) != again[0]
    assert propose(search, tried[:8], allowed) == [before.settings for before in tried[8:]]
    read = json.loads(json.dumps([before._asdict() for before in tried]))  # lists for tuples
    assert propose(search, [Tried(**before) for before in read], allowed) == again[0]


def test_a_search_keeps_away_from_what_diverged():
    search = search_of({"lr": choice([1e-4, 1e-3, 1e-2, 1e-1]), "gamma": uniform(0.5, 1.0)})
    tried = []
    while proposed := propose(search, tried, allowed):
        for settings in proposed:
            is_lost = settings["lr"] == 1e-1
            tried.append(scored(settings, None if is_lost else settings["gamma"]))
    last = [before.settings["lr"] for before in tried[32:]]
    assert last.count(1e-1) < len(last) / 4  # of four values


def test_settings_that_cannot_be_trained_are_left_out():
    even = lambda settings: "odd" if settings["num_epochs"] % 2 else ""
    found = propose(search_of({"num_epochs": randint(1, 9)}, batch=4), (), even)
    assert sorted(settings["num_epochs"] for settings in found) == [2, 4, 6, 8]
    with pytest.raises(UsageError, match=r"^never$"):
        propose(search_of(LR), (), lambda settings: "never")


def test_a_batch_is_shorter_where_nothing_new_is_left():
    search = search_of({"gamma": [0.9, 0.99, 0.999]}, trials=64, batch=8)
    assert len(searched(search, lambda settings: 0.0)) == 3


def test_a_search_reads_back_from_json():
    search = search_of(SPACE)
    again = Search.from_dict(json.loads(json.dumps(search.to_dict())))
    assert json.dumps(again.to_dict()) == json.dumps(search.to_dict())
    assert propose(again, (), allowed)[0]["lr"] == propose(search, (), allowed)[0]["lr"]


def test_the_score_of_a_setting_is_the_median_of_its_seeds_that_did_not_diverge():
    def outcome(number, gamma, status, score):
        trial = Trial(number, {"gamma": gamma}, SMALL)
        return TrialResult(trial, status, {"training_iteration": 5}, score)

    rows = [(0.9, TERMINATED, 1.0), (0.9, TERMINATED, 3.0), (0.9, DIVERGED, 9.0)]
    rows += [(0.8, DROPPED, 1.0), (0.8, DROPPED, 2.0), (0.7, DIVERGED, 5.0), (0.7, DIVERGED, None)]
    outcomes = [outcome(number, *row) for number, row in enumerate(rows)]
    first, second, third = tried_of(outcomes[::-1])
    assert first == Tried({"gamma": 0.9}, 2.0, 5, False)
    assert second == Tried({"gamma": 0.8}, 1.5, 5, True)
    assert third == Tried({"gamma": 0.7}, None, 5, False)


# Sweeps


class Told(Callbacks):
    """Notes which trials begin."""

    def __init__(self):
        self.begun = []

    def on_algorithm_init(self, trainer):
        self.begun.append(int(trainer.run_dir.name[:4]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that was never broken off: 6 settings in 3 batches."""
    return sweep(SMALL, LR, **OPTIONS, run_dir=tmp_path_factory.mktemp("sweep") / "whole")


def numbers_of(done):
    return [outcome.trial.settings["lr"] for outcome in done.outcomes]


def cut(whole, path, *, planned, finished):
    """The folder of a search as a kill left it, with so many trials planned and finished."""
    shutil.copytree(whole.folder, path)
    plan = json.loads((path / "sweep.json").read_text())
    plan["trials"] = plan["trials"][:planned]
    (path / "sweep.json").write_text(json.dumps(plan))
    lines = (path / "results.jsonl").read_text().splitlines(keepends=True)
    (path / "results.jsonl").write_text("".join(lines[:finished]))
    for file in path.glob(f"{searches.JOURNAL}*"):
        file.write_text("what a kill left")
    return path


@pytest.mark.long
def test_all_batches_of_a_search_are_one_program_and_their_trials_are_in_the_folder(whole):
    assert whole.programs <= 1  # none, where another test of this process compiled the same
    assert [outcome.trial.number for outcome in whole.outcomes] == list(range(6))
    assert len(set(numbers_of(whole))) == 6
    plan = read_plan(whole.folder)
    assert [trial["settings"]["lr"] for trial in plan["trials"]] == numbers_of(whole)
    folders = sorted(path.name for path in (whole.folder / "trials").iterdir())
    assert folders == [outcome.trial.folder_name for outcome in whole.outcomes]


def test_optunas_own_tools_read_the_journal(whole):
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(whole.folder / "optuna.journal")))
    study = optuna.load_study(study_name="jaxrl", storage=storage)
    assert [trial.params["lr"] for trial in study.trials] == numbers_of(whole)
    assert study.best_value == whole.best_trial().score
    assert [path.name for path in whole.folder.glob("optuna*")] == ["optuna.journal"]


@pytest.mark.parametrize(("planned", "finished"), [(2, 0), (2, 2), (4, 3), (6, 4), (6, 6)])
def test_a_killed_search_goes_on_with_the_same_proposals(whole, tmp_path, planned, finished):
    path = cut(whole, tmp_path / "cut", planned=planned, finished=finished)
    again = resume_sweep(path, quiet=True, trust=True)
    assert numbers_of(again) == numbers_of(whole)
    for resumed, before in zip(again.outcomes, whole.outcomes, strict=True):
        np.testing.assert_allclose(resumed.score, before.score, rtol=1e-4)
    assert len((path / "results.jsonl").read_text().splitlines()) == 6


@pytest.mark.long
def test_halving_drops_within_a_batch_and_only_the_broken_batch_begins_again(tmp_path):
    options = {**OPTIONS, "batch_size": 4, "trials": 8, "halving": 2}
    halved = sweep(SMALL, LR, **options, run_dir=tmp_path / "halved")
    for batch in (halved.outcomes[:4], halved.outcomes[4:]):
        assert sorted(outcome.iterations for outcome in batch) == [1, 1, 2, 4]
    path = cut(halved, tmp_path / "cut", planned=8, finished=5)
    first = (path / "results.jsonl").read_text().splitlines()[:4]
    again = resume_sweep(path, quiet=True, trust=True)
    assert numbers_of(again) == numbers_of(halved)
    assert [outcome.status for outcome in again.outcomes] == [
        outcome.status for outcome in halved.outcomes
    ]
    lines = (path / "results.jsonl").read_text().splitlines()
    assert lines[:4] == first and len(lines) == 8


def test_each_proposal_is_trained_with_every_seed(tmp_path):
    options = {**OPTIONS, "batch_size": 4, "trials": 3}
    done = sweep(SMALL, LR, seeds=[5, 7], **options, run_dir=None)
    assert [outcome.trial.config.seed for outcome in done.outcomes] == [5, 7] * 3
    assert [len(seeds) for _, seeds in done.by_settings()] == [2, 2, 2]


@pytest.mark.long
def test_a_search_over_sizes_trains_programs_side_by_side(tmp_path):
    space = {"fcnet_hiddens": [(8,), (4,)], **LR}
    done = sweep(SMALL, space, **{**OPTIONS, "trials": 4}, run_dir=tmp_path / "sizes")
    assert len(done.outcomes) == 4
    path = cut(done, tmp_path / "cut", planned=2, finished=2)
    again = resume_sweep(path, quiet=True, trust=True)
    assert numbers_of(again) == numbers_of(done)


@pytest.mark.long
def test_a_search_outside_jax_is_of_separate_runs(tmp_path):
    config = SMALL.replace(env=Counter, num_envs=4, rollout_length=16, total_env_steps=64)
    options = {"quiet": True, "workers": 0, "sync": True, "run_dir": tmp_path / "outside"}
    told = Told()
    config = config.replace(callbacks=told)
    done = sweep(config, LR, search="tpe", trials=3, batch_size=2, **options)
    folders = [outcome.trial.folder_name[:4] for outcome in done.outcomes]
    assert folders == ["0000", "0001", "0002"]
    assert told.begun == [0, 1, 2]


def test_callbacks_hear_of_each_trial_once_in_the_order_of_training(tmp_path):
    told = Told()
    options = {**OPTIONS, "batch_size": 2, "trials": 4}
    sweep(SMALL.replace(callbacks=told), LR, **options, run_dir=tmp_path / "told")
    assert told.begun == [0, 1, 2, 3]


def test_a_search_says_that_its_space_is_used_up(tmp_path, capsys):
    options = {**OPTIONS, "batch_size": 2, "trials": 8, "quiet": False}
    space = {"lr": [1e-3, 2e-3, 3e-3]}
    done = sweep(SMALL, space, **options, run_dir=tmp_path / "short")
    assert len(done.outcomes) == 3
    line = "the search ends after 3 of 8 settings: no others were found that are allowed"
    assert line in " ".join(capsys.readouterr().out.split())


def test_a_page_that_follows_a_search_sees_the_trials_that_were_proposed_since(whole, tmp_path):
    path = cut(whole, tmp_path / "cut", planned=2, finished=2)
    live = LiveTrials(path, read_plan(path))
    assert len(live.read()) == 2
    shutil.copy(whole.folder / "sweep.json", path)
    shutil.copy(whole.folder / "results.jsonl", path)
    assert [trial.status for trial in live.read()] == [TERMINATED] * 6
    assert live.problem == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": 3}, "is damaged"),
        ({"search": {}}, "is damaged"),
        ({"search": {"seeds": []}}, "seeds is an empty list"),
        ({"search": {"seeds": [-1]}}, "seed -1 must be an integer"),
        ({"search": {"trials": "x"}}, "trials='x'"),
        ({"search": {"batch": 0}}, "batch=0"),
        ({"search": {"seed": None}}, "seed=None"),
        ({"search": {"method": "os:system"}}, "unknown search 'os:system'"),
        ({"search": {"space": {"lr": {"exec": [1, 2]}}}}, "is damaged"),
        ({"search": {"space": {"gamma": {"uniform": [0.0, 1.0]}}}}, "is damaged"),
        ({"trials": [{"settings": {"lr": 0.5}, "seed": 0}]}, "is damaged"),
    ],
)
def test_a_plan_whose_search_was_changed_is_refused_in_one_line(whole, tmp_path, changes, message):
    path = cut(whole, tmp_path / "cut", planned=2, finished=0)
    plan = json.loads((path / "sweep.json").read_text())
    if changes.get("search"):
        is_part = isinstance(changes["search"], dict)
        changes = {"search": {**plan["search"], **changes["search"]} if is_part else 3}
    (path / "sweep.json").write_text(json.dumps({**plan, **changes}))
    with refusal(re.escape(message)):
        resume_sweep(path, quiet=True, trust=True)


# Words


@pytest.mark.long
def test_the_command_searches_and_says_so(tmp_path, capsys):
    words = ["--env", "cartpole", "--total-env-steps", "256", "--num-envs", "4"]
    words += ["--rollout-length", "16", "--minibatch-size", "64", "--num-epochs", "1"]
    words += ["--random", "lr=loguniform:1e-4:1e-2", "--search", "tpe", "--trials", "4"]
    words += ["--devices", "1"]
    main(["sweep", *words, "--run-dir", str(tmp_path / "sweep"), "--compile-cache", "off"])
    printed = capsys.readouterr().out
    line = "tpe over lr: 4 settings in 2 batches; the first 2 are drawn at random"
    assert f"search       {line}" in printed
    assert "batch 2 of 2: 2 trials; the best so far" in printed
    assert "4 trials, 1,024 environment steps" in printed


def searching(space=LR, **options):
    return sweep(SMALL, space, quiet=True, run_dir=None, **{"search": "tpe", **options})


test_a_search_that_cannot_work_is_refused_before_anything_is_compiled = refused(
    [
        (lambda: searching(search="tpr", trials=4), "unknown search 'tpr'; known: tpe"),
        (lambda: searching(), "search='tpe' takes a number of trials, such as trials=64"),
        (lambda: searching(search=None, trials=4), 'trials=4 goes with search="tpe"'),
        (lambda: searching(trials=1), "trials=1 must be"),
        (lambda: searching(trials=4, num_samples=4), "num_samples=4 draws settings"),
        (lambda: searching({"lr": 0.1}, trials=4), "search='tpe' has nothing to search"),
        (lambda: searching(None, trials=4), "search='tpe' has nothing to search"),
        (lambda: searching({"lrr": uniform(0, 1)}, trials=4), "did you mean 'lr'"),
        (lambda: searching(trials=4, batch_size=0), "batch_size=0"),
    ],
    literal=True,
)


def test_without_optuna_the_line_names_the_extra(monkeypatch):
    monkeypatch.setattr(searches, "is_installed", lambda package: False)
    with pytest.raises(UsageError, match=r'pip install "jaxrl\[optuna\]"$'):
        searching(trials=4)
