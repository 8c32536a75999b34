"""Declaring and checking settings: a default, a help text, and what is allowed, said once."""

import dataclasses
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxrl.core import foreign_names
from jaxrl.core.errors import UsageError, brief, nearest, unknown_name
from jaxrl.core.foreign_names import Counterpart, counterpart
from jaxrl.core.trust import Kind

Check = Callable[[str, Any], None]
C = TypeVar("C")


Read = Callable[[str, Any], Any]
INT32, UINT32, INT64, FLOAT32 = 2**31 - 1, 2**32 - 1, 2**63 - 1, 3.4028235e38  # the most of each


def setting(
    default: Any,
    help: str,
    check: Check | None = None,
    *,
    traced: bool = False,
    read: Read | None = None,
    kind: Kind | None = None,
) -> Any:
    """A field of a configuration.

    Args:
        help: what it means; in `--help` and in the class's docstring.
        check: refuses values that are not allowed.
        traced: it is a number that never causes a compilation.
        read: gives a value's usual form, for one that may be written in several.
        kind: of the objects that it may name as "module:Name"; a file may name only some of these.
    """
    metadata = {"help": help, "check": check, "traced": traced, "read": read, "kind": kind}
    return dataclasses.field(default=default, metadata=metadata)


def count(least: int = 1, most: int = INT32, *, optional: bool = False) -> Check:
    """An integer from `least` to `most`; if `optional`, None as well."""
    bounds = f"of at least {least}"

    def check(name, value):
        if value is None and optional:
            return
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            raise UsageError(
                f"{name}={brief(value)} must be an integer {bounds}{' or None' if optional else ''}"
            )
        if value > most:
            raise UsageError(f"{name}={brief(value)} must be an integer of at most {most}")

    check.whole = True
    return check


def number(
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    optional: bool = False,
) -> Check:
    """A finite number within [low, high], or (low, high]; if `optional`, None and infinity as well."""
    interval = (
        f"{'(' if open_low else '['}{low:g}, {high:g}]"
        if high < math.inf
        else f"{'>' if open_low else '>='} {low:g}"
    )

    def check(name, value):
        if value is None and optional:
            return
        if isinstance(value, int) and abs(value) > FLOAT32:
            raise UsageError(f"{name}={brief(value)} is more than float32 holds, {FLOAT32:g}")
        valid = (
            isinstance(value, int | float | np.number)
            and not isinstance(value, bool)
            and not math.isnan(value)
        )
        valid = valid and (optional or not math.isinf(value))
        if not valid or value > high or value < low or (open_low and value == low):
            wanted = f"in {interval}" if high < math.inf else interval
            raise UsageError(
                f"{name}={brief(value)} must be a number {wanted}{' or None' if optional else ''}"
            )
        if not math.isinf(value) and abs(value) > FLOAT32:
            raise UsageError(f"{name}={brief(value)} is more than float32 holds, {FLOAT32:g}")
        if open_low and np.float32(value) == np.float32(low):
            raise UsageError(f"{name}={brief(value)} is {low:g} in float32, and must be above it")

    return check


def one_of(*allowed: Any) -> Check:
    def check(name, value):
        if value not in allowed:
            raise unknown_name(name, value, map(str, allowed))

    return check


def names(name: str, value: Any) -> None:
    """None, or a tuple of strings."""
    if value is not None and not (
        isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    ):
        raise UsageError(f"{name}={brief(value)} must be a list of names")


def pairs(what: str) -> Check:
    """A frozen mapping from strings."""

    def check(name, value):
        if not isinstance(value, tuple) or not all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in value
        ):
            raise UsageError(f"{name}={brief(value)} must be a mapping {what}")

    return check


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={brief(value)} must be True or False")


