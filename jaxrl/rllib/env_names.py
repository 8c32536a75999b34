"""The environments of RLlib's configurations: names, paths and classes, as they are called here."""

import functools
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl.core.atari_names import is_of_atari
from jaxrl.core.env import Environment, MultiAgentEnvironment
from jaxrl.core.env_config import CONFIG_NAMES, config_of
from jaxrl.core.errors import UsageError, brief, is_installed, one_line, require
from jaxrl.core.foreign_names import library_file
from jaxrl.core.registry import GYMNASIUM_NAME, SCHEMES, is_maker, make_with, names, registered
from jaxrl.core.trust import points_of
from jaxrl.core.types import PyTree

CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+")  # as RLlib reads a class from a text
CLASS_TEXT = re.compile(r"<class '([\w.]+)'>")  # as a params.json prints one
RAY = "ray"
PREFERRED, DIM = "preprocessor_pref", 84  # of Atari's games
NEWER_VERSIONS = 9  # that are tried in place of one that Gymnasium no longer makes


class NamedEnv(NamedTuple):
    """An environment as `PPOConfig(env=...)` takes it."""

    env: Any
    args: Mapping[str, Any] = {}
    note: str = ""


class RegisteredMaker:
    """The function that RLlib's `register_env` was given: it takes all settings in one mapping."""

    def __init__(self, name: str, create: Callable[[Any], Any]):
        self.__name__, self._create = name, create

    def __repr__(self) -> str:
        return f"register_env({self.__name__!r}, ...)"

    def __call__(self, **args: Any) -> Any:
        return self._create(config_of(args))


def is_name_elsewhere(env: Any) -> bool:
    """Returns whether a text has the form of RLlib's names of environments, and is none of ours."""
    if not isinstance(env, str) or ":" in env or env in names():
        return False
    has_form = GYMNASIUM_NAME.fullmatch(env) or CLASS_PATH.fullmatch(env)
    is_known = env in library_file("RLlib")["environments"]
    return bool(has_form) or is_known or _registered_with_ray(env) is not None


def named(env: Any) -> NamedEnv:
    """The environment here that RLlib means by a name, a path or a class.

    A class is itself, whatever it is called: its name says nothing of its rules.
    """
    if env is None:
        raise UsageError(
            f"the configuration names no environment: env=NAME gives it {_known()}; "
            "'external' is one whose programs connect to a server (docs/serving.md)"
        )
    if not isinstance(env, str):
        return NamedEnv(_of_class(env))
    if registered(env) is not None:
        return NamedEnv(env)
    if (maker := _registered_with_ray(env)) is not None:
        return NamedEnv(maker, note="made by its function")
    if env in (environments := library_file("RLlib")["environments"]):
        found = environments[env]
        return _found(env, found["env"])._replace(args=found.get("env_args", {}))
    if (match := CLASS_TEXT.fullmatch(env)) is not None:
        env = match[1]
    module, _, name = env.rpartition(":")
    is_of_gymnasium = not module or (module.isidentifier() and module not in points_of(SCHEMES))
    if GYMNASIUM_NAME.fullmatch(name) and is_of_gymnasium:
        return _of_gymnasium(env)
    package = _package(env)
    can_be_found = package == RAY or (package != "__main__" and is_installed(package))
    if CLASS_PATH.fullmatch(env) and can_be_found:
        return _found(env, _class_at(env))
    if ":" in env and not env.startswith("<"):
        return NamedEnv(env)
    if env.lower() in names():
        return NamedEnv(env.lower())
    if reason_against(f"gym:{env}", {}) is None:
        return NamedEnv(f"gym:{env}")
    raise UsageError(
        f"env={brief(env)} has no counterpart here: env=NAME gives a compiled one {_known()}; "
        "docs/environments.md says how to write one"
    )


def argument_names(env: Any) -> dict[str, str]:
    """{RLlib's name: the name here} of arguments that an environment here calls otherwise.

    Args:
        env: the environment as `PPOConfig` takes it.
    """
    names = {}
    for entry in library_file("RLlib")["environments"].values():
        if entry["env"] == env:
            names |= entry.get("arguments", {})
    return names


def arguments_in_names(env: Any) -> set[str]:
    """The arguments of an environment here that RLlib's names of it decide, as CartPole-v0 does."""
    decided = set()
    for entry in library_file("RLlib")["environments"].values():
        if entry["env"] == env:
            decided |= entry.get("env_args", {}).keys()
    return decided


