"""The host hooks of callbacks in sweeps and in blocks of Ray Tune.

Called for each trial, or refused by name.
"""

import json

import pytest

from jaxrl import Callbacks, RunSettings, Trainer, UsageError, resume_sweep, sweep
from jaxrl.run.results import RETURN
from jaxrl.run.storage import runs
from jaxrl.sweeps.trial_batch import TrialBatch
from jaxrl.sweeps.trial_view import READABLE, TrialView, check_callbacks
from jaxrl.sweeps.trials import trials_of
from tests.messages import refusal
from tests.programs import SMALL_REINFORCE

RATES = [1e-3, 1e-2]
ONCE = {"quiet": True, "devices": 1}
EVALUATED = {"evaluation_interval": 4, "evaluation_duration": 2}


class InputsSpec(Callbacks):
    """Notes what it is told; ends the trial of the second rate after its third iteration."""

    def __init__(self, ends_at=None):
        self.told, self.ends_at = [], ends_at

    def on_algorithm_init(self, trainer):
        self.told.append((trainer.trial.number, "init", trainer.lifetime.training_iteration))

    def on_evaluate_start(self, trainer):
        self.told.append((trainer.trial.number, "before", trainer.lifetime.training_iteration))

    def on_train_result(self, trainer, result):
        result["env_runners"]["rate"] = trainer.config.lr
        self.told.append((trainer.trial.number, "result", result["training_iteration"]))
        if trainer.config.lr == RATES[1] and result["training_iteration"] == self.ends_at:
            result["done"] = True

    def on_evaluate_end(self, trainer, evaluation):
        assert evaluation["env_runners"]["num_episodes"] == 2
        self.told.append((trainer.trial.number, "evaluation", trainer.lifetime.training_iteration))

    def on_checkpoint(self, trainer, path):
        assert path.is_relative_to(trainer.run_dir)
        self.told.append((trainer.trial.number, "checkpoint", path.name))

    def on_train_end(self, trainer, result):
        assert result is trainer.last_result
        self.told.append((trainer.trial.number, "end", result["training_iteration"]))

    def of(self, trial, what):
        return [value for number, kind, value in self.told if (number, kind) == (trial, what)]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """(callback, sweep) of two trials, one of which a hook ends in the middle of a chunk."""
    told, path = InputsSpec(ends_at=3), tmp_path_factory.mktemp("hooks") / "sweep"
    config = SMALL_REINFORCE.replace(callbacks=told)
    return told, sweep(config, {"lr": RATES}, **ONCE, **EVALUATED, run_dir=path)


@pytest.mark.long
def test_every_hook_is_called_for_each_trial_with_that_trials_result(ended):
    told, done = ended
    assert told.of(0, "result") == [1, 2, 3, 4, 5, 6]
    assert told.of(0, "init") == [0]
    assert told.of(0, "before") == told.of(0, "evaluation") == [4, 6]
    assert told.of(0, "end") == [6]
    assert len(told.of(0, "checkpoint")) == 1
    assert done.outcomes[0].result["env_runners"]["rate"] == RATES[0]


def test_a_hook_ends_its_trial_in_that_iteration_and_no_other_trial_notices(ended):
    told, done = ended
    assert told.of(1, "result") == [1, 2, 3]
    assert [(outcome.iterations, outcome.status) for outcome in done.outcomes] == [
        (6, "terminated"),
        (3, "stopped"),
    ]
    assert len(done.outcomes[1].curve[1]) == 3
    assert (
        done.outcomes[1].result["evaluation"]["env_runners"]["num_episodes"] == 2
    )  # of the state it ended in
    plain = sweep(SMALL_REINFORCE, {"lr": RATES}, **ONCE, run_dir=None)
    for i in (0, 1):
        assert done.outcomes[i].curve[1] == pytest.approx(
            plain.outcomes[i].curve[1][: 6 - 3 * i], nan_ok=True
        )


def test_a_trials_folder_has_a_line_for_each_iteration_with_its_evaluations(ended):
    _, done = ended
    for outcome, count in zip(done.outcomes, (6, 3), strict=True):
        lines = [
            json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()
        ]
        assert [line["training_iteration"] for line in lines] == list(range(1, count + 1))
        assert [line["training_iteration"] for line in lines if "evaluation" in line] == (
            [4, 6] if count == 6 else [3]
        )
        assert [line["done"] for line in lines] == [False] * (count - 1) + [True]
        assert lines[-1]["env_runners"]["rate"] == outcome.trial.settings["lr"]


def test_a_class_is_made_anew_for_each_trial():
    made = []

    class Counts(Callbacks):
        def __init__(self):
            self.results = 0
            made.append(self)

        def on_train_result(self, trainer, result):
            self.results += 1

    sweep(SMALL_REINFORCE.replace(callbacks=Counts), {"lr": RATES}, **ONCE, run_dir=None)
    assert [hook.results for hook in made if hook.results] == [6, 6]


class Saves(Callbacks):
    def on_train_result(self, trainer, result):
        trainer.save()


