"""Evaluation outside JAX: whole episodes in copies that the run's workers step."""

import pytest

import jaxrl
from tests.probes import SMALL_REINFORCE
from tests.workers.environments import EXIT, HANG, RAISE

CONFIG = SMALL_REINFORCE.replace(
    env="tests.workers.environments:Counter", num_envs=2, rollout_length=8, total_env_steps=16
)
SETTINGS = {"run_dir": None, "quiet": True}


def broken(fault, share):
    return CONFIG.replace(env_args={"fault": fault, "share": share})


def test_processes_play_the_episodes_that_this_process_plays():
    found = []
    for workers in (0, 2):
        with jaxrl.Trainer(CONFIG, **SETTINGS, workers=workers) as trainer:
            found.append(trainer.evaluate(episodes=3, explore=True)["env_runners"])
            assert trainer.evaluate(episodes=3, explore=True)["env_runners"] == found[-1]
    assert found[0] == found[1] and found[0]["episode_len_mean"] == 5


def test_a_saved_run_is_evaluated_as_while_it_trained_though_episodes_fail_now_and_then(tmp_path):
    settings = {"workers": 1, "evaluation_interval": 1, "evaluation_duration": 3}
    config, folder = broken(RAISE, 0.1), tmp_path / "run"
    with jaxrl.Trainer(config, run_dir=folder, quiet=True, pictures=False, **settings) as trainer:
        wanted = trainer.fit()["evaluation"]
    assert wanted["env_runners"]["num_episodes"] == 3
    assert jaxrl.evaluate(folder, episodes=3, trust=True) == wanted


@pytest.mark.parametrize("fault", [HANG, EXIT])
def test_an_environment_that_always_fails_ends_its_evaluation_in_one_line(fault):
    settings = {"workers": 1, "env_step_timeout_s": 0.2, "max_consecutive_faults": 1}
    trainer = jaxrl.Trainer(broken(fault, 1.0), **SETTINGS, **settings)
    message = "failed 2 times and finished no"
    with trainer, pytest.raises(jaxrl.UsageError, match=message) as caught:
        trainer.evaluate(episodes=1)
    assert "\n" not in str(caught.value)
