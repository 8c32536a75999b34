"""Tests of tasks that change while a policy trains: domain randomisation and curricula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import (
    BCConfig,
    Curriculum,
    LevelsBySuccess,
    Trainer,
    UsageError,
    evaluate,
    make_train,
    sweep,
)
from jaxrl.play.load import open_run
from tests.messages import refused, refused_by
from tests.programs import SMALL_CARTPOLE, lines_of
from tests.run.test_resume import CARTPOLE, assert_equal_to_the_bit, without_times

HERE = "tests.run.test_curriculum"
RANDOMISED = CARTPOLE.replace(env_args={"gravity": "uniform:8:12"})
CALLED = []  # iterations after which `heavier` was called


def heavier(result, task):
    """1 m/s^2 more, but no change after iteration 6."""
    CALLED.append(result["training_iteration"])
    return None if result["training_iteration"] == 6 else {"gravity": task.gravity + 1.0}


HEAVIER = CARTPOLE.replace(env_task_fn=f"{HERE}:heavier", env_task_interval=3)


@pytest.mark.slow
@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_run_with_env_task_fn_resumes_as_if_it_had_not_stopped(
    start, stopped_after, resume, tmp_path
):
    whole = start(HEAVIER, tmp_path / "whole")
    whole.fit({"training_iteration": 11})
    stopped_after(5, HEAVIER)
    rest = resume(trust=True)
    rest.fit({"training_iteration": 11})
    assert_equal_to_the_bit((rest.runner, rest.env_params), (whole.runner, whole.env_params))
    lines, expected = lines_of(tmp_path / "run"), lines_of(tmp_path / "whole")
    assert [without_times(line) for line in lines if not line["done"]] == [
        without_times(line) for i, line in enumerate(expected, start=1) if i not in (5, 11)
    ]


@pytest.mark.long
def test_evaluation_plays_the_configurations_own_numbers_and_not_the_curriculums(
    stopped_after, tmp_path
):
    heavier = SMALL_CARTPOLE.replace(env_task_fn=HEAVIER.env_task_fn, env_task_interval=3)
    stopped_after(4, heavier, checkpoint_at_end=True)
    opened = open_run(tmp_path / "run")  # without trust: playing needs no curriculum
    assert float(opened.env_params.gravity) == pytest.approx(9.8)
    plain = Trainer(SMALL_CARTPOLE, run_dir=None, quiet=True)
    trainer = Trainer(heavier, run_dir=None, quiet=True)
    trainer.env_params = trainer.env_params.replace(gravity=30.0)
    assert trainer.evaluate(episodes=3) == plain.evaluate(episodes=3)


def returning(task):
    return lambda result, params: task(params) if callable(task) else task


def next_task(task, **changes):
    """What a training does with what env_task_fn returns after the first iteration."""
    config = CARTPOLE.replace(env_task_fn=returning(task), **changes)
    trainer = Trainer(config, run_dir=None, quiet=True)
    trainer.tasks.next_values({"training_iteration": 1}, trainer.env_params)


test_a_task_of_another_form_ends_training_in_one_line = refused_by(
    next_task,
    [
        ({"gravty": 1.0}, "unknown field 'gravty' in what env_task_fn returned; did you mean"),
        ({"gravity": [1.0, 2.0]}, r"env_task_fn: params: gravity must have the shape \[\]"),
        ({"gravity": "heavy"}, "env_task_fn: params: gravity='heavy' must be"),
        ({"max_steps_in_episode": 30.5}, "max_steps_in_episode=30.5 must be an integer"),
        (5.0, "env_task_fn: params must be a Params with the same fields as before, not 5.0"),
        (lambda params: params.replace(gravity=jnp.ones(3)), "gravity must have the shape"),
    ],
)
PURSUIT = {"env": "pursuit", "observation_filter": None}
test_the_environments_own_check_sees_the_tasks = refused(
    [
        (lambda: next_task({"n_catch": 0}, **PURSUIT), "n_catch=0: it must be at least 1"),
        (
            lambda: next_task({"max_steps_in_episode": -5}),
            "max_steps_in_episode must be at least 1, not -5",
        ),
    ]
)


def fails_at_the_second(result, task):
    if result["training_iteration"] == 2:
        raise KeyError("levels")


@pytest.mark.long
def test_an_exception_in_env_task_fn_ends_training_in_one_line_and_keeps_a_checkpoint(
    start, resume, tmp_path
):
    trainer = start(CARTPOLE.replace(env_task_fn=f"{HERE}:fails_at_the_second"))
    words = (
        r"^env_task_fn: fails_at_the_second failed after iteration 2: KeyError: 'levels' \(test_"
    )
    with pytest.raises(UsageError, match=words) as caught:
        trainer.fit({"training_iteration": 4})
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    trainer.stop()
    assert len(lines_of(tmp_path / "run")) == 2
    assert resume(trust=True).lifetime.training_iteration == 2


def three(result, env, context): ...


test_what_is_no_function_of_result_and_task_is_refused_before_compiling = refused_by(
    lambda function: Trainer(CARTPOLE.replace(env_task_fn=function), run_dir=None, quiet=True),
    [
        (f"{HERE}:three", r"env_task_fn must take \(result, task\), not \(.*\)"),
        (f"{HERE}:heavir", "did you mean 'heavier'"),
        ("heavier", "env_task_fn='heavier' must be a function from .* or module:function"),
        (f"{HERE}:CARTPOLE", "is PPOConfig.*, not a function from"),
        (7, "env_task_fn=7 must be a function"),
    ],
)


def train(config, **settings):
    return Trainer(config, run_dir=None, quiet=True, **settings)


def swept(config):
    return sweep(config, {"lr": [1e-3, 1e-4]}, run_dir=None, quiet=True)


OUTSIDE = CARTPOLE.replace(env="gym:CartPole-v1", env_task_fn=heavier)
UNCALLED = CARTPOLE.replace(env_task_interval=3)
RECORDED = {"env": "cartpole", "input": "data"}
test_tasks_that_nothing_would_change_are_refused = refused(
    [
        (lambda: train(UNCALLED), "env_task_interval=3 changes nothing"),
        (lambda: make_train(UNCALLED), "env_task_interval=3 changes nothing"),
        (lambda: swept(UNCALLED), "env_task_interval=3 changes nothing"),
        (lambda: train(OUTSIDE), r"environment gym:CartPole-v1 has no set_task.*its reset\(\)"),
        (lambda: make_train(HEAVIER), "called by a Trainer alone: make_train"),
        (lambda: swept(HEAVIER), "called by a Trainer alone: trials"),
        (lambda: BCConfig(**RECORDED, env_task_fn=heavier), "env_task_fn changes nothing"),
        (
            lambda: train(CARTPOLE, env_task_fn=heavier),
            "unknown setting 'env_task_fn': the configuration has it: config.replace",
        ),
        (
            lambda: BCConfig(**RECORDED, curriculum=LevelsBySuccess(LEVELS)),
            "curriculum changes nothing",
        ),
    ]
)


def test_a_saved_function_is_imported_with_trust_alone_and_a_lambda_is_asked_for_again(
    start, stopped_after, resume, tmp_path
):
    config = CARTPOLE.replace(env_task_fn=returning({"gravity": 5.0}))
    stopped_after(2, config)
    with pytest.raises(UsageError, match="the run's env_task_fn was an object"):
        resume(trust=True)
    again = resume(config=config)
    assert float(again.env_params.gravity) == 5.0
    again.stop()
    start(HEAVIER, tmp_path / "named").stop()
    with pytest.raises(UsageError, match=r"(?s)env_task_fn is .*:heavier'.*--trust"):
        resume(tmp_path / "named")


class Heavier(Curriculum):
    """As `heavier`, in the program: 1 m/s^2 more after the third episode, and after the ninth."""

    def init(self, params):
        return jnp.int32(0)

    def task(self, key, memory, params):
        return {"gravity": params.gravity + (memory >= 3) + (memory >= 9)}

    def after_episode(self, memory, episode, params):
        return memory + 1


@pytest.mark.long
def test_a_curriculum_in_the_program_trains_as_one_on_the_host_that_says_the_same():
    # No pole falls so far and no cart leaves, so that every episode is one rollout.
    endless = {"theta_threshold": 1e6, "x_threshold": 1e6, "max_steps_in_episode": 16}
    trained = {}
    for name, change in (
        ("plain", {}),
        ("host", {"env_task_fn": heavier, "env_task_interval": 3}),
        ("traced", {"curriculum": Heavier()}),
    ):
        trainer = Trainer(CARTPOLE.replace(env_args=endless, **change), run_dir=None, quiet=True)
        played = [trainer.train()["env_runners"].get("task") for _ in range(10)]
        trained[name] = [played, [learner.weights for learner in trainer.runner.learners]]
    told = {name: [task and task["gravity"] for task in trained[name][0]] for name in trained}
    assert told["host"] == pytest.approx([9.8] * 3 + [10.8] * 6 + [11.8])
    last = trained["traced"][0][-1]["gravity"]  # the mean of 100 recent episodes: of 10 x 4
    assert last == pytest.approx((12 * 9.8 + 24 * 10.8 + 4 * 11.8) / 40)
    assert_close(trained["host"][1], trained["traced"][1])
    with pytest.raises(AssertionError):
        assert_close(trained["host"][1], trained["plain"][1])


def assert_close(weights, expected):
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, weights, expected)


LEVELS = [{"gravity": 1.0}, {"gravity": 5.0}, {}]
CLIMBING = CARTPOLE.replace(curriculum=LevelsBySuccess(LEVELS, window=1, solved_at=5.0))


@pytest.mark.long
def test_levels_are_reported_and_evaluation_plays_the_target(start, tmp_path):
    trainer = start(CLIMBING)
    result = trainer.fit({"training_iteration": 4})
    assert 1.0 <= result["env_runners"]["task"]["gravity"] < 9.8
    evaluated = trainer.evaluate(episodes=3)["env_runners"]
    assert evaluated.pop("task")["gravity"] == pytest.approx(9.8)
    trainer.stop()
    # A saved run is played without its curriculum.
    again = evaluate(tmp_path / "run", episodes=3)["env_runners"]
    assert again == evaluated


def test_a_curriculum_of_ours_resumes_by_its_name_and_a_users_with_trust(start, resume, tmp_path):
    start(CLIMBING).stop()
    assert "LevelsBySuccess(" in resume().config.curriculum
    start(CARTPOLE.replace(curriculum=Heavier), tmp_path / "heavier").stop()
    with pytest.raises(UsageError, match=r"(?s)curriculum is .*:Heavier'.*--trust"):
        resume(tmp_path / "heavier")
    resume(tmp_path / "heavier", trust=True)


@pytest.mark.long
def test_trials_of_a_sweep_have_curricula_and_can_be_ranked_by_their_tasks(tmp_path):
    done = sweep(
        CLIMBING.replace(total_env_steps=64 * 4),
        {"lr": [1e-3, 1e-4]},
        metric="env_runners/task/gravity",
        run_dir=tmp_path / "sweep",
        quiet=True,
    )
    assert 1.0 <= done.best_trial().score <= 9.8
