"""RLlib's forms of a configuration as one flat mapping: objects, dicts, Tune's experiments."""

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import field_values
from jaxrl.core.foreign_names import library_file
from jaxrl.core.frozen import is_array, is_mapping

DEPRECATED = (-1, "DEPRECATED")  # marks of RLlib and of Tune of a key that they no longer read
READ = (  # keys that no version of RLlib marks so
    *("lr", "lambda", "lambda_", "entropy_coeff", "seed", "train_batch_size"),
    *("train_batch_size_per_learner", "rollout_fragment_length", "num_env_runners"),
    *("num_envs_per_env_runner", "evaluation_interval", "evaluation_duration"),
)
# The last wins. RLlib 2.9 to 2.37 keep what `rl_module(model_config_dict=...)` says as the third.
MODEL = ("model", "model_config_dict", "_model_config_dict", "model_config", "_model_config")
MODULE = "_rl_module_spec"
RLLIB_MODULES = ("MultiRLModule", "MultiAgentRLModule")  # classes of its own for several modules
SAVED_MODULES = ("RLModuleSpec(", "SingleAgentRLModuleSpec(")  # as a params.json prints them
MULTI_AGENT = ("multiagent", "multi_agent")
ENV_CONFIG = "env_config"
NESTED = ("evaluation_config", "stop")
CONFIG = ("config", "param_space")  # of tune.run, of tune.Tuner
RUN = ("run", "run_or_experiment", "trainable")  # of Tune's files, of tune.run, of tune.Tuner
OF_RUN = ("run_config", "tune_config", "checkpoint_config")
SAVED_MODEL = "DefaultModelConfig"  # RLlib's class, as a params.json prints it
OLD_STACK = (
    *("num_sgd_iter", "sgd_minibatch_size", "num_workers", "num_rollout_workers", "lr_schedule"),
    *("num_envs_per_worker", "entropy_coeff_schedule", "multiagent", "model"),
)
STACK = ("enable_rl_module_and_learner", "_enable_rl_module_api", "_enable_learner_api")


def flat(config: Any) -> dict[str, Any]:
    """The values of a configuration by path: `lr`, `model/fcnet_hiddens`, `stop/time_total_s`.

    Args:
        config: RLlib's `PPOConfig`; a dict of its settings, old or new names; the arguments of
            `tune.run` or `tune.Tuner`, or one experiment of a Tune file.
    """
    values = _plain(config)
    if is_experiments(values):
        values = _only(values)
    for key in CONFIG:
        values |= _inner(values.pop(key, None))
    for key in RUN:
        algorithm = values.pop(key, "PPO")
        name = getattr(algorithm, "__name__", algorithm)
        if name not in ("PPO", "PPOTrainer"):
            raise other_algorithm(f"{key}={brief(algorithm)}", name)
    for key in OF_RUN:
        values |= _mapping(key, values.pop(key, None))
    values = {key: value for key, value in values.items() if _is_said(key, value)}
    for key in MULTI_AGENT:
        values |= _mapping(key, values.pop(key, None))
    if "rl_module_spec" in values:  # its name in RLlib 2.6
        values.setdefault(MODULE, values.pop("rl_module_spec"))
    if (fields := _plain_module(values.get(MODULE))) is not None:
        del values[MODULE]
        values |= {"_model_config": model} if (model := model_of_module(fields)) else {}
    for key in MODEL:
        model = values.pop(key, None)
        values |= {f"model/{name}": value for name, value in _model(key, model).items()}
    for key in NESTED:
        if isinstance(values.get(key), Mapping):
            inner = values.pop(key)
            values |= {f"{key}/{name}": value for name, value in inner.items()}
    return values


def other_algorithm(what: str, name: Any) -> UsageError:
    """The error on a configuration that is not of PPO; `name` is RLlib's of the algorithm."""
    if name in ("BC", "MARWIL"):
        way = f"write jaxrl.{name}Config(env=..., input=FOLDER), or --algorithm {name.lower()}"
    else:
        way = "PPO, BC and MARWIL are here; docs/algorithms.md adds one of your own"
    return UsageError(f"{what}: of RLlib's algorithms PPO alone is read; {way}")


def is_new_stack(config: Any) -> bool:
    """Returns whether RLlib would train this with its new API stack (RLModule, Learner)."""
    values = _plain(config)
    if is_experiments(values):
        values = _only(values)
    values = next((inner for key in CONFIG if (inner := _inner(values.get(key)))), values)
    said = [values[key] for key in STACK if isinstance(values.get(key), bool)]
    if said:
        return said[0]
    return not any(key in values and not _is_deprecated(values[key]) for key in OLD_STACK)


def model_of(model: Any) -> Mapping[str, Any] | None:
    """A model's settings from a dict, a `DefaultModelConfig`, or what a file has of one."""
    if dataclasses.is_dataclass(model) and not isinstance(model, type):
        return dataclasses.asdict(model)
    if isinstance(model, str) and model.startswith(f"{SAVED_MODEL}("):
        return _keywords(model)
    return model if isinstance(model, Mapping) else {} if model is None else None


def is_code(value: Any) -> bool:
    """Returns whether this is a file's text in place of a function, a class or another object."""
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