class SavesAtHome(Callbacks):
    def on_train_result(self, trainer, result):
        result["saves"] = hasattr(trainer, "save")
        if result["saves"]:
            trainer.save()


class Samples(Callbacks):
    def on_episode_end(self, *, episode):
        pass


class SamplesAsInRLlib(Callbacks):
    def on_episode_end(self, *, episode, metrics_logger=None, **kwargs):
        pass


class Replaces(Callbacks):
    def on_train_result(self, trainer, result):
        trainer.set_weights(trainer.get_weights())


class Asks(Callbacks):
    def on_train_result(self, trainer, result):
        trainer.keeping  # noqa: B018


class Teaches(Callbacks):
    def on_train_result(self, trainer, result):
        trainer.env_params = trainer.env_params.replace(max_steps_in_episode=20)


class TeachesUnseen(Callbacks):
    def on_train_result(self, trainer, result):
        setattr(trainer, "hypers", None)  # noqa: B010


class Acts(Callbacks):
    def on_train_result(self, trainer, result):
        result["action"] = trainer.compute_actions({"default_agent": [0.0, 0.0, 0.0, 0.0]})[
            "default_agent"
        ]
        trainer.notes = "hooks may keep their own"


def test_a_hook_that_is_never_called_is_refused():
    class Scores(Callbacks):
        custom_evaluation_function = lambda self, trainer: {"score": 1}

    class Watches(Callbacks):
        on_environment_created = lambda self, env: None

    needing = {"custom_evaluation_function": Scores, "on_environment_created": Watches}
    for hook, callbacks in needing.items():
        with pytest.raises(UsageError, match=f"{hook} needs a Trainer"):
            check_callbacks(SMALL_REINFORCE.replace(callbacks=callbacks))
    with pytest.raises(UsageError, match="on_evaluate_end is never called here"):
        check_callbacks(SMALL_REINFORCE.replace(callbacks=InputsSpec), never=("on_evaluate_end",))


@pytest.mark.parametrize("callbacks", [Samples, SamplesAsInRLlib])
def test_a_hook_that_takes_whole_episodes_is_refused_before_a_sweep_compiles(callbacks, tmp_path):
    sampling = SMALL_REINFORCE.replace(callbacks=callbacks)
    needs = r"on_episode_end\(\*, episode\) needs a Trainer.*write on_episode_end\(self, data, epis"
    with refusal(needs):
        sweep(sampling, {"lr": RATES}, **ONCE, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with refusal(needs):
        TrialBatch(trials_of(sampling, [{"lr": lr} for lr in RATES], 1), metric=RETURN)


class Logs(Callbacks):
    """Logs the longest episode in the program, and a number on the host."""

    def on_episode_end(self, data, episode, metrics_logger):
        metrics_logger.log_value("longest", episode.length, reduce="max")

    def on_train_result(self, *, result, metrics_logger, **kwargs):
        metrics_logger.log_value("mine", result["training_iteration"])


@pytest.mark.long
def test_a_number_that_a_traced_hook_logs_ranks_trials_and_stops_them():
    config = SMALL_REINFORCE.replace(callbacks=Logs)
    metric, stop = "env_runners/longest", {"env_runners/this_iteration/longest": 1.0}
    done = sweep(config, {"lr": RATES}, **ONCE, metric=metric, stop=stop, run_dir=None)
    longest = [outcome.result["env_runners"]["longest"] for outcome in done.outcomes]
    assert [outcome.score for outcome in done.outcomes] == longest
    assert [outcome.status for outcome in done.outcomes] == ["stopped", "stopped"]


@pytest.mark.parametrize(
    "compared", [{"metric": "mine"}, {"metric": "mine", "halving": 2}, {"stop": {"mine": 3}}]
)
def test_a_number_that_the_host_logs_is_refused_as_what_trials_are_compared_by(compared, tmp_path):
    config = SMALL_REINFORCE.replace(callbacks=Logs)
    with refusal(r"unknown .* 'mine'.*on_train_result of callbacks Logs.*log it in a traced hook"):
        sweep(config, {"lr": RATES}, **ONCE, **compared, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if "stop" not in compared:
        with refusal(r"unknown metric 'mine'.*log it in a traced hook"):
            TrialBatch(trials_of(config, [{"lr": lr} for lr in RATES], 1), metric="mine")


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (
            Saves,
            r"uses trainer\.save, which a trial of a sweep does not have; it has trial, config,",
        ),
        (Asks, r"uses trainer\.keeping, which a trial"),
        (Replaces, r"uses trainer\.set_weights, which a trial"),
        (Teaches, r"sets trainer\.env_params"),
        (TeachesUnseen, r"sets trainer\.hypers"),
    ],
)
def test_what_needs_a_trainer_is_refused_by_name_when_it_is_used(callbacks, words):
    with pytest.raises(UsageError, match=f"on_train_result of callbacks {words}") as caught:
        sweep(SMALL_REINFORCE.replace(callbacks=callbacks), {"lr": RATES}, **ONCE, run_dir=None)
    assert len(str(caught.value).splitlines()) == 1


