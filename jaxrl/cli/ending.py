"""The one line in which a command ends: for a mistake as for Ctrl-C."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from jaxrl.core.errors import UsageError
from jaxrl.run.command_line import is_of_a_command, program
from jaxrl.run.devices.mesh import hosts
from jaxrl.run.signals import break_off


@contextlib.contextmanager
def ends_in_one_line(name: str, stopped: str = "stopped") -> Iterator[None]:
    """Ends the command `name` with one line: with code 2 at a `UsageError`, with 1 at Ctrl-C.

    Args:
        stopped: what Ctrl-C's line says.
    """
    before = signal.getsignal(signal.SIGINT)
    hear_ctrl_c()
    try:
        yield
    except UsageError as error:
        print(f"{program(name)}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # Ctrl-C ended who reads it, too
            print(f"{program(name)}: {stopped}", file=sys.stderr)
        leave(1)
    finally:
        if signal.getsignal(signal.SIGINT) == break_off and _is_in_main_thread():
            signal.signal(signal.SIGINT, before)


def leave(code: int) -> NoReturn:
    """Ends the command after Ctrl-C.

    XLA goes on with what it is compiling, and a Python that ends by itself meanwhile crashes
    (segmentation fault). One of several processes ends by itself all the same, for only then does
    it tell the others.
    """
    if is_of_a_command() and hosts() is None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def hear_ctrl_c(*, where_ignored: bool = False) -> None:
    """Makes Ctrl-C end the command of this process, by `break_off`.

    Args:
        where_ignored: also where the signal is ignored, as shells arrange it for what they run in
            the background.
    """
    handler = signal.getsignal(signal.SIGINT)
    replaced = {signal.default_int_handler, *([signal.SIG_IGN] if where_ignored else [])}
    if handler in replaced and _is_in_main_thread():
        signal.signal(signal.SIGINT, break_off)


def _is_in_main_thread() -> bool:
    """Returns whether handlers of signals can be set."""
    return threading.current_thread() is threading.main_thread()
