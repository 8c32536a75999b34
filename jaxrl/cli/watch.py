"""Command `jaxrl watch`: a run in the browser while it trains."""

import dataclasses
import os
import signal
from collections.abc import Sequence

import jax

from jaxrl.cli.evaluate import TRUST, run_command
from jaxrl.core.fields import count, setting
from jaxrl.core.plan import labelled
from jaxrl.replay.server import PORT, LiveRun, LiveServer
from jaxrl.run.logging.console import print_answer
from jaxrl.run.storage.checkpoint import run_path

NICENESS = 10  # training goes first


@dataclasses.dataclass(frozen=True)
class WatchOptions:
    """Flags of `watch.py`."""

    port: int = setting(PORT, "port of this machine; 0: any free one", count(0, 65535))
    trust: bool = TRUST


def watch(argv: Sequence[str] | None = None) -> None:
    """Show a run in the browser while it trains, its curves and an episode: RUN [flags]."""
    jax.config.update("jax_platforms", "cpu")  # an accelerator belongs to the training
    run_command("watch", watch.__doc__, WatchOptions(), argv, _watch)


def _watch(run: str, options: WatchOptions) -> None:
    server = LiveServer(LiveRun(run_path(run), trust=options.trust), options.port)
    # A shell starts what it runs in the background deaf to Ctrl-C's signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    try:
        print_answer(labelled("look at", f"{server.address}   (Ctrl-C ends this)"))
        server.serve()
    except KeyboardInterrupt:
        print_answer("stopped; the run itself is as it was")
