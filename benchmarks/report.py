"""Reports of benchmarks: rows of JSON with what set their numbers, pictures of the medians.

Rows go to `runs/benchmarks/<question>.jsonl`, or where --out says, and the picture beside them.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
COLOURS = ("#1962aa", "#e25822", "#2f9e6e", "#9c5fb5", "#c9a227", "#5b6770")
INK, QUIET, RULE = "#20242c", "#6b7280", "#e3e5e8"


class Parser(argparse.ArgumentParser):
    """A parser that knows --smoke, and --out where a question is named.

    Args:
        smallest: {argument: its value with --smoke, or a function of what was given}. Sizes that
            no flag sets are looked up by `arguments.smoke`.
        question: names the file of the rows.
    """

    def __init__(self, doc: str, smallest: Mapping[str, Any], question: str | None = None):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.smallest, self.question = smallest, question
        self.add_argument(
            "--smoke",
            action="store_true",
            help="the smallest sizes, one turn and no peers, whatever else is given: does it run?",
        )
        if question is not None:
            where = self.file_of(smoke=False)
            text = f"rows are added to this file; default {where}"
            self.add_argument("--out", type=Path, help=text)

    def file_of(self, *, smoke: bool) -> Path:
        """Rows of a smoke test are kept apart from measured ones."""
        folder = Path("runs") / "benchmarks"
        return (folder / "smoke" if smoke else folder) / f"{self.question}.jsonl"

    def parse_args(self, args=None, namespace=None) -> argparse.Namespace:
        arguments = super().parse_args(args, namespace)
        if self.question is not None and arguments.out is None:
            arguments.out = self.file_of(smoke=arguments.smoke)
        if arguments.smoke:
            for name, small in self.smallest.items():
                value = small(getattr(arguments, name)) if callable(small) else small
                setattr(arguments, name, value)
        return arguments


def arguments_of(question: str, doc: str, smallest: Mapping[str, Any]) -> Parser:
    """The parser of a benchmark: --out and --smoke."""
    return Parser(doc, smallest, question)


def first(values: Sequence) -> list:
    """The first of the values that were given, with --smoke."""
    return list(values[:1])


def use_devices(number: int = CORES) -> None:
    """So many virtual devices of the CPU, where JAX does not have as many already."""
    import jax

    if jax.config.jax_num_cpu_devices < number:
        jax.config.update("jax_num_cpu_devices", number)


def circumstances() -> dict:
    """What set the numbers besides the work: machine, versions, flags, commit, load."""
    from jaxrl.run.storage.run_folder import metadata

    return {"machine": metadata(), "cores": CORES, "load": os.getloadavg()[0], "flags": flags()}


def flags() -> dict[str, str]:
    """What the environment says to JAX, XLA and the libraries of threads."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("XLA_", "JAX_", "OMP_", "MKL_"))
    }


def keep(rows: Iterable[dict], out: Path) -> None:
    """Adds rows to the file, each in a line; what is not finite is null there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(_finite(row), allow_nan=False) + "\n" for row in rows)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(paths: Sequence[Path]) -> list[dict]:
    return [
        json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()
    ]


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """median [least, most]."""
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


def markdown(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *lines)
    )


def bars(
    out: Path,
    title: str,
    unit: str,
    groups: dict[str, dict[str, Sequence[float]]],
    *,
    log: bool = False,
) -> None:
    """A picture beside `out`: {group: {who.

    Values}}, bars to the medians and lines from the least to the most.
    """
    from matplotlib.figure import Figure

    entries = [
        (group, who, values) for group, by_who in groups.items() for who, values in by_who.items()
    ]
    if not entries:
        return
    whose = list(dict.fromkeys(who for _, who, _ in entries))
    figure = Figure(
        figsize=(9, 1.4 + 0.3 * len(entries) + 0.35 * len(groups)), dpi=120, layout="constrained"
    )
    axes, place = figure.subplots(), 0.0
    for group, by_who in groups.items():
        axes.text(
            0,
            place - 0.55,
            group,
            transform=axes.get_yaxis_transform(),
            fontsize=9,
            weight="bold",
            color=INK,
        )
        place += 0.3
        for who, values in by_who.items():
            middle = statistics.median(values)
            axes.barh(place, middle, 0.75, color=COLOURS[whose.index(who) % len(COLOURS)])
            axes.plot([min(values), max(values)], [place, place], color=INK, linewidth=1)
            axes.text(
                max(values), place, f"  {who}  {_short(middle)}", va="center", fontsize=8, color=INK
            )
            place += 1
        place += 0.9
    axes.set_ylim(place, -1.2)
    axes.set_yticks([])
    axes.set_xscale("log" if log else "linear")
    least, most = (
        bound(min(values) if log else max(values) for *_, values in entries) for bound in (min, max)
    )
    axes.set_xlim(least / 3 if log else 0, most * (30 if log else 1.45))
    _finish(figure, axes, title, unit, out)


def lines(
    out: Path,
    title: str,
    unit: tuple[str, str],
    curves: dict[str, dict[float, Sequence[float]]],
    *,
    name: str = "",
    log=False,
):
    """A picture beside `out`: {who: {x: values}}, lines through the medians in bands of the range.

    `unit` says what the two axes count; `name` is added to the file's; `log` makes both axes
    logarithmic.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (who, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        x = sorted(points)
        axes.plot(
            x,
            [statistics.median(points[i]) for i in x],
            color=colour,
            label=who,
            marker="o",
            markersize=3,
        )
        axes.fill_between(
            x,
            *([bound(points[i]) for i in x] for bound in (min, max)),
            color=colour,
            alpha=0.15,
            lw=0,
        )
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    axes.set_ylabel(unit[1], color=QUIET)
    axes.legend(frameon=False, fontsize=8)
    _finish(figure, axes, title, unit[0], out, name)


def _finish(figure, axes, title: str, unit: str, out: Path, name: str = "") -> None:
    axes.set_title(title, loc="left", color=INK)
    axes.set_xlabel(unit, color=QUIET)
    axes.grid(axis="both", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    path = out.with_name("-".join(filter(None, [out.stem, name])) + ".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"rows {out}, picture {path}")


def _short(number: float) -> str:
    """`1.9`, `350`, `25k`, `1.4M`."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{letter}"
    return f"{number:.3g}"
