"""Sweeps of a small CartPole, held against single trainings of the same configurations.

What a sweep does with any algorithm is tested with REINFORCE, which compiles in half the time.
"""

import contextlib
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Trainer, UsageError, choice, load_policy, resume_sweep, sweep, uniform
from jaxrl.algorithms.base import Metrics, RunnerState
from jaxrl.run.health import FINITE
from jaxrl.run.logging.console import Progress
from jaxrl.run.results import RETURN
from jaxrl.run.storage import checkpoint, run_folder
from jaxrl.run.storage.config_file import config_facts
from jaxrl.sweeps import placement, scheduler, vmapped
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.placement import SPLIT, lanes_of
from jaxrl.sweeps.sweep_folder import SweepFolder
from jaxrl.sweeps.trials import groups_of, trials_of
from jaxrl.sweeps.vmapped import MemberSpec, Numbers, State, is_finite, update_member
from tests.by_hand import by_hand
from tests.programs import SMALL_ARENA, SMALL_CARTPOLE, SMALL_REINFORCE
from tests.run.test_divergence import FAULTY

SMALL = SMALL_REINFORCE.replace(total_env_steps=64 * 12)
RATES = [1e-3, 1e-2]
HIDDENS = [(16,), (8,)]  # two programs


@contextlib.contextmanager
def nothing_compiled():
    """As in a new process, without the programs of other tests, which are back afterwards."""
    others = dict(vmapped.PROGRAMS)
    vmapped.PROGRAMS.clear()
    try:
        yield
    finally:
        vmapped.PROGRAMS.update(others)


@pytest.fixture(scope="module")
def rates(tmp_path_factory):
    """Two learning rates with two seeds, one program, all kept."""
    path = tmp_path_factory.mktemp("sweep") / "one"
    with nothing_compiled():
        return sweep(SMALL, {"lr": RATES}, seeds=2, quiet=True, devices=1, run_dir=path)


def test_a_sweep_that_fails_at_its_close_lets_go_of_its_folder(tmp_path, monkeypatch):
    def fails(self):
        raise RuntimeError("the log cannot end")

    monkeypatch.setattr(scheduler.Scheduler, "train", lambda self: None)
    monkeypatch.setattr(scheduler.Scheduler, "close", fails)
    with pytest.raises(RuntimeError, match="cannot end"):
        sweep(SMALL, seeds=2, quiet=True, devices=1, run_dir=tmp_path / "sweep")
    run_folder.lock(tmp_path / "sweep").release()


def test_the_table_says_which_trials_wait_for_others_at_their_rung(monkeypatch):
    told, show = [], scheduler.Scheduler._show

    def note(self, number, batch, loop):
        show(self, number, batch, loop)
        told.append([row.status for row in self.rows.values()])

    monkeypatch.setattr(scheduler.Scheduler, "_show", note)
    options = {"halving": 2, "batch_size": 1, "quiet": True, "devices": 1, "run_dir": None}
    sweep(SMALL, {"lr": RATES}, **options)
    assert told[0] in (["running"], ["waiting"])
    assert ["waiting", "waiting"] in told
    assert "terminated" in told[-1] and "running" not in told[-1]


def arrays_of(path):
    return checkpoint.read(checkpoint.find(path)).arrays


@pytest.mark.long
def test_every_setting_trains_with_every_seed_in_one_program(rates):
    found = [
        (
            outcome.trial.settings["lr"],
            outcome.trial.config.seed,
            outcome.status,
            outcome.iterations,
        )
        for outcome in rates.outcomes
    ]
    assert found == [(lr, seed, "terminated", 12) for lr in RATES for seed in (0, 1)]
    assert rates.programs == 1


