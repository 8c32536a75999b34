"""Where an iteration's time goes, on one device and on two."""

import jax
import pytest

from jaxrl.core.errors import UsageError
from jaxrl.run import profiling
from tests.programs import SMALL_REINFORCE
from tests.run.test_resume import assert_equal_to_the_bit


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(profiling, "MEASURED_SECONDS", 0.01)


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long)])
def test_sampling_and_learning_are_measured_apart_and_the_run_stays_as_it_is(
    start, tmp_path, capsys, devices
):
    plain = start(SMALL_REINFORCE, run_dir=tmp_path / "plain", devices=devices)
    profiled = start(SMALL_REINFORCE, devices=devices)
    for trainer in (plain, profiled):
        trainer.train()
    profiled.progress.console.quiet = False
    timers = profiled.profile()["timers"]
    assert list(timers) == ["iteration", "env_runner_sampling_timer", "learner_update_timer"]
    whole, sampling, learning = timers.values()
    assert whole > 0 and sampling > 0
    assert learning == max(0.0, whole - sampling)
    assert "profile: an iteration takes" in capsys.readouterr().out
    for trainer in (plain, profiled):
        trainer.train()
    assert profiled.lifetime.training_iteration == 2
    assert_equal_to_the_bit(profiled.runner, plain.runner)


def test_a_profile_can_be_asked_for_before_anything_is_trained(start):
    trainer = start(SMALL_REINFORCE, run_dir=None)
    trainer.profile()
    assert trainer.lifetime.training_iteration == int(trainer.runner.num_updates) == 0


def test_of_several_processes_no_profile_is_taken(start, monkeypatch):
    trainer = start(SMALL_REINFORCE, run_dir=None)
    trainer.train()
    monkeypatch.setattr(profiling.jax, "process_count", lambda: 2)
    with pytest.raises(UsageError, match="profile measures one process alone"):
        profiling.timers(
            trainer.program,
            trainer.executable,
            (trainer.runner, trainer.hypers, trainer.env_params),
        )


def test_without_compiling_there_is_nothing_to_profile(start):
    trainer = start(SMALL_REINFORCE, run_dir=None)
    with jax.disable_jit(), pytest.raises(UsageError, match="measures compiled programs"):
        trainer.profile()
