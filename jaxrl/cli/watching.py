"""Process beside `jaxrl train --watch` that serves the run's page and opens it in the browser.

It has a lower priority than the training and only reads the run's folder; what it takes is some
400 MiB. It ends when the pipe from the training is closed, also where that was killed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax

from jaxrl.cli.browser import open_page
from jaxrl.cli.flags import find_modules_here
from jaxrl.cli.watch import NICENESS
from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.plan import labelled
from jaxrl.replay.run_pages import open_folder
from jaxrl.replay.server import PORT, LiveServer
from jaxrl.run.devices import compile_cache

LAST_LOOK_SECONDS = 5.0  # after the training, in which open pages ask once more
# Of a low priority from its first import on, where the system has priorities.
START = f"import os; getattr(os, 'nice', int)({NICENESS}); from {__name__} import main; main()"
LOOK_AT, NO_PAGE = labelled("look at", ""), "the page of the run cannot be shown"


class WatchingProcess:
    """The process that serves the page of a run; as a context, while it trains.

    Args:
        folder: of the run.
        cache: the choice of a compile cache, as of the training.
        say: prints a line, such as the page's address once it is served.
    """

    def __init__(self, folder: Path, cache: str, say: Callable[[str], None]):
        self._say = say
        # A process group of its own: Ctrl-C is for the training, which then ends this as well. Not
        # a session: Linux compares priorities within one alone. `-P`: a file here may have the name
        # of a module; the training's environment may lie anywhere on its path.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, str(folder), cache],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
        threading.Thread(target=self._repeat, daemon=True).start()

    def __enter__(self) -> "WatchingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            self._process.stdin.close()

    def _repeat(self) -> None:
        """Says what the process says, and opens the address in it.

        Not the process itself, from which the browser would have its low priority.
        """
        said, last = False, "its process has ended"
        with self._process.stdout as lines:
            for line in map(str.rstrip, lines):
                last = line or last  # in the end that of an error
                if line.startswith((LOOK_AT, NO_PAGE)):
                    said = True
                    self._say(line)
                if line.startswith(LOOK_AT) and not self._process.stdin.closed:
                    open_page(line.split()[2])
        if self._process.wait() and not said:
            self._say(f"{NO_PAGE}: {last}")


def shown_while_training(
    folder: Path, cache: str, say: Callable[[str], None]
) -> contextlib.AbstractContextManager:
    """A `WatchingProcess`, or a line that says why there is none."""
    try:
        return WatchingProcess(folder, cache, say)
    except OSError as error:
        say(f"{NO_PAGE}: {one_line(error)}")
        return contextlib.nullcontext()


def main() -> None:
    """Serves the page of the run in `sys.argv` until the pipe from the training is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_training, daemon=True).start()
    jax.config.update("jax_platforms", "cpu")  # an accelerator belongs to the training
    find_modules_here()
    folder, cache = sys.argv[1:]
    compile_cache.use(cache, say=lambda line: None)  # the training says it
    try:
        server = _server_of(folder)
    except UsageError as error:
        print(f"{NO_PAGE}: {error}", flush=True)
        return
    print(f"{LOOK_AT}{server.address}   while it trains", flush=True)
    server.serve()


def _server_of(folder: str) -> LiveServer:
    """A server on the usual port, or on any that is free: several trainings may be watched."""
    watched = open_folder(folder, trust=True)  # the training has imported the same code
    try:
        return LiveServer(watched, PORT)
    except UsageError:
        return LiveServer(watched, 0)


def _end_with_training() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdin.read()
    time.sleep(LAST_LOOK_SECONDS)
    os._exit(0)  # Python's own end would wait for a program that JAX compiles
