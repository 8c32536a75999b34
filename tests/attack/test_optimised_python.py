"""Python without docstrings and assertions (`python -OO`) runs the same programs."""

import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, io
import jaxrl
from jaxrl.cli.main import COMMANDS, main
from jaxrl.run.trainer import Trainer

assert False, "not with -OO"
shown = {}
for command in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main([command, "--help"])
    shown[command] = "--" in text.getvalue()
print(all(shown.values()), "num_envs" in jaxrl.PPOConfig.__doc__, "pictures" in Trainer.__doc__)
jaxrl.PPOConfig.tuned("arena").setup()
"""


@pytest.mark.process
def test_every_command_explains_itself_and_configurations_are_made():
    done = subprocess.run(
        [sys.executable, "-OO", "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True"] * 3, done.stdout + done.stderr[-2000:]
    assert done.returncode == 0
