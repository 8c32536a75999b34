"""Environment registry: `make` finds environments by name, `module:Class` or `scheme:NAME`.

A name is registered (`register`), or that of a module of `jaxrl.envs`, or announced by an installed
package, with an entry point of the group `jaxrl.envs` (`mine = "package.module:Mine"`). A scheme
stands for a whole library, with an entry point of the group `jaxrl.schemes` that leads to a
function from NAME to a constructor (`gymnax = "jaxrl.adapters.from_gymnax:constructor"`). An
environment of another library that a user made is brought in by an adapter, with an entry point of
the group `jaxrl.adapters` whose name is the library's package. All are imported only when used.
"""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jaxrl.core.env import Environment, MultiAgentEnvironment
from jaxrl.core.env_contract import (
    PYTHON_LIBRARIES,
    default_params_of,
    describe,
    require_environment,
)
from jaxrl.core.errors import (
    MANY_CHARACTERS,
    UsageError,
    brief,
    either,
    explained,
    is_installed,
    nearest,
    unknown_name,
)
from jaxrl.core.fields import FLOAT32, as_count, as_number, field_values, only, takes, text, without
from jaxrl.core.frozen import freeze, is_frozen, thawed
from jaxrl.core.python_kinds import OF_JAX, kind_of
from jaxrl.core.spaces import Space
from jaxrl.core.tasks import (
    FORMS,
    Distribution,
    Randomization,
    distribution_of,
    nearest_form,
    per_episode,
)
from jaxrl.core.trust import Kind, load, parse_name, points_of
from jaxrl.core.types import PyTree


def _is_environment_class(found: Any) -> bool:
    """Returns whether a class has our base class, follows gymnax's contract, or has an adapter."""
    if not isinstance(found, type):
        return False
    if adapter_of(found) is not None:
        return True
    by_contract = all(callable(getattr(found, name, None)) for name in ("reset_env", "step_env"))
    return issubclass(found, Environment | MultiAgentEnvironment) or by_contract


SCHEMES = "jaxrl.schemes"
ADAPTERS = "jaxrl.adapters"
PYTHON, CONTRACT = "python", "gymnax"  # the adapters that are chosen by methods
EXTERNAL = "external"  # the scheme that needs no NAME: programs that own their loop
ENVIRONMENT = Kind(
    "environment",
    "jaxrl.envs",
    "a class derived from jaxrl.Environment or jaxrl.MultiAgentEnvironment",
    _is_environment_class,
    SCHEMES,
)


def _is_constructor(found: Any) -> bool:
    return _is_environment_class(found) or (callable(found) and not isinstance(found, type))


# What users may name in their call. A file may not name a function, which may do anything.
CONSTRUCTOR = dataclasses.replace(
    ENVIRONMENT, allowed="a class or a function that makes an environment", fits=_is_constructor
)

OUR_ENVIRONMENTS = Path(__file__).parents[1] / "envs"
GYMNASIUM_NAME = re.compile(r"[\w./-]+-v\d+")  # such as "CartPole-v1" and "ALE/Pong-v5"

_registered: dict[str, Callable[..., Any]] = {}


@takes()
def register(name: str, constructor: Callable[..., Any]) -> None:
    """Makes `make(name, **args)` call `constructor(**args)`; replaces an earlier registration."""
    text("an environment's name")("name", name)
    if not callable(constructor):
        raise UsageError(f"constructor={brief(constructor)} must be a class or a function")
    if ":" in name:
        raise UsageError(
            f"environment name {name!r} must hold no ':'; that marks module:Class and scheme:NAME"
        )
    _registered[name] = constructor


def registered(name: Any) -> Callable[..., Any] | None:
    """The constructor that was registered under this name, if any."""
    return _registered.get(name) if isinstance(name, str) else None


def names() -> list[str]:
    """The names of all known environments, sorted."""
    return sorted({*_registered, *_announced()})


@functools.cache
def environments_in(folder: Path, package: str) -> dict[str, EntryPoint]:
    """The environments of a folder by the names of their modules, as entry points.

    Nothing is imported. A module's environment is its first class with a base that is called
    `...Environment`.
    """
    points = {}
    for file in sorted(folder.glob("[!.]*.py")):
        if (name := _environment_of(file)) is not None:
            target = f"{package}.{file.stem}:{name}"
            points[file.stem] = EntryPoint(file.stem, target, ENVIRONMENT.group)
    return points


def _environment_of(file: Path) -> str | None:
    """The name of a module's environment; its own if it is no Python, as an import then says."""
    try:
        nodes = ast.parse(file.read_text(encoding="utf-8")).body
    except OSError:
        return None
    except (SyntaxError, ValueError):
        return file.stem
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    return next((cls.name for cls in classes if any(map(_is_environment, cls.bases))), None)


