"""Trainings that are killed at random moments: what their processes run, and how they are begun."""

import multiprocessing
import os
from pathlib import Path

from jaxrl import LevelsBySuccess, PPOConfig, Trainer
from tests.programs import SMALL_CARTPOLE
from tests.run.test_killed_training import CONFIG, SETTINGS

MARK = "JAXRL_KILLED_RUN"  # an environment variable that what a trainer starts inherits
LATER = ("gymnasium", "tensorstore", "orbax.checkpoint")  # what a training imports
ENDLESS = 10**9
LEVELS = [*({"max_steps_in_episode": steps} for steps in (4, 5, 6, 7, 8)), {}]
SELF_PLAY = CONFIG.replace(
    curriculum=LevelsBySuccess(LEVELS, window=250, solved_at=-5.0),
    exploration_config={"type": "EpsilonGreedy", "epsilon_timesteps": 64 * 2000},
    total_env_steps=ENDLESS,
)
WITH_WORKERS = SMALL_CARTPOLE.replace(
    env="gym:CartPole-v1", num_epochs=1, minibatch_size=64, total_env_steps=ENDLESS
)


def go_on(run: Path, config: PPOConfig, iteration: int, settings: dict) -> None:
    """Begins a training, or resumes it as a user would, and trains up to an iteration."""
    os.environ[MARK] = str(run)
    if (run / "config.json").exists():
        trainer = Trainer.from_checkpoint(run, quiet=True)
    else:
        trainer = Trainer(config, run_dir=run, **SETTINGS, **settings)
    with trainer:
        trainer.fit({"training_iteration": iteration})


def start(run: Path, config: PPOConfig, settings: dict, iteration: int = ENDLESS):
    """`go_on` in a process of its own, forked from one that has imported what it needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *LATER])
    process = context.Process(target=go_on, args=(run, config, iteration, settings), daemon=True)
    process.start()
    return process
