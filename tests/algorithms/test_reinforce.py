"""A second algorithm, tests/algorithms/reinforce.py, under everything that runs PPO."""

import ast
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import Trainer, UsageError, load_policy
from jaxrl.algorithms.on_policy import on_policy
from jaxrl.algorithms.sharding import check_devices, devices_worth_using
from jaxrl.cli.plot import plot
from tests.algorithms import reinforce
from tests.algorithms.reinforce import ReinforceConfig
from tests.probes import Probe
from tests.programs import SMALL_REINFORCE

SOURCE = Path(reinforce.__file__)
KEY = jax.random.key(0, impl="threefry2x32")
PAID_FOR_ACTION_1 = ReinforceConfig(
    env=Probe(reward_for="action"),
    num_envs=16,
    rollout_length=16,
    fcnet_hiddens=(8,),
    lr=3e-2,
    total_env_steps=16 * 16 * 30,
)
CARTPOLE = SMALL_REINFORCE.replace(total_env_steps=64 * 4)


def test_the_algorithm_is_one_file_that_knows_no_other_algorithm():
    imported = {
        node.module
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    assert len(SOURCE.read_text().splitlines()) <= 80
    assert not any(name.startswith(("jaxrl.algorithms.ppo", "jaxrl.run")) for name in imported)


def test_an_algorithm_draws_its_first_parameters_with_a_key_that_it_may_keep():
    """Keys of a run's start are fast ones, which have another type, until they get there."""
    seen = []

    def init_learner(spec, hypers, key):
        seen.append(key.dtype)
        return reinforce.init_learner(spec, hypers, key)

    algorithm = on_policy(CARTPOLE, init_learner, reinforce.update_policy)
    jax.eval_shape(algorithm.init, KEY)
    assert seen == [KEY.dtype]


@pytest.mark.long
def test_it_learns_which_action_is_paid_for():
    train = jax.jit(jaxrl.make_train(PAID_FOR_ACTION_1))
    _, metrics = train(jax.random.key(0))
    episodes = metrics.episodes.iteration
    returns = np.asarray(episodes.episode_return.sum / episodes.count)
    assert returns[0] < 0.8 and returns[-1] > 0.95


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four iterations that was saved after the second one."""
    folder = tmp_path_factory.mktemp("reinforce") / "run"
    settings = {"checkpoint_frequency": 2, "keep": 5, "evaluation_interval": 4}
    with Trainer(CARTPOLE, run_dir=folder, quiet=True, **settings) as trainer:
        trainer.fit()
    return folder, trainer


@pytest.mark.long
def test_a_run_reports_its_metrics_and_none_of_ppos(run):
    folder, trainer = run
    learner = trainer.last_result["learners"]["default_policy"]
    trained = {"num_module_steps_trained", "num_module_steps_trained_lifetime"}
    assert set(learner) == {"policy_loss", "grad_norm", "num_trainable_parameters", *trained}
    assert learner["num_module_steps_trained"] == 64
    assert "total_loss" not in trainer.last_result["learners"]["__all_modules__"]
    assert trainer.last_result["evaluation"]["env_runners"]["num_episodes"] > 0
    assert (folder / "curves.png").exists() and (folder / "episode.gif").exists()


def test_the_console_shows_what_the_algorithm_names(capsys):
    with Trainer(CARTPOLE.replace(total_env_steps=64), run_dir=None) as trainer:
        trainer.fit()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("iter "))
    assert " loss " in line and " kl " not in line and " entropy " not in line


@pytest.mark.long
def test_a_run_resumes_bit_for_bit_from_a_checkpoint(run, tmp_path):
    folder, whole = run
    again = Trainer.from_checkpoint(
        folder, checkpoint=2, run_dir=tmp_path / "again", quiet=True, trust=True
    )
    assert isinstance(again.config, ReinforceConfig)
    with again:
        again.fit()
        assert again.lifetime.training_iteration == 4
        jax.tree.map(np.testing.assert_array_equal, again.runner.learners, whole.runner.learners)


@pytest.mark.long
def test_its_policies_are_loaded_evaluated_and_plotted(run, tmp_path):
    folder, _ = run
    policy = load_policy(folder, trust=True)
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)
    result = jaxrl.evaluate(folder, episodes=3, seed=1, trust=True)
    assert result["env_runners"]["num_episodes"] == 3
    plot([str(folder), "--out", str(tmp_path / "curves.png")])
    assert (tmp_path / "curves.png").exists()


def test_an_unknown_class_is_not_imported_without_trust(run):
    with pytest.raises(UsageError, match=r"reinforce:ReinforceConfig', which is not part of jaxrl"):
        load_policy(run[0])


@pytest.mark.long
def test_a_sweep_trains_its_numbers_in_one_program(tmp_path):
    """Ranked by a metric of its own; tests/sweeps has sweeps of it ranked by their returns."""
    asked = {"seeds": 2, "quiet": True, "metric": "learners/default_policy/grad_norm"}
    done = jaxrl.sweep(CARTPOLE, {"lr": [1e-3, 1e-2]}, run_dir=tmp_path / "sweep", **asked)
    assert (done.programs, len(done.outcomes)) == (1, 4)
    assert all(np.isfinite(outcome.score) for outcome in done.outcomes)
    for outcome in done.outcomes:
        norm = outcome.result["learners"]["default_policy"]["grad_norm"]
        assert outcome.score == pytest.approx(norm)


def test_its_settings_are_checked_as_those_of_ppo():
    with pytest.raises(UsageError, match=r"unknown setting .gama.; did you mean .gamma"):
        ReinforceConfig(env="cartpole", gama=0.9)
    with pytest.raises(UsageError, match=r"gamma=1\.5 must be a number in \[0, 1\]"):
        CARTPOLE.replace(gamma=1.5)
    with pytest.raises(UsageError, match="seed of policy 'p' is one for all"):
        CARTPOLE.replace(per_policy={"p": {"seed": 1}})
    with pytest.raises(UsageError, match="fcnet_hiddens is part of the compiled program"):
        CARTPOLE.hypers(fcnet_hiddens=(4,))
    assert CARTPOLE.static().replace(lr=1e-3).static() == CARTPOLE.static()
    assert ReinforceConfig.from_dict(CARTPOLE.to_dict()) == CARTPOLE


def test_its_whole_batch_is_split_over_devices_that_divide_the_environments():
    large = CARTPOLE.replace(num_envs=512, rollout_length=32)
    assert [devices_worth_using(large, cores) for cores in (1, 2, 4, 64)] == [1, 2, 4, 8]
    with pytest.raises(UsageError, match="devices=3 does not divide num_envs=4"):
        check_devices(CARTPOLE, 3)