def _is_environment(base: ast.expr) -> bool:
    """Returns whether a class's base is called `Environment`, `MultiAgentEnvironment` or so."""
    return ast.unparse(base).partition("[")[0].endswith("Environment")


def _announced() -> dict[str, EntryPoint]:
    """The environments of `jaxrl.envs` and of installed packages, which cannot replace them."""
    return {**points_of(ENVIRONMENT.group), **environments_in(OUR_ENVIRONMENTS, "jaxrl.envs")}


def announced_name(target: str) -> str:
    """The announced short name of an environment's "module:Class", or `target` itself."""
    for name, point in _announced().items():
        if f"{point.module}:{point.attr}" == target:
            return name
    return target


def make(name: Any, **args) -> tuple[Any, PyTree]:
    """Makes an environment by its name, or brings in one that is made already.

    Args:
        name: a registered or announced name (`arena`), `module:Class` or `module:function`, or
            `scheme:NAME` (`gymnax:Breakout-MinAtar`). Or an environment, of jaxrl or of another
            library, or a class or a function that makes one of another library.
        **args: the constructor's arguments and fields of `params`, distinguished by name. A text
            such as "uniform:0.1:0.5" draws a field of `params` again for each episode. A class or
            function takes its own arguments alone, an object none.

    Returns:
        (env, params).

    Raises:
        UsageError: unknown name or argument, with the nearest known one; parameters that the
            environment rejects (`env.check_params(params)`).
    """
    return make_with(name, args)


def make_with(name: Any, args: dict[str, Any]) -> tuple[Any, PyTree]:
    """The same as `make`, of arguments with any names, even `name`."""
    if not isinstance(name, str):
        env = environment_of(name, args)
        return env, default_params_of(env)
    from jaxrl.core.env_config import by_keywords

    constructor = by_keywords(constructor_of(name))
    args = {key: as_number(value) for key, value in args.items()}
    for key, value in args.items():
        is_number = isinstance(value, int | float)
        if is_number and not -FLOAT32 <= value <= FLOAT32:
            raise UsageError(
                f"environment {name!r}: {key} must be a finite number, not {brief(value)}"
            )
    signature = _signature(name, constructor)
    arguments = signature.parameters.values()
    takes = [found.name for found in arguments if not found.kind.name.startswith("VAR_")]
    takes = takes or (list(args) if arguments else [])  # `**args` alone takes all
    structure = only(args, takes)
    drawn = _distributions(name, args, takes)
    try:
        signature.bind(**structure)
    except TypeError as error:
        accepted = ", ".join(takes)
        raise UsageError(f"environment {name!r}: {error}; its arguments are {accepted}") from None
    call, made = _call_of(constructor, structure)
    if made is None:
        made = _called(name, functools.partial(_made_by, call))
    env = adapted(name, call, made)
    require_environment(env, f"environment {name!r}")
    numbers = without(args, takes)
    default = default_params_of(env)

    def params_with(values):
        params = _with_numbers(name, default, values, takes)
        if hasattr(env, "check_params"):
            env.check_params(params)
        return params

    for values in _extremes(drawn):
        params_with({**numbers, **values})
    params = params_with(without(numbers, drawn))
    for key, distribution in drawn.items():
        if type(getattr(default, key)) is int and not distribution.is_whole:
            raise UsageError(
                f"environment {name!r}: {key} must be an integer, and {distribution} draws other "
                "numbers; randint:LOW:HIGH and choice:A:B draw integers"
            )
    return (per_episode(env, Randomization(tuple(drawn.items()))) if drawn else env), params


def adapter_of(env: Any) -> str | None:
    """The announced adapter of an environment, or of a class of them; None: it needs none.

    It is found by the packages of the base classes. None of them is imported for that.
    """
    bases = env.__mro__ if isinstance(env, type) else type(env).__mro__
    if any(issubclass(base, Environment | MultiAgentEnvironment) for base in bases):
        return None
    packages = [base.__module__.partition(".")[0] for base in bases]
    if PYTHON_LIBRARIES.keys().isdisjoint(packages):
        adapters = points_of(ADAPTERS)
        if (
            package := next((candidate for candidate in packages if candidate in adapters), None)
        ) is not None:
            return package
        if CONTRACT in adapters and _has_other_spaces(env):
            return CONTRACT
    return None if kind_of(env) is None else PYTHON


