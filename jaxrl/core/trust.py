"""Imports by name ("module:Name"), and checks of which names a file may use.

A name that a user gives in the call (a flag, an argument) is imported. A name in a file (a run's
folder, a checkpoint, a sweep's plan) may come from a stranger. `check_name` allows it only if it is
part of jaxrl, or of an installed package that announces it by an entry point of the kind's group,
or if the user said `trust`. In all cases an imported object is called only after its kind was
checked.
"""

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, brief, unknown_name

OURS = "jaxrl"
NAME = re.compile(r"(?P<module>[^:()]+):(?P<attribute>\w+)(?:\((?P<arguments>.*)\))?", re.DOTALL)
LONGEST_NAME = 200  # characters of a module's name, and of what is in it
NO_DEFAULT = object()
TEXTS_OF_PARTS = (
    tuple.__repr__,
    list.__repr__,
)  # subclasses without a text of their own have these


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of object that a setting may name.

    Args:
        name: its name in errors.
        group: the entry-point group in which installed packages announce such objects.
        allowed: the description of an allowed object, for errors.
        fits: whether an imported object is of this kind; must not call the object.
        schemes: the entry-point group of prefixes before a ":", each with a reader of the rest.
    """

    name: str
    group: str
    allowed: str
    fits: Callable[[Any], bool]
    schemes: str | None = None

    def announces(self, text: str) -> bool:
        """Returns whether an installed package announces this object, or the text before ":"."""
        target, (scheme, _, rest) = text.partition("(")[0], text.partition(":")
        if self.schemes is not None and scheme in points_of(self.schemes):
            return ":" not in rest  # "gym:module:NAME" would import the module
        points = points_of(self.group).values()
        return any(point.value.replace(" ", "") == target for point in points)


class Named(NamedTuple):
    """The parts of a text "module:Name" or "module:Name(width=64)"."""

    module: str
    attribute: str
    # numbers, texts, True, False, None, and tuples, lists and dicts of them
    arguments: dict[str, Any]

    @property
    def target(self) -> str:
        return f"{self.module}:{self.attribute}"


def parse_name(text: str) -> Named | None:
    """The parts of a "module:Name", with or without arguments; None for any other text."""
    match = NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None or not all(part.isidentifier() for part in match["module"].split(".")):
        return None
    if max(len(match["module"]), len(match["attribute"])) > LONGEST_NAME:
        return None
    try:
        call = ast.parse(f"f({match['arguments'] or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        words = [word.arg for word in call.keywords]
        if None in words or len(set(words)) < len(words):
            return None
        arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return Named(match["module"], match["attribute"], arguments)


def load(kind: Kind, named: Named) -> Any:
    """The object of a name: imported, its kind checked, not called.

    Raises:
        UsageError: there is no such object, or it is of another kind.
    """
    found = _imported(named.module, named.attribute, kind.name)
    if not kind.fits(found):
        raise UsageError(f"{kind.name} {named.target!r} is {described(found)}, not {kind.allowed}")
    return found


def maker(kind: Kind, entry: Any) -> Callable[[], Any]:
    """A function that returns the object `entry`, or a new object of a class or "module:Class".

    Raises:
        UsageError: no such module or class, another kind, or missing arguments. Nothing was called.
    """
    arguments, text = {}, entry if isinstance(entry, str) else None
    if isinstance(entry, str):
        if (named := parse_name(entry)) is None:
            allowed = "module:Class, a class or an instance"
            raise UsageError(f"{kind.name} {brief(entry)} must be {allowed}")
        entry, arguments = load(kind, named), named.arguments
    if not isinstance(entry, type):
        if arguments:
            what = f"{kind.name} {brief(entry)}"
            raise UsageError(f"{what}: an object already, which takes no arguments")
        return lambda: entry
    try:
        inspect.signature(entry).bind(**arguments)
    except (TypeError, ValueError) as error:
        what = f"{kind.name} class {entry.__qualname__}"
        instead = "give an instance of it instead"
        if text is not None:
            instead = f"its arguments go into the name, {text.partition('(')[0]}(NAME=VALUE)"
        raise UsageError(f"{what}: {error}; {instead}") from None
    return functools.partial(entry, **arguments)


def check_name(kind: Kind, text: Any, what: str, *, trust: bool) -> None:
    """Rejects a name from a file unless it is ours, announced by an installed package, or trusted.

    Args:
        text: "module:Name"; any other value imports nothing and is ignored here.
        what: names the file and the setting, for the error.

    Raises:
        UsageError: naming what would have been imported, and how to allow it. Nothing was imported.
    """
    if trust or not isinstance(text, str) or ":" not in text or kind.announces(text):
        return
    named = parse_name(text)
    if named is not None and _is_defined_here(kind, named):
        return
    target = named.target if named else text
    raise UsageError(
        f"{what} is {target!r:.200}, which is not part of jaxrl or of an installed plug-in, "
        "so it was not imported: if you trust who made this file, say so with --trust "
        "(in Python trust=True)"
    )


def points_of(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; for equal names the first package on the path counts."""
    return _points_of(entry_points, group, tuple((path, _changed_at(path)) for path in sys.path))


