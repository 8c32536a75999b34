"""The command `jaxrl`: train, evaluate, render, export, serve, watch, plot and more."""

import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version

import jaxrl
from jaxrl.cli.completion import SHELLS, completion
from jaxrl.cli.ending import ends_in_one_line
from jaxrl.cli.episodes import EpisodesOptions, episodes
from jaxrl.cli.evaluate import EvaluateOptions, RenderOptions, evaluate, play_flags, render, rollout
from jaxrl.cli.export import ExportOptions, export
from jaxrl.cli.flags import Flag, flags_of
from jaxrl.cli.plot import PlotOptions, plot
from jaxrl.cli.publish import PublishOptions, publish
from jaxrl.cli.serve import ServeOptions, serve
from jaxrl.cli.sweep import run_sweep, sweep_flags
from jaxrl.cli.train import train_flags, train_ppo
from jaxrl.cli.watch import ReportOptions, WatchOptions, report, watch
from jaxrl.cli.zoo import zoo, zoo_flags
from jaxrl.core import foreign_names
from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.run.logging.console import print_answer

COMMANDS = {
    "train": train_ppo,
    "evaluate": evaluate,
    "rollout": rollout,
    "render": render,
    "export": export,
    "publish": publish,
    "serve": serve,
    "watch": watch,
    "report": report,
    "plot": plot,
    "sweep": run_sweep,
    "zoo": zoo,
    "episodes": episodes,
}


def all_flags() -> dict[str, dict[str, Flag]]:
    """The flags of each command."""
    return {
        "train": train_flags(),
        "evaluate": play_flags(EvaluateOptions()),
        "rollout": play_flags(EvaluateOptions()),
        "render": play_flags(RenderOptions()),
        "export": play_flags(ExportOptions()),
        "publish": play_flags(PublishOptions()),
        "serve": play_flags(ServeOptions()),
        "watch": play_flags(WatchOptions()),
        "report": play_flags(ReportOptions()),
        "plot": flags_of(PlotOptions()),
        "sweep": sweep_flags(),
        "zoo": zoo_flags(),
        "episodes": flags_of(EpisodesOptions()),
    }


HELP = """\
usage: jaxrl COMMAND [flags]

  jaxrl train --env arena         train policies with PPO
  jaxrl train --resume RUN        resume a training
  jaxrl evaluate RUN              play whole episodes with the policies of a run; jaxrl rollout
                                  is the same
  jaxrl render RUN                write an episode of a run as a GIF, an MP4, a PNG or a page
  jaxrl export RUN --out model.onnx
                                  write a policy of a run for other programs
  jaxrl publish RUN --to hf:USER/NAME
                                  publish the policies of a run, with a model card
  jaxrl serve RUN                 let other programs ask the policies of a run for actions
  jaxrl watch RUN                 show a run or a sweep in the browser, also while it trains
  jaxrl report RUN                write that page as one HTML file, to send or to keep
  jaxrl plot RUN [RUN ...]        draw the learning curves of runs, side by side
  jaxrl sweep --env arena --grid lr=1e-4,1e-3 --seeds 4
                                  train many settings and seeds at once
  jaxrl zoo ENV [ENV ...]         train several seeds of each, and publish the best
  jaxrl episodes DIR              show what a folder of episodes holds

jaxrl COMMAND --help explains the most used flags of a command, --help-all every flag.
jaxrl --version prints the versions in use; jaxrl completion bash (or zsh, tcsh) a script that
completes commands and flags.
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
    elif words[0] == "completion":
        _completion(words[1:])
    elif words[0] in COMMANDS:
        COMMANDS[words[0]](words[1:])
    else:
        refusal = unknown_name("command", words[0], COMMANDS)
        if found := foreign_names.said_of(words[0], foreign_names.COMMANDS):
            refusal = f"unknown command {words[0]!r}: {found}"
        print(f"jaxrl: {refusal}", file=sys.stderr)
        sys.exit(2)


def _completion(words: Sequence[str]) -> None:
    """Prints the script by which a shell completes the command."""
    with ends_in_one_line("completion"):
        if len(words) != 1:
            raise UsageError(f"name one shell: {', '.join(SHELLS)}")
        flags = all_flags()
        print_answer(
            completion(words[0], {name: (COMMANDS[name].__doc__, flags[name]) for name in COMMANDS})
        )
