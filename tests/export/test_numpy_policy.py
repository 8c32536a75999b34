"""The reader in plain NumPy acts as the policy does, and needs nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig, UsageError
from jaxrl.export.numpy_file import READER
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from tests.export.kinds import KINDS, NamedRun, differences, policy_of_kind

REFERENCE = Path(__file__).parents[1] / "reference"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_acts_as_the_policy_for_batches_of_any_size(kind, tmp_path):
    policy = policy_of_kind(kind)
    for explore in (False, True):
        exported = policy.export(tmp_path / "model.npz", explore=explore)
        run = NamedRun(NumpyPolicy(exported.path), exported.inputs)
        assert differences(policy, run, explore=explore) < 1e-5
        assert exported.parity.error < 1e-5 and exported.batch is None


def test_the_reader_is_one_file_that_needs_numpy_alone(tmp_path):
    """Copied beside a program that knows nothing of jaxrl, it acts as the policy does."""
    policy = policy_of_kind("tables")
    policy.export(tmp_path / "model.npz")
    shutil.copy(READER, tmp_path / "numpy_policy.py")
    obs = [[0, 4], [3, 1]]
    program = f"""
import sys
from numpy_policy import NumpyPolicy
print(NumpyPolicy("model.npz").act({obs}, agent=1).tolist())
print(sorted({{"jax", "jaxrl", "flax", "onnxruntime"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    acted, imported = done.stdout.splitlines()
    assert acted == str(policy.act(obs, agent="right").tolist()) and imported == "[]"


@pytest.mark.long
def test_acting_remembers_until_an_episode_begins(tmp_path):
    policy = policy_of_kind("lstm")
    reader = NumpyPolicy(policy.export(tmp_path / "model.npz").path)
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    policy.reset()
    remembered = []
    for row, begins in zip(obs, (True, False, True, False), strict=True):
        expected = policy.act(row, begins=begins, prev_reward=0.5 * (not begins))
        found = reader.act(row, begins=begins, prev_reward=0.5 * (not begins))
        np.testing.assert_allclose(found, expected, atol=1e-6)
        remembered.append(found)
    reader.reset()
    np.testing.assert_array_equal(reader.act(obs[2]), remembered[2])


def test_an_action_may_be_changed_without_changing_what_the_reader_remembers(tmp_path):
    path = policy_of_kind("gru").export(tmp_path / "model.npz").path
    reader = NumpyPolicy(path)
    action = reader.act(np.ones(3, np.float32), mask=[True] * 5)
    before = action.copy()
    action += 1
    (remembered,) = (reader._state[name] for name in reader._state if "prev_action" in name)
    np.testing.assert_array_equal(remembered[0], before)


@pytest.mark.parametrize("kind", ["dense", "gaussian", "beta"])
def test_acting_draws_from_the_policys_distribution(kind, tmp_path):
    policy = policy_of_kind(kind)
    reader = NumpyPolicy(policy.export(tmp_path / "model.npz", explore=True).path, seed=1)
    row = np.array([0.5, -1.0, 0.2], np.float32)
    told = {"mask": [True, False, True]} if policy.masked else {}
    rows = {name: np.tile(value, (20_000, 1)) for name, value in told.items()}
    drawn = reader.act(np.tile(row, (20_000, 1)), **rows)
    mask = {"action_mask": rows["mask"]} if told else {}
    expected = policy.act(np.tile(row, (20_000, 1)), explore=True, **mask)
    for moment in (np.mean, np.std):
        away = moment(drawn, axis=0) - moment(expected, axis=0)
        assert np.all(np.abs(away) < 0.05 * np.std(expected, axis=0) + 1e-6)
    assert not np.array_equal(drawn[:100], reader.act(np.tile(row, (20_000, 1)), **rows)[:100])


def test_a_file_of_the_first_format_is_still_read():
    """Of an LSTM with a filter and sampled actions; the actions beside it are the policy's."""
    reader = NumpyPolicy(REFERENCE / "policy_v1.npz")
    steps = np.load(REFERENCE / "policy_v1_steps.npz")
    state = {
        field["name"]: np.zeros((2, *field["shape"]), field["dtype"])
        for field in reader.metadata["inputs"]
        if field["name"].startswith("state_in_")
    }
    for time in range(3):
        told = {name: steps[name][time] for name in ("obs", "prev_reward", "noise")}
        outputs = reader({**told, **state})
        np.testing.assert_allclose(outputs["action"], steps["action"][time], atol=1e-5)
        state = {name: outputs[name.replace("_in_", "_out_", 1)] for name in state}


def test_what_the_file_does_not_take_is_refused_in_one_line(tmp_path):
    reader = NumpyPolicy(policy_of_kind("dense").export(tmp_path / "model.npz").path)
    with pytest.raises(ValueError, match="the policy takes obs, mask, not obs"):
        reader.act(np.zeros(3))
    with pytest.raises(ValueError, match=r"mask must have the shape \(3,\), not \(2,\)"):
        reader.act(np.zeros(3), mask=[True, True])


class Linear:
    def init(self, key, obs):
        return {"kernel": jax.random.normal(key, (3, 3))}

    def apply(self, params, obs):
        return obs @ params["kernel"], obs.sum(axis=-1)


def test_a_file_with_one_bit_changed_is_refused_or_acts_as_it_was_written(tmp_path):
    """Two hundred bits, drawn alike; some lie where nothing is read, such as the files' times."""
    path = policy_of_kind("tables").export(tmp_path / "model.npz").path
    content, obs, refused = path.read_bytes(), np.array([[0, 4], [3, 1]]), 0
    wanted = NumpyPolicy(path).act(obs, agent=1), NumpyPolicy(path).metadata
    for bit in np.random.default_rng(0).integers(8 * len(content), size=200).tolist():
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            reader = NumpyPolicy(path)
        except ValueError as error:
            assert "is damaged, or no exported policy" in str(error) and "\n" not in str(error)
            refused += 1
            continue
        np.testing.assert_array_equal(reader.act(obs, agent=1), wanted[0])
        assert reader.metadata == wanted[1]
    assert refused > 100


def test_a_network_of_the_users_is_refused_with_the_formats_that_can_hold_it(tmp_path):
    like = policy_of_kind("dense")
    config = PPOConfig(env="cartpole", model=Linear())
    spec = config.policy_spec("mover", like.observation_space, like.action_space, 1)
    policy = Policy(spec, PolicyWeights(spec.model.init(jax.random.key(0))), name="mover")
    line = "holds the built-in networks only, not Linear: write .onnx or .stablehlo"
    with pytest.raises(UsageError, match=line):
        policy.export(tmp_path / "model.npz")
