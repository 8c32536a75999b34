"""A short training that several tests look at."""

import pytest

from jaxrl import PPOConfig, Trainer

SMALL = PPOConfig(
    env="arena",
    env_args={"height": 4, "width": 4, "max_steps_in_episode": 20},
    num_envs=4,
    rollout_length=16,
    minibatch_size=32,
    num_epochs=2,
    fcnet_hiddens=(8,),
    lr=1e-3,
    total_env_steps=64 * 40,
)
FOLDER = {"quiet": True, "pictures": False, "loggers": ("jsonl", "csv")}


@pytest.fixture
def small():
    return SMALL


@pytest.fixture
def start(tmp_path):
    """A trainer of `SMALL`, with changes, in tmp_path/run; its folder is let go of at the end."""
    trainers = []

    def start(config=SMALL, run_dir=tmp_path / "run", **settings):
        trainers.append(Trainer(config, run_dir=run_dir, **{**FOLDER, **settings}))
        return trainers[-1]

    yield start
    for trainer in trainers:
        trainer.stop()


@pytest.fixture
def resume(tmp_path):
    """`Trainer.from_checkpoint` of tmp_path/run, with changes; its folder is let go of at the end."""
    trainers = []

    def resume(path=tmp_path / "run", **settings):
        trainers.append(Trainer.from_checkpoint(path, quiet=True, **settings))
        return trainers[-1]

    yield resume
    for trainer in trainers:
        trainer.stop()
