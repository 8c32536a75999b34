"""The console of a run: a live line on a terminal and in a notebook, elsewhere plain lines."""

import atexit
import contextlib
import errno
import functools
import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from jaxrl.algorithms.base import HeadlineMetric
from jaxrl.core.errors import one_line
from jaxrl.core.fields import without
from jaxrl.core.machine import num_cores
from jaxrl.core.plan import COLUMN, LABEL
from jaxrl.run.health import has_constant_sum
from jaxrl.run.results import RETURN, lookup

WIN_RATE = "env_runners/opponents/win_rate"
LOG_WIDTH = 100  # columns of a line that no terminal shows
COLOURS = {  # of what a terminal shows: a return, a warning (the health monitor's too), a failure
    r"\breturn +-?\d+\.\d+": "green",
    r"(?m)^warning:": "yellow",
    r"\bhas diverged\b": "red",
}


class LossyConsole(Console):
    """A console whose closed pipe is an error like any other, where rich ends the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader of the output has ended")


def in_notebook() -> bool:
    """Returns whether a Jupyter kernel runs this process."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def rich_options() -> dict[str, bool]:
    """The options of a console: in a notebook plain text, where rich would write HTML or codes."""
    return {"force_jupyter": False, "force_terminal": False} if in_notebook() else {}


class Progress:
    """Prints results as they come; nothing if `quiet`.

    A line stays on the screen after each 5 % of the time that has passed, so that a long run prints
    no more lines than a short one by much; on a terminal the newest figures are always below them.
    In a notebook there is one line, which is replaced, below a curve of the returns.

    What cannot be printed (a full disk, a closed terminal or pipe) ends the printing, not the
    training; one line on stderr says so when the process ends.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None):
        self.console = console or LossyConsole(quiet=quiet, highlight=False, **rich_options())
        self.live: Any = None  # rich's `Live`, or a `NotebookLine`
        self.said: set[str] = set()  # by `say_once`
        self.latest: Text | None = None  # the newest line, while it is not yet printed to stay
        self.lost: str | None = None  # why nothing can be printed any more
        self.started = self.printed = 0.0
        self.is_verbose = False  # whether every line stays on the screen

    @property
    def width(self) -> int:
        """Columns that a line may take."""
        return self.console.width if self.console.is_terminal else LOG_WIDTH

    def say(self, text: str, *, even_if_quiet: bool = False) -> None:
        """Prints lines; on a terminal those that are too long for it go on below, indented.

        Args:
            even_if_quiet: for lost work, which goes to stderr where nothing else is printed.
        """
        if self.console.quiet and even_if_quiet:
            print(text, file=sys.stderr)
        if self.console.is_terminal:
            text = "\n".join(folded(line, self.width) for line in text.split("\n"))
        self._print(self._printable(text))

    def say_once(self, text: str) -> None:
        """Prints lines, unless they were printed before."""
        if text not in self.said:
            self.said.add(text)
            self.say(text)

    def __enter__(self) -> "Progress":
        self.started, self.printed = time.perf_counter(), 0.0
        if not self.console.quiet:
            if in_notebook():
                from jaxrl.run.logging.notebook_line import NotebookLine

                self.live = NotebookLine()
            elif self.console.is_terminal:
                self.live = Live(console=self.console, auto_refresh=False, transient=True)
        if self.live is not None:
            self._attempt(self.live.start)
        return self

    def show(
        self,
        result: Mapping[str, Any],
        metrics: Sequence[HeadlineMetric],
        seconds_left: float | None,
    ) -> None:
        if self.live is not None and not isinstance(self.live, Live):
            self.live.add(lookup(result, RETURN))
        self.show_line(result_line(result, metrics, seconds_left, self.width))

    def show_line(self, line: str, table: Callable[[int], RenderableType] | None = None) -> None:
        """Shows the newest line.

        Args:
            table: makes what a terminal of so many lines shows above it.
        """
        self.latest = self._printable(line)
        if isinstance(self.live, Live) and table is not None:
            above = table(self.console.height)
            self._attempt(self.live.update, Group(above, self.latest), refresh=True)
        elif self.live is not None:
            self._attempt(self.live.update, self.latest, refresh=True)
        if self.live is not None and not isinstance(self.live, Live):
            self.latest = None  # it stays where it is
            return
        now = time.perf_counter()
        if self.is_verbose or now - self.printed >= max(1.0, 0.05 * (now - self.started)):
            self.keep()

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self._attempt(self.live.stop)
            self.live = None
        self.keep()

    def keep(self) -> None:
        """Prints the newest line for good, unless it was printed."""
        if self.latest is not None:
            self._print(self.latest)
            self.latest, self.printed = None, time.perf_counter()

    def _printable(self, text: str) -> Text:
        """`text` with escapes for what the console's encoding lacks, such as a path's odd bytes.

        rich leaves the colours out where no terminal shows them, and where NO_COLOR is set.
        """
        encoding = self.console.encoding
        printable = Text(text.encode(encoding, "backslashreplace").decode(encoding))
        for pattern, colour in COLOURS.items():
            printable.highlight_regex(pattern, colour)
        return printable

    def _print(self, text: Text) -> None:
        self._attempt(self.console.print, text, soft_wrap=True)

    def _attempt(self, action: Callable, *args: Any, **kwargs: Any) -> None:
        """Prints, unless that failed before."""
        if self.lost is not None:
            return
        try:
            action(*args, **kwargs)
        except OSError as error:
            self.lost = one_line(error)
            self.console.quiet = True
            atexit.register(say_lost, self.lost)


@functools.cache  # said once in a process, whichever of its output was lost first
def say_lost(why: str) -> None:
    """Says on stderr that the output was lost, and drops the rest of it.

    The process then ends as it would have.
    """
    with contextlib.suppress(OSError, ValueError):
        print(
            f"jaxrl: the output could not be written to the end: {why}", file=sys.stderr, flush=True
        )
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # Python itself would try again, and end with the status 120
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def print_answer(text: str) -> None:
    """Prints a command's answer; if it cannot be written, the process ends with one line."""
    try:
        print(text, flush=True)
    except OSError as error:
        say_lost(one_line(error))
        sys.exit(1)


