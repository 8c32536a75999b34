"""Python environments by name, object or constructor: what a copy of one is made from.

    gym:LunarLander-v3           Gymnasium's registry; without "-v3" its newest version
    pettingzoo:sisl/pursuit_v4   a module of PettingZoo
    module:Name                  a class or function that makes an environment
    a class or function, or an environment itself (copied)

This module must not import JAX.
"""

import contextlib
import copy
import functools
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from jaxrl.core import trust
from jaxrl.core.atari_names import LIBRARY, OLD_ATARI, is_of_atari
from jaxrl.core.env_config import EnvConfig, by_keywords, config_of
from jaxrl.core.errors import UsageError, brief, explained, is_installed, reason_of, unknown_name
from jaxrl.core.fields import text
from jaxrl.core.python_kinds import SIMULATOR, VECTOR, kind_of
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.family import in_one_process

SCHEMES = {"gym": "gymnasium", "pettingzoo": "pettingzoo"}  # with the library, and the extra
# What registers environments of Gymnasium whose names begin so: a module, and its package.
REGISTERED_BY = {
    "ALE/": (LIBRARY, "ale-py"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "MiniWorld-": ("miniworld", "miniworld"),
    "Fetch": ("gymnasium_robotics", "gymnasium-robotics"),
    "AdroitHand": ("gymnasium_robotics", "gymnasium-robotics"),
    "FrankaKitchen": ("gymnasium_robotics", "gymnasium-robotics"),
    "highway-": ("highway_env", "highway-env"),
    "dm_control/": ("shimmy", '"shimmy[dm-control]"'),
}
OF_ATARI = ("dim", "framestack", "grayscale", "terminal_on_life_loss")
MOVED = {"mpe": "mpe2", "magent": "magent2.environments"}  # families that left PettingZoo
PYTHON_ENVIRONMENT = trust.Kind(
    "environment",
    "jaxrl.envs",
    "a class or a function that makes an environment",
    callable,
    "jaxrl.schemes",
)


class Source(NamedTuple):
    """A maker of copies of an environment, in this process or in another one.

    Attributes:
        name: in messages and folders.
        make: makes a copy.
        is_given: whether it is an object that steps its copies itself, and is not ours to close.
        created: is called with each new copy's environment and its context.
    """

    name: str
    make: Callable[[], Any]
    is_given: bool = False
    created: EnvFunction | None = None

    def context(self, copy: int, worker: int = 0) -> EnvConfig:
        """The arguments of the environment, with the numbers of a copy and its process.

        Args:
            worker: counted from 1, as in RLlib; 0: the training's process.
        """
        make, arguments = self.make, {}
        while isinstance(make, functools.partial):
            arguments = {**make.keywords, **arguments}
            make = make.args[0] if make.args else make.func
        context = config_of(arguments)
        context.vector_index, context.worker_index = copy, worker
        return context


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
        if kind_of(env) in (VECTOR, SIMULATOR):
            return Source(_name_of(env), lambda: env, is_given=True)
        return Source(_name_of(env), functools.partial(copy.deepcopy, env))
    if callable(env):
        return Source(_name_of(env), functools.partial(by_keywords(env), **args))
    raise UsageError(
        f"{brief(env)} is no Python environment: give a gymnasium.Env, an environment of "
        "PettingZoo or RLlib, or what makes one"
    )


def make_copy(source: Source) -> Any:
    """A copy of the environment.

    Raises:
        UsageError: the constructor fails, or makes something else.
    """
    with explained(f"environment {source.name!r} cannot be made"):
        env = in_one_process(source.make)
    if kind_of(env) is None:
        raise UsageError(
            f"environment {source.name!r} is {trust.described(env)}, not a gymnasium.Env, "
            "gymnasium.vector.VectorEnv, environment of PettingZoo or RLlib, or simulator with "
            "num_envs"
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
    """The constructor of an environment in Gymnasium's registry: `gym:NAME`."""
    _require("gym", name)
    return functools.partial(_make_gymnasium, name)


def pettingzoo_constructor(name: str) -> Callable[..., Any]:
    """The constructor of an environment of PettingZoo: `pettingzoo:FAMILY/NAME`."""
    _require("pettingzoo", name)
    return functools.partial(_make_pettingzoo, name)


def _maker_of(name: str) -> Callable[..., Any]:
    scheme, _, rest = name.partition(":")
    constructors = {"gym": gymnasium_constructor, "pettingzoo": pettingzoo_constructor}
    if scheme in constructors:
        return constructors[scheme](rest)
    named = trust.parse_name(name)
    if named is None:
        name_forms = [*(f"{prefix}:NAME" for prefix in SCHEMES), "module:Name"]
        raise unknown_name("environment", name, name_forms)
    return functools.partial(_make_named, named)


def _require(scheme: str, name: Any) -> None:
    text("a text")(f"environments {scheme}:NAME: NAME", name)
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

    module, _, short = name.rpartition(":")  # "ale_py:ALE/Pong-v5" imports ale_py, which registers
    if module:
        _imported(module, f"gym:{name}")
    elif short not in gymnasium.registry:
        for prefix, (library, package) in REGISTERED_BY.items():
            if short.startswith(prefix):
                _imported(library, f"gym:{name}", package)
        if OLD_ATARI.fullmatch(short) and is_installed(LIBRARY):
            _imported(LIBRARY, f"gym:{name}")
    registered = _newest(short, gymnasium.registry, "-v")
    if registered is None:
        look = "" if module else "; one that a package registers is gym:MODULE:NAME"
        if match := OLD_ATARI.fullmatch(short):
            look = (
                f"; Atari's games of today are ALE/NAME-v5: ALE/{match[1]}-v5 (pip install ale-py)"
            )
        raise UsageError(
            f"{unknown_name('Gymnasium environment', short, gymnasium.registry)}{look}"
        )
    wrapping = {}
    if is_of_atari(short):
        wrapping = {argument: args.pop(argument) for argument in OF_ATARI if argument in args}
    with explained(f"environment 'gym:{name}' cannot be made"):
        made = gymnasium.make(registered, disable_env_checker=True, **args)
        if not wrapping:
            return made
        from jaxrl.outside.workers.atari import wrapped

        return wrapped(made, **wrapping)


def _make_pettingzoo(name: str, /, **args: Any) -> Any:
    parts = name.split("/")
    wrong = f"environment {brief(f'pettingzoo:{name}')}"
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{wrong}: give the module's family and name: pettingzoo:sisl/pursuit_v4")
    package = _family(name, *parts[:-1])
    modules = (module.name for module in pkgutil.iter_modules(package.__path__))
    versions = [module for module in modules if "_v" in module]
    newest = _newest(parts[-1], versions, "_v")
    if newest is None:
        choices = ["/".join((*parts[:-1], version)) for version in versions]
        raise unknown_name("environment of PettingZoo", name, choices)
    extra = f'"pettingzoo[{parts[0]}]"'
    module = _imported(f"{package.__name__}.{newest}", f"pettingzoo:{name}", extra)
    make = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if make is None:
        raise UsageError(f"{wrong}: the module makes no environment")
    with explained(f"{wrong} cannot be made"):
        return make(**args)


def _family(name: str, *parts: str) -> ModuleType:
    """The package of a family of PettingZoo, which may have moved out of it."""
    path = ".".join(("pettingzoo", *parts))
    try:
        return importlib.import_module(path)
    except ImportError as error:
        if parts[0] in MOVED:
            return _imported(MOVED[parts[0]], f"pettingzoo:{name}", MOVED[parts[0]].split(".")[0])
        if isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith("pettingzoo."):
            library = importlib.util.find_spec(SCHEMES["pettingzoo"])
            found = pkgutil.iter_modules(library.submodule_search_locations)
            names = {*MOVED, *(module.name for module in found)} - {"env_registry", "test", "utils"}
            raise unknown_name("family of PettingZoo", "/".join(parts), names) from None
        raise UsageError(f"environment 'pettingzoo:{name}': {reason_of(error)}") from error


def _newest(name: str, names: Iterable[str], mark: str) -> str | None:
    """The name itself if it is one of them, or else its newest version; None: there is none."""
    numbers = {}
    for candidate in names:
        if candidate == name:
            return name
        version = candidate.removeprefix(f"{name}{mark}")
        if version != candidate and version.isdecimal():
            numbers[candidate] = int(version)
    return max(numbers, key=numbers.get, default=None)


def _imported(module: str, name: str, install: str | None = None) -> ModuleType:
    """A module that an environment needs; what fails is said in one line.

    Args:
        install: what pip calls it; None: a user named the module, which may be anything.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = "" if install is None else f": pip install {install}"
        raise UsageError(
            f"environment {name!r} needs {error.name}, which is not installed{hint}"
        ) from error
    except Exception as error:  # as of libraries that are older than what they import
        raise UsageError(
            f"environment {name!r}: {module} cannot be imported: {reason_of(error)}"
        ) from error


def close(env: Any) -> None:
    """Ends an environment; one that failed may not even close."""
    with contextlib.suppress(Exception):
        in_one_process(env.close)
