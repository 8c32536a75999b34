"""Objects that are named by text, "module:Name": how one is imported, checked, and which files may name it.

What a user writes in this very call (a flag, an argument) is imported as it stands. What a file
says (a run's folder, a checkpoint, a sweep's plan) may come from a stranger, so `check_name` allows
it only if it is part of jaxrl, or of an installed package that announces it by an entry point of
the kind's group, or if the user said `trust`. In either case an imported object is called only
after its kind was checked.
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

from jaxrl.core import renamed
from jaxrl.core.errors import UsageError, brief, unknown_name

OURS = "jaxrl"
EARLIER = "envs"  # what jaxrl.envs was called in earlier versions
NAME = re.compile(r"(?P<module>[^:()]+):(?P<attribute>\w+)(?:\((?P<arguments>.*)\))?", re.DOTALL)
NO_DEFAULT = object()
_settled: set[str] = set()  # modules `envs.*` that a file named, found to be ours


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of object that a setting may name.

    Args:
        name: what errors call it.
        group: the entry-point group by which installed packages announce theirs.
        wanted: what an object must be, for errors.
        fits: whether an imported object is that; it must not call the object.
        schemes: the entry-point group whose names, before a ":", say how to read what comes after
        it.
    """

    name: str
    group: str
    wanted: str
    fits: Callable[[Any], bool]
    schemes: str | None = None

    def announces(self, text: str) -> bool:
        """Whether an installed package announces exactly this object, or the scheme that the text begins with."""
        target, scheme = text.partition("(")[0], text.partition(":")[0]
        if self.schemes is not None and scheme in points_of(self.schemes):
            return True
        return any(
            point.value.replace(" ", "") == target for point in points_of(self.group).values()
        )


class Named(NamedTuple):
    """A text "module:Name" or "module:Name(width=64)" in its parts."""

    module: str
    attribute: str
    arguments: dict[
        str, Any
    ]  # numbers, texts, True, False, None, and tuples, lists and dicts of them

    @property
    def target(self) -> str:
        return f"{self.module}:{self.attribute}"


def parse_name(text: str) -> Named | None:
    """The parts of a "module:Name", with arguments or without; None for any other text."""
    match = NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None or not all(part.isidentifier() for part in match["module"].split(".")):
        return None
    try:
        call = ast.parse(f"f({match['arguments'] or ''})", mode="eval").body
        words = [word.arg for word in call.keywords] if isinstance(call, ast.Call) else [None]
        if (
            None in words
            or len(set(words)) < len(words)
            or call.args
            or not isinstance(call.func, ast.Name)
        ):
            return None
        arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return Named(match["module"], match["attribute"], arguments)


def load(kind: Kind, named: Named) -> Any:
    """The object that a name leads to; imported, its kind checked, not called.

    Raises:
        UsageError: there is no such thing, or it is of another kind.
    """
    found = _imported(named.module, named.attribute, kind.name)
    if not kind.fits(found):
        raise UsageError(f"{kind.name} {named.target!r} is {described(found)}, not {kind.wanted}")
    return found


def maker(kind: Kind, entry: Any) -> Callable[[], Any]:
    """A function that returns what an entry means: an object itself, or a new one of a class or "module:Class".

    Raises:
        UsageError: no such module or class, one of another kind, or arguments missing. Nothing was
            called.
    """
    arguments = {}
    if isinstance(entry, str):
        if (named := parse_name(entry)) is None:
            raise UsageError(
                f"{kind.name} {brief(entry)} must be module:Class, a class or an instance"
            )
        entry, arguments = load(kind, named), named.arguments
    if not isinstance(entry, type):
        if arguments:
            raise UsageError(
                f"{kind.name} {entry!r:.60}: an object already, which takes no arguments"
            )
        return lambda: entry
    try:
        inspect.signature(entry).bind(**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{kind.name} class {entry.__qualname__}: {error}; give an instance of it instead"
        ) from None
    return functools.partial(entry, **arguments)


def check_name(kind: Kind, text: Any, what: str, *, trust: bool) -> None:
    """Refuses a name that a file says, unless it is ours, announced by an installed package, or trusted.

    Args:
        text: "module:Name"; what is no such text imports nothing and is left to whoever reads it.
        what: names the file and the setting, for the error.

    Raises:
        UsageError: naming what would have been imported, and how to allow it. Nothing was imported.
    """
    if trust or not isinstance(text, str) or ":" not in text or kind.announces(text):
        return
    named = parse_name(text)
    if named is not None and _is_ours(kind, named):
        return
    target = named.target if named else text
    raise UsageError(
        f"{what} is {target!r:.200}, which is not part of jaxrl or of an installed plug-in, so it was not imported: "
        "it may run any code; if you trust who made this file, say so with --trust (in Python trust=True)"
    )


