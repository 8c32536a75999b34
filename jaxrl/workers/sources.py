"""Python environments by name, object or constructor: what a copy of one is made from.

    gym:LunarLander-v3           Gymnasium's registry
    pettingzoo:sisl/pursuit_v4   a module of PettingZoo
    module:Name                  a class or function that makes an environment
    a class or function, or an environment itself (copied)

This module must not import JAX.
"""

import copy
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl.core import trust
from jaxrl.core.errors import UsageError, is_installed, reason_of, unknown_name

SCHEMES = {"gym": "gymnasium", "pettingzoo": "pettingzoo"}  # with the library, and the extra
GYMNASIUM, VECTOR, PARALLEL, TURNS = "gymnasium.Env", "VectorEnv", "ParallelEnv", "AECEnv"
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
    """

    name: str
    make: Callable[[], Any]


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
        return Source(_name_of(env), functools.partial(copy.deepcopy, env))
    if callable(env):
        return Source(_name_of(env), functools.partial(env, **args))
    raise UsageError(
        f"{env!r:.80} is no Python environment: give a gymnasium.Env, a PettingZoo environment, "
        "or what makes one"
    )


def kind_of(env: Any) -> str | None:
    """Which interface an environment, or a class of them, has; None: none of Python's."""
    if any(hasattr(env, name) for name in ("step_env", "step_batch", "step_stacked")):
        return None  # one of JAX
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        return None
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        return TURNS
    for kind, base in ((PARALLEL, "ParallelEnv"), (VECTOR, "VectorEnv"), (GYMNASIUM, "Env")):
        if isinstance(env, type) and any(each.__name__ == base for each in env.__mro__):
            return kind
    if hasattr(env, "possible_agents"):
        return PARALLEL
    if hasattr(env, "single_observation_space"):
        return VECTOR
    return GYMNASIUM if hasattr(env, "observation_space") else None


def is_python_environment(env: Any) -> bool:
    """Whether `env`, as a setting gives it, is an environment outside JAX.

    Names with a scheme say so; classes and objects by their methods. A function's result is not
    known before it is called.
    """
    if isinstance(env, str):
        return env.partition(":")[0] in SCHEMES and ":" in env
    return kind_of(env) is not None


def make_copy(source: Source) -> Any:
    """A copy of the environment.

    Raises:
        UsageError: the constructor fails, or makes something else.
    """
    try:
        env = source.make()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"environment {source.name!r} cannot be made: {reason_of(error)}"
        ) from error
    if kind_of(env) is None:
        raise UsageError(
            f"environment {source.name!r} is {trust.described(env)}, not a gymnasium.Env, "
            "gymnasium.vector.VectorEnv, or PettingZoo environment"
        )
    return env


def _name_of(env: Any) -> str:
    inner = getattr(env, "func", env)  # of functools.partial
    spec = getattr(env, "spec", None)
    if getattr(spec, "id", None):
        return str(spec.id)
    named = inner if hasattr(inner, "__name__") else type(inner)
    return str(named.__name__).strip("<>")


def _maker_of(name: str) -> Callable[..., Any]:
    scheme, colon, rest = name.partition(":")
    if colon and scheme in SCHEMES:
        library = SCHEMES[scheme]
        if not is_installed(library):
            raise UsageError(
                f"environments {scheme}:NAME: {library} is not installed: "
                f'pip install "jaxrl[{library}]"'
            )
        return functools.partial(_make_gymnasium if scheme == "gym" else _make_pettingzoo, rest)
    named = trust.parse_name(name)
    if named is None:
        raise unknown_name(
            "environment", name, [*(f"{each}:NAME" for each in SCHEMES), "module:Name"]
        )
    return functools.partial(_make_named, named)


def _make_named(named: trust.Named, /, **args: Any) -> Any:
    return trust.load(PYTHON_ENVIRONMENT, named)(**{**named.arguments, **args})


def _make_gymnasium(name: str, /, **args: Any) -> Any:
    import gymnasium

    module, _, known = name.rpartition(":")  # "ale_py:ALE/Pong-v5" imports ale_py, which registers
    if module:
        importlib.import_module(module)
    if known not in gymnasium.registry:
        raise unknown_name("Gymnasium environment", known, gymnasium.registry)
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
        raise UsageError(f"{wrong}: PettingZoo has no module {error.name}") from None
    make = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if make is None:
        raise UsageError(f"{wrong}: the module makes no environment")
    return make(**args)
