"""Policies as StableHLO files: read by JAX alone, checked before they are written."""

import json
import pickle

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig, UsageError, load_policy
from jaxrl.export import export as exporting
from jaxrl.export.parity import _lost_score
from jaxrl.export.policy_step import Built
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from tests.export.kinds import NamedRun, differences, policy_of_kind
from tests.messages import refused_by

pytest.importorskip("flatbuffers", reason="the extra `stablehlo`")


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "explore"),
    [("tree", False), ("lstm", True), ("attention", False), ("mixed, told", True)],
)
def test_a_file_acts_as_the_policy_for_batches_of_any_size(kind, explore, tmp_path):
    policy = policy_of_kind(kind)
    exported = policy.export(tmp_path / "model.stablehlo", explore=explore)
    model = jax.export.deserialize(bytearray(exported.path.read_bytes()))
    run = NamedRun(model.call, exported.inputs)
    assert differences(policy, run, explore=explore) < 1e-5
    assert exported.parity.error < 1e-5 and exported.parity.source == "drawn"
    assert exported.batch is None


@pytest.mark.long
def test_a_trained_policy_is_checked_on_observations_of_its_environment(trained, tmp_path):
    exported = {
        name: policy.export(tmp_path / f"{name}.stablehlo")
        for name, policy in (
            ("trainers", trained.get_policy("pol1")),
            ("loaded", load_policy(trained.run_dir, "pol1")),
        )
    }
    for file in exported.values():
        assert file.parity.source == "recorded" and file.parity.num_observations == 4 * 32
        assert file.metadata["env"] == "arena" and file.metadata["agents"] == ["agent1"]
    files = [file.path.read_bytes() for file in exported.values()]
    assert files[0] == files[1]


def test_the_metadata_are_strict_json_beside_the_file(tmp_path):
    exported = policy_of_kind("lstm").export(tmp_path / "model.stablehlo", explore=True)
    text = (tmp_path / "model.stablehlo.json").read_text(encoding="utf-8")
    facts = json.loads(text, parse_constant=pytest.fail)
    assert facts == json.loads(json.dumps(exported.metadata))
    assert facts["policy"] == "mover" and facts["env"] is None
    assert (facts["actions"], facts["noise"], facts["batch"]) == ("sampled", "normal", None)
    assert facts["action_space"] == {
        "space": "Box",
        "low": [-1.0, 0.0],
        "high": [1.0, 5.0],
        "shape": [2],
        "dtype": "float32",
    }
    assert facts["inputs"][0] == {"name": "obs", "shape": [3], "dtype": "float32"}


def test_a_file_that_acts_otherwise_is_refused_and_not_written(monkeypatch, tmp_path):
    build = exporting.BUILDERS[".stablehlo"]

    def wrong(step, batch):
        built = build(step, batch)

        def run(inputs):
            outputs = dict(built.run(inputs))
            outputs["state_out_policy_h"] = outputs["state_out_policy_h"] + 1e-3
            return outputs

        return Built(run, built.files)

    monkeypatch.setitem(exporting.BUILDERS, ".stablehlo", wrong)
    with pytest.raises(UsageError, match=r"not written: its .* more than 1e-05, over 128 drawn"):
        policy_of_kind("lstm").export(tmp_path / "model.stablehlo")
    assert list(tmp_path.iterdir()) == []


def test_the_same_score_is_no_difference_and_a_worse_action_is():
    space = policy_of_kind("dense").action_space
    scores = np.array([[1.0, 1.0, 0.5]])
    assert _lost_score(space, scores, np.array([0]), np.array([1])) == 0.0
    assert _lost_score(space, scores, np.array([0]), np.array([2])) == 0.5
    assert _lost_score(space, scores, np.array([0]), np.array([3])) == np.inf


class OfTwo:
    """A network that works for batches of one observation only."""

    def init(self, key, obs):
        return {"kernel": jax.random.normal(key, (3, 3))}

    def apply(self, params, obs):
        if not isinstance(obs.shape[0], int):
            raise TypeError("batches of a size that is not known")
        return obs @ params["kernel"], obs.sum(axis=-1)


def test_a_network_that_needs_to_know_the_batchs_size_gets_a_file_for_single_observations(tmp_path):
    like = policy_of_kind("dense")
    config = PPOConfig(env="cartpole", model=OfTwo())
    spec = config.policy_spec("mover", like.observation_space, like.action_space, 1)
    weights = PolicyWeights(spec.model.init(jax.random.key(0)))
    exported = Policy(spec, weights, name="mover").export(tmp_path / "model.stablehlo")
    assert exported.batch == 1 and exported.metadata["batch"] == 1
    assert "batches of 1 only: batches of a size that is not known" in str(exported)


def test_a_pickled_policy_has_no_environment_and_is_exported_all_the_same(trained, tmp_path):
    policy = pickle.loads(pickle.dumps(trained.get_policy("pol1")))
    exported = policy.export(tmp_path / "model.stablehlo")
    assert exported.parity.source == "drawn" and exported.metadata["env"] is None


def test_an_environment_that_cannot_be_opened_is_named_and_observations_are_drawn(
    trained, tmp_path
):
    policy = load_policy(trained.run_dir, "pol1")

    def gone():
        raise UsageError("no such environment")

    policy.origin = policy.origin._replace(players=gone)
    exported = policy.export(tmp_path / "model.stablehlo")
    assert exported.parity.source == "drawn"
    assert "observations are drawn from the space: no such environment" in str(exported)


test_a_file_that_cannot_be_is_refused_before_anything_is_computed = refused_by(
    lambda folder, name: policy_of_kind("dense").export(folder / name),
    [
        ("model.stablehl", "unknown ending '.stablehl' of .*did you mean '.stablehlo'"),
        ("model", "unknown ending '' of"),
        ("none/model.stablehlo", "cannot be written: there is no folder"),
    ],
    fixture="tmp_path",
)


def test_a_missing_package_is_named_with_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("jaxrl.export.stablehlo.is_installed", lambda package: False)
    with pytest.raises(UsageError, match=r'pip install "jaxrl\[stablehlo\]"'):
        policy_of_kind("dense").export(tmp_path / "model.stablehlo")
