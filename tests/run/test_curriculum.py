"""Tests of tasks that change while a policy trains: domain randomisation and curricula."""

import jax.numpy as jnp
import pytest

from jaxrl import BCConfig, Trainer, UsageError, evaluate, make_train, sweep
from jaxrl.run.inference.load import open_run
from tests.run.test_resume import CARTPOLE, assert_equal_to_the_bit, lines_of, without_times

HERE = "tests.run.test_curriculum"
RANDOMISED = CARTPOLE.replace(env_args={"gravity": "uniform:8:12"})
CALLED = []  # iterations after which `heavier` was called


def heavier(result, task):
    """1 m/s^2 more, but no change after iteration 6."""
    CALLED.append(result["training_iteration"])
    return None if result["training_iteration"] == 6 else {"gravity": task.gravity + 1.0}


HEAVIER = CARTPOLE.replace(env_task_fn=f"{HERE}:heavier", env_task_interval=3)


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


def test_env_task_fn_is_called_at_its_interval_and_its_task_holds_from_the_next_iteration(
    start, tmp_path
):
    CALLED.clear()
    trainer = start(HEAVIER)
    trainer.fit({"training_iteration": 10, "env_runners/task/gravity": 99})
    assert CALLED == [3, 6, 9]
    tasks = [line["env_runners"]["task"] for line in lines_of(tmp_path / "run")]
    gravity = pytest.approx([9.8] * 3 + [10.8] * 6 + [11.8])
    assert [task["gravity"] for task in tasks] == gravity
    assert tasks[0]["max_steps_in_episode"] == 500
    assert float(trainer.env_params.gravity) == pytest.approx(11.8)


def test_a_run_with_env_task_fn_resumes_as_if_it_had_not_stopped(start, resume, tmp_path):
    whole = start(HEAVIER, tmp_path / "whole")
    whole.fit({"training_iteration": 11})
    half = start(HEAVIER)
    half.fit({"training_iteration": 5})
    half.stop()
    rest = resume(trust=True)
    rest.fit({"training_iteration": 11})
    assert_equal_to_the_bit((rest.runner, rest.env_params), (whole.runner, whole.env_params))
    lines, expected = lines_of(tmp_path / "run"), lines_of(tmp_path / "whole")
    assert [without_times(line) for line in lines if not line["done"]] == [
        without_times(line) for i, line in enumerate(expected, start=1) if i not in (5, 11)
    ]


def test_evaluation_plays_the_configurations_own_numbers_and_not_the_curriculums(start, tmp_path):
    trainer = start(HEAVIER, checkpoint_at_end=True)
    trainer.fit({"training_iteration": 4})
    trainer.stop()
    opened = open_run(tmp_path / "run")  # without trust: playing needs no curriculum
    assert float(opened.env_params.gravity) == pytest.approx(9.8)
    plain = Trainer(CARTPOLE, run_dir=None, quiet=True)
    trainer = Trainer(HEAVIER, run_dir=None, quiet=True)
    trainer.env_params = trainer.env_params.replace(gravity=30.0)
    assert trainer.evaluate(episodes=3) == plain.evaluate(episodes=3)


def returning(task):
    return lambda result, params: task(params) if callable(task) else task


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"gravty": 1.0}, "unknown field 'gravty' in what env_task_fn returned; did you mean"),
        ({"gravity": [1.0, 2.0]}, r"env_task_fn: params: gravity must have the shape \[\]"),
        ({"gravity": "heavy"}, "env_task_fn: params: gravity='heavy' must be"),
        ({"max_steps_in_episode": 30.5}, "max_steps_in_episode=30.5 must be an integer"),
        (5.0, "env_task_fn: params must be a Params with the same fields as before, not 5.0"),
        (lambda params: params.replace(gravity=jnp.ones(3)), "gravity must have the shape"),
    ],
)
def test_a_task_of_another_form_ends_training_in_one_line(task, message):
    config = CARTPOLE.replace(env_task_fn=returning(task))
    trainer = Trainer(config, run_dir=None, quiet=True)
    result = {"training_iteration": 1}
    with pytest.raises(UsageError, match=message) as caught:
        trainer.tasks.next_values(result, trainer.env_params)
    assert "\n" not in str(caught.value)


def test_the_environments_own_check_sees_the_tasks():
    config = CARTPOLE.replace(
        env="pursuit", env_task_fn=returning({"n_catch": 0}), observation_filter=None
    )
    trainer = Trainer(config, run_dir=None, quiet=True)
    with pytest.raises(UsageError, match="n_catch=0: it must be at least 1"):
        trainer.tasks.next_values({"training_iteration": 1}, trainer.env_params)


def three(result, env, context): ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (f"{HERE}:three", r"env_task_fn must take \(result, task\): missing a required argument"),
        (f"{HERE}:heavir", "did you mean 'heavier'"),
        ("heavier", "env_task_fn='heavier' must be a function from .* or module:function"),
        (f"{HERE}:CARTPOLE", "is PPOConfig.*, not a function from"),
        (7, "env_task_fn=7 must be a function"),
    ],
)
def test_what_is_no_function_of_result_and_task_is_refused_before_compiling(function, message):
    with pytest.raises(UsageError, match=message):
        Trainer(CARTPOLE.replace(env_task_fn=function), run_dir=None, quiet=True)


def test_where_nothing_would_call_env_task_fn_it_is_refused():
    with pytest.raises(UsageError, match="called by a Trainer alone: make_train"):
        make_train(HEAVIER)
    with pytest.raises(UsageError, match="called by a Trainer alone: trials"):
        sweep(HEAVIER, {"lr": [1e-3, 1e-4]}, run_dir=None, quiet=True)
    with pytest.raises(UsageError, match="env_task_fn changes nothing"):
        BCConfig(env="cartpole", input="data", env_task_fn=heavier)
    with pytest.raises(UsageError, match=r"unknown setting 'env_task_fn': .*Config has it"):
        Trainer(CARTPOLE, run_dir=None, env_task_fn=heavier)


def test_a_saved_function_is_imported_with_trust_alone_and_a_lambda_is_asked_for_again(
    start, resume, tmp_path
):
    config = CARTPOLE.replace(env_task_fn=returning({"gravity": 5.0}))
    trainer = start(config)
    trainer.fit({"training_iteration": 2})
    trainer.stop()
    with pytest.raises(UsageError, match="the run's env_task_fn was an object"):
        resume(trust=True)
    again = resume(config=config)
    assert float(again.env_params.gravity) == 5.0
    again.stop()
    start(HEAVIER, tmp_path / "named").stop()
    with pytest.raises(UsageError, match=r"(?s)env_task_fn is .*:heavier'.*--trust"):
        resume(tmp_path / "named")
