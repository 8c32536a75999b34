"""Commands in advice to users: `jaxrl evaluate RUN`, or `python scripts/evaluate.py RUN`.

A run that a script of the checkout started advises the scripts, any other the installed command.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

TRAINING = ("train_ppo.py", "train_bc.py")  # alike, but for the algorithm of a new run
SCRIPTS = {
    "train": "train_ppo.py",
    "evaluate": "evaluate.py",
    "render": "render.py",
    "plot": "plot.py",
    "sweep": "sweep.py",
    "serve": "serve.py",
    "watch": "watch.py",
    "report": "report.py",
}


def command(name: str, *words: object) -> str:
    """The command line of `jaxrl NAME WORDS`, quoted, for the folder this process started in."""
    script = _script()
    if script is not None:
        start = [_python(), str(script.with_name(_script_of(name, script)))]
    elif _is_module():
        start = [_python(), "-m", "jaxrl", name]
    else:
        start = [_installed(), name]
    return shlex.join([*start, *map(str, words)])


def program(name: str) -> str:
    """The name of this program in errors and help: `train_ppo.py` or `jaxrl train`."""
    script = _script()
    return f"jaxrl {name}" if script is None else _script_of(name, script)


def is_of_a_command() -> bool:
    """True if this process runs a command, False if it is a program that calls one."""
    return _script() is not None or _is_module() or Path(sys.argv[0]).stem == "jaxrl"


def _script_of(name: str, running: Path) -> str:
    """The script for a command, beside the one that runs."""
    return running.name if name == "train" and running.name in TRAINING else SCRIPTS[name]


def _script() -> Path | None:
    """The script of the checkout that this process runs, as it was written on the command line."""
    path = Path(sys.argv[0])
    return (
        path
        if path.name in (*SCRIPTS.values(), *TRAINING) and path.absolute().parent.name == "scripts"
        else None
    )


def _is_module() -> bool:
    return Path(sys.argv[0]).parts[-2:] == ("jaxrl", "__main__.py")


def _python() -> str:
    """A word that starts this Python: its name where the shell finds it by that, else its path."""
    here = os.path.dirname(sys.executable)
    for name in ("python", "python3"):
        found = shutil.which(name)
        if found is not None and os.path.dirname(found) == here:
            return name
    return str(from_here(Path(sys.executable)))


def _installed() -> str:
    """The command `jaxrl` beside this Python: its name if the shell finds it, else its path."""
    found = shutil.which("jaxrl")
    beside = shutil.which("jaxrl", path=os.path.dirname(sys.executable))
    return "jaxrl" if beside is None or found == beside else str(from_here(Path(beside)))


def from_here(path: Path) -> Path:
    """A path relative to the current folder where it is inside of that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
