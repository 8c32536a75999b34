"""Calls with the copies of a Python environment: by a trainer, a curriculum, and as it is made."""

import functools
import os
import sys
import time
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError
from jaxrl.core.errors import TooManyFaults
from jaxrl.outside.env_calls import CopyTasks, foreach_env
from jaxrl.outside.workers.env_functions import NextTask
from tests.messages import refused_by

LENGTH = 4  # of an episode, in steps


class Levels(gymnasium.Env):
    """Pays the number of its level in each step; a level is a task in RLlib's sense."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config=None):
        self.level, self.calls, self.was_told = (config or {}).get("level", 1), 0, None

    def get_task(self):
        return self.level

    def set_task(self, task):
        self.calls, self.level = self.calls + 1, task

    def reset(self, *, seed=None, options=None):
        self.steps, self.played = 0, self.level
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.full(1, self.steps, np.float32)
        return obs, float(self.played), self.steps == LENGTH, False, {}


def small(**settings):
    sizes = {"num_envs": 3, "rollout_length": LENGTH, "num_epochs": 1, "minibatch_size": 12}
    return jaxrl.PPOConfig(env=Levels, fcnet_hiddens=(), **sizes, **settings)


def started(config, **settings):
    settings = {"workers": 0, "sync": True, **settings}
    return jaxrl.Trainer(config, run_dir=None, quiet=True, **settings)


def return_of(trainer):
    return trainer.train()["env_runners"]["episode_return_mean"]


ONE_EACH = small(metrics_num_episodes_for_smoothing=3)  # the last episode of each copy


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_is_called_with_each_copy_and_its_results_come_in_their_order(workers):
    with started(ONE_EACH, workers=workers) as trainer:
        assert trainer.foreach_env(lambda env: env.level) == [1, 1, 1]  # before the first rollout
        assert trainer.foreach_env(lambda env: env.set_task(5)) == [None] * 3
        assert return_of(trainer) == 5 * LENGTH
        trainer.foreach_env(lambda env: env.set_task(2 if env.steps == 0 else 7))
        assert trainer.foreach_env(Levels.get_task) == [2, 2, 2]
        assert return_of(trainer) == 5 * LENGTH  # episodes had begun with the task before
        assert return_of(trainer) == 2 * LENGTH
        assert trainer.foreach_env(lambda env: env.calls) == [2, 2, 2]


@pytest.mark.long
def test_a_rollout_under_way_is_finished_before_a_call():
    with started(ONE_EACH, workers=1, sync=False) as trainer:
        return_of(trainer)  # the next rollout has begun
        assert trainer.foreach_env(lambda env: env.steps) == [0, 0, 0]
        trainer.foreach_env(lambda env: env.set_task(3))
        assert [return_of(trainer) for _ in range(3)] == [4, 4, 12]


def test_callbacks_may_call_it_at_the_start_and_after_each_iteration():
    class Harder(jaxrl.Callbacks):
        def on_algorithm_init(self, *, algorithm, **kwargs):
            algorithm.foreach_env(lambda env: env.set_task(2))

        def on_train_result(self, *, algorithm, result, **kwargs):
            algorithm.foreach_env(lambda env: env.set_task(env.get_task() + 1))

    with started(ONE_EACH.replace(callbacks=Harder())) as trainer:
        assert [return_of(trainer) for _ in range(4)] == [8, 8, 12, 16]


def ends_its_process(env):
    if env.level == 1:
        sys.exit(3)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_a_call_that_fails_names_the_copy_and_leaves_the_training_as_it_was(workers):
    with started(ONE_EACH, workers=workers) as trainer:
        trainer.train()
        with pytest.raises(UsageError, match=r"^foreach_env: copy 0: KeyError: 'goal'") as error:
            trainer.foreach_env(lambda env: {}["goal"])
        assert "\n" not in str(error.value)
        with pytest.raises(UsageError, match=r"^foreach_env: copy 0: .*SystemExit"):
            trainer.foreach_env(ends_its_process)
        assert return_of(trainer) == LENGTH


@pytest.mark.long
@pytest.mark.parametrize("max_consecutive_faults", [0, 20])
def test_a_call_that_ends_its_worker_process_is_not_repeated(max_consecutive_faults, tmp_path):
    def ends_one(env):
        with (tmp_path / "calls").open("a") as calls:
            calls.write("x")
        os._exit(3)

    faults = {"max_consecutive_faults": max_consecutive_faults}
    with started(ONE_EACH, workers=2, **faults) as trainer:
        said = r"^foreach_env: copy 0: its worker process died \(exit code 3\); it was started agai"
        for _ in range(2):  # before the first rollout and after
            (tmp_path / "calls").write_text("")
            with pytest.raises(UsageError, match=said):
                trainer.foreach_env(ends_one)
            assert (tmp_path / "calls").read_text() == "xx"  # once in each process
            assert trainer.foreach_env(Levels.get_task) == [1, 1, 1]
            assert return_of(trainer) == LENGTH
        assert trainer.last_result["env_runners"]["num_worker_restarts"] == 4


@pytest.mark.long
def test_a_call_that_takes_too_long_is_not_repeated_and_says_of_which_copy_it_was():
    with started(ONE_EACH, workers=1, env_step_timeout_s=2.0) as trainer:
        trainer.train()
        with pytest.raises(UsageError, match=r"^foreach_env: copy 0: no result within 2 s; it was"):
            trainer.foreach_env(lambda env: time.sleep(60))
        assert trainer.foreach_env(Levels.get_task) == [1, 1, 1]


@pytest.mark.long
def test_an_environment_that_failed_too_often_says_so_again_in_another_iteration():
    here = os.getpid()  # where a step is taken to see what it gives

    class Dies(Levels):
        def step(self, action):
            return super().step(action) if os.getpid() == here else os._exit(3)

    config = ONE_EACH.replace(env=Dies)
    with started(config, workers=1, max_consecutive_faults=0) as trainer:
        for _ in range(2):
            with pytest.raises(TooManyFaults, match=r"last: copy 0: its worker process died"):
                trainer.train()


@pytest.mark.long
def test_what_cannot_go_to_a_worker_process_or_come_back_is_said():
    with started(ONE_EACH, workers=1) as trainer:
        with pytest.raises(UsageError, match=r"^foreach_env: the function cannot be sent to work"):
            trainer.foreach_env(functools.partial(print, file=sys.stdout))
        with pytest.raises(UsageError, match=r"^foreach_env: .*pickle"):
            trainer.foreach_env(lambda env: lambda: env)
        assert trainer.foreach_env(Levels.get_task) == [1, 1, 1]


def test_environments_that_a_vector_env_steps_are_called_one_by_one():
    make = lambda: gymnasium.vector.SyncVectorEnv([Levels] * 3)
    with started(ONE_EACH.replace(env=make), workers=None) as trainer:
        trainer.foreach_env(lambda env: env.set_task(6))
        assert trainer.foreach_env(lambda env: env.level) == [6, 6, 6]


def test_the_copies_of_an_environment_in_jax_are_no_objects():
    config = small().replace(env="cartpole")
    trainer = jaxrl.Trainer(config, run_dir=None, quiet=True)
    with trainer, pytest.raises(UsageError, match=r"^foreach_env: cartpole is compiled, so .*env_"):
        trainer.foreach_env(print)


def test_numbers_of_a_python_environment_are_refused_with_the_way_to_its_copies():
    trainer, said = started(ONE_EACH), r"env_params: a Python environment has none; see trainer\."
    with trainer, pytest.raises(UsageError, match=said):
        trainer.env_params.replace(gravity=1.0)


# Curricula


def of_rllib(result, env, env_ctx):
    """The task of the first copy goes up; that of the others stays."""
    return env.get_task() + 1 if env_ctx.vector_index == 0 else env.get_task()


def doubled(result, task):
    return 2 * task if result["env_runners"]["episode_return_mean"] < 3 * LENGTH else None


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_env_task_fn_gives_each_copy_its_next_task_as_rllib_does(workers):
    with started(ONE_EACH.replace(env_task_fn=of_rllib), workers=workers) as trainer:
        for _ in range(2):
            trainer.train()
        assert trainer.foreach_env(Levels.get_task) == [3, 1, 1]
        assert trainer.foreach_env(lambda env: env.calls) == [2, 0, 0]  # the same is not set again


@pytest.mark.long
def test_no_worker_imports_jax_for_a_curriculum_or_a_function_that_is_told_of_its_environment():
    class Counted(gymnasium.Wrapper):  # by value, as of a script: this module would import JAX
        def __init__(self, config=None):
            super().__init__(gymnasium.make("CartPole-v1"))
            self.level = 0

        def get_task(self):
            return self.level

        def set_task(self, task):
            self.level = task

    def after(result, env, env_context):
        return result["env_runners"]["num_episodes_lifetime"] + result["training_iteration"]

    def told(*, env, env_context, metrics_logger, **kwargs):
        env.level = -env_context.worker_index

    source = {"env": Counted, "callbacks_on_environment_created": told, "env_task_fn": after}
    config = jaxrl.from_rllib(source, num_envs=2, rollout_length=8, minibatch_size=16).config
    with started(config, workers=1) as trainer:
        seen = lambda: trainer.foreach_env(lambda env: (env.level, "jax" in sys.modules))
        assert seen() == [(-1, False)] * 2
        trainer.train()
        (level, has_jax), _ = seen()
        assert level >= 1
        assert not has_jax


MASSES = {"masses": [np.ones(2), 3], "name": "pole"}


@pytest.mark.parametrize(
    ("present", "chosen", "is_set"),
    [
        (np.ones(2), np.ones(2), False),
        (np.ones(2), np.ones(3), True),
        (None, np.ones(2), True),
        (MASSES, {"masses": (np.ones(2), 3), "name": "pole"}, False),
        (MASSES, {"masses": [np.array([1.0, 2.0]), 3], "name": "pole"}, True),
        (MASSES, {"masses": [np.ones(2)], "name": "pole"}, True),
        (MASSES, {"masses": [np.ones(2), 3]}, True),
    ],
)
def test_a_task_of_arrays_is_set_where_a_number_of_it_differs(present, chosen, is_set):
    env = Levels({"level": present})
    NextTask(lambda result, task: chosen, {}, takes_env=False)(env, {})
    assert env.calls == is_set


def test_env_task_fn_may_take_the_task_alone_and_is_called_at_its_interval():
    config = ONE_EACH.replace(env_task_fn=doubled, env_task_interval=2)
    with started(config) as trainer:
        assert [return_of(trainer) for _ in range(7)] == [4, 4, 4, 8, 8, 16, 16]
        assert trainer.foreach_env(Levels.get_task) == [4, 4, 4]


def test_rllibs_env_task_fn_is_read_for_a_python_environment():
    config = {"env": Levels, "env_config": {"level": 2}, "env_task_fn": of_rllib}
    assert jaxrl.from_rllib(config).config.env_task_fn is of_rllib
    with pytest.raises(UsageError, match=r"must take \(result, env, env_context\) or \(result, ta"):
        jaxrl.from_rllib({**config, "env_task_fn": lambda result: 1})


test_tasks_that_cannot_be_set_are_refused = refused_by(
    lambda config: started(config),
    [
        (
            ONE_EACH.replace(env="gym:CartPole-v1", env_task_fn=of_rllib),
            r"environment gym:CartPole-v1 has no set_task\(task\)",
        ),
        (
            ONE_EACH.replace(env_task_fn=lambda result: 1),
            r"must take \(result, env, env_context\) or \(result, task\), not \(result\)",
        ),
    ],
)


# As it is made


class Told(jaxrl.Callbacks):
    def on_environment_created(self, *, env_runner, metrics_logger, env, env_context, **kwargs):
        env.was_told = env_context.vector_index, env_context.worker_index, dict(env_context)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_each_copy_is_passed_to_on_environment_created_in_its_process(workers):
    config = ONE_EACH.replace(callbacks=Told(), env_args={"level": 2})
    with started(config, workers=workers) as trainer:
        told = trainer.foreach_env(lambda env: env.was_told)
        assert told == [(i, min(workers, 1), {"level": 2}) for i in range(3)]
        assert return_of(trainer) == 2 * LENGTH
    function = {"env": Levels, "callbacks_on_environment_created": Told().on_environment_created}
    assert len(jaxrl.from_rllib(function).config.callbacks) == 1


def test_each_environment_that_a_vector_env_steps_is_passed_to_on_environment_created():
    make = lambda: gymnasium.vector.SyncVectorEnv([Levels] * 3)
    with started(ONE_EACH.replace(env=make, callbacks=Told()), workers=None) as trainer:
        assert trainer.foreach_env(lambda env: env.was_told) == [(i, 0, {}) for i in range(3)]


def test_an_algorithm_that_learns_from_recorded_episodes_has_no_copies_to_call(tmp_path):
    config = jaxrl.BCConfig(env="gym:CartPole-v1", input=str(tmp_path))
    trainer = SimpleNamespace(config=config, program=None)
    with pytest.raises(UsageError, match=r"^foreach_env: BCConfig learns from recorded episodes"):
        foreach_env(trainer, print)


def test_a_curriculum_of_copies_in_ray_actors_is_refused_before_anything_is_trained():
    settings = jaxrl.RunSettings(workers="ray:2")
    trainer = SimpleNamespace(config=ONE_EACH, settings=settings)
    with pytest.raises(UsageError, match=r"^env_task_fn: workers='ray:2': .*Ray actors, which tak"):
        CopyTasks(trainer, of_rllib, takes_env=True)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_on_environment_created_says_what_fails_in_it_and_what_it_has_not(workers):
    class Logs(jaxrl.Callbacks):
        def on_environment_created(self, *, env, metrics_logger, **kwargs):
            metrics_logger.log_value("made", 1)

    class Fails(jaxrl.Callbacks):
        def on_environment_created(self, env):
            env.goal["x"] = 1

    failures = {
        Logs: r"^environment 'Levels': on_environment_created of callbacks .*Logs: hooks get no m",
        Fails: r"^environment 'Levels': on_environment_created of callbacks .*Fails: AttributeErr",
    }
    for callbacks, said in failures.items():
        trainer = started(ONE_EACH.replace(callbacks=callbacks()), workers=workers)
        with trainer, pytest.raises(TooManyFaults, match=said):
            trainer.train()


def test_an_array_among_env_args_is_shared_by_the_copies_of_a_process_and_a_list_is_not():
    class Holds(Levels):
        def __init__(self, config):
            super().__init__()
            self.held = config

    here = {"table": np.ones(2), "list": [1]}
    with started(ONE_EACH.replace(env=Holds, env_args=here)) as trainer:
        shared = lambda env: [env.held[name] is here[name] for name in here]
        assert trainer.foreach_env(shared) == [[True, False]] * 3


def test_an_environment_in_jax_makes_no_object_to_be_told_of():
    config = small(callbacks=Told()).replace(env="cartpole")
    with pytest.raises(UsageError, match=r"^on_environment_created: cartpole is compiled"):
        jaxrl.Trainer(config, run_dir=None, quiet=True)
    with pytest.raises(UsageError, match=r"created: 'cartpole' is compiled: there is n"):
        jaxrl.from_rllib({"env": "CartPole-v1", "callbacks": Told})
