"""Commands `jaxrl watch` and `jaxrl report`: the page of a run or a sweep, live or as one file."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax

from jaxrl.cli.browser import open_page
from jaxrl.cli.ending import hear_ctrl_c, leave
from jaxrl.cli.evaluate import CHECKPOINTS, TRUST, run_command
from jaxrl.core.fields import count, flag, setting
from jaxrl.core.plan import labelled
from jaxrl.core.words import text_of
from jaxrl.replay.live_episodes import TO_COMPARE
from jaxrl.replay.replay import checkpoints_in
from jaxrl.replay.run_pages import REPORT, newest, open_folder, write_report
from jaxrl.replay.server import PORT, LiveServer
from jaxrl.run.logging.console import print_answer

NICENESS = 10  # training goes first


@dataclasses.dataclass(frozen=True)
class WatchOptions:
    """Flags of `watch.py`."""

    port: int = setting(PORT, "port of this machine; 0: any free one", count(0, 65535))
    open: bool = setting(False, "open the page in the browser", flag)
    trust: bool = TRUST


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Flags of `report.py`."""

    out: str = setting("", f"the file, .html; default: {REPORT} in the folder", text_of("FILE"))
    checkpoint: Any = setting(
        TO_COMPARE,
        "whose episodes are shown side by side: untrained, best, last or iterations",
        CHECKPOINTS,
    )
    trust: bool = TRUST


def watch(argv: Sequence[str] | None = None) -> None:
    """Show a run or a sweep in the browser, also while it trains: RUN [flags]."""
    jax.config.update("jax_platforms", "cpu")  # an accelerator belongs to the training
    run_command("watch", watch.__doc__, WatchOptions(), argv, _watch, newest)


def report(argv: Sequence[str] | None = None) -> None:
    """Write the page of a run or a sweep as one HTML file: RUN [flags]."""
    run_command("report", report.__doc__, ReportOptions(), argv, _report, newest)


def _watch(run: str, options: WatchOptions) -> None:
    server = LiveServer(open_folder(run, trust=options.trust), options.port)
    hear_ctrl_c(where_ignored=True)
    if options.open:
        open_page(server.address)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    try:
        print_answer(labelled("look at", f"{server.address}   (Ctrl-C ends this)"))
        server.serve()
    except KeyboardInterrupt:
        print_answer("stopped; the run itself is as it was")
        leave(0)


def _report(run: str, options: ReportOptions) -> None:
    checkpoints = checkpoints_in(options.checkpoint)
    out = write_report(run, options.out or None, checkpoints=checkpoints, trust=options.trust)
    print_answer(labelled("look at", out))
