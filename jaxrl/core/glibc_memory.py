"""Memory that glibc's allocator keeps; with another C library nothing is done.

For its threads glibc has up to eight arenas a core, and each keeps what it once needed. In a
training many threads come and go, and each time another arena grows: megabytes an hour, until all
have grown.
"""

import ctypes
import functools
import os
from typing import Any

M_ARENA_MAX = -8  # malloc.h
VARIABLE = "MALLOC_ARENA_MAX"  # glibc's own, for users, and its newer form:
TUNABLES, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.arena_max"


def limit_arenas() -> None:
    """Limits glibc to one arena per core. Call it before threads start: existing arenas stay.

    A limit that the user has set stands.
    """
    if VARIABLE in os.environ or TUNABLE in os.environ.get(TUNABLES, ""):
        return
    if (mallopt := _function("mallopt")) is not None:
        mallopt(M_ARENA_MAX, os.cpu_count() or 1)


def give_back() -> None:
    """Asks glibc to return its free memory to the system."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@functools.cache
def _function(name: str) -> Any:
    """One of glibc's own functions; None in another C library."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, TypeError, AttributeError):  # Windows has no CDLL(None)
        return None
