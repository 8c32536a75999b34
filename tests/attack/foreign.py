"""Environments of other libraries that are named, given or set wrongly."""

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jaxrl
from jaxrl.core import registry
from jaxrl.core.env_contract import require_trainable
from tests.attack.nonsense import FLAG, NATURAL, REAL, TEXT, VALUES, Case
from tests.attack.user_code import GIVEN, RAISED, giving, raising, wrong_functions

# One environment of each library, and the package that is imported.
EXAMPLES = {
    "brax": ("inverted_pendulum", "brax"),
    "craftax": ("Craftax-Classic-Symbolic-v1", "craftax"),
    "envpool": ("CartPole-v1", "envpool"),
    "gym": ("CartPole-v1", "gymnasium"),
    "gymnax": ("Reacher-misc", "gymnax"),
    "jaxmarl": ("MPE_simple_spread_v3", "jaxmarl"),
    "jumanji": ("Snake-v1", "jumanji"),
    "navix": ("Navix-Empty-5x5-v0", "navix"),
    "octax": ("brix", "octax"),
    "pettingzoo": ("butterfly/pistonball_v6", "pettingzoo"),
    "pgx": ("go_9x9", "pgx"),
    "playground": ("CartpoleBalance", "mujoco_playground"),
    "xminigrid": ("MiniGrid-Empty-5x5", "xminigrid"),
}
# What training calls of an object of each library.
PARTS = {
    "brax": ("reset", "step", "action_size"),
    "craftax": ("reset_env", "step_env", "observation_space", "num_actions", "default_params"),
    "gymnax": ("reset_env", "step_env", "observation_space", "action_space", "default_params"),
    "jaxmarl": ("reset", "step_env", "observation_space", "action_space", "agents"),
    "jumanji": ("reset", "step", "action_spec"),
    "navix": ("reset", "_step"),
    "pgx": ("init", "step", "num_players"),
    "playground": ("reset", "step", "action_size"),
    "xminigrid": ("reset", "step", "num_actions", "default_params"),
}
IGNORED = {  # what an adapter does not need, or may take
    ("jaxmarl", "observation_space"): [f"gives {label}" for label in GIVEN],
    ("xminigrid", "num_actions"): ["gives 5"],
}
SPELLINGS = {
    "a letter fewer": lambda name: name[:-4] + name[-3:],
    "another case": lambda name: name.swapcase(),
    "a letter more": lambda name: f"{name[:3]}q{name[3:]}",
}
NO_NAMES = {
    "''": "",
    "a space": " ",
    "NUL": "a\0b",
    "half a character": "\udcff",
    "two lines": "a\nb",
    "long": "x" * 100_000,
    "a path": "../../etc/passwd",
    "a colon": "a:b:c",
    "a number": "5",
}


def trainable(env: Any, /, **args: Any) -> Any:
    """What a training does with an environment before it compiles."""
    training = jaxrl.PPOConfig(env=env, env_args=args).setup()
    require_trainable(training.env, training.env_params)
    return training


def constructor_of(scheme: str) -> Callable[[Any], Any]:
    """The function that a scheme leads to."""
    module, _, function = registry.points_of(registry.SCHEMES)[scheme].value.partition(":")
    return getattr(importlib.import_module(module), function)


def of_names(scheme: str, name: str) -> Iterator[Case]:
    """A scheme with names that its library does not have."""
    case = lambda label, call, *words: Case(f"{scheme}:NAME", label, call, words)
    for label, spelt in SPELLINGS.items():
        wrong = spelt(name)
        near = (f"'{name}'", f"'{name.partition('/')[0]}'")
        yield case(label, lambda wrong=wrong: trainable(f"{scheme}:{wrong}"), *near)
    for label, wrong in NO_NAMES.items():
        yield case(label, lambda wrong=wrong: trainable(f"{scheme}:{wrong}"), "environment")
    constructor = constructor_of(scheme)
    for label, value in VALUES.items():
        yield case(f"constructor({label})", lambda value=value: constructor(value)(), "environment")


