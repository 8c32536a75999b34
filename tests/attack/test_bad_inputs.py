"""Values that make no sense: each is refused in one line, before anything is compiled."""

import pytest

import jaxrl
from jaxrl.serving.settings import ServerSettings
from tests.export.kinds import policy_of_kind
from tests.programs import SMALL_CARTPOLE as SMALL

LRS = {"lr": [1e-3, 1e-4]}
REFUSED = {
    "arena's height": (lambda: jaxrl.make("arena", height=True), "both must be integers"),
    "cart_mass": (lambda: jaxrl.make("cartpole", cart_mass=-1.0), "cart_mass must be above 0"),
    "pole_mass": (lambda: jaxrl.make("cartpole", pole_mass=-1), "pole_mass must be at least 0"),
    "time_step": (lambda: jaxrl.make("cartpole", time_step=-0.02), "time_step must be above 0"),
    "x_threshold": (lambda: jaxrl.make("cartpole", x_threshold=0), "x_threshold must be above 0"),
    "start_range": (lambda: jaxrl.make("cartpole", start_range=-1), "start_range must be at least"),
    "pole's length": (
        lambda: jaxrl.make("cartpole", pole_half_length=0),
        "pole_half_length must be above 0, not 0",
    ),
    "Trainer's run_dir": (
        lambda: jaxrl.Trainer(SMALL, run_dir=5),
        "run_dir=5 must be a folder's path, or None",
    ),
    "NUL in run_dir": (lambda: jaxrl.Trainer(SMALL, run_dir="a\0"), "must be a folder's path"),
    "an empty run_dir": (lambda: jaxrl.Trainer(SMALL, run_dir=""), "must be a folder's path"),
    "sweep's run_dir": (lambda: jaxrl.sweep(SMALL, LRS, run_dir=5), "run_dir=5 must be a folder"),
    "sweep's stop": (lambda: jaxrl.sweep(SMALL, LRS, stop=5), "stop=5 must be {path in the result"),
    "path of an export": (
        lambda: policy_of_kind("tables").export(5),
        "path=5 must be the path of a file",
    ),
    "names of an export": (
        lambda: policy_of_kind("tables").export("a.onnx", names=5),
        "names=5 must be a mapping",
    ),
    "render's out": (lambda: jaxrl.render("nowhere", out=5), "out=5 must be the path of a picture"),
    "token_file": (lambda: ServerSettings(token_file=5), "token_file=5 must be a file's path"),
    "certificate": (lambda: ServerSettings(certificate=5), "certificate=5 must be a file's path"),
    "all origins": (lambda: ServerSettings(origins="*"), "'*' must be an address such as http"),
    "origins, numbers": (lambda: ServerSettings(origins=[5]), "5 must be an address such as"),
    "origins, a number": (lambda: ServerSettings(origins=5), "5 must be an address such as"),
    "origins, a path": (lambda: ServerSettings(origins="http://a/b"), "without a path"),
    "opponent without a name": (
        lambda: jaxrl.OpponentPool(fixed={"": "random"}),
        "a member of fixed needs a name",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_one_line(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = REFUSED[what]
    with pytest.raises(jaxrl.UsageError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
