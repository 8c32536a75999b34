"""Environments by name: registered ones, those that installed packages announce, `module:Class`, and `scheme:NAME`.

A package announces an environment by an entry point of the group `jaxrl.envs` (`mine =
"package.module:Mine"`), and a whole library's by one of the group `jaxrl.schemes`, which leads to a
function from NAME to a constructor (`gymnax = "jaxrl.adapters.from_gymnax:constructor"`). Both are
imported only when asked for.
"""

import dataclasses
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

from jaxrl.core.env import Environment, MultiAgentEnvironment
from jaxrl.core.env_contract import default_params_of, describe, require_environment
from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.fields import as_count, as_number
from jaxrl.core.trust import Kind, current_module, load, parse_name, points_of
from jaxrl.core.types import PyTree


def _is_environment_class(found: Any) -> bool:
    """Derived from one of the base classes, or written to the same contract (gymnax's own classes are)."""
    if not isinstance(found, type):
        return False
    by_contract = all(callable(getattr(found, name, None)) for name in ("reset_env", "step_env"))
    return issubclass(found, Environment | MultiAgentEnvironment) or by_contract


SCHEMES = "jaxrl.schemes"
ENVIRONMENT = Kind(
    "environment",
    "jaxrl.envs",
    "a class derived from jaxrl.Environment or jaxrl.MultiAgentEnvironment",
    _is_environment_class,
    SCHEMES,
)
# What users may name in their own call; a file may name no function, whatever that does as it is
# called.
CONSTRUCTOR = dataclasses.replace(
    ENVIRONMENT,
    wanted="a class or a function that makes an environment",
    fits=lambda found: (
        _is_environment_class(found) or (callable(found) and not isinstance(found, type))
    ),
)

_registered: dict[str, Callable[..., Any]] = {}


def register(name: str, constructor: Callable[..., Any]) -> None:
    """Makes `make(name, **args)` call `constructor(**args)`; a later registration of a name replaces the earlier."""
    if ":" in name:
        raise UsageError(
            f"environment name {name!r} must hold no ':'; that marks module:Class and scheme:NAME"
        )
    _registered[name] = constructor


def registered(name: Any) -> Callable[..., Any] | None:
    """The constructor that `register` gave this name, if it did."""
    return _registered.get(name) if isinstance(name, str) else None


def names() -> list[str]:
    """Every environment that is known by name, sorted."""
    return sorted({*_registered, *points_of(ENVIRONMENT.group)})


def announced_name(target: str) -> str:
    """The short name under which an installed package announces an environment's "module:Class", else that itself."""
    points = points_of(ENVIRONMENT.group).items()
    return next(
        (name for name, at in points if f"{current_module(at.module)}:{at.attr}" == target), target
    )


def make(name: str, **args) -> tuple[Any, PyTree]:
    """Makes an environment by its name.

    Args:
        name: a registered or announced name (`arena`), `module:Class` or `module:function`, or
            `scheme:NAME` (`gymnax:Breakout-MinAtar`).
        **args: the constructor's arguments, and numbers of its `params`, told apart by their names.

    Returns:
        (env, params).

    Raises:
        UsageError: unknown name or argument, with the nearest known one; numbers that the
            environment refuses (`env.check_params(params)`).
    """
    constructor = constructor_of(name)
    args = {key: as_number(value) for key, value in args.items()}
    for key, value in args.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"environment {name!r}: {key} must be a finite number, not {value!r}")
    signature = _signature(name, constructor)
    takes = [
        argument.name
        for argument in signature.parameters.values()
        if not argument.kind.name.startswith("VAR_")
    ]
    structure = {key: value for key, value in args.items() if key in takes}
    try:
        signature.bind(**structure)
    except TypeError as error:
        raise UsageError(
            f"environment {name!r}: {error}; its arguments are {', '.join(takes)}"
        ) from None
    env = constructor(**structure)
    require_environment(env, f"environment {name!r}")
    numbers = {key: value for key, value in args.items() if key not in takes}
    params = _with_numbers(name, default_params_of(env), numbers, takes)
    if hasattr(env, "check_params"):
        env.check_params(params)
    return env, params


def _signature(name: str, constructor: Any) -> inspect.Signature:
    if callable(constructor):
        try:
            return inspect.signature(constructor)
        except ValueError:  # some of Python's own, written in C, have none
            pass
    raise UsageError(
        f"environment {name!r} must be a class or a function that makes an environment, not {describe(constructor)}: "
        f"{constructor!r:.60}"
    )


def _with_numbers(name: str, params: PyTree, numbers: dict[str, Any], takes: list[str]) -> PyTree:
    """`params` with some of its numbers replaced; whole ones stay whole."""
    defaults = (
        {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        if numbers
        else {}
    )
    for key, value in list(numbers.items()):
        if key not in defaults:
            raise unknown_name("argument", key, [*takes, *defaults], f"of environment {name!r}")
        flag = isinstance(defaults[key], bool)
        whole = isinstance(defaults[key], int) and not flag
        if whole:
            numbers[key] = value = as_count(value)
        valid = isinstance(value, bool) == flag and isinstance(value, int if whole else int | float)
        if not valid or (whole and abs(value) >= 2**31):
            kind = (
                "an integer below 2^31" if whole else "True or False" if flag else "a finite number"
            )
            raise UsageError(f"environment {name!r}: {key} must be {kind}, not {value!r}")
        if key == "max_steps_in_episode" and value < 1:
            raise UsageError(f"environment {name!r}: {key} must be at least 1, not {value!r}")
    return dataclasses.replace(params, **numbers) if numbers else params


def constructor_of(name: str) -> Callable[..., Any]:
    """What makes the environment of this name; imported, not called."""
    if name in _registered:
        return _registered[name]
    points, schemes = points_of(ENVIRONMENT.group), points_of(SCHEMES)
    if name in points:
        return _load(points[name])
    head, colon, tail = str(name).partition(":")
    if colon and head in schemes:
        return _load(schemes[head])(tail)
    named = parse_name(name)
    if named is not None and not named.arguments:
        return load(CONSTRUCTOR, named)
    if not (known := names()):
        raise UsageError(
            f"unknown environment {name!r}: none is installed; run `pip install -e .` in the repository"
        )
    raise unknown_name(
        "environment", name, [*known, *(f"{scheme}:NAME" for scheme in schemes), "module:Class"]
    )


def _load(point: EntryPoint) -> Callable[..., Any]:
    """The announced object; where another package of the same name hides it, the error says which file did."""
    point = EntryPoint(point.name, f"{current_module(point.module)}:{point.attr}", point.group)
    package = point.module.partition(".")[0]
    try:
        return point.load()
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError):
            hidden = f"{error.name}.".startswith(f"{package}.")
        else:
            hidden = error.obj is sys.modules.get(point.module)
        if not hidden:
            raise  # a mistake within the module that was meant
        found = importlib.util.find_spec(package)
        where = found and (found.origin or next(iter(found.submodule_search_locations or []), None))
        raise UsageError(
            f"environment {point.name!r} is announced as {point.value}, but the package {package!r} found is "
            f"{where or 'none'}, which does not hold it: rename that one, or run from another folder"
        ) from None
