"""The algorithms by the names that commands know, and the configurations that flags make."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxrl.algorithms.bc.config import BCConfig, MARWILConfig
from jaxrl.algorithms.config import AlgorithmConfig, make_env
from jaxrl.algorithms.model_config import ActingSettings, NetworkSettings
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.tuned import TUNED_NETWORK
from jaxrl.algorithms.rllib_values import merged_by_policy
from jaxrl.cli.flags import Flag, flags_of, given_flags
from jaxrl.core.errors import UsageError, brief, reason_of, unknown_name
from jaxrl.core.fields import field_names, setting, without
from jaxrl.core.frozen import freeze
from jaxrl.core.trust import load, parse_name, points_of
from jaxrl.core.words import text_of
from jaxrl.run.storage.config_file import CONFIGURATION

ALGORITHMS = {"ppo": PPOConfig, "bc": BCConfig, "marwil": MARWILConfig}
OF_RLLIB = ("--run", "--algo")  # RLlib's flags that name the algorithm
ALGORITHM = setting(
    "ppo",
    "ppo; or bc (behaviour cloning) or marwil, which learn from the recorded episodes of --input; "
    "or one of your own: module:Config, or the name that an installed package announces",
    text_of("NAME", *OF_RLLIB),
)
TUNED = setting(
    True,
    "begin with the environment's tuned settings, or without any with PPOConfig.fast; "
    "False: with the algorithm's defaults, which are RLlib's",
)
OF_THE_ENV = ("env", "env_args")
# A policy with the same ones can start from a cloned one (--init-from).
OF_THE_POLICY = (
    "policies",
    *field_names(NetworkSettings),
    *field_names(ActingSettings),
)


def class_of(algorithm: str) -> type[AlgorithmConfig]:
    """The configuration's class by its name here, in an installed package, or as "module:Class".

    Raises:
        UsageError: there is none, or it is something else.
    """
    if algorithm.lower() in ALGORITHMS:  # RLlib writes PPO
        return ALGORITHMS[algorithm.lower()]
    announced = points_of(CONFIGURATION.group)
    named = parse_name(announced[algorithm].value if algorithm in announced else algorithm)
    if named is None or named.arguments:
        raise unknown_name("algorithm", algorithm, (*ALGORITHMS, *announced))
    try:
        return load(CONFIGURATION, named)
    except UsageError:
        raise
    except Exception as error:  # of the module's own code
        why = reason_of(error)
        raise UsageError(f"algorithm {algorithm!r} cannot be imported: {why}") from error


def path_of(algorithm: str) -> str:
    """The "module:Class" of the configuration of an algorithm by its name; nothing is imported."""
    if algorithm.lower() in ALGORITHMS:
        config_class = ALGORITHMS[algorithm.lower()]
        return f"{config_class.__module__}:{config_class.__qualname__}"
    point = points_of(CONFIGURATION.group).get(algorithm)
    return getattr(point, "value", algorithm)


def named_in(argv: Sequence[str], default: str) -> str:
    """The algorithm that a command line names, on which it depends what other flags there are."""
    flags = {"algorithm": Flag("", default, ALGORITHM.metadata["check"].form)}
    return given_flags(argv, flags, others=True).get("algorithm", [default])[0]


def example(algorithm: str = "ppo") -> AlgorithmConfig:
    """A configuration with the algorithm's defaults."""
    return class_of(algorithm)(env="arena")


def every_flag(algorithm: str = "ppo") -> dict[str, Flag]:
    """A flag for each setting of our algorithms, and of the named one."""
    flags = {}
    for name in dict.fromkeys((*ALGORITHMS, algorithm)):
        flags |= flags_of(example(name))
    return flags


def config_of(
    options: Mapping[str, Any], tuned: Any, algorithm: str, tried: Collection[str] = ()
) -> tuple[AlgorithmConfig, str]:
    """The configuration that the given flags make, and where its other values come from.

    It is that of the same keywords in Python: what was given counts as given, also where it equals
    a default.

    Args:
        options: the flags that are settings, by name.
        tried: the settings of which a sweep tries values.
    """
    if not isinstance(tuned, bool):
        raise UsageError(f"tuned={brief(tuned)} must be True or False")
    config_class = class_of(algorithm)
    env, env_args = options.get("env", "arena"), options.get("env_args", {})
    changes = without(options, OF_THE_ENV)
    has_tuned = issubclass(config_class, PPOConfig)
    if not tuned or not (has_tuned or config_class.is_offline):
        source = "RLlib's defaults" if config_class is PPOConfig else "the defaults"
        return config_class(env=env, env_args=env_args, **changes), source
    if config_class.is_offline:
        base = _offline(config_class, env, env_args, changes, tried)
        changes.pop("per_policy", None)  # a part of the base
        return base.replace(**changes), f"the defaults, with PPO's networks for {env}"
    if getattr(make_env(env, freeze(env_args))[0], "tuned", None):
        config = config_class.tuned(env, env_args, **_with_tried(changes, tried))
        return config, f"tuned for {env}"
    config = config_class.fast(env, env_args, **changes)
    return config, f"{config_class.__name__}.fast ({env} has no tuned ones)"


def _with_tried(options: dict[str, Any], tried: Collection[str]) -> dict[str, Any]:
    """`options` and the tried settings of networks: their defaults, which each trial replaces."""
    defaults = {field.name: field.default for field in dataclasses.fields(NetworkSettings)}
    by_policy = {
        policy: dict(settings) for policy, settings in options.get("per_policy", {}).items()
    }
    common = {}
    for path in tried:
        policy, _, name = path.rpartition(".")
        if name in defaults and policy != "env_args":
            of_policy = by_policy.setdefault(policy, {}) if policy else common
            of_policy.setdefault(name, defaults[name])
    return {**common, **options, "per_policy": by_policy}


def _offline(
    config_class: type,
    env: Any,
    env_args: Any,
    options: Mapping[str, Any],
    tried: Collection[str],
) -> AlgorithmConfig:
    """An offline algorithm's configuration with PPO's networks for the policies and its own
    defaults.

    A tuned network with memory is left out, since learning from recorded episodes takes no memory.
    """
    asked = options.get("per_policy", {})
    named = {policy: _of_the_policy(settings) for policy, settings in asked.items()}
    network_options = _with_tried({**_of_the_policy(options), "per_policy": named}, tried)
    ppo = PPOConfig.tuned(env, env_args, **network_options)
    networks = {policy: _of_the_policy(dict(settings)) for policy, settings in ppo.per_policy}
    algorithm = ppo.build()
    for group, spec in zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True):
        for policy in group.policies if spec.has_memory else ():
            network = networks.get(policy, {})
            networks[policy] = without(network, TUNED_NETWORK)
    policies = {name: getattr(ppo, name) for name in OF_THE_POLICY}
    policies["per_policy"] = merged_by_policy(networks, asked)
    return config_class(env=env, env_args=env_args, **policies)


def _of_the_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in OF_THE_POLICY if name in settings}