def _has_other_spaces(env: Any) -> bool:
    """Returns whether an object follows gymnax's contract for one agent with foreign spaces."""
    if isinstance(env, type) or hasattr(env, "agents"):
        return False
    try:
        space = env.observation_space(env.default_params)
    except Exception:  # the checks of the contract report it
        return False
    libraries = {base.__module__.partition(".")[0] for base in type(space).__mro__}
    is_space = hasattr(space, "shape") or hasattr(space, "spaces")
    has_steps = callable(getattr(env, "step_env", None))
    of_python = not PYTHON_LIBRARIES.keys().isdisjoint(libraries)
    return has_steps and is_space and not of_python and not isinstance(space, Space)


def adapted(name: str | None, make: Any, made: Any = None) -> Any:
    """An environment as training takes it: by its adapter, or unchanged where it needs none.

    Args:
        name: None: that of the environment.
        make: the environment itself, or a class or function without arguments that makes it.
        made: what `make` has made.
    """
    is_called = made is None and is_maker(make)
    if made is None:
        made = _called(name, make) if is_called else make
    adapter = adapter_of(made)
    if adapter is not None:
        adapt = _load(points_of(ADAPTERS)[adapter])
        what = f"environment {name or type(made).__name__!r} cannot be used as one of {adapter}"
        with explained(what):
            return adapt(name, make, made)
    if is_called and not any(hasattr(made, method) for method in OF_JAX):
        return _load(points_of(ADAPTERS)[PYTHON])(name, make)  # which says what it is instead
    return made


def of_library(env: Any) -> Any:
    """An environment object in JAX, adapted; a name and a Python environment are left alone."""
    return env if adapter_of(env) in (None, PYTHON) else environment_of(env, {})


def is_maker(env: Any) -> bool:
    """Returns whether a setting is a function or a foreign class that makes an environment."""
    if isinstance(env, type):
        return adapter_of(env) is not None
    is_environment = adapter_of(env) is not None or any(hasattr(env, name) for name in OF_JAX)
    return callable(env) and not is_environment


def environment_of(env: Any, args: dict[str, Any]) -> Any:
    """The environment to train in: an object's, or the one that a class or function makes."""
    if is_maker(env):
        from jaxrl.core.env_config import by_keywords

        constructor, made = by_keywords(env), None
        if args:
            constructor, made = _call_of(constructor, args)
        env = adapted(None, constructor, made)
    elif args:
        raise UsageError(
            f"env_args={args} need an environment by name; {type(env).__name__} is made already"
        )
    else:
        env = adapted(None, env)
    require_environment(env, "env")
    return env


def _call_of(constructor: Any, args: dict[str, Any]) -> tuple[functools.partial, Any]:
    """(the call that makes an environment, what it has made; None: nothing yet).

    A Python environment gets its arguments as they were written. One in JAX, which is hashed, gets
    tuples in place of lists and mappings; what a function makes, only its result shows.
    """
    as_written = functools.partial(constructor, **thawed(args.items()))
    call = functools.partial(constructor, **dict(freeze(as_written.keywords)))
    if _is_in_jax(constructor) or all(map(is_frozen, as_written.keywords.values())):
        return call, None
    made = _called(None, as_written)
    if kind_of(made) is None:
        return call, None
    return as_written, made


def _made_by(call: functools.partial) -> Any:
    """The environment that a call makes; of a class in JAX one object for the same arguments.

    Most classes define no `==`: two objects would be unequal, and each would be compiled by itself.
    """
    if not _is_in_jax(call.func):
        return call()
    # Texts tell 1 from True and 1.0, which are equal.
    arguments = tuple((name, arg, repr(arg)) for name, arg in sorted(call.keywords.items()))
    try:
        hash(arguments)
    except TypeError:
        return call()
    return _one_of(call.func, arguments)


@functools.lru_cache(maxsize=64)
def _one_of(constructor: type, arguments: tuple[tuple[str, Any, str], ...]) -> Any:
    return constructor(**{name: arg for name, arg, _ in arguments})


def _is_in_jax(constructor: Any) -> bool:
    """Returns whether this is a class with one of our base classes."""
    bases = Environment | MultiAgentEnvironment
    return isinstance(constructor, type) and issubclass(constructor, bases)


def _called(name: str | None, make: Callable[[], Any]) -> Any:
    inner = getattr(make, "func", make)  # of functools.partial
    name = name or str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
    with explained(f"environment {name!r} cannot be made"):
        return make()


def _distributions(name: str, args: dict[str, Any], takes: list[str]) -> dict[str, Distribution]:
    """The arguments that are drawn for each episode; `takes`: those of the constructor."""
    drawn = {}
    for key, value in args.items():
        try:
            distribution = distribution_of(value)
        except UsageError as error:
            raise UsageError(f"environment {name!r}: {key}={error}") from None
        if distribution is None:
            continue
        if key in takes:
            raise UsageError(
                f"environment {name!r}: {key}={value} would draw {key} for each episode, but it is "
                "an argument of the constructor, which makes the environment once: only fields of "
                "params can be drawn"
            )
        drawn[key] = distribution
    return drawn


