"""A training that is killed half-way resumes to the bit, with all that changes what is played.

A curriculum, exploration, a pool of opponents and a centralised critic, in one run. Populations:
tests/sweeps/test_population.py.
"""

import signal
import subprocess
import sys

import pytest

from jaxrl import LevelsBySuccess, PPOConfig, Trainer
from jaxrl.run.storage import checkpoint
from tests.programs import lines_of
from tests.run.test_resume import assert_equal_to_the_bit, without_times

ITERATIONS, SAVED_AFTER, KILLED_AFTER = 9, 4, 5
CONFIG = PPOConfig(
    env="arena",
    env_args={"height": 4, "width": 4, "max_steps_in_episode": 9},
    policies_to_train=("pol2",),
    curriculum=LevelsBySuccess([{"max_steps_in_episode": 5}, {}], window=2, solved_at=-5.0),
    opponents={"size": 2, "every": 2, "draw": "prioritised", "fixed": {"random": "random"}},
    critic_observation="state",
    exploration_config={"type": "EpsilonGreedy", "epsilon_timesteps": 64 * 7},
    num_envs=4,
    rollout_length=16,
    minibatch_size=32,
    num_epochs=1,
    fcnet_hiddens=(8,),
    total_env_steps=64 * ITERATIONS,
)
SETTINGS = {"quiet": True, "pictures": False, "loggers": ("jsonl",), "checkpoint_interval_s": None}
KILLED = """
import os, signal
from tests.run.test_killed_training import CONFIG, KILLED_AFTER, SAVED_AFTER, SETTINGS, Trainer
trainer = Trainer(CONFIG, run_dir=PATH, **SETTINGS)
for iteration in range(1, KILLED_AFTER + 1):
    trainer.train()
    if iteration == SAVED_AFTER:
        trainer.save()
os.kill(os.getpid(), signal.SIGKILL)
"""


def played(line):
    """A line of the log without times and the process's number; text, in which NaN equals NaN."""
    return repr({name: value for name, value in without_times(line).items() if name != "pid"})


@pytest.mark.process
def test_a_killed_run_resumes_to_the_bit_with_all_that_changes_what_is_played(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with Trainer(CONFIG, run_dir=whole, **SETTINGS) as trainer:
        expected = trainer.fit()["env_runners"]
    assert expected["opponents"]["num_copies"] == 1 + ITERATIONS // 2
    assert 5 < expected["task"]["max_steps_in_episode"] < 9  # some go up before the end
    done = subprocess.run([sys.executable, "-c", f"PATH = {str(killed)!r}\n{KILLED}"], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert list(checkpoint.iterations(killed / "checkpoints")) == [SAVED_AFTER]
    with Trainer.from_checkpoint(killed, quiet=True, pictures=False) as resumed:
        resumed.fit()
    assert_equal_to_the_bit(resumed.runner, trainer.runner)
    logged = [[played(line) for line in lines_of(folder)] for folder in (whole, killed)]
    assert logged[0] == logged[1]
