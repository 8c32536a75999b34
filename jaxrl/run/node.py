"""The machine that a run trains on, as RLlib's results call it: a node."""

import contextlib
import functools
import os
import socket

ELSEWHERE = ("192.0.2.1", 9)  # an address of documentation: a datagram's socket sends nothing to it
LOOPBACK = "127.0.0.1"


def place() -> dict[str, str | int]:
    """The machine and the process, under RLlib's names."""
    return {"hostname": socket.gethostname(), "pid": os.getpid(), "node_ip": _address()}


def utilisation() -> dict[str, float]:
    """The machine's load in percent, under RLlib's names; {} where psutil is not installed.

    The processor's is that since the last call.
    """
    try:
        import psutil
    except ImportError:
        return {}
    cpu, ram = psutil.cpu_percent(), psutil.virtual_memory().percent
    return {"cpu_util_percent": cpu, "ram_util_percent": ram}


@functools.cache
def _address() -> str:
    """The address by which this machine reaches others, if it does."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(ELSEWHERE)
        return probe.getsockname()[0]
    return LOOPBACK
