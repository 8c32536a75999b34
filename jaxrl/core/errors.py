"""What a user hears about a mistake: one line with the value, what is allowed and the nearest match."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Something the user asked for cannot work; the command line prints the message as one line."""


def one_line(error: BaseException) -> str:
    """What an error says, in one line of at most 200 characters."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    return f"{text:.200}"


def unknown_name(kind: str, name: str, allowed: Iterable[str], where: str = "") -> UsageError:
    """The error for a name that is none of `allowed`: `unknown setting 'lrr'; did you mean 'lr'? known: ...`."""
    allowed = sorted(allowed)
    nearest = difflib.get_close_matches(str(name), allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ";"
    return UsageError(
        f"unknown {kind} {str(name)!r}{where and ' ' + where}{hint} known: {', '.join(allowed) or 'none'}"
    )
