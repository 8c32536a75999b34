"""The contract of callbacks' hooks: the arguments of each by its name, and checks of results.

A method gets its arguments by their names where it has these names, in any order, as RLlib's do:
`on_train_result(self, *, algorithm, result, **kwargs)`. One with names of its own gets the usual
ones in their order.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.env import strongly_typed
from jaxrl.core.errors import UsageError, brief, reason_of, unknown_name
from jaxrl.core.fields import FLOAT32
from jaxrl.core.frozen import is_array
from jaxrl.core.types import PyTree, other_form
from jaxrl.rollout.absent_argument import AbsentArgument
from jaxrl.rollout.callbacks_kind import HISTOGRAMS

LOGGER, NEXT_OBS = "metrics_logger", "next_obs"  # given to hooks that name them
CUSTOM_EVALUATION = "custom_evaluation_function"


class HookForm(NamedTuple):
    """The arguments that a hook may take."""

    usual: tuple[str, ...]  # in their order, for methods with names of their own
    also: tuple[str, ...] = ()  # by name alone, RLlib's among them
    absent: tuple[str, ...] = ()  # RLlib's without a counterpart: an `AbsentArgument`


# Of the trajectory, under RLlib's names of other moments too; the first returns it in any case.
TRAJECTORY_HOOKS = ("on_postprocess_trajectory", "on_sample_end", "on_learn_on_batch")
OF_A_TRAJECTORY = HookForm(
    ("policy", "trajectory"),
    ("batch", "train_batch", "samples", "result", NEXT_OBS, LOGGER),
    ("env_runner", "worker"),
)
# Traced, but on the host where they are written as in RLlib, with `episode` and without `data`.
TRACED_OR_HOST = ("on_episode_start", "on_episode_step", "on_episode_end")
EPISODE_HOOKS = ("on_episode_created", *TRACED_OR_HOST)  # on the host with sampled episodes
OF_AN_EPISODE = HookForm(
    (),
    ("episode", "trainer", "algorithm", LOGGER, "prev_episode_chunks"),
    ("env_runner", "env", "env_index", "rl_module", "worker", "base_env", "policies"),
)
OF_A_NEW_EPISODE = OF_AN_EPISODE._replace(usual=("episode",))
TRACED_HOOKS = {
    "on_episode_start": HookForm(("state", "params")),
    "on_episode_step": HookForm(("data", "step"), (LOGGER,)),
    HISTOGRAMS: HookForm(("data", "step")),
    "on_episode_end": HookForm(("data", "episode"), (LOGGER,)),
    **dict.fromkeys(TRAJECTORY_HOOKS, OF_A_TRAJECTORY),
}
CREATED = "on_environment_created"  # called in the process that steps the copy
# of the run, between its chunks
HOST_HOOKS = {
    CREATED: HookForm(("env",), ("env_context",), ("env_runner", "worker", LOGGER)),
    "on_episode_created": OF_A_NEW_EPISODE,
    "on_algorithm_init": HookForm(("trainer",), ("algorithm", LOGGER)),
    "on_train_result": HookForm(("trainer", "result"), ("algorithm", LOGGER)),
    "on_evaluate_start": HookForm(("trainer",), ("algorithm", LOGGER)),
    "on_evaluate_end": HookForm(
        ("trainer", "evaluation"), ("algorithm", "evaluation_metrics", LOGGER)
    ),
    CUSTOM_EVALUATION: HookForm(
        ("trainer",), ("algorithm",), ("eval_workers", "eval_env_runner_group")
    ),
    "on_checkpoint": HookForm(("trainer", "path"), ("algorithm",)),
    "on_checkpoint_loaded": HookForm(("trainer",), ("algorithm",)),
    "on_train_end": HookForm(("trainer", "result"), ("algorithm",)),
}
# By these a hook is known to be written for RLlib.
ONLY_RLLIB = {*OF_AN_EPISODE.absent, "agent_id", "policy_id", "original_batches"}
ALL_HOOKS = {**TRACED_HOOKS, **HOST_HOOKS}


class HookNumber(NamedTuple):
    """A number that a traced hook returns or logs."""

    value: jax.Array  # f32[]
    reduce: str  # its reduction, if it was logged; else ""
    source: str  # the hook, as errors call it


def together(*parts: Mapping[str, HookNumber]) -> dict[str, HookNumber]:
    """The numbers of several hooks.

    Raises:
        UsageError: two of them have one name.
    """
    found: dict[str, HookNumber] = {}
    for part in parts:
        for name, number in part.items():
            if name in found:
                raise given_twice(name, found[name], number)
            found[name] = number
    return found


def given_twice(name: str, first: HookNumber, second: HookNumber) -> UsageError:
    return UsageError(f"{name!r} is given twice: by {first.source} and by {second.source}")


def takes_an_object(hook: Any) -> bool:
    """Returns whether it is the host's: (*, episode, ...) or (episode, **kwargs), as in RLlib."""
    parameters = _parameters(hook)
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    of_rllib = {*OF_AN_EPISODE.also, *OF_AN_EPISODE.absent}
    return "episode" in parameters and all(
        parameter.kind in by_keyword or name in of_rllib for name, parameter in parameters.items()
    )


def names(function: Any, argument: str) -> bool:
    """Returns whether a hook has a parameter of this name."""
    return argument in _parameters(function)


def form_of(hook: str, function: Any) -> HookForm:
    """The form of a hook as it is written."""
    of_an_object = hook in TRACED_OR_HOST and takes_an_object(function)
    return OF_AN_EPISODE if of_an_object else ALL_HOOKS[hook]


