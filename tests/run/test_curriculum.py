"""Tests of tasks that change while a policy trains: domain randomisation and curricula."""

import pytest

from jaxrl import evaluate
from jaxrl.run.inference.load import open_run
from tests.run.test_resume import CARTPOLE

RANDOMISED = CARTPOLE.replace(env_args={"gravity": "uniform:8:12"})


def test_what_was_drawn_is_reported_and_evaluation_draws_too(start, tmp_path):
    trainer = start(RANDOMISED)
    result = trainer.fit({"training_iteration": 4, "env_runners/task/gravity": 13})
    assert 8 < result["env_runners"]["task"]["gravity"] < 12
    assert result["env_runners"]["custom_metrics"] == {}
    evaluated = evaluate(tmp_path / "run", episodes=20)["env_runners"]
    assert 8 < evaluated["task"]["gravity"] < 12
    fixed = evaluate(tmp_path / "run", episodes=2, env_args={"gravity": 9.0})["env_runners"]
    assert "task" not in fixed
    assert open_run(tmp_path / "run").env_params.gravity == pytest.approx(9.8)
