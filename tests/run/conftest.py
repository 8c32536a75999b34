"""A short training that several tests look at."""

import shutil

import pytest

from jaxrl import Trainer
from tests.probes import SMALL_ARENA as SMALL

FOLDER = {"quiet": True, "pictures": False, "loggers": ("jsonl", "csv")}


@pytest.fixture
def small():
    return SMALL


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A trainer of `SMALL` after three iterations, for tests that only look at it."""
    path = tmp_path_factory.mktemp("trained") / "run"
    with Trainer(SMALL, run_dir=path, **FOLDER) as trainer:
        trainer.fit({"training_iteration": 3})
        yield trainer


@pytest.fixture
def run(trained, tmp_path):
    """Its folder for one test, with the checkpoint of its third iteration: tmp_path/run."""
    return shutil.copytree(trained.run_dir, tmp_path / "run")


@pytest.fixture(scope="session")
def saved_often(tmp_path_factory):
    """The folder of a run of six iterations with the checkpoints 2, 4 and 6."""
    path = tmp_path_factory.mktemp("often") / "run"
    with Trainer(SMALL, run_dir=path, checkpoint_frequency=2, **FOLDER) as trainer:
        trainer.fit({"training_iteration": 6})
    return path


@pytest.fixture
def checkpoints(saved_often, tmp_path):
    """A copy of it for one test: tmp_path/run."""
    return shutil.copytree(saved_often, tmp_path / "run")


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
    """`Trainer.from_checkpoint` of tmp_path/run, with changes.

    Its folder is let go of at the end.
    """
    trainers = []

    def resume(path=tmp_path / "run", **settings):
        trainers.append(Trainer.from_checkpoint(path, quiet=True, **settings))
        return trainers[-1]

    yield resume
    for trainer in trainers:
        trainer.stop()
