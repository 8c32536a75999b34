"""The command `jaxrl`: train, evaluate, render, plot and sweep."""

import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version

import jaxrl
from jaxrl.cli.evaluate import evaluate, render
from jaxrl.cli.plot import plot
from jaxrl.cli.sweep import run_sweep
from jaxrl.cli.train import train_ppo
from jaxrl.core.errors import unknown_name
from jaxrl.run.logging.console import print_answer

COMMANDS = {
    "train": train_ppo,
    "evaluate": evaluate,
    "render": render,
    "plot": plot,
    "sweep": run_sweep,
}
HELP = """\
usage: jaxrl COMMAND [flags]

  jaxrl train --env arena         train policies with PPO
  jaxrl train --resume RUN        resume a training
  jaxrl evaluate RUN              play whole episodes with the policies of a run
  jaxrl render RUN                write an episode of a run as a GIF, an MP4 or a PNG
  jaxrl plot RUN [RUN ...]        draw the learning curves of runs, side by side
  jaxrl sweep --env arena --grid lr=1e-4,1e-3 --seeds 4
                                  train many settings and seeds at once

jaxrl COMMAND --help explains the flags of a command; jaxrl --version prints the versions in use.
RUN is the folder of a run, such as runs/arena/20261121-120000-s0.\
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one of `COMMANDS` with the words after its name; a mistake ends in one line."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print_answer(HELP)
    elif words[0] == "--version":
        print_answer(
            f"jaxrl {jaxrl.__version__} (jax {version('jax')}, Python {platform.python_version()})"
        )
    elif words[0] in COMMANDS:
        COMMANDS[words[0]](words[1:])
    else:
        print(f"jaxrl: {unknown_name('command', words[0], COMMANDS)}", file=sys.stderr)
        sys.exit(2)
