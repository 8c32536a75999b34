"""Rules for a user's own code in RLlib's settings: callbacks, curricula, explorations."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import without
from jaxrl.core.outside_env import is_outside
from jaxrl.ops.exploration import BY_NAME
from jaxrl.ops.explored import EXPLORATION
from jaxrl.rllib.context import Context
from jaxrl.rllib.rows import CHANGES, Row, changes, given_of, harmless, taken
from jaxrl.rollout.absent_argument import AbsentArgument
from jaxrl.rollout.episode_callbacks import EpisodeCallbacks, has_hook
from jaxrl.rollout.hook_contract import ALL_HOOKS, CREATED, CUSTOM_EVALUATION, check_hooks
from jaxrl.run.callbacks import Callbacks
from jaxrl.run.env_tasks import OF_COPIES, OF_PARAMS, task_function

WITHOUT = {  # explorations of RLlib's that have no counterpart, and the reason
    "OrnsteinUhlenbeckNoise": "its noise lasts from step to step, GaussianNoise draws it for each "
    "step; exploration_config",
    "ParameterNoise": "it disturbs the weights; exploration_config",
}
LOGGERS = "loggers=['jsonl', 'csv', 'tensorboard', 'wandb'] of Trainer says where results go"
CLASSES = ("callbacks", "callbacks_class")
NEVER_CALLED = (  # hooks of RLlib's that have no counterpart
    *("on_evaluate_offline_start", "on_evaluate_offline_end"),
    *("on_env_runners_recreated", "on_offline_eval_runners_recreated"),
)
EXPORT = "export_native_model_files"
EXPORTER = "jaxrl.export.checkpoint_files:ExportCheckpoints"
EVALUATIONS = ("custom_evaluation_function", "custom_eval_function")  # the second of old versions
OF_HOOKS = map("callbacks_{}".format, (*ALL_HOOKS, *NEVER_CALLED))
CALLBACKS = (EXPORT, *CLASSES, *EVALUATIONS, *OF_HOOKS)


def callbacks(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """This library's are taken over, and functions that are hooks here; RLlib's own do nothing."""
    read, found = {}, []
    for key, value in without(values, (EXPORT,)).items():
        try:
            several = _callbacks_of(key, value)
        except UsageError as error:
            yield changes({key: value}, one_line(error))
            continue
        name = getattr(value, "__name__", str(value))
        if several and all(is_of(EpisodeCallbacks, part) for part in several):
            watches = any(has_hook(part, CREATED, Callbacks) for part in several)
            if watches and not is_outside(context.env):
                name = brief(context.name)
                why = f"{CREATED}: {name} is compiled: there is no environment object"
                yield changes({key: value}, why)
                continue
            read[key] = value
            found += several
        elif not value:
            yield harmless({key: value}, "")
        elif name.rstrip("'>").endswith(("DefaultCallbacks", "RLlibCallback")):
            yield harmless({key: value}, "RLlib's base class, which does nothing")
        elif several and all(type(part).__name__.endswith("LoggerCallback") for part in several):
            yield changes({key: value}, LOGGERS)
        else:
            yield changes({key: value}, "callbacks=... takes a jaxrl.Callbacks (docs/callbacks.md)")
    if values.get(EXPORT):
        read[EXPORT] = values[EXPORT]
        found.append(EXPORTER)
    elif EXPORT in values:
        yield harmless(given_of(values, EXPORT), "")
    if read:
        yield taken(read, callbacks=tuple(found))


def _callbacks_of(key: str, value: Any) -> list[Any]:
    """The parts of a value; functions by their hooks' names are made a class."""
    if key in EVALUATIONS:
        return [] if value is None else [_of_functions({CUSTOM_EVALUATION: _of_trainer(value)})]
    several = list(value) if isinstance(value, list | tuple) else [value]
    if key not in CLASSES:
        hook = key.removeprefix("callbacks_")
        several = [{hook: part} for part in several if callable(part)]
    for i, part in enumerate(several):
        if isinstance(part, Mapping) and part:
            several[i] = _of_functions(part)
    return several


def _of_trainer(function: Any) -> Callable:
    """An evaluation of the trainer, from RLlib's (algorithm, workers), whatever it calls them."""
    if not callable(function):
        raise UsageError(f"a function of (algorithm, eval_workers), not {brief(function)}")
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):  # of the trainer alone, or a built-in without a signature
        return function
    return lambda trainer: function(trainer, AbsentArgument("eval_workers"))


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
    """A function from (result, task) to the next task; of a Python environment as in RLlib."""
    value = values["env_task_fn"]
    if value is None:
        yield harmless(values, "")
        return
    forms = OF_COPIES if is_outside(context.env) else OF_PARAMS
    try:
        task_function(value, forms)
    except UsageError as error:
        yield changes(values, f"{one_line(error)} (docs/curricula.md)")
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
    elif name == "Curiosity":
        yield from _curiosity(value, context)
    else:
        types = f"the types {', '.join(BY_NAME)}, or a function of yours (docs/exploration.md)"
        yield changes(values, f"{WITHOUT.get(name, 'exploration_config')} has {types}")


def _curiosity(value: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """RLlib's `Curiosity`: the reward of a model that is given beside, and `eta` its weight.

    What else it holds sizes RLlib's networks, in place of which the model has its own.
    """
    if not hasattr(context.settings_beside.get("model"), "intrinsic_reward"):
        needed = "give one beside it, model=..., and eta is intrinsic_reward_coeff"
        why = f"here a model with intrinsic_reward is curious (docs/exploration.md): {needed}"
        yield changes({"exploration_config": value}, why)
        return
    settings = {"intrinsic_reward_coeff": value.get("eta", 1.0)}
    if acting := value.get("sub_exploration"):
        (row,) = exploration({"exploration_config": acting}, context)
        if row.kind == CHANGES:
            yield row
            return
        settings |= row.settings
    why = "what is new, and the networks that say it, are the model's"
    yield taken({"exploration_config": value}, why, **settings)