def _extremes(drawn: dict[str, Distribution]) -> list[dict[str, Any]]:
    """Numbers to check: the ends of each distribution, with the others at their first one."""
    first = {key: distribution.ends[0] for key, distribution in drawn.items()}
    return [{**first, key: end} for key in drawn for end in drawn[key].ends]


def _signature(name: str, constructor: Any) -> inspect.Signature:
    if callable(constructor):
        try:
            return inspect.signature(constructor)
        except ValueError:  # some built-in functions have none
            pass
    raise UsageError(
        f"environment {name!r} must be a class or a function that makes an environment, "
        f"not {describe(constructor)}: {brief(constructor)}"
    )


def _with_numbers(name: str, params: PyTree, numbers: dict[str, Any], takes: list[str]) -> PyTree:
    """`params` with some of its fields replaced; integers stay integers."""
    if not numbers:
        return params
    defaults = field_values(params)
    for key, value in list(numbers.items()):
        if key not in defaults:
            allowed, where = {*takes, *defaults}, f"of environment {name!r}"
            raise unknown_name("argument", key, allowed, where, most=MANY_CHARACTERS)
        flag = isinstance(defaults[key], bool)
        whole = isinstance(defaults[key], int) and not flag
        if whole:
            numbers[key] = value = as_count(value)
        valid = isinstance(value, bool) == flag and isinstance(value, int if whole else int | float)
        if not valid or (whole and abs(value) >= 2**31):
            kind = "True or False" if flag else "a finite number"
            kind = "an integer below 2^31" if whole else kind
            meant = nearest_form(value) if isinstance(value, str) else None
            is_text = isinstance(value, str)
            if meant is not None or (":" in value if is_text else _is_drawn_otherwise(value)):
                kind = f"{kind}, or {FORMS}"
            hint = f"; did you mean {meant}?" if meant else ""
            raise UsageError(
                f"environment {name!r}: {key} must be {kind}, not {brief(value)}{hint}"
            )
        if key == "max_steps_in_episode" and value < 1:
            raise UsageError(f"environment {name!r}: {key} must be at least 1, not {value!r}")
    return dataclasses.replace(params, **numbers)


def _is_drawn_otherwise(value: Any) -> bool:
    """Returns whether a value may have been meant to be drawn: `jaxrl.uniform(0, 1)`, or a list."""
    return isinstance(value, tuple | list) or callable(getattr(value, "sample", None))


def constructor_of(name: str) -> Callable[..., Any]:
    """The class or function that makes the environment of this name; imported, not called."""
    if name in _registered:
        return _registered[name]
    points, schemes = _announced(), points_of(SCHEMES)
    if name in points:
        return _load(points[name])
    head, colon, tail = str(name).partition(":")
    if head in schemes and (colon or head == EXTERNAL):
        return _load(schemes[head])(tail)
    if colon and head.isidentifier() and not is_installed(head):
        if nearest(head, schemes):
            raise unknown_name("library", head, schemes, f"of environment {name!r}")
        raise UsageError(
            f"unknown environment {name!r}: there is no module {head!r}; known libraries: "
            f"{', '.join(sorted(schemes))}"
        )
    named = parse_name(name)
    if named is not None and not named.arguments:
        return load(CONSTRUCTOR, named)
    if meant := _names_here(str(name)):
        raise UsageError(f"unknown environment {name!r}; did you mean {either(meant)}?")
    allowed = [*names(), *(f"{scheme}:NAME" for scheme in schemes), "module:Class"]
    raise unknown_name("environment", name, allowed, most=400)


def _names_here(name: str) -> list[str]:
    """The names here of an environment that is called `name` in another library."""
    from jaxrl.core.foreign_names import library_file

    found = library_file("RLlib")["environments"].get(name)
    of_gymnasium = [f"gym:{name}"] if GYMNASIUM_NAME.fullmatch(name) else []
    return of_gymnasium if found is None else [found["env"], *of_gymnasium]


def _load(point: EntryPoint) -> Callable[..., Any]:
    """The announced object; the error names the file of another package that hides it."""
    package = point.module.partition(".")[0]
    try:
        return point.load()
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError):
            hidden = f"{error.name}.".startswith(f"{package}.")
        else:
            hidden = error.obj is sys.modules.get(point.module)
        if not hidden:
            raise  # an error inside the announced module
        found = importlib.util.find_spec(package)
        where = found and (found.origin or next(iter(found.submodule_search_locations or []), None))
        raise UsageError(
            f"environment {point.name!r} is announced as {point.value}, but the package "
            f"{package!r} found is {where or 'none'}, which does not hold it: "
            "rename that one, or run from another folder"
        ) from None
