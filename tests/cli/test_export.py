"""`jaxrl export`: what it prints, and refusals."""

import jax
import numpy as np
import pytest

from jaxrl import load_policy
from jaxrl.cli.main import main
from jaxrl.export.numpy_file import READER
from jaxrl.export.numpy_policy import NumpyPolicy


@pytest.mark.long
def test_the_file_its_inputs_and_outputs_and_the_parity_are_printed(run, tmp_path, capsys):
    pytest.importorskip("flatbuffers", reason="the extra `stablehlo`")
    path = tmp_path / "model.stablehlo"
    words = ["--policy", "pol2", "--out", str(path), "--compile-cache", "off"]
    main(["export", run, *words])
    wrote, *tensors, parity = capsys.readouterr().out.splitlines()
    assert wrote.startswith(f"wrote        {path} (")
    assert tensors == [
        "inputs       obs  int32[batch, 2]",
        "outputs      action  int32[batch]",
        "             action_dist_inputs  float32[batch, 4]",
    ]
    assert parity.startswith("parity       largest difference ")
    assert parity.endswith(" over 128 recorded observations")
    obs = np.array([[0, 15], [3, 4]], np.int32)
    acted = jax.export.deserialize(bytearray(path.read_bytes())).call({"obs": obs})["action"]
    np.testing.assert_array_equal(acted, load_policy(run, "pol2").act(obs))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "which file? --out model.onnx"),
        (["--out", "m.onx"], "did you mean '.onnx'? known: .npz, .onnx, .stablehlo"),
        (
            ["--out", "m.onnx", "--policy", "pol1", "--names", "actoin=actions"],
            "unknown input or output 'actoin'; did you mean 'action'?",
        ),
        (
            ["--out", "m.onnx", "--policy", "pol1", "--names", "action=obs"],
            "two arrays would be called 'obs'",
        ),
        (["--out", "m.onnx", "--policy", "pol1", "--opset", "0"], "opset=0 must be"),
        (
            ["--out", "m.stablehlo", "--policy", "pol1", "--opset", "18"],
            "opset and names are of .onnx files",
        ),
        (["--out", "m.stablehol"], "did you mean '.stablehlo'?"),
        (["--out", "none/m.stablehlo"], "there is no folder none"),
        (["--out", "m.stablehlo"], "holds 2 policies; name one of them: pol1, pol2"),
        (["--out", "m.stablehlo", "--policy", "pol3"], "unknown policy 'pol3'"),
        (["--out", "m.stablehlo", "--policy", "pol1", "--checkpoint", "9"], "no checkpoint"),
        (["--out", "m.stablehlo", "--polcy", "pol1"], "did you mean '--policy'?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run, capsys, words, text):
    with pytest.raises(SystemExit):
        main(["export", run, *words, "--compile-cache", "off"])
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_a_missing_package_is_named_with_the_extra(run, monkeypatch, capsys):
    monkeypatch.setattr("jaxrl.export.onnx_file.is_installed", lambda package: False)
    with pytest.raises(SystemExit):
        main(["export", run, "--out", "m.onnx", "--policy", "pol1", "--compile-cache", "off"])
    line = 'a .onnx file needs jax2onnx: pip install "jaxrl[onnx]"'
    assert capsys.readouterr().err == f"jaxrl export: {line}\n"


def test_a_numpy_file_comes_with_the_place_of_its_reader(run, tmp_path, capsys):
    path = tmp_path / "model.npz"
    main(["export", run, "--policy", "pol1", "--out", str(path), "--compile-cache", "off"])
    *_, parity, reader = capsys.readouterr().out.splitlines()
    assert parity.endswith(" over 128 recorded observations")
    assert reader == f"reader       {READER}, which needs NumPy alone: copy it"
    obs = np.array([[0, 15], [3, 4]], np.int32)
    np.testing.assert_array_equal(NumpyPolicy(path).act(obs), load_policy(run, "pol1").act(obs))
