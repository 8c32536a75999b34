"""Policies as ONNX files: onnxruntime acts as the policy does, by the names that are asked for."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxrl import PPOConfig, UsageError
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from tests.export.kinds import KINDS, NamedRun, differences, policy_of_kind

pytest.importorskip("jax2onnx", reason="the extra `onnx`")
onnx = pytest.importorskip("onnx", reason="the extra `onnx`")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx`")


def session_of(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run_of(session):
    outputs = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(outputs, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_acts_as_the_policy_for_batches_of_any_size(kind, tmp_path):
    policy = policy_of_kind(kind)
    for explore in (False, True):
        exported = policy.export(tmp_path / "model.onnx", explore=explore)
        session = session_of(exported.path)
        for found, tensors in (
            (session.get_inputs(), exported.inputs),
            (session.get_outputs(), exported.outputs),
        ):
            assert [part.name for part in found] == [tensor.name for tensor in tensors]
            assert [part.shape for part in found] == [["batch", *t.shape] for t in tensors]
        run = NamedRun(run_of(session), exported.inputs)
        assert differences(policy, run, explore=explore) < 1e-5
        assert exported.parity.error < 1e-5


def test_the_metadata_are_in_the_file(tmp_path):
    exported = policy_of_kind("gaussian").export(tmp_path / "model.onnx", explore=True)
    facts = session_of(exported.path).get_modelmeta().custom_metadata_map
    assert facts["actions"] == "sampled" and facts["noise"] == "normal"
    assert facts["policy"] == "mover" and json.loads(facts["agents"]) == ["left", "right"]
    assert json.loads(facts["action_space"])["high"] == [1.0, 5.0]
    assert json.loads(facts["versions"])["jaxrl"]
    assert json.loads(facts["opset"]) == 18
    assert [entry.version for entry in onnx.load(exported.path).opset_import] == [18]
    assert list(tmp_path.iterdir()) == [exported.path]


def test_arrays_are_renamed_for_a_loader_that_expects_other_names(tmp_path):
    policy = policy_of_kind("gru")
    names = {"action": "actions", "state_in_policy": "h_in", "state_out_policy": "h_out"}
    exported = policy.export(tmp_path / "model.onnx", names=names)
    session = session_of(exported.path)
    inputs = ["obs", "mask", "prev_reward", "h_in", "state_in_prev_action"]
    outputs = ["actions", "action_dist_inputs", "h_out", "state_out_prev_action"]
    assert [part.name for part in session.get_inputs()] == inputs
    assert [part.name for part in session.get_outputs()] == outputs
    assert [tensor.name for tensor in exported.outputs] == outputs
    assert json.loads(session.get_modelmeta().custom_metadata_map["names"]) == names


def test_an_older_opset_is_written_where_it_has_all_operators(tmp_path):
    exported = policy_of_kind("dense").export(tmp_path / "model.onnx", opset=15)
    assert [entry.version for entry in onnx.load(exported.path).opset_import] == [15]
    with pytest.raises(UsageError, match="opset=15 has not all operators of this policy, opset=18"):
        policy_of_kind("attention").export(tmp_path / "memory.onnx", opset=15)
    assert not (tmp_path / "memory.onnx").exists()


HOME = os.environ.get("ONNXRUNTIME_HOME")
PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def build_as_the_page_says(folder):
    """Builds `play` of `play.cpp` by the page's own command; warnings are errors."""
    (command,) = re.findall(r"^g\+\+ .*?-o play$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    subprocess.run(f"{command} -Wall -Werror", shell=True, cwd=folder, check=True)


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how Linux names a library")
def test_a_program_that_the_page_builds_finds_its_library_from_any_folder(tmp_path):
    library = tmp_path / "onnxruntime" / "lib" / "libonnxruntime.so.1"
    library.parent.mkdir(parents=True)
    (tmp_path / "library.cpp").write_text("int answer() { return 42; }")
    words = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "library.cpp", "-o", library]
    subprocess.run(words, cwd=tmp_path, check=True)
    library.with_suffix("").symlink_to(library.name)
    (tmp_path / "play.cpp").write_text("int answer(); int main() { return answer(); }")
    build_as_the_page_says(tmp_path)
    assert subprocess.run([tmp_path / "play"], cwd="/").returncode == 42


@pytest.mark.skipif(not HOME, reason="ONNXRUNTIME_HOME names no folder of onnxruntime's release")
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
def test_the_program_in_cpp_of_the_page_acts_as_the_policy(tmp_path):
    (program,) = re.findall(r"^```cpp\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "play.cpp").write_text(program)
    (tmp_path / "onnxruntime").symlink_to(HOME)
    build_as_the_page_says(tmp_path)
    spec = PPOConfig(env="arena", fcnet_hiddens=(8,)).build().policy_specs[0]
    acted, expected = [], []
    for seed in range(4):
        params = jax.tree.map(lambda leaf: 3 * leaf, spec.model.init(jax.random.key(seed)))
        policy = Policy(spec, PolicyWeights(params), name="pol1")
        policy.export(tmp_path / "pol1.onnx")
        played = subprocess.run(["./play"], cwd=tmp_path, check=True, capture_output=True)
        acted.append(int(played.stdout))
        expected.append(int(policy.act([0, 99])))
    assert acted == expected and len(set(acted)) > 1
