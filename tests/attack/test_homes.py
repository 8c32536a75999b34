"""Homes that are none, and run folders that cannot be written to."""

import os
import shutil
import subprocess
import sys

import pytest

import jaxrl
from tests.by_hand import by_hand
from tests.programs import SMALL_CARTPOLE

QUIET = {"quiet": True, "pictures": False}
TRAIN = (
    *("--env", "cartpole", "--num-envs", "8", "--rollout-length", "16", "--minibatch-size", "64"),
    *("--total-env-steps", "256", "--pictures", "False", "--loggers", "jsonl"),
)
# Root may write everywhere, so it gives that right up.
RIGHTS = "-dac_override,-dac_read_search"
WITHOUT_RIGHTS = ("setpriv", f"--inh-caps={RIGHTS}", f"--bounding-set={RIGHTS}")


def command(*words, prefix=(), **environment):
    """(exit status, lines on stderr) of a command of jaxrl's."""
    known = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true"}
    known.pop("JAX_COMPILATION_CACHE_DIR", None)
    given = {name: value for name, value in environment.items() if value is not None}
    kept = {name: value for name, value in known.items() if name not in environment}
    words = [*prefix, sys.executable, "-m", "jaxrl", *map(str, words)]
    done = subprocess.run(
        words, env={**kept, **given}, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.process
@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="homes of Linux")
@pytest.mark.parametrize("home", ["nowhere", *by_hand("/dev/null", "/proc", "")])
def test_training_does_without_a_home(home, tmp_path):
    """A file, a folder that nobody can write to, none, and one that is not absolute."""
    status, lines = command(
        "train", *TRAIN, "--run-dir", tmp_path / "run", HOME=home, XDG_CACHE_HOME=None
    )
    assert status == 0 and len(lines) == 1
    assert lines[0].startswith("warning: no compile cache: ")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.skipif(
    sys.platform == "win32" or (os.geteuid() == 0 and not shutil.which("setpriv")),
    reason="root may write everywhere",
)
def test_a_run_in_a_folder_that_is_only_read_can_be_played_and_is_not_resumed(tmp_path):
    path, prefix = tmp_path / "run", WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    with jaxrl.Trainer(SMALL_CARTPOLE, run_dir=path, **QUIET) as trainer:
        trainer.train()
    held = {file: file.stat().st_mtime_ns for file in (path, *path.rglob("*"))}
    for file in held:
        file.chmod(0o500 if file.is_dir() else 0o400)
    settings = {"prefix": prefix, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    resumed = command("train", "--resume", path, **settings)
    played = command("evaluate", path, "--episodes", "2", **settings)
    drawn = command("plot", path, "--out", path / "curves.png", **settings)
    assert {file: file.stat().st_mtime_ns for file in (path, *path.rglob("*"))} == held
    for file in held:
        file.chmod(0o700)
    assert resumed[0] == 2 and "cannot be written: Permission denied" in resumed[1][-1]
    assert played == (0, [])
    assert drawn[0] == 2 and len(drawn[1]) == 1 and "cannot be written" in drawn[1][0]
