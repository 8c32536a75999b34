"""The errors that users meet: one line with the value, what is allowed and the nearest match."""

import difflib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxrl.core import foreign_names

NEAR = (
    0.75  # of difflib's ratio: below it, names share letters by chance (use_gae and use_gru: 0.71)
)
SHORT = 200  # characters of a list of names that one line still holds
PATHS = "each row of a run's metrics.jsonl holds them all"


PACKAGE = Path(__file__).parents[1]
IS_CHECKOUT = not (PACKAGE / "envs" / "cartpole.py").exists()
NOT_THEIRS = (  # folders of code that no user wrote: ours, and the standard library
    PACKAGE,
    *([PACKAGE.parent / "envs"] if IS_CHECKOUT else []),
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
)
# What JAX says of Python's own control flow, in one line of ours.
TRACED = {
    "TracerBoolConversionError": "a Python `if`, `and`, `or` or `not` of a traced array; use jnp.where or lax.cond",
    "TracerIntegerConversionError": "a traced array as a Python index or length; use jnp.take or a fixed shape",
    "TracerArrayConversionError": "a NumPy function of a traced array; use jax.numpy",
    "ConcretizationTypeError": "a Python number made of a traced array, or a shape that depends on one; use jax.numpy",
}


class UsageError(ValueError):
    """Something the user asked for cannot work; the command line prints the message as one line."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported; nothing is imported."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return importlib.util.find_spec(package) is not None


def require(package: str, what: str, install: str = "") -> None:
    """Raises UsageError where a package is not installed: `what` needs it.

    Args:
        install: what pip calls it, if not by the name that is imported.
    """
    if not is_installed(package):
        name = install or package
        raise UsageError(f"{what} needs {name}, which is not installed: pip install {name}")


def one_line(error: BaseException) -> str:
    """The message of an error, in one line of at most 200 characters."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    return f"{text:.200}"


def reason_of(error: BaseException) -> str:
    """The reason why code that a user wrote failed: `KeyError: 'left' (corridor.py:30)`."""
    kind = type(error).__name__
    said = next(iter(str(error).splitlines()), "")
    said = TRACED.get(kind) or (said if len(said) <= 300 else f"{said:.300} ...")
    frames = traceback.extract_tb(error.__traceback__)
    written = [frame for frame in frames if _is_written_by_a_user(frame.filename)]
    where = f" ({Path(written[-1].filename).name}:{written[-1].lineno})" if written else ""
    return f"{kind}: {said}{where}"


def _is_written_by_a_user(filename: str) -> bool:
    path = Path(filename)
    by_others = filename.startswith("<frozen") or not {"site-packages", "dist-packages"}.isdisjoint(
        path.parts
    )
    return not by_others and not any(path.is_relative_to(folder) for folder in NOT_THEIRS)


def brief(value: Any) -> str:
    """A value for people: one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def unknown_name(
    kind: str, name: str, allowed: Iterable[str], where: str = "", look: str = ""
) -> UsageError:
    """The error for a name that is none of `allowed`: `unknown policy 'pol3'; did you mean 'pol1'? known: ...`.

    Args:
        where: said after the name.
        look: says where all names can be read, if they are too many for a line.
    """
    name, allowed = name if isinstance(name, str) else brief(name), sorted(map(str, allowed))
    near = nearest(name, allowed)
    hint = f"; did you mean {either(near)}?" if near else ";"
    return UsageError(
        f"unknown {kind} {brief(name)}{where and ' ' + where}{hint} {_known(allowed, near, look)}"
    )


def unknown_result(kind: str, path: str, allowed: Iterable[str]) -> UsageError:
    """The error for a path that results do not have; knows other libraries' names and paths without their beginning."""
    path, allowed = str(path), sorted(allowed)
    meant = sorted((known for known in allowed if known.endswith(f"/{path}")), key=len)[:1]
    foreign = foreign_names.counterpart(path, foreign_names.RESULTS)
    note = ""
    if foreign is not None and foreign[1].ours in allowed:
        meant, note = [foreign[1].ours], foreign[1].note and f"{foreign[1].note}; "
    if not meant:
        return unknown_name(kind, path, allowed, look=PATHS)
    return UsageError(
        f"unknown {kind} {brief(path)}; did you mean {meant[0]!r}? {note}{_known(allowed, meant, PATHS)}"
    )


def nearest(name: str, allowed: Iterable[str], most: int = 3) -> list[str]:
    """The names that `name` may be a slip of, the likeliest first; none where likeness is only chance."""
    plain = {known: _plain(known) for known in allowed}
    wanted = _plain(name)
    found = [known for known, text in plain.items() if text == wanted]
    found += difflib.get_close_matches(name, plain, n=most, cutoff=NEAR)
    if len(wanted) >= 3:  # a beginning, or the same words in another order
        words = set(wanted.split("_"))
        found += [known for known, text in plain.items() if text.startswith(wanted)]
        found += [known for known, text in plain.items() if set(text.split("_")) == words]
    return list(dict.fromkeys(found))[:most]


def either(names: list[str]) -> str:
    """`'a'`, `'a' or 'b'`, `'a', 'b' or 'c'`."""
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _plain(name: str) -> str:
    """`--clip-param`, `clipParam` and `Clip_Param` alike as `clip_param`."""
    name = "".join(
        f"_{c.lower()}" if c.isupper() and i and name[i - 1].islower() else c
        for i, c in enumerate(name)
    )
    return name.strip("-_").replace("-", "_").lower()


def _known(allowed: list[str], near: list[str], look: str) -> str:
    """The allowed names where a line holds them, else how many there are and where to look."""
    if len(text := ", ".join(allowed) or "none") <= SHORT:
        return f"known: {text}"
    if look:
        return look
    some = ", ".join((near or allowed)[:3])
    return f"known: {len(allowed)} names" + ("" if near else f", such as {some}")