def _plain(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return with_names(config)
    classes = [cls.__name__ for cls in type(config).__mro__]
    if "AlgorithmConfig" in classes and "PPOConfig" not in classes:
        raise other_algorithm(classes[0], classes[0].removesuffix("Config"))
    if "Tuner" in classes:
        raise UsageError(
            "of a Tuner its arguments are read: {'trainable': 'PPO', 'param_space': ..., "
            "'tune_config': ..., 'run_config': ...}"
        )
    if not hasattr(config, "to_dict"):
        raise UsageError(
            "from_rllib takes RLlib's PPOConfig, a dict of its settings or a file's path, not "
            f"{brief(config)}"
        )
    return with_names(config.to_dict())


def _inner(config: Any) -> dict[str, Any]:
    """The settings below a key of Tune's: a mapping, or a configuration of RLlib's."""
    is_config = isinstance(config, Mapping) or hasattr(config, "to_dict")
    return _plain(config) if is_config else {}


def with_names(values: Any) -> Any:
    """Mappings, also within mappings, with strings as keys and with lists in place of arrays.

    What is below `env_config` stays as it is, for an environment may be made from anything.
    """
    if is_mapping(values):
        return {
            str(key): value if key == ENV_CONFIG else with_names(value)
            for key, value in values.items()
        }
    return np.asarray(values).tolist() if is_array(values) else values


def is_experiments(values: Mapping[str, Any]) -> bool:
    """Returns whether these are Tune's experiments by name, as in RLlib's tuned examples."""
    return bool(values) and all(
        isinstance(value, Mapping) and {"run", "config"} & set(value) for value in values.values()
    )


def _only(experiments: Mapping[str, Any]) -> dict[str, Any]:
    if len(experiments) > 1:
        first = next(iter(experiments))
        raise UsageError(
            f"there are {len(experiments)} experiments, {', '.join(experiments)}: choose one, of a "
            f"file as FILE#{first}, of a mapping by its name"
        )
    return dict(next(iter(experiments.values())))


def modules_of(spec: Any) -> Mapping[str, Any]:
    """The specifications of several RLModules, by policy; none if this is another thing."""
    found = getattr(spec, "rl_module_specs", None) or getattr(spec, "module_specs", None)
    return found if isinstance(found, Mapping) else {}


def fields_of_module(spec: Any) -> dict[str, Any]:
    """The fields that a specification of an RLModule sets, also one that a file holds as text."""
    if isinstance(spec, str):
        fields = (_keywords(spec) if spec.startswith(SAVED_MODULES) else None) or {"text": spec}
    else:
        fields = dict(getattr(spec, "__dict__", {}))
    return {name: value for name, value in fields.items() if value not in (None, False, {})}


def model_of_module(fields: Mapping[str, Any]) -> Any:
    """The model's settings among the fields of a specification; None if it has none."""
    return fields.get("model_config", fields.get("model_config_dict"))


def other_fields(fields: Mapping[str, Any]) -> list[str]:
    """The fields by which a specification asks for more than RLlib's own module and its sizes."""
    classes = ("module_class", "catalog_class", "marl_module_class", "multi_rl_module_class")
    usual = {"model_config", "model_config_dict", "observation_space", "action_space"}
    usual |= {"inference_only", "learner_only"}
    usual |= {name for name in classes if is_of_ppo(fields.get(name), *RLLIB_MODULES)}
    return [name for name in fields if name not in usual]


def _plain_module(spec: Any) -> dict[str, Any] | None:
    """The fields of a specification that says no more than RLlib's own module for all policies."""
    if spec is None or modules_of(spec):
        return None
    fields = fields_of_module(spec)
    return None if other_fields(fields) else fields


def is_of_ppo(cls: Any, *others: str) -> bool:
    """Returns whether a class of policies or modules is RLlib's own for PPO; None means that.

    Args:
        others: names of further classes that are RLlib's own.
    """
    name = getattr(cls, "__name__", str(cls).rpartition(".")[2])
    return cls is None or name in others or name.startswith(("PPO", "DefaultPPO"))


def _is_said(key: str, value: Any) -> bool:
    """Returns whether a value is the user's. In a key that RLlib reads -1 is a wrong number."""
    return key in READ or key in copied() or not _is_deprecated(value)


def copied() -> list[str]:
    """The settings here that take RLlib's value as it is."""
    return library_file("RLlib")["copied"].split()


def _is_deprecated(value: Any) -> bool:
    return type(value) in (int, str) and value in DEPRECATED


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # such as Tune's RunConfig
        fields = field_values(value)
        value = {name: part for name, part in fields.items() if part is not None}
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{key}={brief(value)} must be a mapping of settings")
    return dict(value or {})


def _model(key: str, value: Any) -> Mapping[str, Any]:
    found = model_of(value)
    if found is None:
        raise UsageError(f"{key}={brief(value)} must be a mapping of settings")
    return {name: part for name, part in found.items() if not _is_deprecated(part)}


def _keywords(text: str) -> dict[str, Any] | None:
    """The keywords of `DefaultModelConfig(fcnet_hiddens=[64], ...)`, whose values are plain."""
    try:
        call = ast.parse(text, mode="eval").body
        return {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (SyntaxError, ValueError, AttributeError):
        return None
