"""`jaxrl plot`: the learning curves of one run, or of several in one figure."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl.cli.flags import flags_of, given_flags, setting_of, show_help
from jaxrl.core.errors import UsageError
from jaxrl.core.settings import setting
from jaxrl.run import folder
from jaxrl.run.command_line import program
from jaxrl.run.curves import Curves, compared, figure, save_figure, source_line

LOG = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Flags of `jaxrl plot`."""

    out: str = setting("curves.png", "the file: .png, .pdf or .svg")
    title: str = setting("", "above the panels; default: the environment's name")


def plot(argv: Sequence[str] | None = None) -> None:
    """Draw the learning curves of runs: RUN [RUN ...] [flags]. A folder of runs stands for all runs in it."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        flags = flags_of(PlotOptions())
        show_help(words, flags, program("plot"), plot.__doc__)
        first_flag = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        given = given_flags(words[first_flag:], flags)
        options = PlotOptions(**{name: str(setting_of(name, values)) for name, values in given.items()})
        runs = [run for path in words[:first_flag] for run in runs_in(Path(path))]
        if not runs:
            raise UsageError("which runs? give their folders, such as runs/arena/20261121-120000-s0")
        write_plot(list(dict.fromkeys(runs)), options)
    except UsageError as error:
        print(f"{program('plot')}: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"look at      {options.out}")


def write_plot(runs: list[Path], options: PlotOptions) -> None:
    """One run: its curves by agent and by policy. Several: a line for each run."""
    facts = [folder.read(run) for run in runs]
    series = [Curves.from_jsonl(run / LOG).series() for run in runs]
    title = options.title or ", ".join(dict.fromkeys(fact["env_name"] for fact in facts))
    try:
        if len(runs) == 1:
            config = facts[0]["config"]
            footer = source_line(facts[0], config.get("seed"))
            save_figure(options.out, lambda: figure(series[0], title, config.get("kl_target"), footer))
        else:
            commits = dict.fromkeys(source_line(fact) for fact in facts)
            footer = "; ".join(commits) if len(commits) <= 2 else f"{len(commits)} commits or days"
            by_label = dict(zip(labels_of(runs), series, strict=True))
            save_figure(options.out, lambda: compared(by_label, title, footer))
    except OSError as error:
        raise UsageError(f"{options.out} cannot be written: {error.strerror or error}") from None


def runs_in(path: Path) -> list[Path]:
    """The run at `path`, or the runs in a folder of runs or of a sweep.

    Raises:
        UsageError: there is none.
    """
    if (path / LOG).exists():
        return [path]
    logs = sorted([*path.glob(f"*/{LOG}"), *path.glob(f"trials/*/{LOG}")]) if path.is_dir() else []
    if not logs:
        raise UsageError(f"{path} is no run's folder and holds none: there is no {LOG}")
    return [log.parent for log in logs]


def labels_of(runs: list[Path]) -> list[str]:
    """The ends of the paths, as many folders of each as tell them apart."""
    parts = [run.resolve().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(own[-length:]) for own in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(run) for run in runs]
