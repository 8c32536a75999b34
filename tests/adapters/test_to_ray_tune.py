"""Ray Tune's trials as blocks of ours.

What needs no Ray, and, where it is installed, whole runs of its Tuner.
"""

import math
import subprocess
import sys

import numpy as np
import pytest

from jaxrl import Callbacks, PPOConfig
from jaxrl.adapters import to_ray_tune
from jaxrl.adapters.to_ray_tune import Plan, dotted, medians, report
from jaxrl.run.results import flatten
from tests.messages import refused
from tests.programs import SMALL_REINFORCE

ARENA = PPOConfig(env="arena", num_envs=4, rollout_length=8, minibatch_size=16, total_env_steps=64)


OWN_RATES = ARENA.replace(per_policy={"pol1": {"lr": 1e-3}, "pol2": {"lr": 2e-3}})


class Evaluated(Callbacks):
    def on_evaluate_end(self, trainer, evaluation):
        raise AssertionError


class EndsSecond(Callbacks):
    def on_train_result(self, trainer, result):
        result["env_runners"]["noted"] = 10 * trainer.trial.number
        result["done"] = trainer.trial.number == 1 and result["training_iteration"] == 2


def plan(
    config=SMALL_REINFORCE, members=(), seeds=1, metric=to_ray_tune.RETURN, iterations=1, devices=1
):
    return Plan(config, members, seeds, metric, iterations, devices, "off")


def test_a_policys_settings_may_be_nested_and_numpys_numbers_are_plain():
    found = dotted(
        {
            "lr": np.float32(0.5),
            "num_epochs": np.int64(3),
            "pol1": {"lr": 1e-3},
            "env_args": {"width": 6},
        },
        {"lr", "num_epochs", "env_args"},
    )
    assert found == {"lr": 0.5, "num_epochs": 3, "pol1.lr": 1e-3, "env_args.width": 6}
    assert type(found["num_epochs"]) is int


def test_a_trials_config_changes_the_configuration_and_members_stand_above_it():
    members = plan(ARENA, {"lr": [1e-3, 1e-2]}, seeds=2).trials(
        {"lr": 1.0, "gamma": 0.9, "pol2": {"gamma": 0.8}}
    )
    expected = [(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)]
    assert [(member.config.lr, member.config.seed) for member in members] == expected
    assert {member.config.for_policy(name).gamma for member in members for name in ("pol1",)} == {
        0.9
    }
    assert {member.config.for_policy("pol2").gamma for member in members} == {0.8}
    listed = plan(ARENA, [{"lr": 1e-3}, {"gamma": 0.5}]).trials({"lr": 1.0})
    assert [(member.config.lr, member.config.gamma) for member in listed] == [
        (1e-3, 0.99),
        (1.0, 0.5),
    ]


test_what_cannot_be_trained_is_refused_in_one_line = refused(
    [
        (lambda: plan().trials({"lrr": 1.0}), "unknown setting 'lrr'; did you mean 'lr'"),
        (lambda: plan(ARENA).trials({"pol3.lr": 1.0}), "unknown policy 'pol3'"),
        (
            lambda: plan(ARENA).trials({"pol1": {"lrr": 1.0}}),
            "unknown setting 'lrr' of policy 'pol1'|unknown setting",
        ),
        (lambda: plan(members={"lrr": [1.0]}), "unknown setting 'lrr'"),
        (lambda: plan("cartpole"), "takes a configuration such as PPOConfig"),
        (lambda: plan(iterations=0), "iterations=0"),
        (lambda: plan(devices="auto"), "devices='auto'"),
        (lambda: plan(seeds=0), "seeds=0"),
        (lambda: plan(seeds=[1, 2]).trials({"seed": 3}), r"seed=3 clashes with seeds=\[1, 2\]"),
        (lambda: plan(members={"seed": [1, 2]}), "seed is not a setting to sweep"),
        (lambda: plan(OWN_RATES).trials({"lr": 1e-3}), r"lr changes nothing: .*pol1\.lr, pol2\.lr"),
        (
            lambda: to_ray_tune.evaluations_of({"evaluation_intervall": 2}),
            "unknown argument 'evaluation_intervall' of trainable; did you mean 'evaluation_int",
        ),
        (
            lambda: plan(SMALL_REINFORCE.replace(callbacks=Evaluated)),
            "on_evaluate_end is never called here",
        ),
    ]
)


def test_medians_of_numbers_sums_of_speeds_and_the_furthest_iteration():
    trees = [
        {
            "training_iteration": i,
            "env_runners": {"a": a, "n": 4},
            "perf": {"env_steps_per_s": 10.0},
        }
        for i, a in ((3, 1.0), (3, 5.0), (2, 6.0))
    ]
    trees[0]["env_runners"]["once"] = 7.0
    assert medians(trees) == {
        "training_iteration": 3,
        "env_runners": {"a": 5.0, "n": 4, "once": 7.0},
        "perf": {"env_steps_per_s": 30.0},
    }


