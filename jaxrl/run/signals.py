"""Stop signals (Ctrl-C, SIGTERM, SIGHUP): training stops between two chunks, not within one."""

import _thread
import gc
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from types import FrameType

# Job schedulers send SIGTERM before they kill; SIGHUP comes when the terminal closes, but not on
# Windows.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
LATER_SECONDS = 0.01


def break_off(number: int, frame: FrameType | None) -> None:
    """Handler that raises `KeyboardInterrupt`, also if the garbage collector is at work.

    A signal that comes during a collection is handled within JAX's callback of the collector, from
    which Python lets no exception out; so the handler is called a second time, a little later.
    """
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks:
            # `pthread_kill` wakes the thread if it waits; Windows has none.
            send = getattr(signal, "pthread_kill", lambda _, number: _thread.interrupt_main(number))
            threading.Timer(LATER_SECONDS, send, [threading.get_ident(), number]).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


class StopSignal:
    """The user's request to stop: `heard` names the signal, and is empty before."""

    def __init__(self, say: Callable[[str], None]):
        self.say = say
        self.heard = ""
        self._listens = False

    @contextmanager
    def listening(self):
        """Inside it the first signal is noted and the second one breaks off at once.

        Inside another one of the same object it changes nothing.
        """
        if self._listens:
            yield
            return
        self.heard, self._listens = "", True
        numbers = _wanted() if threading.current_thread() is threading.main_thread() else []
        previous = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._listens = False

    def hear(self, who: str) -> None:
        """The first wish to stop, whoever has it."""
        if not self.heard:
            self.heard = who
            self.say(
                f"{who}: stopping after the current iterations; a second time stops immediately"
            )

    def _hear(self, number, frame) -> None:
        if self.heard:
            break_off(number, frame)
        else:
            self.hear("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


def _wanted() -> list[signal.Signals]:
    """The signals to listen to: not SIGHUP where `nohup` has turned it off."""
    hangup = getattr(signal, "SIGHUP", None)
    return [stop for stop in SIGNALS if stop != hangup or signal.getsignal(stop) != signal.SIG_IGN]