def test_a_hook_may_ask_whether_it_has_a_trainer():
    done = sweep(
        SMALL_REINFORCE.replace(callbacks=SavesAtHome), {"lr": RATES}, **ONCE, run_dir=None
    )
    assert [outcome.result["saves"] for outcome in done.outcomes] == [False, False]


@pytest.mark.long
def test_a_trainer_and_a_trial_have_all_of_a_training():
    (trial, *_) = trials_of(SMALL_REINFORCE, [{}], 1)
    view = TrialView(trial, SMALL_REINFORCE.build(), RunSettings())
    trainer = Trainer(SMALL_REINFORCE, run_dir=None, quiet=True)
    assert set(READABLE) > {"config", "runner", "get_policy"}
    for name in READABLE:
        assert hasattr(trainer, name)
        assert name == "runner" or hasattr(view, name)
    with view.showing(lambda: "the state"):
        assert view.runner == "the state"


def test_a_hook_may_act_with_its_trials_policies():
    done = sweep(SMALL_REINFORCE.replace(callbacks=Acts), {"lr": RATES}, **ONCE, run_dir=None)
    assert {int(outcome.result["action"]) for outcome in done.outcomes} <= {0, 1}


class Ends(Callbacks):
    """Ends every trial of the second rate after two iterations, counted over a restart too."""

    def __init__(self):
        self.results, self.ends = 0, 0

    def on_train_result(self, trainer, result):
        self.results += 1
        result["done"] = trainer.config.lr == RATES[1] and result["training_iteration"] == 2

    def on_train_end(self, trainer, result):
        self.ends += 1

    def get_state(self):
        return self.results

    def set_state(self, state):
        self.results = state


def test_members_of_a_block_are_told_of_each_iteration_and_stay_ended_when_restored(tmp_path):
    def block():
        trials = trials_of(SMALL_REINFORCE.replace(callbacks=Ends), [{"lr": lr} for lr in RATES], 1)
        return TrialBatch(trials, metric=RETURN)

    def counts(of):
        return [reporter.callbacks.callbacks[0].results for reporter in of.reporters]

    first = block()
    assert [result["training_iteration"] for result in first.train(3)] == [3, 2]
    assert counts(first) == [3, 2]
    first.save(tmp_path / "kept")
    second = block()
    second.load(tmp_path / "kept")
    assert not second.is_over
    assert [result["training_iteration"] for result in second.train(10)] == [6, 2]
    assert second.is_over
    assert counts(second) == [6, 2]
    second.end()
    second.end()
    assert [reporter.callbacks.callbacks[0].ends for reporter in second.reporters] == [1, 1]


@pytest.mark.parametrize("ends_at", [3, 4])
def test_a_trial_saves_checkpoints_every_so_many_iterations_and_at_its_end(ends_at, tmp_path):
    told, path = InputsSpec(ends_at=ends_at), tmp_path / "sweep"
    config = SMALL_REINFORCE.replace(callbacks=told)
    options = {**ONCE, "checkpoint_frequency": 2, "keep": 2, "run_dir": path}
    done = sweep(config, {"lr": RATES}, **options)
    last = done.outcomes[0].iterations
    assert told.of(0, "checkpoint")[0] == "000002"
    assert told.of(0, "checkpoint")[-1] == f"{last:06d}"
    assert told.of(1, "checkpoint") == ["000002", f"00000{ends_at}"]
    kept = sorted(folder.name for folder in (done.outcomes[0].folder / "checkpoints").iterdir())
    assert len([name for name in kept if name.isdecimal()]) == 2
    where = {"checkpoint": 2, "run_dir": None, "quiet": True}
    trainer = Trainer.from_checkpoint(done.outcomes[1].folder, config=SMALL_REINFORCE, **where)
    assert trainer.lifetime.training_iteration == 2


def test_a_sweep_that_is_resumed_keeps_what_it_was_asked_for(tmp_path):
    path = tmp_path / "sweep"
    sweep(SMALL_REINFORCE, {"lr": RATES}, **ONCE, **EVALUATED, loggers="csv", run_dir=path)
    lines = (path / "results.jsonl").read_text().splitlines(keepends=True)
    (path / "results.jsonl").write_text(lines[0])
    table = runs.resolve(path / "trials" / "0001") / "progress.csv"
    table.unlink()
    done = resume_sweep(path, quiet=True, trust=True)
    assert done.outcomes[1].result["evaluation"]["env_runners"]["num_episodes"] == 2
    assert len(table.read_text().splitlines()) == 1 + 6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"keep": 0}, "keep=0 must be an integer of at least 1"),
        ({"pictures": False}, "unknown argument 'pictures' of sweep"),
        ({"evaluation_intervall": 3}, "did you mean 'evaluation_interval'"),
        ({"evaluation_interval": 0}, "evaluation_interval=0"),
        ({"loggers": "json"}, "unknown log 'json'"),
    ],
)
def test_other_settings_of_a_run_are_refused_before_a_folder_is_made(given, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        sweep(SMALL_REINFORCE, {"lr": RATES}, quiet=True, run_dir=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