@pytest.mark.long
def test_a_report_of_one_member_is_the_result_tree_with_nan_for_what_is_not_known_yet():
    config = SMALL_REINFORCE.replace(rollout_length=8)  # no pole falls within 8 steps
    block = plan(config).block({})
    first = report(block, 1)
    assert math.isnan(first["env_runners"]["episode_return_mean"])
    assert (
        first["training_iteration"],
        first["num_env_steps_sampled_lifetime"],
        first["done"],
    ) == (1, 64, False)
    last = report(block, 100)
    assert last["training_iteration"] == config.num_updates
    assert last["env_runners"]["episode_return_mean"] > 0
    assert last["done"]
    assert (last["best"]["member"], list(last["members"])) == (0, ["0000"])  # as of several
    assert (
        last["best"]["env_runners"]["episode_return_mean"]
        == last["env_runners"]["episode_return_mean"]
    )


@pytest.mark.long
def test_a_report_of_several_has_their_medians_the_best_and_each_ones_own():
    block = plan(members={"lr": [1e-3, 1e-2]}, seeds=2, iterations=3).block({})
    said = report(block, 3)
    returns = [said["members"][f"{i:04d}"]["episode_return_mean"] for i in range(4)]
    assert said["env_runners"]["episode_return_mean"] == pytest.approx(np.median(returns))
    assert said["best"]["env_runners"]["episode_return_mean"] == max(returns)
    assert returns[said["best"]["member"]] == max(returns)
    assert said["training_iteration"] == 3
    assert said["diverged"] == 0


@pytest.mark.long
def test_members_that_all_diverge_at_once_still_report():
    said = report(plan(members={"lr": [2e38, 3e38]}, seeds=2).block({}), 6)
    assert (said["done"], said["diverged"]) == (True, 4)


@pytest.mark.long
def test_hooks_are_called_for_each_member_and_end_it():
    block = plan(SMALL_REINFORCE.replace(callbacks=EndsSecond), seeds=4).block({})
    said = report(block, 4)
    iterations = [said["members"][f"{i:04d}"]["training_iteration"] for i in range(4)]
    assert iterations == [4, 2, 4, 4]
    assert (said["env_runners"]["noted"], said["done"]) == (15, False)
    assert report(block, 4)["done"]


def test_a_trials_own_seed_is_the_first_of_its_members():
    assert [trial.config.seed for trial in plan(seeds=2).trials({"seed": 7})] == [7, 8]


def test_a_setting_that_some_policies_have_of_their_own_is_said():
    arena = ARENA.replace(per_policy={"pol1": {"lr": 1e-3}})
    assert "lr leaves pol1 as per_policy has it" in plan(arena).warnings({"lr": 1e-4})[0]
    assert plan(arena).warnings({"pol1": {"lr": 1e-4}}) == []


@pytest.mark.long
def test_a_report_holds_pythons_own_values():
    block = plan(seeds=2).block({})
    for _ in range(2):
        values = dict(flatten(report(block, 1)))
        kinds = {type(value) for value in values.values()}
        assert kinds <= {bool, int, float, str, list, type(None)}
        assert {"done", "best/done", "members/0000/diverged"} <= {
            path for path, value in values.items() if type(value) is bool
        }


# With Ray: each in a process of its own, since a started cluster and its warnings outlive a test.

