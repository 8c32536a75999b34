"""Policies exported with each checkpoint: its own weights, gone with it, refused at the start."""

import logging

import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.core.errors import UsageError
from jaxrl.export.checkpoint_files import ExportCheckpoints, file_of
from jaxrl.export.export import BUILDERS
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.export.onnx_file import PACKAGES
from tests.messages import refusal
from tests.programs import SMALL_CARTPOLE

EXPORTS = "jaxrl.export.checkpoint_files:ExportCheckpoints"
QUIET = {"quiet": True, "pictures": False, "loggers": ()}


def files(run):
    return sorted(str(path.relative_to(run / "checkpoints")) for path in run.rglob("*.npz"))


@pytest.mark.long
def test_each_checkpoint_has_its_policies_as_files_which_go_with_it(tmp_path):
    run, config = tmp_path / "run", SMALL_CARTPOLE.replace(callbacks=EXPORTS)
    settings = {**QUIET, "checkpoint_frequency": 1, "keep": 2}
    with Trainer(config, run_dir=run, checkpoint_score_attribute="none", **settings) as trainer:
        trainer.fit({"training_iteration": 3})
    assert files(run) == [f"{i:06d}/policies/default_policy.npz" for i in (2, 3)]
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    for iteration in (2, 3):
        policy = load_policy(run, checkpoint=iteration)
        written = NumpyPolicy(run / f"checkpoints/{iteration:06d}/policies/default_policy.npz")
        np.testing.assert_array_equal(written.act(obs), policy.act(obs))
    with Trainer.from_checkpoint(run, **QUIET) as trainer:  # by its name, without trust
        trainer.train()
    assert files(run)[-1] == "000004/policies/default_policy.npz"


NEEDED = {".npz": (), ".stablehlo": ("flatbuffers",), ".onnx": PACKAGES}


@pytest.mark.parametrize("ending", BUILDERS)
def test_every_ending_is_written_with_a_checkpoint(tmp_path, ending):
    for package in NEEDED[ending]:
        pytest.importorskip(package, reason="an extra of the format")
    config = SMALL_CARTPOLE.replace(callbacks=ExportCheckpoints(ending))
    with Trainer(config, run_dir=tmp_path / "run", **QUIET) as trainer:
        path = file_of(trainer.save(), "default_policy", ending)
    assert path.stat().st_size > 100


@pytest.mark.parametrize(
    ("ending", "package"), [(".onnx", "jax2onnx"), (".stablehlo", "flatbuffers")]
)
def test_a_package_that_a_format_lacks_is_named_before_training(monkeypatch, ending, package):
    for module in ("onnx_file", "stablehlo"):
        monkeypatch.setattr(f"jaxrl.export.{module}.is_installed", lambda name: name != package)
    config = SMALL_CARTPOLE.replace(callbacks=ExportCheckpoints(ending))
    with refusal(f"cannot be exported with its checkpoints: .* file needs {package}: pip install"):
        Trainer(config, run_dir=None, quiet=True)


@pytest.mark.long
def test_a_network_that_no_file_holds_is_refused_if_it_learns_and_left_out_if_not():
    line = "policy 'pol1' cannot be exported with its checkpoints: a .npz file holds the built-in"
    with pytest.raises(UsageError, match=line):
        Trainer(PPOConfig.tuned("arena", callbacks=ExportCheckpoints), run_dir=None, quiet=True)
    with pytest.raises(UsageError, match=r"unknown ending '\.onx'; did you mean '\.onnx'"):
        ExportCheckpoints(".onx")
    policies = {"runner": ["agent1"], "idler": ["agent2"]}
    config = PPOConfig(
        env="arena", policies=policies, policies_to_train=["runner"], num_envs=2, rollout_length=4
    )
    exports = ExportCheckpoints()
    random = {"idler": {"model": jaxrl.rllib.RandomPolicy}}
    config = config.replace(minibatch_size=8, callbacks=exports, per_policy=random)
    Trainer(config, run_dir=None, quiet=True).stop()
    assert exports.left_out == {"idler"}


@pytest.mark.parametrize("policy", ["../../notes", "/etc/notes", "..", "a b"])
def test_a_policys_name_leads_to_no_other_folder(tmp_path, policy):
    assert file_of(tmp_path, policy, ".npz").resolve().parent == tmp_path / "policies"


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    path = tmp_path / "000001"
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        ExportCheckpoints().on_checkpoint(None, path)
        ExportCheckpoints().on_checkpoint(None, tmp_path / "000002")  # removed meanwhile
    (line,) = caplog.messages
    assert "000001: its policies are not exported: checkpoint" in line
