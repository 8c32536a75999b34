"""Ctrl-C ends a command."""

import signal
import threading

from jaxrl.run.signals import break_off


def hear_ctrl_c(*, where_ignored: bool = False) -> None:
    """Lets Ctrl-C `break_off` the command of this process.

    Args:
        where_ignored: also where the signal is ignored, as shells arrange it for what they run in
            the background.
    """
    handler = signal.getsignal(signal.SIGINT)
    replaced = {signal.default_int_handler, *([signal.SIG_IGN] if where_ignored else [])}
    if handler in replaced and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, break_off)
