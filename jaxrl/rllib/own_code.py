"""Rules for a user's own code in RLlib's settings: callbacks, curricula, explorations."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxrl.core.errors import UsageError, one_line
from jaxrl.ops.exploration import BY_NAME, EXPLORATION
from jaxrl.rllib.context import Context
from jaxrl.rllib.rows import Row, changes, harmless, taken
from jaxrl.rollout.episode_callbacks import EpisodeCallbacks
from jaxrl.rollout.hook_contract import ALL_HOOKS, check_hooks
from jaxrl.run.env_tasks import task_function

LOGGERS = "loggers=['jsonl', 'csv', 'tensorboard', 'wandb'] of Trainer says where results go"
CLASSES = ("callbacks", "callbacks_class")
NEVER_CALLED = (  # hooks of RLlib's that have no counterpart
    *("on_algorithm_init", "on_checkpoint_loaded", "on_environment_created", "on_episode_created"),
    *("on_evaluate_start", "on_evaluate_offline_start", "on_evaluate_offline_end"),
    *("on_env_runners_recreated", "on_offline_eval_runners_recreated"),
)
CALLBACKS = (*CLASSES, *map("callbacks_{}".format, (*ALL_HOOKS, *NEVER_CALLED)))


def callbacks(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """This library's are taken over, and functions that are hooks here; RLlib's own do nothing."""
    read, found = {}, []
    for key, value in values.items():
        try:
            several = _callbacks_of(key, value)
        except UsageError as error:
            yield changes({key: value}, one_line(error))
            continue
        name = getattr(value, "__name__", str(value))
        if several and all(is_of(EpisodeCallbacks, part) for part in several):
            read[key] = value
            found += several
        elif not value:
            yield harmless({key: value}, "")
        elif name.rstrip("'>").endswith(("DefaultCallbacks", "RLlibCallback")):
            yield harmless({key: value}, "RLlib's base class, which does nothing")
        elif all(type(part).__name__.endswith("LoggerCallback") for part in several):
            yield changes({key: value}, LOGGERS)
        else:
            yield changes({key: value}, "callbacks=... takes a jaxrl.Callbacks (docs/callbacks.md)")
    if read:
        yield taken(read, callbacks=tuple(found))


def _callbacks_of(key: str, value: Any) -> list[Any]:
    """The parts of a value; functions by their hooks' names are made a class."""
    several = list(value) if isinstance(value, list | tuple) else [value]
    if key not in CLASSES:
        several = [{key.removeprefix("callbacks_"): part} for part in several if callable(part)]
    for i, part in enumerate(several):
        if isinstance(part, Mapping) and part:
            several[i] = _of_functions(part)
    return several


def _of_functions(functions: Mapping[str, Any]) -> type[EpisodeCallbacks]:
    """A class of callbacks with these functions as its hooks, by the hooks' names.

    Raises:
        UsageError: one of them is no hook here, or takes other arguments.
    """
    hooks = {}
    for hook, function in functions.items():
        if function is not None:
            hooks[hook] = staticmethod(_from_info(hook, function))
    found = type("HooksOfRLlib", (EpisodeCallbacks,), hooks)
    check_hooks(found())
    return found


def _from_info(hook: str, function: Any) -> Callable:
    """A hook; one of RLlib's oldest, on_train_result(info), gets its arguments in a mapping."""
    if hook != "on_train_result" or not callable(function):
        return function
    parameters = inspect.signature(function).parameters
    if list(parameters) != ["info"]:
        return function
    return lambda trainer, result: function({"trainer": trainer, "result": result})


def is_of(base: type, value: Any) -> bool:
    """Returns whether it is a class derived from `base`, or an instance of one."""
    return isinstance(value, base) or (isinstance(value, type) and issubclass(value, base))


def curriculum(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """A function from (result, task) to the next task; RLlib's own has other arguments."""
    value = values["env_task_fn"]
    if value is None:
        yield harmless(values, "")
        return
    try:
        task_function(value)
    except UsageError:
        yield changes(values, "env_task_fn takes (result, task) here (docs/curricula.md)")
    else:
        yield taken(values, env_task_fn=value)


def exploration(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """The explorations that are here by RLlib's names, also by their paths, and functions."""
    value = values["exploration_config"] or {}
    if not isinstance(value, Mapping) and EXPLORATION.fits(value):
        yield taken(values, exploration_config=value)
        return
    chosen = value.get("type", "StochasticSampling") if isinstance(value, Mapping) else None
    name = getattr(chosen, "__name__", str(chosen)).rpartition(".")[2]
    if name == "StochasticSampling" and not value.get("random_timesteps"):
        yield harmless(values, "PPO samples its actions in both")
    elif name in BY_NAME:
        yield taken(values, exploration_config={**value, "type": name})
    else:
        yield changes(values, f"exploration_config has the types {', '.join(BY_NAME)}")