def arguments_of(env: Any, config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """(path, the environment's arguments) of an `env_config`.

    RLlib's tutorial has them in a mapping of their own, `{"config": {"width": 8}}`. It is read
    where the environment has no such argument.
    """
    (name, *others) = config or [""]
    inner = config.get(name)
    is_inner = name in CONFIG_NAMES and not others and isinstance(inner, Mapping)
    if not is_inner or reason_against(env, config) is None:
        return "env_config", config
    return f"env_config/{name}", inner


def wrappers_of(env: Any, values: Mapping[str, Any], *, new_stack: bool) -> dict[str, int]:
    """The arguments by which a game is wrapped as RLlib wraps it; none where it is not.

    Args:
        env: its name, as `PPOConfig` takes it.
        values: RLlib's, by path. Its wrappers take colours out whatever `grayscale` says.
    """
    scheme, _, name = str(env).partition(":")
    is_game = scheme == "gym" and is_of_atari(name.rpartition(":")[2])
    if not (is_game and wraps_games(values, new_stack=new_stack)):
        return {}
    is_stacked = values.get("model/framestack", True) is True
    return {"dim": values.get("model/dim", DIM), "framestack": 4 if is_stacked else 1}


def wraps_games(values: Mapping[str, Any], *, new_stack: bool) -> bool:
    """Returns whether RLlib would put its wrappers around a game of Atari's."""
    return not new_stack and values.get(PREFERRED, "deepmind") == "deepmind"


def reason_against(env: Any, args: Mapping[str, Any]) -> str | None:
    """The reason why an environment does not take these arguments; None if it does."""
    made = made_or_reason(env, args)
    return made if isinstance(made, str) else None


def made_or_reason(env: Any, args: Mapping[str, Any]) -> tuple[Any, PyTree] | str:
    """(environment, its numbers), or the reason why it does not take these arguments."""
    try:
        with warnings.catch_warnings(action="ignore"):  # Gymnasium's, of old versions
            return make_with(env, dict(args))
    except UsageError as error:
        return one_line(error)


def _of_class(env: Any) -> Any:
    """An environment, or what makes one; a class as "module:Class" if that leads to it."""
    bases = Environment | MultiAgentEnvironment
    if isinstance(env, bases) or (hasattr(env, "step_env") and not isinstance(env, type)):
        return env
    is_in_jax = isinstance(env, type) and issubclass(env, bases)
    if not (is_in_jax or is_maker(env)):
        raise UsageError(
            f"env={brief(env)} is no environment that can be read: env=NAME gives one {_known()}; "
            "for an ExternalEnv see docs/serving.md and docs/learner.md"
        )
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    found = getattr(sys.modules.get(module), name, None)
    if found is env and module != "__main__":
        return f"{module}:{name}"
    return functools.partial(env) if is_in_jax else env


def _registered_with_ray(name: str) -> RegisteredMaker | None:
    """The environment that `register_env` named in this process, if Ray was imported in it."""
    registry = getattr(sys.modules.get("ray.tune.registry"), "_global_registry", None)
    if registry is None or not registry.contains("env_creator", name):
        return None
    return RegisteredMaker(name, registry.get("env_creator", name))


def _class_at(path: str) -> str:
    """The name "package.module:Class" of a class's path, also where RLlib has moved it."""
    for old, new in library_file("RLlib")["moved"].items():
        path = path.replace(old, new, 1) if path.startswith(old) else path
    module, _, name = path.rpartition(".")
    return f"{module}:{name}"


def _package(name: str) -> str:
    """The package of a class's path, or of "module:Class"."""
    return name.partition(":")[0].partition(".")[0]


def _found(env: str, here: str) -> NamedEnv:
    """An environment by its name here; one of RLlib's own needs Ray.

    Args:
        env: its name in the configuration.
    """
    if _package(here) == RAY:
        what = f"env={brief(env)}, an environment of RLlib's (env=NAME gives another one),"
        require(RAY, what, install='"ray[rllib]"')
    return NamedEnv(here)


def _of_gymnasium(name: str) -> NamedEnv:
    """A name of Gymnasium's, or that of the next version which it still makes."""
    environments = library_file("RLlib")["environments"]
    stem, _, version = name.rpartition("-v")
    for newer in range(int(version), int(version) + 1 + NEWER_VERSIONS):
        entry = environments.get(f"{stem}-v{newer}", {"env": f"gym:{stem}-v{newer}"})
        reason = reason_against(entry["env"], {})
        if reason is None:
            note = f"Gymnasium makes no v{version} of it any more, v{newer} is the next"
            return NamedEnv(entry["env"], note="" if newer == int(version) else note)
        if "not installed" in reason:  # as MuJoCo may be, which old versions do not say
            raise UsageError(reason)
    return NamedEnv(f"gym:{name}")


def _known() -> str:
    return f"(--env NAME; known: {', '.join(names())}, LIBRARY:NAME, module:Class)"