BEGIN = """
import faulthandler, os, sys, warnings
# Two minutes on a busy machine; one that hangs says where.
faulthandler.dump_traceback_later(600, exit=True)
HOOKS = f"{sys.argv[1]}/hooks"  # a module of the user's, found by Ray's processes as well
os.mkdir(HOOKS)
open(f"{HOOKS}/ends.py", "w").write('''
class EndsAtFour:
    def on_train_result(self, trainer, result):
        result["env_runners"]["noted"] = 1
        result["done"] = result["training_iteration"] == 4
''')
sys.path.append(HOOKS)
os.environ["PYTHONPATH"] = os.pathsep.join([HOOKS, os.environ.get("PYTHONPATH", "")])
import ray
from ray import tune
from jaxrl import PPOConfig, UsageError, load_policy
from jaxrl.adapters.to_ray_tune import trainable
where = sys.argv[1]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
SMALL = PPOConfig(
    env="cartpole", num_envs=4, rollout_length=16, minibatch_size=32, num_epochs=2,
    fcnet_hiddens=(8,), lr=3e-3,
    total_env_steps=64 * 6,
)
RETURN = "env_runners/episode_return_mean"
def run(name, **more):
    return tune.RunConfig(name=name, storage_path=where, **more)  # with all of Tune's tables
"""
FIT = """
kept = tune.CheckpointConfig(checkpoint_at_end=True)
tuner = tune.Tuner(
    trainable(SMALL, seeds=2, compile_cache="off", evaluation_interval=2, evaluation_duration=2),
    param_space={"lr": tune.grid_search([1e-3, 1e-2])},
    run_config=run("fit", stop={"training_iteration": 3}, checkpoint_config=kept),
)
results = tuner.fit()
assert not results.errors, results.errors
for result in results:
    assert result.metrics["training_iteration"] == 3, result.metrics
    assert result.metrics["num_env_steps_sampled_lifetime"] == 192
    own = [result.metrics["members"][name]["episode_return_mean"] for name in ("0000", "0001")]
    assert abs(result.metrics["env_runners"]["episode_return_mean"] - sum(own) / 2) < 1e-6
    assert len(result.metrics_dataframe) == 3
    assert result.metrics["evaluation"]["env_runners"]["num_episodes"] == 2
    assert load_policy(f"{result.checkpoint.path}/0001").act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
best = results.get_best_result(RETURN, "max")
assert best.config["lr"] in (1e-3, 1e-2)

# One seed, and a hook that ends the trial; the README's way to the best policy.
(alone,) = tune.Tuner(
    trainable(SMALL.replace(callbacks="ends:EndsAtFour"), compile_cache="off"),
    run_config=run("alone", checkpoint_config=kept),
).fit()
assert alone.metrics["training_iteration"] == 4, alone.metrics
assert alone.metrics["env_runners"]["noted"] == 1
best = f"{alone.checkpoint.path}/{alone.metrics['best']['member']:04d}"
assert load_policy(best).act([0.0] * 4) in (0, 1)

# Taken up again with more to do, it goes on from its checkpoint.
again = tune.Tuner.restore(f"{where}/fit", trainable(SMALL, seeds=2, compile_cache="off"))
assert len(again.fit()) == 2

# Killed in its fourth iteration, a trial resumes in another process from its last checkpoint.
class Dies(trainable(SMALL, compile_cache="off")):
    def step(self):
        if self.iteration == 3 and not os.path.exists(f"{where}/died"):
            open(f"{where}/died", "w").close()
            os._exit(1)
        return super().step()
kept = tune.CheckpointConfig(checkpoint_frequency=1)
config = run("killed", checkpoint_config=kept, failure_config=tune.FailureConfig(max_failures=1))
(result,) = tune.Tuner(Dies, run_config=config).fit()
assert os.path.exists(f"{where}/died")
rows = result.metrics_dataframe
assert list(rows["training_iteration"])[-3:] == [4, 5, 6], rows
assert result.metrics["num_env_steps_sampled_lifetime"] == 384
assert result.metrics["iterations_since_restore"] == 3

# A mistake in the space stops the Tuner before a trial starts.
wrong = tune.Tuner(
    trainable(SMALL), param_space={"lrr": 1.0}, run_config=run("wrong")
)
try:
    wrong.fit()
except Exception as error:
    assert "unknown setting 'lrr'; did you mean 'lr'?" in str(error), error
else:
    raise AssertionError("lrr was taken")
print("all is well")
"""
SCHEDULERS = """
# Trials that wait for each other: without synch, taking over a checkpoint is a matter of timing.
pbt = tune.schedulers.PopulationBasedTraining(
    time_attr="training_iteration", metric=RETURN, mode="max", perturbation_interval=3, synch=True,
    hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-2)},
)
config = SMALL.replace(total_env_steps=64 * 8)
results = tune.Tuner(
    trainable(config, compile_cache="off"), param_space={"lr": tune.loguniform(1e-4, 1e-2)},
    tune_config=tune.TuneConfig(scheduler=pbt, num_samples=2, reuse_actors=True),
    run_config=run("pbt"),
).fit()
assert not results.errors, results.errors
assert [result.metrics["training_iteration"] for result in results] == [8, 8]
assert all(result.metrics["num_env_steps_sampled_lifetime"] == 512 for result in results)
taken_over = open(f"{where}/pbt/pbt_global.txt").readlines()
assert len(taken_over) == 2, "the worse takes over at iterations 3 and 6"

asha = tune.schedulers.ASHAScheduler(
    metric=RETURN, mode="max", max_t=8, grace_period=2, reduction_factor=2
)
results = tune.Tuner(
    trainable(config, compile_cache="off"),
    param_space={"lr": tune.grid_search([1e-3, 1e-2, 1e-4])},
    tune_config=tune.TuneConfig(scheduler=asha, reuse_actors=True), run_config=run("asha"),
).fit()
assert not results.errors, results.errors
assert max(result.metrics["training_iteration"] for result in results) == 8
print("all is well")
"""


@pytest.mark.parametrize("program", [FIT, SCHEDULERS], ids=["fit and restore", "PBT and ASHA"])
def test_rays_tuner_trains_stops_keeps_and_restores(program, tmp_path):
    pytest.importorskip(
        "ray.tune", reason="needs Ray Tune: pip install 'jaxrl[ray]'", exc_type=ImportError
    )
    command = [sys.executable, "-c", BEGIN + program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "all is well" in done.stdout, done.stderr[-4000:]
