"""Settings as dataclass fields: default, help text and allowed values, declared once."""

import dataclasses
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief, nearest, unknown_name
from jaxrl.core.frozen import freeze, is_array
from jaxrl.core.trust import Kind

Check = Callable[[str, Any], None]
Read = Callable[[str, Any], Any]
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])

# The largest number of each type.
INT32, UINT32, INT64, FLOAT32 = 2**31 - 1, 2**32 - 1, 2**63 - 1, 3.4028235e38
MAX_CHOICES = 24  # characters of the allowed values that a help page lists


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
        help: the explanation in `--help` and in the class's docstring.
        check: rejects values that are not allowed; `jaxrl.core.words.written` gives it the form of
            the setting's flag, else the flag takes one value.
        traced: it is a number that never causes a compilation.
        read: converts a value to its usual form, if there are several ways to write it.
        kind: the kind of objects that it may name as "module:Name"; a file may name only some.
    """
    metadata = {"help": help, "check": check, "traced": traced, "read": read, "kind": kind}
    return dataclasses.field(default=default, metadata=metadata)


def count(least: int = 1, most: int = INT32, *, optional: bool = False) -> Check:
    """An integer from `least` to `most`; if `optional`, None as well."""
    requirement = f"an integer of at least {least}{' or None' if optional else ''}"

    def check(name, value):
        if value is None and optional:
            return
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            raise UsageError(f"{name}={brief(value)} must be {requirement}")
        if value > most:
            raise UsageError(f"{name}={brief(value)} must be an integer of at most {most}")

    check.whole, check.value = True, "N"
    return check


def number(
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    optional: bool = False,
) -> Check:
    """A finite number in [low, high], or (low, high]; if `optional`, None and infinity as well."""
    if high < math.inf:
        interval = f"in {'(' if open_low else '['}{low:g}, {high:g}]"
    else:
        interval = f"{'>' if open_low else '>='} {low:g}"
    requirement = f"a number {interval}{' or None' if optional else ''}"

    def check(name, value):
        if value is None and optional:
            return
        if isinstance(value, int) and abs(value) > FLOAT32:
            raise UsageError(f"{name}={brief(value)} is more than float32 holds, {FLOAT32:g}")
        valid = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        valid = valid and not math.isnan(value) and (optional or not math.isinf(value))
        if not valid or value > high or value < low or (open_low and value == low):
            raise UsageError(f"{name}={brief(value)} must be {requirement}")
        if not math.isinf(value) and abs(value) > FLOAT32:
            raise UsageError(f"{name}={brief(value)} is more than float32 holds, {FLOAT32:g}")
        if open_low and np.float32(value) == np.float32(low):
            raise UsageError(f"{name}={brief(value)} is {low:g} in float32, and must be above it")

    check.value = "NUMBER"
    return check


def least_count(share: float, number: int) -> int:
    """The least whole number that is at least this share of `number`, 1 or more.

    3**-5 of 729 is 3, and 0.55 of 100 is 55, though the products round to a little more.
    """
    return math.ceil(share * number * (1 - 1e-12))


def one_of(*allowed: Any) -> Check:
    def check(name, value):
        if not (isinstance(value, Hashable) and value in allowed):
            raise unknown_name(name, value, map(str, allowed))

    choices = "|".join(map(str, allowed))
    check.value = choices if len(choices) <= MAX_CHOICES else "NAME"
    return check


def names(name: str, value: Any) -> None:
    """None, or a tuple of strings."""
    if value is None:
        return
    if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
        raise UsageError(f"{name}={brief(value)} must be a list of names")


def pairs(what: str, frozen: Callable[[Any], Any] = freeze) -> Check:
    """A mapping from strings, which `frozen` gives its hashable form."""

    def is_pair(part):
        return isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str)

    @words.written(words.or_none(words.pairs), "NAME=VALUE")
    def check(name, value):
        if not isinstance(value, tuple) or not all(map(is_pair, value)):
            raise UsageError(f"{name}={brief(value)} must be a mapping {what}")

    check.frozen = frozen
    return check


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name}={brief(value)} must be True or False")


flag.value = "True|False"


def optional_flag(name: str, value: Any) -> None:
    if value is not None:
        flag(name, value)


optional_flag.value = flag.value


def file_path(what: str, *, optional: bool = False) -> Check:
    """A path that is written as a text or a `Path`; if `optional`, None as well."""
    is_path = lambda value: isinstance(value, str | Path) and _is_text(str(value))
    return words.written(words.as_text, None, False, "PATH")(_allowed(is_path, what, optional))


def text(what: str, *, optional: bool = False) -> Check:
    """A text that is not empty; if `optional`, None as well."""
    check = _allowed(lambda value: isinstance(value, str) and _is_text(value), what, optional)
    check.value = "NAME"
    return check


def instance_of(kind: type, what: str, *, optional: bool = False) -> Check:
    """An object of a class, or of one of several; if `optional`, None as well."""
    return _allowed(lambda value: isinstance(value, kind), what, optional)


def function(*, optional: bool = False) -> Check:
    """Anything that can be called; if `optional`, None as well."""
    return _allowed(callable, "a function", optional)


def _is_text(value: str) -> bool:
    return bool(value) and "\0" not in value


def _allowed(is_allowed: Callable[[Any], bool], what: str, optional: bool) -> Check:
    """The check of values that are `what`."""

    def check(name, value):
        if not (is_allowed(value) or (value is None and optional)):
            requirement = f"{what}{', or None' if optional else ''}"
            raise UsageError(f"{name}={brief(value)} must be {requirement}")

    return check


class UnknownArgument(UsageError, TypeError):
    """A keyword that a function does not take."""


def takes(**checks: Check) -> Callable[[F], F]:
    """A function decorator: its arguments are checked by name, and misspelt ones are named."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        parameters = [name for name in signature.parameters if name != "self"]
        takes_any = any(
            parameter.kind == parameter.VAR_KEYWORD for parameter in signature.parameters.values()
        )

        @functools.wraps(function)
        def checked_call(*args, **keywords):
            unknown = () if takes_any else [name for name in keywords if name not in parameters]
            if unknown:
                where = f"of {function.__qualname__.removesuffix('.__init__')}"
                raise UnknownArgument(str(unknown_name("argument", unknown[0], parameters, where)))
            for name, value in (*zip(signature.parameters, args, strict=False), *keywords.items()):
                if name in checks:
                    checks[name](name, value)
            return function(*args, **keywords)

        return checked_call

    return decorate


