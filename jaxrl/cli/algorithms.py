"""The algorithms by the names that commands know, and the configurations that flags change."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from jaxrl.algorithms.bc.config import BCConfig, MARWILConfig
from jaxrl.algorithms.config import AlgorithmConfig, make_env
from jaxrl.algorithms.model_config import ActingSettings, NetworkSettings
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.fast import FITTED
from jaxrl.algorithms.ppo.tuned import TUNED_NETWORK, relevant_names
from jaxrl.algorithms.rllib_values import merged_by_policy
from jaxrl.cli.flags import Flag, flags_of
from jaxrl.core.errors import UsageError, unknown_name

ALGORITHMS = {"ppo": PPOConfig, "bc": BCConfig, "marwil": MARWILConfig}
ALGORITHM = Flag(
    "ppo; or bc (behaviour cloning) or marwil, which learn from the recorded episodes of --input",
    "ppo",
)
TUNED = Flag(
    "begin with the environment's tuned settings, or without any with PPOConfig.fast; "
    "False: with RLlib's defaults",
    True,
)
# A policy with the same ones can start from a cloned one (--init-from).
OF_THE_POLICY = (
    "policies",
    *(field.name for field in dataclasses.fields(NetworkSettings)),
    *(field.name for field in dataclasses.fields(ActingSettings)),
)


def example(algorithm: str = "ppo") -> AlgorithmConfig:
    """A configuration with the algorithm's defaults."""
    if algorithm not in ALGORITHMS:
        raise unknown_name("algorithm", algorithm, ALGORITHMS)
    return ALGORITHMS[algorithm](env="arena")


def every_flag() -> dict[str, Flag]:
    """A flag for each setting that some algorithm has."""
    return {name: flag for each in ALGORITHMS for name, flag in flags_of(example(each)).items()}


def base_of(
    options: dict[str, Any], tuned: Any, algorithm: str, tried: Collection[str] = ()
) -> tuple[AlgorithmConfig, str]:
    """The configuration that the flags change, and what it is called.

    tried: the settings of which a sweep tries values.
    """
    if not isinstance(tuned, bool):
        raise UsageError(f"tuned={tuned!r} must be True or False")
    env, env_args = options.pop("env", "arena"), options.pop("env_args", {})
    if example(algorithm).is_offline:
        return _offline(ALGORITHMS[algorithm], env, env_args, options, tuned, tried)
    plain = PPOConfig(env=env, env_args=env_args)
    if not tuned:
        return plain, "RLlib's defaults"
    if settings := getattr(make_env(env, plain.env_args)[0], "tuned", None):
        given = {name: options[name] for name in relevant_names(settings) if name in options}
        base = PPOConfig.tuned(env, env_args, **_with_tried(given, tried))
        options.pop("per_policy", None)  # a part of the base now
        return base, f"tuned for {env}"
    fitted = {name: options[name] for name in FITTED if name in options}
    options.pop("per_policy", None)
    return PPOConfig.fast(env, env_args, **fitted), f"PPOConfig.fast ({env} has no tuned ones)"


def _with_tried(given: dict[str, Any], tried: Collection[str]) -> dict[str, Any]:
    """`given` and the tried settings of networks: their defaults, which each trial replaces."""
    defaults = {field.name: field.default for field in dataclasses.fields(NetworkSettings)}
    by_policy = {policy: dict(settings) for policy, settings in given.get("per_policy", {}).items()}
    common = {}
    for path in tried:
        policy, _, name = path.rpartition(".")
        if name in defaults and policy != "env_args":
            of_policy = by_policy.setdefault(policy, {}) if policy else common
            of_policy.setdefault(name, defaults[name])
    return {**common, **given, "per_policy": by_policy}


def _offline(
    config_class: type,
    env: Any,
    env_args: Any,
    options: dict[str, Any],
    tuned: bool,
    tried: Collection[str],
) -> tuple[AlgorithmConfig, str]:
    """With the policies' networks as PPO has them, and the algorithm's own defaults.

    A tuned network with memory is left out, since learning from recorded episodes takes no memory.
    """
    if not tuned:
        return config_class(env=env, env_args=env_args), "the defaults"
    asked = options.pop("per_policy", {})
    named = {policy: _of_the_policy(settings) for policy, settings in asked.items()}
    given = _with_tried({**_of_the_policy(options), "per_policy": named}, tried)
    ppo = PPOConfig.tuned(env, env_args, **given)
    networks = {policy: _of_the_policy(dict(settings)) for policy, settings in ppo.per_policy}
    algorithm = ppo.build()
    for group, spec in zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True):
        for policy in group.policies if spec.has_memory else ():
            kept = networks.get(policy, {})
            networks[policy] = {name: kept[name] for name in kept if name not in TUNED_NETWORK}
    policies = {name: getattr(ppo, name) for name in OF_THE_POLICY}
    policies["per_policy"] = merged_by_policy(networks, asked)
    base = config_class(env=env, env_args=env_args, **policies)
    return base, f"the defaults, with PPO's networks for {env}"


def _of_the_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in OF_THE_POLICY if name in settings}