def assert_learned_as(outcome, runner):
    """The learners that a trial kept are those of its single training."""
    saved = arrays_of(outcome.folder)
    for name, array in checkpoint.named_arrays({"runner": {"learners": runner.learners}}).items():
        np.testing.assert_allclose(saved[name], array, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def remembering(tmp_path_factory):
    """PPO with moments of observations and returns, and carries; 16 steps in parts of 6."""
    memory = {"use_gru": True, "lstm_cell_size": 8, "max_seq_len": 6}
    config = SMALL_CARTPOLE.replace(
        observation_filter="MeanStdFilter", normalize_returns=True, **memory
    )
    path = tmp_path_factory.mktemp("remembering") / "sweep"
    done = sweep(config, {"lr": RATES}, seeds=2, quiet=True, devices=1, run_dir=path)
    assert (done.programs, len(done.outcomes)) == (1, 4)
    assert any("hidden" in name for name in arrays_of(done.outcomes[0].folder))
    return done


@pytest.mark.parametrize("trials", ["rates", *by_hand("remembering")])
@pytest.mark.long
def test_a_member_equals_its_single_training_and_its_result_is_the_trainers(trials, request):
    for outcome in request.getfixturevalue(trials).outcomes:
        with Trainer(outcome.trial.config, run_dir=None, quiet=True) as trainer:
            results = [trainer.train() for _ in range(trainer.config.num_updates)]
        assert_learned_as(outcome, trainer.runner)
        alone = [result["env_runners"].get("episode_return_mean", np.nan) for result in results]
        np.testing.assert_allclose(outcome.curve[1], alone, rtol=1e-5)
        result, expected = outcome.result, results[-1]
        for name in ("training_iteration", "num_env_steps_sampled_lifetime"):
            assert result[name] == expected[name]
        episodes = "num_episodes_lifetime"
        assert result["env_runners"][episodes] == expected["env_runners"][episodes]
        assert result["env_runners"]["episode_return_mean"] == pytest.approx(alone[-1])
        learner, alone = (found["learners"]["default_policy"] for found in (result, expected))
        assert {*learner, "num_module_steps_trained_lifetime"} == set(alone)  # trials do not count


def test_a_trials_folder_is_a_runs_folder(rates):
    outcome = rates.outcomes[3]
    assert load_policy(outcome.folder, trust=True).act(np.zeros(4, np.float32)) in (0, 1)
    trainer = Trainer.from_checkpoint(outcome.folder, run_dir=None, quiet=True, trust=True)
    assert trainer.lifetime.training_iteration == 12
    assert trainer.config.lr == RATES[1]


def test_the_folder_holds_a_line_for_each_trial_and_a_picture(rates):
    lines = [json.loads(line) for line in (rates.folder / "results.jsonl").read_text().splitlines()]
    assert [(line["trial"], line["settings"], line["status"]) for line in lines] == [
        (outcome.trial.number, outcome.trial.settings, outcome.status) for outcome in rates.outcomes
    ]
    assert len(lines[0]["curve"][0]) == 12
    assert (rates.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_trial_has_the_highest_metric(rates):
    scores = {
        outcome.trial.number: outcome.result["env_runners"]["episode_return_mean"]
        for outcome in rates.outcomes
    }
    assert rates.best_trial().trial.number == max(scores, key=scores.get)
    norms = {
        outcome.trial.number: outcome.result["learners"]["default_policy"]["grad_norm"]
        for outcome in rates.outcomes
    }
    best = rates.best_trial("learners/default_policy/grad_norm")
    assert best.trial.number == max(norms, key=norms.get)
    with pytest.raises(
        UsageError, match="unknown metric 'env_runners/episode_return_men'; did you mean"
    ):
        rates.best_trial("env_runners/episode_return_men")


def test_the_tables_name_settings_and_seeds(rates):
    header, *rows = rates.table().splitlines()
    assert header.split() == [
        "trial",
        "lr",
        "seed",
        "status",
        "iterations",
        "steps",
        "episode_return_mean",
        "time",
    ]
    assert len(rows) == 4
    assert "0.001" in rates.statistics_table()


def test_batches_of_any_size_give_the_same(rates, monkeypatch):
    sizes, known = [], scheduler.known

    def noted(group, numbers, *wanted):
        sizes.append(len(numbers.last))
        return known(group, numbers, *wanted)

    monkeypatch.setattr(scheduler, "known", noted)
    asked = {"quiet": True, "devices": 1, "batch_size": 2, "run_dir": None}
    in_twos = sweep(SMALL, {"lr": [*RATES, 1e-4]}, **asked)
    assert sizes == [2, 2]  # the second batch is filled up
    for outcome, expected in zip(in_twos.outcomes[:2], rates.outcomes[::2], strict=True):
        np.testing.assert_allclose(outcome.curve[1], expected.curve[1], rtol=1e-4)


def test_a_program_is_compiled_once_for_a_process(rates):
    again = {"quiet": True, "devices": 1, "batch_size": 2, "run_dir": None}
    sweep(SMALL, {"lr": RATES}, **again)
    assert sweep(SMALL, {"lr": [1e-4, 1e-5], "gamma": 0.9}, seeds=[7], **again).programs == 0


@pytest.mark.long
def test_split_over_devices_they_are_the_same(rates):
    split = sweep(SMALL, {"lr": RATES}, seeds=2, quiet=True, devices=2, run_dir=None)
    for outcome, expected in zip(split.outcomes, rates.outcomes, strict=True):
        np.testing.assert_allclose(outcome.curve[1], expected.curve[1], rtol=1e-4)


@pytest.mark.long
def test_programs_side_by_side_give_what_they_give_alone(rates, tmp_path):
    with nothing_compiled():
        beside = sweep(
            SMALL.replace(lr=RATES[1]),
            {"fcnet_hiddens": HIDDENS},
            quiet=True,
            devices=2,
            run_dir=tmp_path / "beside",
        )
    assert beside.programs == 2
    other, outcome = beside.outcomes
    arrays, expected = arrays_of(outcome.folder), arrays_of(rates.outcomes[2].folder)
    learned = [name for name in arrays if name.startswith("runner.learners")]
    assert learned
    for name in learned:
        np.testing.assert_allclose(arrays[name], expected[name], rtol=2e-4, atol=2e-5, err_msg=name)
    assert other.iterations == 12
    assert other.curve != outcome.curve
    assert len((tmp_path / "beside" / "results.jsonl").read_text().splitlines()) == 2


@pytest.mark.long
def test_programs_side_by_side_are_halved_together(rates):
    """Four trials in two programs, then the better two, then one, whatever their programs."""
    space = {"fcnet_hiddens": HIDDENS, "lr": RATES}
    halved = sweep(SMALL, space, halving=2, quiet=True, devices=2, batch_size=1, run_dir=None)
    assert sorted(outcome.iterations for outcome in halved.outcomes) == [3, 3, 6, 12]
    assert [outcome.status for outcome in halved.outcomes].count("dropped") == 3


def test_the_plan_counts_the_iterations_that_a_stop_criterion_leaves():
    trials = trials_of(SMALL, [{}], 2)
    order = SweepOptions(RETURN, {"training_iteration": 3})
    planned = scheduler.Scheduler(trials, order, Progress(quiet=True))
    planned._place()
    assert SMALL.num_updates > 3
    assert "; 3 iterations\n" in planned.plan()


def test_the_plan_says_how_many_programs_train_side_by_side(monkeypatch):
    trials = trials_of(SMALL, [{"fcnet_hiddens": (size,)} for size in (8, 16, 4)], 1)
    groups = groups_of(trials)
    monkeypatch.setattr(scheduler, "groups_of", lambda _: groups)  # which are traced once

    def plan(devices):
        planned = scheduler.Scheduler(
            trials, SweepOptions(RETURN, {}, devices=devices), Progress(quiet=True)
        )
        planned._place()
        return planned.plan(), planned.lanes

    assert ", 2 programs side by side, a device each" in plan(2)[0]
    assert ", 3 programs side by side, a device each" in plan(4)[0]
    monkeypatch.setattr(
        placement, "free_memory", lambda: 3 * placement.memory_of(groups[0])
    )  # half of it is room for one
    assert set(plan(2)[1].values()) == {SPLIT}
    assert "side by side" not in plan(2)[0]


@pytest.mark.long
def test_what_fails_beside_others_ends_the_sweep(monkeypatch):
    def compile_or_fail(group, *wanted):
        if group.static.fcnet_hiddens == (4,):
            raise UsageError("this one cannot")
        return program_of(group, *wanted)

    program_of = scheduler.program_of
    monkeypatch.setattr(scheduler, "program_of", compile_or_fail)
    endless = SMALL.replace(total_env_steps=64 * 1_000_000)
    with pytest.raises(UsageError, match="this one cannot"):
        sweep(endless, {"fcnet_hiddens": [(4,), (8,)]}, quiet=True, devices=2, run_dir=None)


@pytest.mark.parametrize(
    ("sizes", "devices", "lanes"),
    [
        ([5, 5], 1, [SPLIT, SPLIT]),
        ([8], 2, [SPLIT]),
        ([1], 2, [0]),
        ([1, 1, 1], 2, [0, 1, 0]),
        ([8, 8, 8], 2, [0, 1, SPLIT]),
        ([64, 4], 2, [SPLIT, SPLIT]),
        ([8, 1, 1, 8, 3], 4, [SPLIT, 0, 1, SPLIT, 2]),
    ],
)
def test_programs_have_a_device_each_as_far_as_that_leaves_none_idle_for_long(
    sizes, devices, lanes
):
    assert list(lanes_of(dict(enumerate(sizes)), devices).values()) == lanes


@pytest.mark.long
def test_a_trial_stops_in_the_iteration_that_met_its_criterion(rates):
    goal = float(np.nanmedian([score for outcome in rates.outcomes for score in outcome.curve[1]]))
    stopped = sweep(
        *(SMALL, {"lr": RATES}),
        **{"seeds": 2, "quiet": True, "devices": 1, "run_dir": None},
        stop={"env_runners/episode_return_mean": goal},
    )
    for outcome, whole in zip(stopped.outcomes, rates.outcomes, strict=True):
        first = next((i for i, score in enumerate(whole.curve[1], 1) if score >= goal), None)
        assert outcome.iterations == (first or 12)
        assert outcome.status == ("stopped" if first else "terminated")
        np.testing.assert_allclose(
            outcome.curve[1], whole.curve[1][: outcome.iterations], rtol=1e-4
        )


def test_a_trial_stops_after_the_chunk_in_which_its_time_was_up(rates, tmp_path):
    shared = {"seeds": 2, "quiet": True, "devices": 1}
    path = tmp_path / "timed"
    stopped = sweep(SMALL, {"lr": RATES}, **shared, run_dir=path, stop={"time_total_s": 1e-9})
    for outcome, whole in zip(stopped.outcomes, rates.outcomes, strict=True):
        assert (outcome.status, outcome.iterations) == ("stopped", 1)  # as long is the first chunk
        assert outcome.result["done"] and outcome.result["time_total_s"] >= 1e-9
        np.testing.assert_allclose(outcome.curve[1], whole.curve[1][:1], rtol=1e-4)
        folder = path / "trials" / outcome.trial.folder_name
        (row,) = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        assert row["done"] and row["trial_id"] == outcome.trial.name
    patient = sweep(SMALL, {"lr": RATES}, **shared, run_dir=None, stop={"time_total_s": 1e9})
    assert [(outcome.status, outcome.iterations) for outcome in patient.outcomes] == [
        ("terminated", 12)
    ] * 4


@pytest.mark.long
def test_halving_drops_the_worse_half_at_each_rung(rates, tmp_path):
    path = tmp_path / "halved"
    halved = sweep(SMALL, {"lr": RATES}, seeds=2, halving=2, quiet=True, devices=1, run_dir=path)
    by_rung = {3: [], 6: [], 12: []}  # a quarter, half and all of 12 updates
    for outcome in halved.outcomes:
        by_rung[outcome.iterations].append(outcome.trial.number)
    assert [len(numbers) for numbers in by_rung.values()] == [2, 1, 1]
    at_three = {outcome.trial.number: outcome.curve[1][2] for outcome in rates.outcomes}
    dropped = sorted(at_three, key=at_three.get)[:2]
    assert sorted(by_rung[3]) == sorted(dropped)
    survivor = next(outcome for outcome in halved.outcomes if outcome.iterations == 12)
    np.testing.assert_allclose(
        survivor.curve[1], rates.outcomes[survivor.trial.number].curve[1], rtol=1e-4
    )
    # Broken off after its first rung, it drops the same ones again: those that were over are ranked
    # with the others.
    lines = (path / "results.jsonl").read_text().splitlines(keepends=True)
    (path / "results.jsonl").write_text("".join(lines[:2]))
    again = resume_sweep(path, quiet=True, trust=True)
    assert [(outcome.trial.number, outcome.iterations) for outcome in again.outcomes] == [
        (outcome.trial.number, outcome.iterations) for outcome in halved.outcomes
    ]
    assert len((path / "results.jsonl").read_text().splitlines()) == 4


@pytest.mark.long
def test_halving_with_mode_min_keeps_the_lower_half_also_when_resumed(rates, tmp_path):
    options = {"halving": 2, "mode": "min", "quiet": True, "devices": 1}
    halved = sweep(SMALL, {"lr": RATES}, seeds=2, run_dir=tmp_path / "halved", **options)
    at_three = {outcome.trial.number: outcome.curve[1][2] for outcome in rates.outcomes}
    dropped = {outcome.trial.number for outcome in halved.outcomes if outcome.iterations == 3}
    assert dropped == set(sorted(at_three, key=at_three.get)[2:])
    lines = (tmp_path / "halved" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "halved" / "results.jsonl").write_text("".join(lines[:2]))
    again = resume_sweep(tmp_path / "halved", quiet=True, trust=True)
    assert again.mode == "min" and again.best_trial().score == min(scores_of(again))
    assert [outcome.iterations for outcome in again] == [outcome.iterations for outcome in halved]


def scores_of(done):
    return [outcome.score for outcome in done if outcome.score is not None]


@pytest.mark.long
def test_what_diverges_stops_alone(rates):
    wild = sweep(SMALL, {"lr": [1e-3, 3e38]}, quiet=True, devices=1, run_dir=None)
    calm, lost = wild.outcomes
    np.testing.assert_allclose(calm.curve[1], rates.outcomes[0].curve[1], rtol=1e-4)
    assert lost.status == "diverged"
    assert lost.iterations < 12
    assert lost.reason.startswith(f"iteration {lost.iterations + 1}: policy 'default_policy': ")
    assert lost.reason.endswith("so it arose in learning")


@pytest.mark.long
def test_a_trial_that_diverges_is_said_with_the_first_bad_number_of_its_environment(
    tmp_path, capsys
):
    config = FAULTY.replace(env="tests.run.test_divergence:Faulty", total_env_steps=16 * 3)
    faulty = sweep(config, {"env_args.reward": [0.0, 1e38]}, devices=1, run_dir=tmp_path / "sweep")
    ends = [(outcome.status, outcome.iterations) for outcome in faulty.outcomes]
    assert ends == [("terminated", 3), ("diverged", 0)]
    kept = arrays_of(faulty.outcomes[1].folder)  # the state before
    weights = [array for name, array in kept.items() if name.startswith("weights.")]
    assert weights and all(np.all(np.isfinite(array)) for array in weights)
    sound, lost = [outcome.reason for outcome in faulty.outcomes]
    assert sound == ""
    assert re.fullmatch(
        "iteration 1: policy 'default_policy': .* the reward of agent 'default_agent', in step 4 "
        "of 8, "
        r"environment 0 of 2 \(counted from 0\)",
        lost,
    )
    assert f"trial 0001 (env_args.reward=1e+38) has diverged: {lost}\n" in capsys.readouterr().out
    again = resume_sweep(tmp_path / "sweep", quiet=True, trust=True)
    assert [row["reason"] for row in again.rows()] == ["", lost]


@pytest.mark.parametrize(
    ("env", "swept", "needed"),
    [
        ("arena", {"lr": 1e-3}, ""),
        ("mine:World", {"lr": 1e-3}, " --trust"),
        ("arena", {"model": "mine:Net"}, " --trust"),
    ],
)
def test_a_sweep_folder_that_exists_says_how_it_is_resumed(tmp_path, env, swept, needed):
    folder = tmp_path / "sweep"
    plan = {
        **config_facts(SMALL_ARENA, {}),
        "trials": [{"settings": swept, "seed": 0}],
        **SweepOptions("m", {}).to_dict(),
    }
    plan["config"] |= {"env": env}
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps(plan))
    with pytest.raises(
        UsageError, match=f"exists already; choose another, or --resume {folder}{needed}$"
    ):
        sweep(SMALL_ARENA, {"lr": [1e-3, 1e-2]}, quiet=True, devices=1, run_dir=folder)


def test_parameters_that_overflowed_are_diverged():
    """Reported as `parameters_finite` 0.0, which is itself a finite number."""
    good = {"vf_loss": jnp.zeros(2), FINITE: jnp.ones(2)}
    of_learners = lambda *learners: Metrics(episodes=None, agent_steps=None, learners=learners)
    assert is_finite(of_learners(good, {}))
    assert is_finite(of_learners({}))  # where nobody learns
    for name, value in ((FINITE, 0.0), ("vf_loss", jnp.nan), ("vf_loss", jnp.inf)):
        assert not is_finite(of_learners(good, {**good, name: jnp.array([1.0, value])}))


@pytest.mark.parametrize("overflows", [False, True])
def test_a_member_whose_parameters_overflow_keeps_the_state_before(overflows):
    """After a loss that was finite; what PPO reports then is tested with its update."""

    class Algorithm:
        @staticmethod
        def update(runner, hypers, env_params, data):
            learned = {"total_loss": jnp.zeros(1), FINITE: jnp.full(1, 1.0 - overflows)}
            weights = runner.learners[0] + (jnp.inf if overflows else 1.0)
            after = runner.replace(num_updates=runner.num_updates + 1, learners=(weights,))
            return after, Metrics(episodes=None, agent_steps=None, learners=(learned,))

    before = RunnerState(jax.random.key(0), jnp.int32(3), (jnp.zeros(2),), envs=(), window=())
    state = State(before, met=jnp.bool_(False), diverged=jnp.bool_(False))
    numbers = Numbers(before.key, (), (), last=jnp.int32(9), goals=())
    spec = MemberSpec(Algorithm, metrics=(), score=lambda metrics: jnp.float32(5.0))
    after, score, _ = update_member(spec, state, numbers, None)
    assert bool(after.diverged) == overflows
    assert int(after.runner.num_updates) == (3 if overflows else 4)
    np.testing.assert_array_equal(after.runner.learners[0], [0, 0] if overflows else [1, 1])
    np.testing.assert_equal(float(score), np.nan if overflows else 5.0)


@pytest.mark.long
def test_a_sweep_in_which_no_policy_learns_plays_to_the_end():
    done = sweep(
        SMALL_REINFORCE.replace(policies_to_train=()), seeds=2, quiet=True, devices=1, run_dir=None
    )
    assert [(outcome.status, outcome.iterations) for outcome in done.outcomes] == [
        ("terminated", 6)
    ] * 2


def test_the_same_settings_drawn_twice_train_once(capsys):
    done = sweep(
        SMALL_REINFORCE, {"lr": choice([1e-3, 1e-2])}, num_samples=8, devices=1, run_dir=None
    )
    assert sorted(outcome.trial.settings["lr"] for outcome in done.outcomes) == [1e-3, 1e-2]
    assert "warning: 6 of 8 samples repeat settings" in capsys.readouterr().out


@pytest.mark.long
def test_a_sweep_that_was_broken_off_goes_on_with_what_is_left(rates, tmp_path):
    space, path = {"lr": RATES}, tmp_path / "cut"
    whole = sweep(SMALL, space, seeds=2, batch_size=2, quiet=True, devices=1, run_dir=path)
    lines = (path / "results.jsonl").read_text().splitlines(keepends=True)
    (path / "results.jsonl").write_text("".join(lines[:2]) + lines[2][:40])  # as a kill leaves it
    again = resume_sweep(path, quiet=True, trust=True)
    assert [outcome.trial.number for outcome in again.outcomes] == [0, 1, 2, 3]
    assert len((path / "results.jsonl").read_text().splitlines()) == 4
    for resumed, expected in zip(again.outcomes, whole.outcomes, strict=True):
        np.testing.assert_allclose(resumed.curve[1], expected.curve[1], rtol=1e-6)


def test_nothing_is_left_to_do_for_a_sweep_that_is_over(rates):
    again = resume_sweep(rates.folder, quiet=True, trust=True)
    assert again.programs == 0
    assert [outcome.score for outcome in again.outcomes] == [
        outcome.score for outcome in rates.outcomes
    ]


def test_ctrl_c_keeps_the_batches_that_are_over_and_names_the_command_for_the_rest(
    monkeypatch, tmp_path, capsys
):
    ended = []

    def train(self, number, batch, size, rung):
        if ended:
            self.interrupt.heard = True
            return False
        ended.append(train_batch(self, number, batch, size, rung))
        return True

    train_batch = scheduler.Scheduler._train
    monkeypatch.setattr(scheduler.Scheduler, "_train", train)
    options = {"seeds": 2, "batch_size": 2, "devices": 1, "run_dir": tmp_path / "cut"}
    cut = sweep(SMALL, {"lr": RATES}, **options)
    assert [outcome.trial.number for outcome in cut.outcomes] == [0, 1]
    said = " ".join(capsys.readouterr().out.split())
    assert "stopped; 2 of 4 trials are finished and kept resume" in said
    assert f"--resume {cut.folder}" in said


@pytest.mark.parametrize(
    ("space", "options", "words"),
    [
        ({"lrr": [1.0]}, {}, "unknown setting 'lrr'; did you mean 'lr'"),
        ({"lr": []}, {}, "a grid without values"),
        ({"lr": RATES}, {"metric": "env_runners/episode_return"}, "unknown metric"),
        (
            {"lr": RATES},
            {"stop": {"episode_return_mean": 3}},
            "unknown stop criterion 'episode_return_mean'",
        ),
        ({"lr": RATES}, {"stop": {"training_iteration": "x"}}, "must be a number"),
        ({"lr": RATES}, {"halving": 1}, "halving=1"),
        ({"lr": RATES}, {"halving": "x"}, "halving='x'"),
        ({"lr": RATES}, {"batch_size": 0}, "batch_size=0"),
        ({"lr": RATES}, {"devices": 64}, "devices=64: JAX has"),
        ({"lr": RATES}, {"seeds": 0}, "seeds=0"),
        ({"lr": 3e-4}, {}, "nothing to sweep: this is one trial, lr=0.0003, seed=0. Give lists"),
        ({"lr": [3e-4]}, {}, "nothing to sweep: this is one trial, lr=0.0003, seed=0. Give lists"),
        ({"lr": uniform(1e-4, 1e-3)}, {}, "nothing to sweep: this is one trial, lr="),
        ({}, {}, "nothing to sweep: this is one trial, seed=0. Give lists"),
        ({}, {"seeds": [3]}, "nothing to sweep: this is one trial, seed=3. Give lists"),
        ({"seed": [1, 2]}, {}, r"seed is not a setting to sweep: give seeds=\[1, 2\]"),
    ],
)
def test_what_cannot_work_is_refused_before_a_folder_is_made(space, options, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        sweep(SMALL, space, run_dir=tmp_path / "run", quiet=True, **options)
    assert not (tmp_path / "run").exists()


def test_members_that_do_not_fit_even_one_at_a_time_are_refused_before_a_folder_is_made(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(placement, "free_memory", lambda: 1000)
    with pytest.raises(UsageError, match="fewer environments or shorter rollouts need less"):
        sweep(SMALL, {}, seeds=2, quiet=True, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batches_are_as_large_as_fits_and_of_one_size(monkeypatch):
    group = groups_of(trials_of(SMALL, [{}], 10))[0]
    each = placement.memory_of(group)
    monkeypatch.setattr(
        placement, "free_memory", lambda: int(4.5 * each / placement.SHARE_OF_MEMORY)
    )
    assert placement.batch_size(group, 10, 1) == 4  # 4, 4 and 2
    assert placement.batch_size(group, 9, 1) == 3
    assert placement.batch_size(group, 3, 1) == 3
    assert (
        placement.batch_size(group, 10, 1, beside=2) == 2
    )  # there is room for four, shared by two


IN_NEW_PROCESSES = """
import os, jax
from jaxrl.sweeps.sweep import settled_devices
for devices in (1, 2, "auto"):
    if os.fork() == 0:  # JAX has not started yet
        print(settled_devices(devices), len(jax.devices()), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.long
def test_the_number_of_devices_in_xla_flags_stays():
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    command = [sys.executable, "-c", IN_NEW_PROCESSES]
    done = subprocess.run(command, env=flags, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 3", "2 3", "3 3"]


def test_a_folder_that_is_no_sweeps_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a sweep's folder"):
        SweepFolder.again(tmp_path)
