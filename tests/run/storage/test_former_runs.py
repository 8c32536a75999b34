"""Runs, sweeps and names of version 0.1.0 before modules were renamed (checkpoints of format 2).

What is expected was written by that version, from the folders in tests/reference.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxrl
from jaxrl import Trainer, load_policy, resume_sweep
from jaxrl.core.renamed import MODULES, NAMES
from jaxrl.run.storage.checkpoint import find, present_name, read_facts
from jaxrl.run.storage.config_file import read_config

REFERENCE = Path(__file__).parents[2] / "reference"


@pytest.fixture
def run(tmp_path):
    """Two policies of waterworld: a GRU, a filter and scaled rewards, after three iterations."""
    return shutil.copytree(REFERENCE / "run_v2", tmp_path / "run")


@pytest.mark.long
def test_a_policy_of_a_former_run_acts_as_it_did(run):
    action = load_policy(run, "pursuer_1").act(np.zeros(18, np.float32))
    np.testing.assert_allclose(action, [-0.00170215, 0.00289534], atol=1e-6)
    result = jaxrl.evaluate(run, episodes=4, seed=1)["env_runners"]
    assert result["episode_return_mean"] == pytest.approx(7.1006, abs=1e-3)


@pytest.mark.long
def test_a_former_run_resumes_as_it_would_have_gone_on(run):
    config = read_config(read_facts(find(run)), "jaxrl.Trainer.from_checkpoint")
    longer = config.replace(total_env_steps=160)
    with Trainer.from_checkpoint(run, config=longer, quiet=True) as trainer:
        learners = trainer.fit()["learners"]
    assert learners["pursuer_0"]["total_loss"] == pytest.approx(0.30281, rel=1e-3)
    assert learners["pursuer_1"]["entropy"] == pytest.approx(2.835579, abs=1e-5)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_a_former_sweep_resumes_the_trial_that_was_missing(tmp_path):
    folder = shutil.copytree(REFERENCE / "sweep_v2", tmp_path / "sweep")
    first, second = resume_sweep(folder, quiet=True).outcomes
    assert [first.trial.settings["lr"], second.trial.settings["lr"]] == [1e-3, 3e-4]
    learner = second.result["learners"]["default_policy"]
    assert learner["total_loss"] == pytest.approx(7.96877, rel=1e-4)
    assert learner["entropy"] == pytest.approx(0.6931429, abs=1e-6)


def test_arrays_of_former_checkpoints_have_their_present_names():
    assert present_name("runner.worlds.running.length") == "runner.envs.episodes.length"
    assert present_name("runner.worlds.memory.0.carry") == "runner.envs.policy_states.0.carry"
    former, present = "runner.worlds.unfinished.1.row.context.0", "runner.envs.unfinished.1.row"
    assert present_name(former) == f"{present}.inputs.0"
    assert present_name("runner.learners.0.params.worlds") == "runner.learners.0.params.worlds"


def test_former_modules_are_found_and_warn_of_their_present_names():
    with pytest.warns(FutureWarning, match=r"core\.quick\.quick is now .*fast_prng\.to_fast_key"):
        from jaxrl.core.quick import quick
    assert quick is jaxrl.core.fast_prng.to_fast_key
    with pytest.warns(FutureWarning, match=r"is now jaxrl\.algorithms\.ppo\.config\.PPOConfig"):
        from jaxrl.ppo.config import PPOConfig
    assert PPOConfig is jaxrl.PPOConfig


@pytest.mark.parametrize("former", MODULES)
def test_every_former_module_leads_to_one_that_exists(former):
    module = __import__(MODULES[former], fromlist=["_"])
    assert all(hasattr(module, present) for present in NAMES.get(former, {}).values())


@pytest.mark.long
def test_a_run_whose_network_has_since_moved_to_its_environments_acts_and_resumes(tmp_path):
    run = tmp_path / "run"
    former = "jaxrl.models.cell_memory:CellMemory(height=3, width=3)"
    config = jaxrl.PPOConfig(
        env="arena",
        env_args={"height": 3, "width": 3},
        per_policy={"pol1": {"model": former, "max_seq_len": 1}},
        num_envs=2,
        rollout_length=4,
        minibatch_size=8,
        num_epochs=1,
        total_env_steps=8,
    )
    with Trainer(config, run_dir=run, quiet=True, pictures=False) as trainer:
        trainer.fit()
    assert former in (run / "config.json").read_text()
    policy = load_policy(run, "pol1")
    assert type(policy.policy_spec.model.given).__module__ == "jaxrl.envs.networks.cell_memory"
    assert policy.act(np.zeros(2, np.int32), begins=True) in range(4)
    present = {"model": former.replace("jaxrl.models", "jaxrl.envs.networks"), "max_seq_len": 1}
    longer = config.replace(per_policy={"pol1": present}, total_env_steps=16)
    with Trainer.from_checkpoint(run, config=longer, quiet=True, strict=True) as trainer:
        assert trainer.fit()["training_iteration"] == 2