def as_number(value: Any) -> Any:
    """A Python number for a scalar of NumPy, JAX or PyTorch; anything else is unchanged."""
    try:
        return np.asarray(value).item() if is_array(value) and not np.shape(value) else value
    except (TypeError, ValueError):  # a traced one, or a random key
        return value


def as_count(value: Any) -> Any:
    """An int for a whole float such as 1e6 or an array with one entry; else unchanged."""
    value = as_number(np.reshape(value, ()) if is_array(value) and np.size(value) == 1 else value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def frozen_fields(config: Any) -> None:
    """Converts every field of a frozen dataclass to its usual form, which can be hashed.

    Numbers and arrays of NumPy and JAX become Python's, an array with one entry becomes a number,
    and a whole float such as 1e6 becomes an int if the setting is a count.

    Raises:
        UsageError: a value that has no such form; names the setting.
    """
    for field in dataclasses.fields(config):
        value, read = getattr(config, field.name), field.metadata["read"]
        try:
            if is_array(value) and np.size(value) == 1 and not isinstance(field.default, tuple):
                value = np.asarray(value).reshape(())
            value = getattr(field.metadata["check"], "frozen", freeze)(value)
        except (TypeError, ValueError, RecursionError):  # traced, or a list that holds itself
            raise UsageError(
                f"{field.name}={brief(value)} is no plain value; a compiled function takes numbers "
                "by hypers"
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
            kind = type(culprit).__name__
            raise UsageError(f"{field.name}={brief(value)} {what} a {kind}: {hint}") from None
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
    """The settings of a class or function, and where they are explained."""

    owner: str  # the class or function: "PPOConfig"
    names: frozenset[str]
    example: str  # shows how to give this owner a setting; NAME stands for it
    look: str  # where all of them are explained
    in_python: frozenset[str] = frozenset()  # those of `names` that are no flags


ANY_CONFIG = "the configuration"  # the owner of what those of several algorithms have
_declared: dict[str, Declared] = {}  # by owner, so that an error can name another owner


def checked(
    owner: str,
    *,
    example: str,
    also: Iterable[str] = (),
    in_python: Iterable[str] = (),
    forms: Callable[[dict], dict] = dict,
) -> Callable[[type[C]], type[C]]:
    """A class decorator for a configuration: rejects unknown names and documents the fields.

    Args:
        owner: the class or function that takes these settings.
        example: shows how to give one, with NAME for its name.
        also: arguments that the owner takes besides the class's fields.
        in_python: the same, but not on the command line.
        forms: converts other forms of the given settings.
    """

    def decorate(cls: type[C]) -> type[C]:
        declared = field_names(cls)
        look = f"help(jaxrl.{cls.__name__}) explains all {len(declared)}"
        look += ", and --help on the command line"
        names = frozenset((*declared, *also, *in_python))
        _declared[owner] = Declared(owner, names, example, look, frozenset(in_python))
        generated = cls.__init__

        def __init__(self, *args, **settings):
            settings = forms(settings)
            for name in settings:
                if name not in declared:
                    raise unknown_setting(name, declared, owner=owner)
            generated(self, *args, **settings)

        __init__.__wrapped__ = generated
        __init__.__doc__ = generated.__doc__
        cls.__init__ = __init__
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{explained(cls)}\n"
        return cls

    return decorate


def explained(cls: type) -> str:
    """A docstring's section on the fields of `cls`: name, type, default and help text."""
    lines = ["Settings:"]
    indent = " " * 8
    for field in dataclasses.fields(cls):
        default = str(field.default) if isinstance(field.default, float) else repr(field.default)
        lines.append(f"    {field.name}{_type_shown(field.type)} = {default}")
        text = field.metadata["help"]
        lines += textwrap.wrap(text, 84, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines)


def _type_shown(declared: Any) -> str:
    """`: float | None`; nothing for Any, which the help text explains."""
    if declared is Any:
        return ""
    is_class = isinstance(declared, type) and not hasattr(declared, "__args__")
    text = declared.__name__ if is_class else str(declared)
    return f": {text.replace('collections.abc.', '').replace('typing.', '')}"


def takes_settings(settings: type) -> Callable[[type[C]], type[C]]:
    """A class decorator: adds the fields of `settings` to the class's signature and docstring."""

    def parameter(field: dataclasses.Field) -> inspect.Parameter:
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(field.name, keyword, default=field.default, annotation=field.type)

    def is_shown(argument: inspect.Parameter) -> bool:
        return argument.kind != argument.VAR_KEYWORD and not argument.name.startswith("_")

    def decorate(cls: type[C]) -> type[C]:
        parameters = list(filter(is_shown, inspect.signature(cls).parameters.values()))
        parameters += map(parameter, dataclasses.fields(settings))
        cls.__signature__ = inspect.Signature(parameters)
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{explained(settings)}\n"
        return cls

    return decorate


def unknown_setting(
    name: str, allowed: Iterable[str], where: str = "", *, owner: str = "", kind: str = "setting"
) -> UsageError:
    """The error for a name that is no setting of `owner`.

    It knows the settings of the other owners, and other libraries' names.

    Args:
        allowed: the names that are allowed here.
        where: follows the name in the message.
        kind: "flag": names are shown as flags.
    """
    allowed, plain = set(allowed), str(name).strip("-").replace("-", "_")
    begin = f"unknown {kind} {brief(str(name))}{where and ' ' + where}"
    if other := _other_owner(plain, owner):
        return UsageError(f"{begin}: {_belongs(plain, other, kind)}")
    if found := _foreign(plain, allowed):
        library, foreign, match = found
        perhaps = "" if plain == foreign else f"perhaps {foreign}, "
        other = None if match.here in allowed else _other_owner(match.here, owner)
        translation = _translation(match, other, kind)
        return UsageError(f"{begin}: {perhaps}{library}'s name{translation}")
    look = _declared[owner].look if owner in _declared else "--help-all explains all of them"
    return unknown_name(kind, str(name), map(_shown[kind], allowed), where, look)


_shown = {"setting": str, "flag": words.flag_name}


def _foreign(name: str, allowed: set[str]) -> tuple[str, str, Any] | None:
    """(library, its name, our `Counterpart`), also for a misspelt name of the library.

    None if no library has the name, or if it is more similar to a name in `allowed`.
    """
    from jaxrl.core.foreign_names import LIBRARIES, SETTINGS, counterpart, names_of

    exact = counterpart(name, SETTINGS)
    if exact is not None:
        return exact[0], name, exact[1]
    foreign = [key for library in LIBRARIES for key in names_of(library, SETTINGS)]
    allowed = [key.rstrip("_") for key in allowed]
    near = nearest(name, [*allowed, *foreign], 1)
    if not near or near[0] in allowed:
        return None
    library, found = counterpart(near[0], SETTINGS)
    return library, near[0], found


def _translation(found: Any, other: Declared | None, kind: str) -> str:
    """The part of an error that follows another library's name; `other` has the setting."""
    if not found.here:
        return f"; {found.note}"
    elsewhere = f"; {_belongs(found.here, other, kind)}" if other else ""
    note = found.note and f"; {found.note}"
    return f" for {_shown[kind](found.here)}{elsewhere}{note}"


def _other_owner(name: str, owner: str) -> Declared | None:
    others = (declared for declared in _declared.values() if declared.owner != owner)
    having = [declared for declared in others if name in declared.names]
    of_configs = [declared for declared in having if declared.owner.endswith("Config")]
    if len(of_configs) > 1 and not owner.endswith("Config"):
        return of_configs[0]._replace(owner=ANY_CONFIG)
    return next(iter(having), None)


def _belongs(name: str, other: Declared, kind: str) -> str:
    if kind == "flag" and name in other.in_python:
        return f"{name} is an argument of {other.owner} in Python, not a flag"
    if kind == "flag" and (other.owner == ANY_CONFIG or other.owner.endswith("Config")):
        return f"{_shown[kind](name)} is a setting of {other.owner}"
    if kind == "flag":
        return f"{_shown[kind](name)} is a flag of jaxrl train"
    return f"{other.owner} has it: {other.example.replace('NAME', name)}"


def check_all(config: Any) -> None:
    """Runs the check of every field that has one."""
    for field in dataclasses.fields(config):
        if field.metadata.get("check") is not None:
            field.metadata["check"](field.name, getattr(config, field.name))


def only(values: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """The entries of `values` whose names are in `names`."""
    return {name: value for name, value in values.items() if name in names}


def without(values: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """The entries of `values` whose names are not in `names`."""
    return {name: value for name, value in values.items() if name not in names}


def field_values(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, not copied and not converted."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def field_names(dataclass: Any) -> list[str]:
    """The names of the fields of a dataclass, or of an object of one."""
    return [field.name for field in dataclasses.fields(dataclass)]
