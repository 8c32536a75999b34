"""Error messages for users: one line with the value, what is allowed and the nearest match."""

import contextlib
import difflib
import errno
import functools
import importlib.util
import inspect
import itertools
import re
import reprlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

# The smallest ratio of difflib that counts as similar. Below it, names share letters by chance:
# use_gae and use_gru have 0.71.
MIN_SIMILARITY = 0.75
MAX_LIST_CHARACTERS = 240  # of a list of names in an error's line
MANY_CHARACTERS = 800  # of one whose names are not all to be found elsewhere
WHERE_RESULTS_ARE = "each row of a run's metrics.jsonl holds them all"

OF_DISK = {  # the numbers of errors: full, a file too large, a quota, broken, read-only
    getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT", "EIO", "EROFS")
} - {None}
PACKAGE = Path(__file__).parents[1]
IS_CHECKOUT = not (PACKAGE / "envs" / "cartpole.py").exists()
LIBRARY_FOLDERS = (  # code that no user wrote: this package, and the standard library
    PACKAGE,
    *([PACKAGE.parent / "envs"] if IS_CHECKOUT else []),
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
)
# One line for each of JAX's errors about Python code on traced arrays.
TRACING_ERRORS = {
    "TracerBoolConversionError": (
        "a Python `if`, `and`, `or` or `not` of a traced array; use jnp.where or lax.cond"
    ),
    "TracerIntegerConversionError": (
        "a traced array as a Python index or length; use jnp.take or a fixed shape"
    ),
    "TracerArrayConversionError": "a NumPy function of a traced array; use jax.numpy",
    "ConcretizationTypeError": (
        "a Python number made of a traced array, or a shape that depends on one; use jax.numpy"
    ),
}


class UsageError(ValueError):
    """A user's mistake; the command line prints the message as one line."""


class NoAttribute(UsageError, AttributeError):
    """A method or attribute of another library's, or none at all."""


class AnswersOtherWords:
    """A class whose users may ask for methods and attributes by other libraries' names."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Is called for what the object does not have; says the word for it here."""
            if name.startswith("_") or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # which fails as it did
            owners = [base.__name__ for base in type(self).__mro__]
            raise no_attribute(name, owners, dir(self))


def no_attribute(name: str, owners: Sequence[str], words: Iterable[str]) -> NoAttribute:
    """The error on an attribute that something has not: another library's, or mistyped.

    Args:
        owners: its own name and those whose words it has too.
        words: the attributes that it has.
    """
    from jaxrl.core.foreign_names import CALLS, said_of

    found = next(filter(None, (said_of(name, f"{CALLS} {owner}") for owner in owners)), None)
    if found is not None:
        return NoAttribute(f"{owners[0]} has no {name!r}: {found}")
    near = nearest(name, [word for word in words if not word.startswith("_")])
    hint = f"; did you mean {either(near)}?" if near else ""
    return NoAttribute(f"{owners[0]} has no {name!r}{hint}")


class SpaceMethods:
    """A class whose methods `observation_space` and `action_space` tell that they are no spaces."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in ("observation_space", "action_space"):
            if isinstance(method := vars(cls).get(name), FunctionType):
                setattr(cls, name, _SpaceMethod(method))


class _SpaceMethod:
    def __init__(self, method: FunctionType):
        self.method = method

    def __get__(self, env: Any, owner: type) -> Any:
        return self.method if env is None else _BoundSpaceMethod(self.method, env)


class _BoundSpaceMethod(functools.partial):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        env, method = type(self.args[0]).__name__, self.func.__name__
        call = f"env.{method}({', '.join(inspect.signature(self).parameters)})"
        raise NoAttribute(f"{env}.{method} is a method, and has no {name!r}: {call}.{name}")


class TooManyFaults(RuntimeError):
    """The environment failed again and again: training cannot go on."""


def is_installed(package: str) -> bool:
    """Returns whether a package can be imported, without importing it."""
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
    said = getattr(error, "strerror", None) or _message_of(error)
    text = " ".join(str(said).split()) or type(error).__name__
    return f"{text:.200}"


def disk_error(error: BaseException) -> OSError | None:
    """The error of a disk that takes no more, if it or the one that it was raised for is that."""
    found = error.__context__ if isinstance(error, UsageError) else error
    return found if isinstance(found, OSError) and found.errno in OF_DISK else None


def reason_of(error: BaseException) -> str:
    """The reason why code that a user wrote failed: `KeyError: 'left' (corridor.py:30)`."""
    kind = type(error).__name__
    said = next(iter(_message_of(error).splitlines()), "")
    said = TRACING_ERRORS.get(kind) or (said if len(said) <= 200 else f"{said:.200} ...")
    frames = traceback.extract_tb(error.__traceback__)
    written = [frame for frame in frames if _is_written_by_a_user(frame.filename)]
    where = f" ({Path(written[-1].filename).name}:{written[-1].lineno})" if written else ""
    return f"{kind}: {said}{where}"


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of code that is not ours, in one line that begins with `what` could not be done."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{what}: {reason_of(error)}") from error


def _message_of(error: BaseException) -> str:
    """The message of an error; empty where a user's class fails to give one."""
    try:
        return str(error)
    except Exception:
        return ""