def call_hook(function: Callable, form: HookForm, values: Mapping[str, Any]) -> Any:
    """Calls a hook with those of the values that it takes."""
    absent = {name: AbsentArgument(name) for name in form.absent}
    arguments, keywords = split_arguments(function, form, {**absent, **values})
    return function(*arguments, **keywords)


def check_hooks(callback: Any) -> None:
    """Refuses a callback without a hook, with one that nobody would call or that takes others.

    Raises:
        UsageError: what is wrong, in one line.
    """
    name = type(callback).__qualname__
    for hook in dir(callback):
        if hook.startswith("on_") and hook not in ALL_HOOKS:
            raise _unknown_hook(hook, name)
    if not any(hasattr(callback, hook) for hook in ALL_HOOKS):
        raise UsageError(
            f"callbacks {brief(callback)} have no hook such as on_train_result; docs/callbacks.md "
            "has all"
        )
    for hook in ALL_HOOKS:
        function = getattr(callback, hook, None)
        if function is not None:
            _check_arguments(f"{hook} of callbacks {name}", hook, function)


def _unknown_hook(hook: str, name: str) -> UsageError:
    from jaxrl.core.foreign_names import HOOKS, said_of

    where = f"of callbacks {name}"
    if found := said_of(hook, HOOKS):
        return UsageError(f"unknown hook {hook!r} {where}: {found}")
    return unknown_name("hook", hook, ALL_HOOKS, where)


def _check_arguments(what: str, hook: str, function: Any) -> None:
    """Refuses a hook that cannot be called with what it may take."""
    if not callable(function):
        raise UsageError(f"{what} must be a method, not {brief(function)}")
    form = form_of(hook, function)
    arguments, keywords = split_arguments(
        function, form, dict.fromkeys((*form.usual, *form.also, *form.absent))
    )
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except ValueError:  # a built-in without a signature
        pass
    except TypeError as error:
        usual = ", ".join(form.usual or ("*", *form.also))
        also = (
            f"; by name it may also take {', '.join(form.also)}" if form.usual and form.also else ""
        )
        rewrite = ""
        if hook in TRACED_HOOKS and ONLY_RLLIB & _parameters(function).keys():
            rewrite = "; it is compiled, on arrays: docs/callbacks.md#rllibs-hooks-of-an-episode"
        raise UsageError(f"{what} must take ({usual}): {error}{also}{rewrite}") from None


def split_arguments(
    function: Callable, form: HookForm, values: Mapping[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """(arguments, keywords) of a call, of those of the values that the hook takes."""
    parameters, kind = _parameters(function), inspect.Parameter
    kinds = {param.kind for param in parameters.values()}
    named, needed = set(), set()
    for name, param in parameters.items():
        if param.kind in (kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY):
            named.add(name)
        is_variadic = param.kind in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD)
        if param.default is kind.empty and not is_variadic:
            needed.add(name)
    takes_any = kind.VAR_KEYWORD in kinds
    has_enough = takes_any or kind.KEYWORD_ONLY in kinds or 0 < len(form.usual) <= len(named)
    is_plain = kind.VAR_POSITIONAL not in kinds
    by_name = has_enough and is_plain and needed <= values.keys() & named
    usual = () if by_name else tuple(values[name] for name in form.usual)
    by_keyword = values.keys() if by_name else values.keys() & {*form.also, *form.absent}
    keywords = {name: values[name] for name in by_keyword if takes_any or name in named}
    return usual, keywords


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # none at all, or a built-in without a signature
        return {}


def call_traced(callback: Any, hook: str, **values: Any) -> Any:
    """The result of a traced hook; where it fails, one line that names it."""
    try:
        return call_hook(getattr(callback, hook), ALL_HOOKS[hook], values)
    except (UsageError, FloatingPointError):  # of jax_debug_nans, which `find_nan` waits for
        raise
    except Exception as error:
        raise UsageError(
            f"{hook} of callbacks {class_name(callback)} fails as it is traced: {reason_of(error)}"
        ) from error


def scalar(source: str, name: Any, value: Any) -> jax.Array:
    """A number that a hook gives by its name, f32[]."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"{source}: a number's name must be a text, not {brief(name)}")
    dtype = value.dtype if is_array(value) else type(value)
    is_real = dtype in (int, float, bool) or any(
        jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer)
    )
    shown = f"of shape {list(value.shape)}" if is_array(value) and value.shape else brief(value)
    if not is_real or jnp.shape(value) or (dtype is int and abs(value) > FLOAT32):
        raise UsageError(f"{source}: {name!r} must be one number, not {shown}")
    return jnp.asarray(value, jnp.float32)


def alike(callback: Any, hook: str, what: str, before: PyTree, after: PyTree) -> PyTree:
    """`after`, once its structure, shapes and types are those of `before`."""
    after = arrays(callback, hook, after)
    if difference := other_form(before, after, what):
        raise UsageError(
            f"{hook} of {class_name(callback)} must return the {what} in the form it was given: "
            f"{difference}"
        )
    return after


def arrays(callback: Any, hook: str, value: Any) -> PyTree:
    """The value of a hook, as arrays of types that do not change with what they meet."""
    try:
        return strongly_typed(value)
    except Exception:  # of many kinds, the last ones where a value holds itself
        raise UsageError(
            f"{hook} of {class_name(callback)} must return arrays of numbers, alone or in tuples, "
            f"lists and dicts, not {brief(value)}"
        ) from None


def class_name(callback: Any) -> str:
    """The name of its class."""
    return type(callback).__qualname__