def taken_by(default: Any) -> tuple[set[str], set[str]]:
    """(the values that an argument takes, those that a library may take) by its default's type."""
    if isinstance(default, bool):
        return FLAG, set()
    if isinstance(default, int | float):
        return set(), REAL | NATURAL
    if isinstance(default, str):
        return set(), TEXT | {"''", "NUL"}
    return set(), set(VALUES)


def of_arguments(scheme: str, name: str) -> Iterator[Case]:
    """An environment with arguments that are misspelt, or have values that they do not take."""
    constructor = registry.constructor_of(f"{scheme}:{name}")
    parameters = inspect.signature(constructor).parameters.values()
    known = {each.name: each.default for each in parameters if each.kind.name != "VAR_KEYWORD"}
    making = lambda **args: trainable(f"{scheme}:{name}", **args)
    for argument, default in known.items():
        taken, possible = taken_by(default)
        for label, value in VALUES.items():
            if label in taken:
                continue
            call = lambda argument=argument, value=value: making(**{argument: value})
            words = (argument, "observation") if label in possible else (argument,)
            yield Case(f"{scheme}.{argument}", label, call, words, label in possible)
    for argument in list(known)[:4]:
        wrong = argument[:-1] if len(argument) > 3 else f"{argument}s"
        misspelt = lambda wrong=wrong: making(**{wrong: 5})
        yield Case(f"{scheme}.{argument}", "misspelt", misspelt, (f"'{argument}'",))
    for wrong in ("nonsense", "", "a b", "self", "name", "key", "x" * 10_000):
        unknown = lambda wrong=wrong: trainable(f"{scheme}:{name}", **{wrong: 5})
        yield Case(
            f"{scheme}.unknown", wrong[:20], unknown, ("argument", "keyword", "not installed")
        )


def made_by_library(scheme: str, name: str) -> Any:
    """An environment as its library makes it."""
    module = importlib.import_module(EXAMPLES[scheme][1])
    match scheme:
        case "brax":
            return importlib.import_module("brax.envs").get_environment(name)
        case "craftax":
            make = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name
            return make(name, auto_reset=False)
        case "playground":
            return module.registry.load(name, config_overrides={"impl": "jax"})
        case "gymnax" | "xminigrid":
            return module.make(name)[0]
    return module.make(name)


def with_part(env: Any, part: str, value: Any) -> Any:
    """A copy of an environment with another method or property."""
    env = copy.copy(env)
    vars(env).pop(part, None)  # one that is kept from a first call
    parts = {part: staticmethod(value) if callable(value) else value}
    object.__setattr__(env, "__class__", type("Wrong", (type(env),), parts))
    return env


def of_objects(scheme: str, name: str) -> Iterator[Case]:
    """Environments of a user's with a part that is none, fails, or gives nonsense."""
    if scheme not in PARTS:
        return
    env = made_by_library(scheme, name)
    case = lambda label, call: Case(f"{scheme}.object", label, call, ("env", "argument"))
    for part in PARTS[scheme]:
        is_method = callable(getattr(env, part))
        wrongs = [*VALUES.items(), *(wrong_functions(set()) if is_method else ())]
        for label, value in wrongs:
            if label in ("class", "5", "0.5"):
                continue
            call = lambda part=part, value=value: trainable(with_part(env, part, value))
            may_work = label in IGNORED.get((scheme, part), ())
            yield Case(f"{scheme} object.{part}", label, call, ("Wrong", name, part), may_work)
    for label, value in GIVEN.items():
        if label not in ("function", "class"):
            made = lambda value=value: trainable(giving(value))
            yield case(f"a function that gives {label}", made)
    for label, error in RAISED.items():
        yield case(f"a function that raises {label}", lambda error=error: trainable(raising(error)))
    yield case("with arguments", lambda: trainable(env, nonsense=5))
    if scheme != "jaxmarl":  # whose classes take anything
        yield case("a class", lambda: trainable(type(env), nonsense=5))
    yield case("a module", lambda: trainable(importlib.import_module(EXAMPLES[scheme][1])))