def folded(line: str, width: int) -> str:
    """A line broken between words at `width` columns, the rest indented below its label's text."""
    if len(line) <= width:
        return line
    indent = " " * (COLUMN + 1) if LABEL.match(line) else "  "
    return textwrap.fill(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def result_line(
    result: Mapping[str, Any],
    metrics: Sequence[HeadlineMetric],
    seconds_left: float | None = None,
    width: int | None = None,
) -> str:
    """One iteration's figures: steps, return, wins, length, metrics by policy, speed, time left.

    Args:
        metrics: the algorithm's `headline_metrics`, of which those with a label are shown.
        width: columns that the line should fit into; what matters least is left out. None: as many
        as it takes.
    """
    learners = without(result["learners"], {"__all_modules__"})
    labelled = [metric for metric in metrics if metric.label]
    parts = {
        "iteration": f"iter {result['training_iteration']:>5,}",
        "steps": f"steps {result['num_env_steps_sampled_lifetime']:>11,}",
        "return": "no episode has ended yet" if "env_runners" in result else "",
        "wins": "",
        "agents": "",
        "length": "",
        **{metric.name: f"{metric.label} {_short(learners, metric)}" for metric in labelled},
        "speed": f"{lookup(result, 'perf/env_steps_per_s'):,.0f} steps/s",
        "left": "" if seconds_left is None else f"{duration(seconds_left)} left",
    }
    mean = lookup(result, RETURN)
    if mean is not None:
        parts["return"], parts["agents"] = returns_of(result["env_runners"], f"{mean:7.2f}")
        parts["length"] = f"len {lookup(result, 'env_runners/episode_len_mean'):5.1f}"
    if (wins := lookup(result, WIN_RATE)) is not None:  # returns of a game may sum to 0
        parts["wins"] = f"win rate {wins:.2f}"
    first, *others = [metric.name for metric in labelled] or [""]
    return fitted(parts, (*reversed(others), "length", "agents", first, "speed"), width)


def fitted(parts: Mapping[str, str], least_first: tuple[str, ...], width: int | None) -> str:
    """The parts that there are in one line; if it is too long, without those that matter least."""
    shown = {name: part for name, part in parts.items() if part}
    for name in (*least_first, None):
        line = "  ".join(shown.values()).replace("  (", " (")
        if width is None or len(line) <= width:
            break
        shown.pop(name, None)
    return line


def compiling_line(number: int, *, plays: bool) -> str:
    """The reason for the wait; `number` of devices, and whether training steps environments."""
    what = "rollout and update in one program" if plays else "the update"
    return f"compiling {what} for {device_name(number)} ..."


def compiled_line(tracing: float, compiling: float, executable: Any) -> str:
    """The duration of the wait for a `StartAndChunk`, in seconds, and its parts."""
    parts = [f"tracing {tracing:.1f} s"] if executable.traced else []
    if executable.loaded:
        parts.append("the rest out of the compile cache" if parts else "out of the compile cache")
    in_brackets = f" ({', '.join(parts)})" if parts else ""
    return f"compiled in {tracing + compiling:.1f} s{in_brackets}"


def device_name(number: int = 1) -> str:
    """The device on which programs run, in words for people.

    Args:
        number: of the devices that environments are split over.
    """
    device = jax.devices()[0]
    cpu = device.platform == "cpu"
    if cpu:
        name = f"the CPU ({num_cores()} cores)"
    else:
        name = f"{device.platform.upper()} ({device.device_kind})"
    processes = jax.process_count()
    of_all = f" of {processes} processes" if processes > 1 else ""
    split = f"{name}, the environments split over {number} {'cores' if cpu else 'devices'}{of_all}"
    return name if number == 1 else split


def duration(seconds: float) -> str:
    """`7 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def spread(mean: float, std: float, least: float, greatest: float) -> str:
    """`     12.00 +- 3.10  (from 4.00 to 20.00)`."""
    return f"{mean:10.2f} +- {std:.2f}  (from {least:.2f} to {greatest:.2f})"


def agent_returns(returns: Mapping[str, float]) -> str:
    """`agent1 12.00, agent2 -5.50`; of many their number and range; nothing of one alone."""
    if len(returns) < 2:
        return ""
    if len(returns) <= 4:
        return ", ".join(f"{agent} {value:.2f}" for agent, value in returns.items())
    least, most = f"{min(returns.values()):.2f}", f"{max(returns.values()):.2f}"
    return f"{len(returns)} agents {least if least == most else f'{least} to {most}'} each"


def returns_of(episodes: Mapping[str, Any], mean: str) -> tuple[str, str]:
    """(the return, that of each agent in brackets); one part where the sum says nothing."""
    by_agent = _in_brackets(agent_returns(episodes["agent_episode_returns_mean"]))
    if has_constant_sum(episodes):
        return f"return {mean} {by_agent}", ""
    return f"return {mean}", by_agent


def _in_brackets(text: str) -> str:
    return f"({text})" if text else ""


def _short(learners: Mapping[str, Mapping[str, float]], metric: HeadlineMetric) -> str:
    """The figure of each policy that has one; the range if there are many."""
    values = [learner[metric.name] for learner in learners.values() if metric.name in learner]
    form = f"z{metric.form}"  # no -0.0000
    if not values:
        return "-"
    if len(values) > 4:
        return f"{min(values):{form}}..{max(values):{form}}"
    return " ".join(f"{value:{form}}" for value in values)
