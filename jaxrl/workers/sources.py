"""Python environments by name, object or constructor: what a copy of one is made from.

    gym:LunarLander-v3           Gymnasium's registry
    pettingzoo:sisl/pursuit_v4   a module of PettingZoo
    module:Name                  a class or function that makes an environment
    a class or function, or an environment itself (copied)

This module must not import JAX.
"""

import contextlib
import copy
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxrl.core import trust
from jaxrl.core.errors import UsageError, is_installed, reason_of, unknown_name
from jaxrl.core.python_kinds import VECTOR, by_keywords, kind_of

SCHEMES = {"gym": "gymnasium", "pettingzoo": "pettingzoo"}  # with the library, and the extra
PYTHON_ENVIRONMENT = trust.Kind(
    "environment",
    "jaxrl.envs",
    "a class or a function that makes an environment",
    callable,
    "jaxrl.schemes",
)


class Source(NamedTuple):
    """What makes copies of an environment, in this process or in another one.

    Attributes:
        name: in messages and folders.
        make: makes a copy.
        is_given: whether it is an object that steps its copies itself, and is not ours to close.
    """

    name: str
    make: Callable[[], Any]
    is_given: bool = False


def source_of(env: Any, env_args: Mapping[str, Any] | None = None) -> Source:
    """The source of an environment outside JAX.

    Args:
        env: see the module. A name was checked already if it came from a file (`core.trust`).
        env_args: arguments of its constructor.

    Raises:
        UsageError: no such name, a library that is not installed, or arguments of an object.
    """
    args = dict(env_args or {})
    if isinstance(env, str):
        return Source(env, functools.partial(_maker_of(env), **args))
    if kind_of(env) is not None and not isinstance(env, type):
        if args:
            raise UsageError(
                f"env_args are for a constructor: {_name_of(env)} is an object already"
            )
        if kind_of(env) == VECTOR:
            return Source(_name_of(env), lambda: env, is_given=True)
        return Source(_name_of(env), functools.partial(copy.deepcopy, env))
    if callable(env):
        return Source(_name_of(env), functools.partial(by_keywords(env), **args))
    raise UsageError(
        f"{env!r:.80} is no Python environment: give a gymnasium.Env, an environment of "
        "PettingZoo or RLlib, or what makes one"
    )


def make_copy(source: Source) -> Any:
    """A copy of the environment.

    Raises:
        UsageError: the constructor fails, or makes something else.
    """
    with _explained(source.name):
        env = source.make()
    if kind_of(env) is None:
        raise UsageError(
            f"environment {source.name!r} is {trust.described(env)}, not a gymnasium.Env, "
            "gymnasium.vector.VectorEnv, or environment of PettingZoo or RLlib"
        )
    return env


def _name_of(env: Any) -> str:
    inner = getattr(env, "func", env)  # of functools.partial
    spec = getattr(env, "spec", None)
    if getattr(spec, "id", None):
        return str(spec.id)
    named = inner if hasattr(inner, "__name__") else type(inner)
    return str(named.__name__).strip("<>")


def gymnasium_constructor(name: str) -> Callable[..., Any]:
    """What makes an environment of Gymnasium's registry: `gym:NAME`."""
    _require("gym")
    return functools.partial(_make_gymnasium, name)


def pettingzoo_constructor(name: str) -> Callable[..., Any]:
    """What makes an environment of PettingZoo: `pettingzoo:FAMILY/NAME`."""
    _require("pettingzoo")
    return functools.partial(_make_pettingzoo, name)


def _maker_of(name: str) -> Callable[..., Any]:
    scheme, _, rest = name.partition(":")
    constructors = {"gym": gymnasium_constructor, "pettingzoo": pettingzoo_constructor}
    if scheme in constructors:
        return constructors[scheme](rest)
    named = trust.parse_name(name)
    if named is None:
        known = [*(f"{each}:NAME" for each in SCHEMES), "module:Name"]
        raise unknown_name("environment", name, known)
    return functools.partial(_make_named, named)


def _require(scheme: str) -> None:
    library = SCHEMES[scheme]
    if not is_installed(library):
        raise UsageError(
            f"environments {scheme}:NAME: {library} is not installed: "
            f'pip install "jaxrl[{library}]"'
        )


def _make_named(named: trust.Named, /, **args: Any) -> Any:
    return by_keywords(trust.load(PYTHON_ENVIRONMENT, named))(**{**named.arguments, **args})


def _make_gymnasium(name: str, /, **args: Any) -> Any:
    import gymnasium

    module, _, known = name.rpartition(":")  # "ale_py:ALE/Pong-v5" imports ale_py, which registers
    if module:
        importlib.import_module(module)
    if known not in gymnasium.registry:
        raise unknown_name("Gymnasium environment", known, gymnasium.registry)
    with _explained(f"gym:{name}"):
        return gymnasium.make(known, disable_env_checker=True, **args)


def _make_pettingzoo(name: str, /, **args: Any) -> Any:
    parts = name.split("/")
    wrong = f"environment 'pettingzoo:{name}'"
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{wrong}: give the module's family and name: pettingzoo:sisl/pursuit_v4")
    try:
        module = importlib.import_module(".".join(("pettingzoo", *parts)))
    except ModuleNotFoundError as error:
        missing = f"{error.name}."
        if not missing.startswith("pettingzoo."):
            raise UsageError(
                f"{wrong} needs {error.name}, which is not installed: "
                f'pip install "pettingzoo[{parts[0]}]"'
            ) from error
        raise _unknown_module(parts, error) from None
    make = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if make is None:
        raise UsageError(f"{wrong}: the module makes no environment")
    with _explained(f"pettingzoo:{name}"):
        return make(**args)


def close(env: Any) -> None:
    """Ends an environment; one that failed may not even close."""
    with contextlib.suppress(Exception):
        env.close()


def _unknown_module(parts: list[str], error: ModuleNotFoundError) -> UsageError:
    """The error for a name that PettingZoo has not, with the nearest of its family."""
    if error.name != ".".join(("pettingzoo", *parts)):
        return UsageError(f"PettingZoo has no module {error.name}")
    family = importlib.import_module(".".join(("pettingzoo", *parts[:-1])))
    names = [module.name for module in pkgutil.iter_modules(family.__path__)]
    known = ["/".join((*parts[:-1], name)) for name in names if "_v" in name]
    return unknown_name("environment of PettingZoo", "/".join(parts), known)


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Errors of a constructor as one line."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"environment {name!r} cannot be made: {reason_of(error)}") from error
