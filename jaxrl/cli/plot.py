"""`jaxrl plot`: the learning curves of one run, or of several in one figure."""

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl.cli.ending import ends_in_one_line
from jaxrl.cli.flags import flags_of, given_flags
from jaxrl.cli.help import show_help
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import setting, without
from jaxrl.core.plan import labelled
from jaxrl.core.words import shown_as
from jaxrl.run.command_line import program
from jaxrl.run.logging.comparison import compared, grouped, label_of, paper, varied_settings
from jaxrl.run.logging.console import print_answer
from jaxrl.run.logging.curves import Curves, source_line
from jaxrl.run.logging.figures import figure, save_figure
from jaxrl.run.logging.panels import MAX_PANELS, panels_of
from jaxrl.run.storage import checkpoint, run_folder, runs
from jaxrl.run.storage.runs import CONFIG, METRICS, TRIALS

LONGEST_LABEL, LONGEST_VALUE = 40, 16  # characters, of a line's settings and of one of them
SEED = re.compile(r"-s[0-9]+(?=(-[0-9]+)?$)")  # in the name of a run's folder


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Flags of `jaxrl plot`."""

    out: str = setting(
        "curves.png",
        "the file: .png or .svg; .pdf, of several runs as wide as a paper's column",
        shown_as("FILE"),
    )
    title: str = setting(
        "", "title above the panels; by default the environment's name", shown_as("TEXT")
    )


def plot(argv: Sequence[str] | None = None) -> None:
    """Draw the learning curves of runs: RUN [RUN ...] [flags].

    A folder of runs stands for all runs in it.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with ends_in_one_line("plot"):
        flags = flags_of(PlotOptions())
        show_help(words, flags, program("plot"), plot.__doc__)
        texts = given_flags(words, flags, positional="runs")
        paths = texts.pop("runs", [])
        options = PlotOptions(**{name: values[0] for name, values in texts.items()})
        found = []
        for path in paths:
            found += runs_in(runs.resolve(checkpoint.run_path(path)))
        if not found:
            raise UsageError("which runs? give their folders, such as runs/arena/latest")
        write_plot(list({path.resolve(): path for path in found}.values()), options)
    print_answer(labelled("look at", options.out))


def write_plot(paths: list[Path], options: PlotOptions) -> None:
    """One run: its curves by agent and by policy. Several: a line for each run or setting.

    A PDF of several is for a paper: the returns alone, in the width of a column.
    """
    paths, facts = without_repeats(paths, [run_folder.read(path) for path in paths])
    by_name, envs = {}, {}
    for fact in facts:
        envs[fact["env_name"]] = None
        by_name |= {panel.name: panel for panel in panels_of(fact)}
    panels = tuple(by_name.values())[:MAX_PANELS]
    series = [Curves.from_jsonl(path / METRICS, panels).series() for path in paths]
    title = options.title or ", ".join(envs)
    try:
        if len(paths) == 1:
            footer = source_line(facts[0], facts[0]["config"].get("seed"))
            save_figure(options.out, lambda: figure(series[0], panels, title, footer))
        else:
            commits = dict.fromkeys(map(source_line, facts))
            footer = "; ".join(commits) if len(commits) <= 2 else f"{len(commits)} commits or days"
            groups = {
                label: list(map(series.__getitem__, members))
                for label, members in groups_of(paths, facts).items()
            }
            several = lambda: compared(groups, panels, title, footer)
            in_paper = Path(options.out).suffix == ".pdf"
            save_figure(options.out, (lambda: paper(groups)) if in_paper else several)
    except OSError as error:
        raise UsageError(f"{options.out} cannot be written: {error.strerror or error}") from None


def runs_in(path: Path) -> list[Path]:
    """The run at `path`, or the runs in a folder of runs or of a sweep.

    Raises:
        UsageError: there is none.
    """
    if (path / METRICS).exists():
        return [path]
    logs = []
    if path.is_dir():
        logs = sorted([*path.glob(f"*/{METRICS}"), *path.glob(f"{TRIALS}/*/{METRICS}")])
    if not logs:
        raise UsageError(f"{path} is not a run's folder and holds none: there is no {METRICS}")
    return [log.parent for log in logs if not runs.is_link(log.parent)]


def settings_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run that make it another experiment: all but the seed."""
    weights = facts["run_settings"].get("init_from") or None
    settings = without(facts["config"], {"seed"})
    return {"env": facts["env_name"], **settings, "init_from": weights}


def without_repeats(
    paths: list[Path], facts: list[dict[str, Any]]
) -> tuple[list[Path], list[dict[str, Any]]]:
    """The runs and their facts; of those with equal settings and one seed the newest, and says so.

    Such runs are one sample, not two.
    """
    every = [{**settings_of(fact), "seed": fact["config"].get("seed")} for fact in facts]
    newest = []
    for values, members in grouped(every):
        newest.append(max(members, key=lambda member: runs.begin(paths[member], CONFIG)))
        if len(members) > 1:
            same = f"of {len(members)} runs with the same settings and seed {values['seed']}"
            print_answer(f"{same}, only the newest is drawn: {paths[newest[-1]]}")
    return [paths[i] for i in newest], [facts[i] for i in newest]


def groups_of(runs: list[Path], facts: list[dict[str, Any]]) -> dict[str, list[int]]:
    """{label: which runs}: those that differ by their seeds alone are together.

    A label has the settings in which the groups differ. A line whose settings are too long, or
    look like another's, is called by its folder.
    """
    settings, members = zip(*grouped(list(map(settings_of, facts))), strict=True)
    names = varied_settings(settings)
    labels = [label_of(values, names) for values in settings]
    for i, label in enumerate(labels):
        if len(label) > LONGEST_LABEL:
            labels[i] = label_of(settings[i], names, LONGEST_VALUE)
    groups, folders = {}, folder_labels(runs, members)
    for label, folder, group in zip(labels, folders, members, strict=True):
        name = folder if len(label) > LONGEST_LABEL or labels.count(label) > 1 else label
        seeds = f"{len(group)} seeds" if len(group) > 1 else ""
        groups[", ".join(filter(None, [name, seeds]))] = group
    return groups


def folder_labels(runs: list[Path], groups: Sequence[list[int]]) -> list[str]:
    """The folder of each group's first run, without the seed where the group has several."""
    labels = labels_of([runs[first] for first, *_ in groups])
    for i, group in enumerate(groups):
        seedless = SEED.sub("", labels[i])
        if len(group) > 1 and seedless not in labels:
            labels[i] = seedless
    return labels


def labels_of(runs: list[Path]) -> list[str]:
    """The ends of the paths, as many folders of each as tell them apart."""
    parts = [run.resolve().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(path[-length:]) for path in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(run) for run in runs]