@functools.lru_cache(maxsize=32)
def _points_of(read: Callable, group: str, folders: tuple) -> dict[str, EntryPoint]:
    """Read once, since a sweep asks for every trial; again when a package was installed."""
    return {point.name: point for point in reversed(tuple(read(group=group)))}


def _changed_at(path: str) -> int | None:
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return None


def _is_defined_here(kind: Kind, named: Named) -> bool:
    """Returns whether a name is a class of this kind that is defined in jaxrl itself."""
    package, *below = named.module.split(".")
    if package != OURS or any(part.startswith("_") for part in (*below, named.attribute)):
        return False
    try:
        found = _imported(named.module, named.attribute, kind.name)
    except (UsageError, ImportError):
        return False
    defined_here = isinstance(found, type) and f"{found.__module__}.".startswith(f"{OURS}.")
    return defined_here and kind.fits(found)


def _imported(module: str, attribute: str, kind: str) -> Any:
    """The object `module:attribute`; if there is none, a UsageError that calls it a `kind`."""
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it imports does not
        what = f"unknown {kind} '{module}:{attribute}': there is no module {error.name!r}"
        raise UsageError(f"{what} here: go to the folder of its file, or set PYTHONPATH") from None
    except AttributeError:
        if module not in sys.modules:
            raise  # an error inside the module
        public = {key: value for key, value in vars(sys.modules[module]).items() if key[0] != "_"}
        candidates = [key for key in public if getattr(public[key], "__module__", None) == module]
        if not candidates:  # a package defines nothing itself: list what it imports
            candidates = [key for key in public if not isinstance(public[key], ModuleType)]
        raise unknown_name(kind, attribute, candidates, f"in module {module!r}") from None
    if _is_same_file(f"{OURS}.{module}", module):  # a second module with classes of its own
        here = f"it is {OURS}.{module}:{attribute}"
        raise UsageError(f"unknown {kind} '{module}:{attribute}': {here}, by another name")
    return found


def _is_same_file(present: str, module: str) -> bool:
    """Returns whether an imported module is one of ours, found at another place on the path."""
    try:
        spec = importlib.util.find_spec(present)
    except ModuleNotFoundError:
        return False
    file = getattr(sys.modules[module], "__file__", None)
    is_found = None not in (spec, file) and spec.origin is not None
    return is_found and os.path.realpath(spec.origin) == os.path.realpath(file)


def described(found: Any) -> str:
    """An imported object in a few words, for errors."""
    if isinstance(found, ModuleType):
        return f"the module {found.__name__}"
    if isinstance(found, type):
        return f"the class {found.__name__}"
    if isinstance(found, FunctionType) or inspect.isbuiltin(found):
        return f"the function {found.__name__}"
    return f"{brief(found)}, a {type(found).__name__}"


def name_of(value: Any) -> str | None:
    """The text from which another process makes this: "module:Name" or "module:Name(width=64)".

    Objects of frozen dataclasses, of flax modules, and of classes without `__init__`, `__new__` and
    attributes have a name. None for all others, for local classes and lambdas, for definitions of a
    script or notebook (`__main__`), and for arguments other than numbers, texts, and tuples, lists
    and dicts of them.
    """
    if isinstance(value, type | FunctionType):
        return _import_path(value)
    arguments = arguments_of(value)
    path = None if arguments is None else _import_path(type(value))
    if path is None or not arguments:
        return path
    return f"{path}({', '.join(f'{name}={argument!r}' for name, argument in arguments.items())})"


def arguments_of(value: Any) -> dict[str, Any] | None:
    """The arguments, other than defaults, with which the class makes an equal object; else None."""
    if not dataclasses.is_dataclass(value):
        return {} if _is_plain(value) else None
    arguments = dict(_changed_fields(value))
    if not all(_is_literal(argument) for argument in arguments.values()):
        return None
    try:
        return arguments if type(value)(**arguments) == value else None
    except Exception:  # from the class's code
        return None


def _is_plain(value: Any) -> bool:
    """Returns whether the class without arguments makes an equal object: it has no attributes."""
    methods = ("__init__", "__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    inherited = all(getattr(type(value), name) is getattr(object, name) for name in methods)
    return inherited and value.__getstate__() is None


def _changed_fields(value: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(value):
        if not field.init or field.name == "parent":  # a flax module's `parent` is no argument
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        held = getattr(value, field.name, NO_DEFAULT)
        comparable = _is_literal(held) and _is_literal(default)
        if held is not default and not (comparable and held == default):
            yield field.name, held


def _is_literal(value: Any) -> bool:
    """Returns whether the repr of `value` reads back as an equal value."""
    if isinstance(value, tuple | list):
        return type(value).__repr__ in TEXTS_OF_PARTS and all(map(_is_literal, value))
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_literal, (*value, *value.values())))
    if isinstance(value, float):
        return type(value) is float and abs(value) < float("inf")
    return value is None or type(value) in (bool, int, str)


def _import_path(value: type | FunctionType) -> str | None:
    """ "module:Name" if it imports this object; a private module gives its public package."""
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or not name.isidentifier():
        return None
    package = module.partition(".")[0]
    shortest = package if any(part.startswith("_") for part in module.split(".")) else module
    for candidate in (shortest, module):
        if getattr(sys.modules.get(candidate), name, None) is value:
            return f"{candidate}:{name}"
    return None
