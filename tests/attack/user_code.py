"""Code of a user's that is wrong: callbacks and models whose methods take and give anything."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.custom import custom_model
from jaxrl.rollout.hook_contract import ALL_HOOKS, HOST_HOOKS, TRACED_HOOKS
from jaxrl.run.callbacks import HostCallbacks
from tests.attack.nonsense import VALUES, Case, Thing
from tests.programs import SMALL_CARTPOLE as SMALL

OBS, ACTIONS = Box(-1.0, 1.0, (3,)), Discrete(4)
EMPTY_CARRIES = {"None", "[]", "{}", "array", "one"}  # allowed, as an array of the batch is
NUMBERS = {"0", "5", "-1", "0.5", "True", "nan", "inf", "f32 0.5", "f64 nan"}


def endless():
    """A list that holds itself."""
    held = []
    held.append(held)
    return held


def deep():
    held = {}
    for _ in range(3000):
        held = {"a": held}
    return held


class Unspeakable(Exception):
    """An error whose message cannot be had."""

    def __str__(self):
        raise RuntimeError("no words")


GIVEN = {
    **VALUES,
    "endless": endless(),
    "deep": deep(),
    "text array": np.array(["a", "b"]),
    "objects": np.array([Thing(), None]),
    "half a character": "\udcff",
    "complex": 1j,
    "key": jax.random.key(0),
    "function": len,
    "generator": (each for each in ()),
}
RAISED = {
    "KeyError": KeyError("left"),
    "StopIteration": StopIteration(),
    "a long message": ValueError("line one\nline two\n" + "x" * 5000),
    "unspeakable": Unspeakable(),
    "AssertionError": AssertionError(),
    "RecursionError": RecursionError("maximum recursion depth exceeded"),
}
WRONG_ARGUMENTS = {
    "no argument": lambda: {},
    "one": lambda a: {},
    "five": lambda a, b, c, d, e: {},
    "keywords": lambda *, a, b: {},
}


def raising(error: Exception) -> Callable:
    def function(*_, **__):
        raise type(error)(*error.args)

    return function


def giving(value: Any) -> Callable:
    return lambda *_, **__: value


def wrong_functions(taken: set[str]) -> Iterator[tuple[str, Callable]]:
    """Functions that give what they may not, or fail, by a label."""
    for label, value in GIVEN.items():
        if label not in taken:
            yield f"gives {label}", giving(value)
    for label, error in RAISED.items():
        yield f"raises {label}", raising(error)


def callbacks_of(**methods: Any) -> type:
    """A class of callbacks with these methods, or what stands in their place."""
    methods = {
        name: staticmethod(each) if callable(each) else each for name, each in methods.items()
    }
    return type("Wrong", (), methods)


def of_callbacks() -> Iterator[Case]:
    """Callbacks with a hook that is none, takes other arguments, fails, or gives nonsense."""
    making = lambda **hooks: jaxrl.make_train(SMALL.replace(callbacks=callbacks_of(**hooks)))
    for hook in (*TRACED_HOOKS, *HOST_HOOKS):
        case = lambda label, function, hook=hook: Case(
            f"callbacks.{hook}", label, functools.partial(making, **{hook: function}), (hook,)
        )
        for label, value in VALUES.items():
            if label not in ("None", "class"):
                yield case(f"is {label}", value)
        for label, function in WRONG_ARGUMENTS.items():
            if label != "one" or len(ALL_HOOKS[hook].usual) > 1:
                yield case(f"takes {label}", function)
    for hook in ("hist_data", "on_episode_end"):
        case = lambda label, function, hook=hook: Case(
            f"callbacks.{hook}", label, functools.partial(making, **{hook: function}), (hook,)
        )
        for label, function in wrong_functions({"{}"}):
            yield case(label, function)
        for label, value in GIVEN.items():
            if label not in NUMBERS:
                yield case(f"names {label}", giving({"number": value}))
        for label in ("5", "None", "''", "True", "object"):
            yield case(f"named {label}", giving({VALUES[label]: 1.0}))
    kept = {"None", "[]", "{}", "array", "ragged", "{5: 5}", *NUMBERS, "complex", "key"}
    for label, function in wrong_functions(kept):
        start = functools.partial(making, on_episode_start=function)
        yield Case("callbacks.on_episode_start", label, start, ("on_episode_start",))
    for label, function in wrong_functions({"0.5", "nan", "inf", "f32 0.5", "f64 nan"}):
        step = functools.partial(making, on_episode_start=giving(0.5), on_episode_step=function)
        yield Case("callbacks.on_episode_step", label, step, ("on_episode_step",))
    for label, function in wrong_functions(set()):
        rewriting = functools.partial(rewritten, function)
        yield Case("callbacks.rewriting", label, rewriting, ("on_postprocess_trajectory",))
    held = {
        "f64 nan",
        "0",
        "5",
        "-1",
        "0.5",
        "'x'",
        "''",
        "NUL",
        "None",
        "[]",
        "{}",
        "True",
        "ragged",
    }
    for label, function in wrong_functions({*held, "{5: 5}", "nan", "inf"}):
        state = functools.partial(kept_state, function)
        yield Case("callbacks.get_state", label, state, ("get_state",))


def rewritten(function: Callable) -> Any:
    """Traces learning from what `on_postprocess_trajectory` gives."""
    callbacks = callbacks_of(on_postprocess_trajectory=function)
    algorithm = SMALL.replace(callbacks=callbacks).build()
    return jax.eval_shape(algorithm.update, jax.eval_shape(algorithm.init, jax.random.key(0)))


def kept_state(function: Callable) -> Any:
    """The state of callbacks for a checkpoint."""
    return HostCallbacks(
        None, [callbacks_of(get_state=function, on_train_end=giving(None))()]
    ).state()


def of_models() -> Iterator[Case]:
    """Models with a method that is none, takes other arguments, fails, or gives nonsense."""
    init = lambda key, obs: {"w": jnp.zeros((3, 4))}
    logits, value = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)
    apply = lambda params, obs: (obs @ params["w"], obs[:, 0])
    carry = lambda batch_shape: jnp.zeros(batch_shape)
    remembering = lambda params, obs, carry: (obs @ params["w"], obs[:, 0], carry)
    given = lambda *functions: custom_model(functions, OBS, ACTIONS)
    case = lambda what, label, call: Case(f"model.{what}", label, call, ("model",))
    for label, value_given in GIVEN.items():
        if label not in ("class",):
            yield case("given", label, lambda x=value_given: custom_model(x, OBS, ACTIONS))
            yield case("pair", label, lambda x=value_given: custom_model((x, apply), OBS, ACTIONS))
            yield case("pair 2", label, lambda x=value_given: custom_model((init, x), OBS, ACTIONS))
    for label, function in (*wrong_functions(set()), *WRONG_ARGUMENTS.items()):
        yield case("init", label, functools.partial(given, function, apply))
        yield case("apply", label, functools.partial(given, init, function))
        if label.removeprefix("gives ") not in EMPTY_CARRIES:
            forgetful = functools.partial(given, init, remembering, function)
            yield case("initial_carry", label, forgetful)
        yield case("remembering", label, functools.partial(given, init, function, carry))
        yield case("a function of spaces", label, lambda x=function: custom_model(x, OBS, ACTIONS))
    for label, found in GIVEN.items():
        for what, outputs in (
            ("logits", (found, value)),
            ("values", (logits, found)),
            ("three", (logits, value, found)),
        ):
            model = functools.partial(given, init, giving(outputs))
            yield case(what, label, model)
        model = functools.partial(given, init, giving((logits, value, found)), carry)
        yield case("carry", label, model)
        if label not in ("f32 0.5", "f64 nan", "array"):
            params = functools.partial(given, giving({"w": found}), apply)
            yield case("params", label, params)


OF_A_USER = {"callbacks": of_callbacks, "models": of_models}