def points_of(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; of two packages with the same name the first on the path counts."""
    return {point.name: point for point in reversed(tuple(entry_points(group=group)))}


def _is_ours(kind: Kind, named: Named) -> bool:
    """Whether a name leads to a class that is defined in jaxrl itself, and of this kind."""
    package, *below = named.module.split(".")
    if package == EARLIER and _is_ours_alone():
        package, below = OURS, [EARLIER, *below]
    if package != OURS or any(part.startswith("_") for part in (*below, named.attribute)):
        return False
    try:
        found = _imported(".".join((package, *below)), named.attribute, kind.name)
    except (UsageError, ImportError):
        return False
    defined_here = isinstance(found, type) and f"{found.__module__}.".startswith(f"{OURS}.")
    ours = defined_here and kind.fits(found)
    if ours:
        _settled.add(named.module)
    return ours


def _is_ours_alone() -> bool:
    """Whether `envs` can mean no package here but jaxrl's own; imports neither."""
    found, ours = importlib.util.find_spec(EARLIER), importlib.util.find_spec(f"{OURS}.{EARLIER}")
    return found is None or (
        None not in (ours, found.origin) and os.path.samefile(found.origin, ours.origin)
    )


def _imported(module: str, attribute: str, kind: str) -> Any:
    """The object that `module:attribute` names; where there is no such thing, a UsageError that calls it a `kind`."""
    module = current_module(module)
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise UsageError(
            f"unknown {kind} '{module}:{attribute}': there is no module {error.name!r}"
        ) from None
    except AttributeError:
        if module not in sys.modules:
            raise  # a mistake within the module
        here = {key: value for key, value in vars(sys.modules[module]).items() if key[0] != "_"}
        own = [key for key, value in here.items() if getattr(value, "__module__", None) == module]
        # A package shows what its modules hold.
        known = own or [key for key, value in here.items() if not isinstance(value, ModuleType)]
        raise unknown_name(kind, attribute, known, f"in module {module!r}") from None


def current_module(module: str) -> str:
    """The present name of a module: `envs.arena` of earlier versions is `jaxrl.envs.arena` today.

    Checkpoints, settings files and installs of earlier versions have the old names. A module of
    one's own that is called `envs.arena` too keeps its name. What a file named and was found to be
    ours stays ours in this process, also where a folder with modules of that name comes onto the
    path later.
    """
    if module in renamed.MODULES:
        return renamed.MODULES[module]
    package, _, rest = module.partition(".")
    try:
        ours = importlib.util.find_spec(f"{OURS}.{module}") if package == EARLIER and rest else None
    except ModuleNotFoundError:  # `envs.mine.corridor`: we have no package `mine`
        ours = None
    if ours is None:
        return module
    if module in _settled:
        return f"{OURS}.{module}"
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # no `envs`, or one that is no package
        found = None
    if found is None or found.origin is None or os.path.samefile(found.origin, ours.origin):
        return f"{OURS}.{module}"
    return module


def described(found: Any) -> str:
    """An imported object in a few words, for errors."""
    if isinstance(found, ModuleType):
        return f"the module {found.__name__}"
    if isinstance(found, type):
        return f"the class {found.__name__}"
    if isinstance(found, FunctionType) or inspect.isbuiltin(found):
        return f"the function {found.__name__}"
    return f"{found!r:.60}, a {type(found).__name__}"


def name_of(value: Any) -> str | None:
    """The text that another process makes this from: "module:Name", or of an object "module:Name(width=64)".

    None where there is no such name: local classes and lambdas, what a script or notebook defines
    (`__main__`), and objects whose arguments cannot be told, or are more than numbers, texts, and
    tuples, lists and dicts of them. Of objects, those of frozen dataclasses, of flax modules, and
    of classes without `__init__`, `__new__` and attributes.
    """
    if isinstance(value, type | FunctionType):
        return _import_path(value)
    arguments = arguments_of(value)
    path = None if arguments is None else _import_path(type(value))
    if path is None or not arguments:
        return path
    return f"{path}({', '.join(f'{name}={argument!r}' for name, argument in arguments.items())})"


def arguments_of(value: Any) -> dict[str, Any] | None:
    """The arguments that differ from their defaults, from which the object's class makes an equal one; else None."""
    if not dataclasses.is_dataclass(value):
        return {} if _is_plain(value) else None
    arguments = dict(_changed_fields(value))
    if not all(_is_literal(argument) for argument in arguments.values()):
        return None
    try:
        return arguments if type(value)(**arguments) == value else None
    except Exception:  # the class's own code
        return None


def _is_plain(value: Any) -> bool:
    """Whether its class alone makes an equal one: it was given nothing, and keeps nothing, in Python or in C."""
    methods = ("__init__", "__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    inherited = all(getattr(type(value), name) is getattr(object, name) for name in methods)
    return inherited and value.__getstate__() is None


def _changed_fields(value: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(value):
        if (
            not field.init or field.name == "parent"
        ):  # of a flax module: where it stands, not what it is
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        held = getattr(value, field.name, NO_DEFAULT)
        if held is not default and not (
            _is_literal(held) and _is_literal(default) and held == default
        ):
            yield field.name, held


def _is_literal(value: Any) -> bool:
    """Whether its repr is read back as an equal value."""
    if isinstance(value, tuple | list):
        return type(value) in (tuple, list) and all(map(_is_literal, value))
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_literal, (*value, *value.values())))
    if isinstance(value, float):
        return type(value) is float and abs(value) < float("inf")
    return value is None or type(value) in (bool, int, str)


def _import_path(value: type | FunctionType) -> str | None:
    """ "module:Name", if importing that gives this very object; by the package's own name where that has it too."""
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or not name.isidentifier():
        return None
    package = module.partition(".")[0]
    shortest = package if any(part.startswith("_") for part in module.split(".")) else module
    for candidate in (shortest, module):
        if getattr(sys.modules.get(candidate), name, None) is value:
            return f"{candidate}:{name}"
    return None