def _is_written_by_a_user(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<frozen") or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in LIBRARY_FOLDERS)


class _Short(reprlib.Repr):
    """The beginning of what `repr` gives, without the rest of large containers and texts."""

    def __init__(self):
        super().__init__()
        self.maxlevel = self.maxlist = self.maxtuple = self.maxdict = self.maxset = 30
        self.maxstring = self.maxother = self.maxlong = 400

    def repr_dict(self, x: dict, level: int) -> str:
        """The items in their order, which `reprlib` would sort."""
        if level <= 0:
            return "{...}"
        few = itertools.islice(x.items(), self.maxdict)
        pieces = [f"{self.repr1(name, level)}: {self.repr1(x, level - 1)}" for name, x in few]
        return f"{{{', '.join(pieces)}}}"


_SHORT = _Short()


def counted(number: int, noun: str) -> str:
    """ "1 epoch", "2,000 epochs"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def brief(value: Any) -> str:
    """A value in one line of at most 80 characters."""
    try:
        text = " ".join(_SHORT.repr(value).split())
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def named_policy(policy: str | None, allowed: Sequence[str], where: str) -> str:
    """The policy of that name; None: the only one that there is.

    Raises:
        UsageError: no such policy, or several and no name.
    """
    if policy is None and len(allowed) > 1:
        names = ", ".join(allowed)
        raise UsageError(f"{where} holds {len(allowed)} policies; name one of them: {names}")
    policy = allowed[0] if policy is None else policy
    if policy not in allowed:
        raise unknown_name("policy", policy, allowed, f"in {where}")
    return policy


def unknown_name(
    kind: str,
    name: str,
    allowed: Iterable[str],
    where: str = "",
    look: str = "",
    most: int = MAX_LIST_CHARACTERS,
) -> UsageError:
    """The error for a name that is not in `allowed`.

    For example `unknown policy 'pol3'; did you mean 'pol1'? known: ...`.

    Args:
        where: follows the name in the message.
        look: where to find all names, if they are too many for a line.
        most: characters of the list of all names; a longer one is only counted.
    """
    name, allowed = name if isinstance(name, str) else brief(name), sorted(map(str, allowed))
    near = nearest(name, allowed)
    hint = f"; did you mean {either(near)}?" if near else ";"
    begin = f"unknown {kind} {brief(name)}{where and ' ' + where}"
    return UsageError(f"{begin}{hint} {_known(allowed, near, look, most)}")


def unknown_result(kind: str, path: str, allowed: Iterable[str]) -> UsageError:
    """The error for a path that results do not have.

    It knows other libraries' names, and completes the end of a path ("episode_return_mean").
    """
    from jaxrl.core.foreign_names import RESULTS, counterpart

    path, allowed = str(path), sorted(allowed)
    last_parts = dict.fromkeys(result.rpartition("/")[2] for result in allowed)
    ends = [path, *nearest(path, last_parts, most=1)]
    by_length = sorted(allowed, key=len)
    meant = [result for end in ends for result in by_length if result.endswith(f"/{end}")][:1]
    foreign = counterpart(path, RESULTS)
    note = ""
    if foreign is not None and foreign[1].here in allowed:
        meant, note = [foreign[1].here], foreign[1].note and f"{foreign[1].note}; "
    if not meant:
        return unknown_name(kind, path, allowed, look=WHERE_RESULTS_ARE)
    hint = f"did you mean {meant[0]!r}? {note}{_known(allowed, meant, WHERE_RESULTS_ARE)}"
    return UsageError(f"unknown {kind} {brief(path)}; {hint}")


def nearest(name: str, allowed: Iterable[str], most: int = 3) -> list[str]:
    """The allowed names most similar to `name`, the nearest first; empty if none is similar."""
    plain = {candidate: _plain(candidate) for candidate in allowed}
    plain_name = _plain(name)
    found = [candidate for candidate, text in plain.items() if text == plain_name]
    found += difflib.get_close_matches(name, plain, n=most, cutoff=MIN_SIMILARITY)
    if len(plain_name) >= 3:  # the beginning of a name, or its words in another order
        words = set(plain_name.split("_"))
        found += [candidate for candidate, text in plain.items() if text.startswith(plain_name)]
        found += [candidate for candidate, text in plain.items() if set(text.split("_")) == words]
    return list(dict.fromkeys(found))[:most]


def unlike(name: str, saved: Any, needed: Any) -> str:
    """The text of a difference between a checkpoint and the configuration that reads it."""
    return f"{name}: the checkpoint has {saved}, this configuration needs {needed}"


def either(names: list[str]) -> str:
    """`'a'`, `'a' or 'b'`, `'a', 'b' or 'c'`."""
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _plain(name: str) -> str:
    """`clip_param` for `--clip-param`, `clipParam` and `Clip_Param`."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return name.strip("-_").replace("-", "_").lower()


def _known(allowed: list[str], near: list[str], look: str, most: int = MAX_LIST_CHARACTERS) -> str:
    """The allowed names if one line holds them, else how many there are and where to look."""
    if len(text := ", ".join(allowed) or "none") <= most:
        return f"known: {text}"
    if look:
        return look
    some = ", ".join((near or allowed)[:3])
    return f"known: {len(allowed)} names" + ("" if near else f", such as {some}")
