"""The algorithms by the names that commands know, and the configurations that flags change."""

import dataclasses
from collections.abc import Collection
from typing import Any

from jaxrl.algorithms.bc.config import BCConfig, MARWILConfig
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.model_config import BUILT_IN, ActingSettings, NetworkSettings
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.fast import FITTED
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
        return _offline(ALGORITHMS[algorithm], env, env_args, tuned=tuned)
    plain = PPOConfig(env=env, env_args=env_args)
    if not tuned:
        return plain, "RLlib's defaults"
    network = {name: options[name] for name in BUILT_IN if name in options}
    base = PPOConfig.tuned(env, env_args, **network)
    if getattr(base.setup().env, "tuned", None):
        base = base.replace(model=None) if BUILT_IN.intersection(tried) else base
        return base, f"tuned for {env}"
    fitted = {name: options[name] for name in FITTED if name in options}
    fast = PPOConfig.fast(env, env_args, **fitted)
    if "per_policy" in options:
        # With the settings that the spaces decide, which the given ones would replace.
        options["per_policy"] = fast.to_dict()["per_policy"]
    return fast, f"PPOConfig.fast ({env} has no tuned ones)"


def _offline(
    config_class: type, env: Any, env_args: Any, *, tuned: bool
) -> tuple[AlgorithmConfig, str]:
    """With the policies' networks as PPO has them, and the algorithm's own defaults."""
    if not tuned:
        return config_class(env=env, env_args=env_args), "the defaults"
    ppo = PPOConfig.tuned(env, env_args)
    policies = {name: getattr(ppo, name) for name in OF_THE_POLICY}
    policies["per_policy"] = {
        policy: {name: value for name, value in overrides if name in OF_THE_POLICY}
        for policy, overrides in ppo.per_policy
    }
    base = config_class(env=env, env_args=env_args, **policies)
    return base, f"the defaults, with PPO's networks for {env}"
