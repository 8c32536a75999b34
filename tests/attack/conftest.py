"""A run and a sweep of a stranger, which tests copy before they change them."""

import pytest

import jaxrl
from tests.programs import SMALL_CARTPOLE


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run of two iterations that writes its episodes into its own folder."""
    path = tmp_path_factory.mktemp("a stranger's") / "run"
    settings = {"output": path / "episodes", "checkpoint_frequency": 1, "pictures": False}
    with jaxrl.Trainer(SMALL_CARTPOLE, run_dir=path, quiet=True, **settings) as trainer:
        trainer.fit({"training_iteration": 2})
        trainer.get_policy().export(path / "policy.npz")
    return path


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    path = tmp_path_factory.mktemp("swept") / "sweep"
    config = SMALL_CARTPOLE.replace(total_env_steps=1)
    jaxrl.sweep(config, {"lr": [1e-3, 1e-4]}, run_dir=path, quiet=True, devices=1)
    return path