def freeze(value: Any) -> Any:
    """Lists as tuples and mappings as tuples of pairs, all the way down, so that a configuration can be hashed."""
    if isinstance(value, Mapping):
        return tuple((key, freeze(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(freeze(part) for part in value)
    return freeze(np.asarray(value).tolist()) if is_array(value) else value


def is_array(value: Any) -> bool:
    """Whether this is an array or a number of NumPy, JAX or PyTorch."""
    return all(hasattr(value, name) for name in ("__array__", "dtype", "shape")) and not isinstance(
        value, type
    )


def as_number(value: Any) -> Any:
    """A number of NumPy, JAX or PyTorch, which has no axes, as Python's; anything else as it is."""
    try:
        return np.asarray(value).item() if is_array(value) and not np.shape(value) else value
    except (TypeError, ValueError):  # a traced one, or a random key
        return value


def as_count(value: Any) -> Any:
    """A whole float such as 1e6, and an array of one, as an int; anything else as it is."""
    value = as_number(np.reshape(value, ()) if is_array(value) and np.size(value) == 1 else value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def frozen_fields(config: Any) -> None:
    """Gives every field of a frozen dataclass its usual form, which can be hashed.

    Numbers and arrays of NumPy and JAX become Python's; an array of one number is that number, and
    a whole float such as 1e6 a count, where the setting is one.

    Raises:
        UsageError: a value that no form can be found for; names the setting.
    """
    for field in dataclasses.fields(config):
        value, read = getattr(config, field.name), field.metadata["read"]
        try:
            if is_array(value) and np.size(value) == 1 and not isinstance(field.default, tuple):
                value = np.asarray(value).reshape(())
            value = freeze(value)
        except (
            TypeError,
            ValueError,
            RecursionError,
        ):  # a traced array, or a list that holds itself
            raise UsageError(
                f"{field.name}={brief(value)} is no plain value; a compiled function takes numbers by hypers"
            ) from None
        if getattr(field.metadata["check"], "whole", False):
            value = as_count(value)
        value = value if read is None else read(field.name, value)
        try:
            hash(value)
        except TypeError:
            culprit = _unhashable_part(value)
            what = "is" if culprit is value else f"holds {brief(culprit)},"
            hint = "give a list" if isinstance(culprit, set) else "a setting must be hashable"
            raise UsageError(
                f"{field.name}={brief(value)} {what} a {type(culprit).__name__}: {hint}"
            ) from None
        object.__setattr__(config, field.name, value)


def _unhashable_part(value: Any) -> Any:
    """The innermost part, within tuples, that cannot be hashed."""
    for part in value if isinstance(value, tuple) else ():
        try:
            hash(part)
        except TypeError:
            return _unhashable_part(part)
    return value


class Declared(NamedTuple):
    """The settings of one object that users make, and where they can be read."""

    owner: str  # what a user gives them to: "PPOConfig"
    names: frozenset[str]
    example: str  # how a setting of this owner is given; NAME stands for it
    look: str  # where all of them are explained


_declared: dict[str, Declared] = {}  # by owner: each knows what the others have


def checked(
    owner: str, *, example: str, also: Iterable[str] = (), forms: Callable[[dict], dict] = dict
) -> Callable[[type[C]], type[C]]:
    """A class decorator for a configuration: unknown names are refused, fields explained.

    Args:
        owner: what a user gives these settings to.
        example: how, with NAME for a setting.
        also: arguments that the owner takes beside the class's fields.
        forms: reads other forms of the settings that are given.
    """

    def decorate(cls: type[C]) -> type[C]:
        known = [field.name for field in dataclasses.fields(cls)]
        look = (
            f"help(jaxrl.{cls.__name__}) explains all {len(known)}, and --help on the command line"
        )
        _declared[owner] = Declared(owner, frozenset((*known, *also)), example, look)
        generated = cls.__init__

        def __init__(self, *args, **settings):
            settings = forms(settings)
            for name in settings:
                if name not in known:
                    raise unknown_setting(name, known, owner=owner)
            generated(self, *args, **settings)

        __init__.__wrapped__ = generated
        __init__.__doc__ = generated.__doc__
        cls.__init__ = __init__
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{explained(cls)}\n"
        return cls

    return decorate


def explained(cls: type) -> str:
    """A docstring's section on the fields of `cls`: name, type, default and help text of each."""
    lines = ["Settings:"]
    for field in dataclasses.fields(cls):
        default = str(field.default) if isinstance(field.default, float) else repr(field.default)
        lines.append(f"    {field.name}{_type_shown(field.type)} = {default}")
        lines += textwrap.wrap(
            field.metadata["help"], 84, initial_indent=" " * 8, subsequent_indent=" " * 8
        )
    return "\n".join(lines)


def _type_shown(declared: Any) -> str:
    """`: float | None`; nothing for Any, of which the help text tells."""
    if declared is Any:
        return ""
    text = (
        declared.__name__
        if isinstance(declared, type) and not hasattr(declared, "__args__")
        else str(declared)
    )
    return f": {text.replace('collections.abc.', '').replace('typing.', '')}"


def takes_settings(settings: type) -> Callable[[type[C]], type[C]]:
    """A class decorator: shows the fields of `settings`, which `__init__` takes as keywords, in signature and help."""

    def decorate(cls: type[C]) -> type[C]:
        given = inspect.signature(cls).parameters.values()
        kept = [
            each
            for each in given
            if each.kind != each.VAR_KEYWORD and not each.name.startswith("_")
        ]
        kept += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field.type,
            )
            for field in dataclasses.fields(settings)
        ]
        cls.__signature__ = inspect.Signature(kept)
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{explained(settings)}\n"
        return cls

    return decorate


def unknown_setting(
    name: str, known: Iterable[str], where: str = "", *, owner: str = "", kind: str = "setting"
) -> UsageError:
    """The error for a name that is no setting of `owner`.

    It knows the settings of the other owners, and other libraries' names.

    Args:
        known: the names that are allowed here.
        where: said after the name.
        kind: "flag": names are shown as flags.
    """
    known, plain = set(known), str(name).strip("-").replace("-", "_")
    begin = f"unknown {kind} {brief(str(name))}{where and ' ' + where}"
    if other := _other_owner(plain, owner):
        return UsageError(f"{begin}: {_belongs(plain, other, kind)}")
    if found := _foreign(plain, known):
        return UsageError(f"{begin}{_translated(plain, *found, known, owner, kind)}")
    look = _declared[owner].look if owner in _declared else "--help explains all of them"
    return unknown_name(kind, str(name), map(_shown[kind], known), where, look)


_shown = {"setting": str, "flag": lambda name: f"--{name.rstrip('_').replace('_', '-')}"}


def _foreign(name: str, known: set[str]) -> tuple[str, str, Counterpart] | None:
    """(library, its name, what stands for it); also of a slip in one, unless it is nearer to a known name."""
    exact = counterpart(name, foreign_names.SETTINGS)
    if exact is not None:
        return exact[0], name, exact[1]
    theirs = [key for table in foreign_names.SETTINGS.values() for key in table]
    ours = [key.rstrip("_") for key in known]
    near = nearest(name, [*ours, *theirs], 1)
    if not near or near[0] in ours:
        return None
    library, found = counterpart(near[0], foreign_names.SETTINGS)
    return library, near[0], found


def _translated(
    name: str, library: str, theirs: str, found: Counterpart, known: set[str], owner: str, kind: str
) -> str:
    """The part of an error that follows another library's name."""
    perhaps = "" if name == theirs else f"perhaps {theirs}, "
    if not found.ours:
        return f": {perhaps}{library}'s name; {found.note}"
    other = None if found.ours in known else _other_owner(found.ours, owner)
    elsewhere = f"; {_belongs(found.ours, other, kind)}" if other else ""
    note = found.note and f"; {found.note}"
    return f": {perhaps}{library}'s name for {_shown[kind](found.ours)}{elsewhere}{note}"


def _other_owner(name: str, owner: str) -> Declared | None:
    others = (declared for declared in _declared.values() if declared.owner != owner)
    return next((declared for declared in others if name in declared.names), None)


def _belongs(name: str, other: Declared, kind: str) -> str:
    if kind == "flag":
        return f"{_shown[kind](name)} is a flag of train_ppo.py"
    return f"{other.owner} has it: {other.example.replace('NAME', name)}"


def check_all(config: Any) -> None:
    """Runs the check of every field that has one."""
    for field in dataclasses.fields(config):
        if field.metadata.get("check") is not None:
            field.metadata["check"](field.name, getattr(config, field.name))
