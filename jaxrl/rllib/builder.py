"""RLlib's `PPOConfig().environment(...).training(...)`: a tutorial's chain, its import changed."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from jaxrl.core.errors import NoAttribute, UsageError, brief, no_attribute, unknown_name
from jaxrl.models.random_policy import RandomPolicy as RandomPolicy
from jaxrl.rllib.translation import DEFAULTS, from_rllib, known_keys
from jaxrl.run.callbacks import Callbacks
from jaxrl.run.trainer import Trainer

MERGED = ("model", "env_config", "optimizer")  # mappings whose parts several calls may give
HOOK = "on_"  # `callbacks(on_train_result=...)` is the setting `callbacks_on_train_result`
NAME, LOOK = "jaxrl.rllib.PPOConfig", "docs/rllib-reference.md has them all"


class PPOConfig(dict[str, Any]):
    """RLlib's settings of PPO as a dict, which RLlib's methods fill.

        config = PPOConfig().environment("CartPole-v1").training(lr=3e-4, train_batch_size=4000)
        algo = config.build_algo()

    Every section takes every setting, by RLlib's names. `jaxrl.from_rllib(config)` reads it as any
    other configuration of RLlib's, and `print` of that shows what became of each setting.
    """

    def __init__(self, algo_class: Any = None):
        super().__init__()

    def _with(self, settings: Mapping[str, Any]) -> Self:
        """Sets settings in place, and returns the configuration, as RLlib's methods do.

        Raises:
            UsageError: a name that no setting of RLlib's PPO has.
        """
        for name, value in settings.items():
            if not (name.startswith("_") or name in (allowed := known_keys())):
                raise unknown_name("setting", name, allowed, "of RLlib's PPO", LOOK)
            if name in MERGED and isinstance(value, Mapping):
                value = {**(self.get(name) or {}), **value}
            self[name] = _copied(value)
        return self

    def _section(self, *values: Any, **settings: Any) -> Self:
        """Sets settings by RLlib's names, in place, and returns the configuration.

        Raises:
            UsageError: a name that no setting of RLlib's PPO has, or a value without a name.
        """
        if values:
            raise UsageError(f"{brief(values[0])} has no name: write training(lr=3e-4)")
        return self._with(settings)

    training = env_runners = rollouts = learners = rl_module = multi_agent = _section
    evaluation = reporting = checkpointing = debugging = fault_tolerance = _section
    resources = exploration = offline_data = experimental = api_stack = _section
    python_environment = _section

    def environment(self, env: Any = None, **settings: Any) -> Self:
        """Sets the environment, by its name, class or function, and settings such as `env_config`.

        Raises:
            UsageError: a name that no setting of RLlib's PPO has.
        """
        return self._with(settings if env is None else {"env": env, **settings})

    def framework(self, framework: Any = None, **settings: Any) -> Self:
        """Sets the framework of networks, which is always JAX here.

        Raises:
            UsageError: a name that no setting of RLlib's PPO has.
        """
        return self._with(settings if framework is None else {"framework": framework, **settings})

    def callbacks(self, callbacks_class: Any = None, **hooks: Any) -> Self:
        """Sets a class of callbacks, or several, and functions by the names of their hooks.

        Raises:
            UsageError: a hook that RLlib does not have.
        """
        named = {} if callbacks_class is None else {"callbacks_class": callbacks_class}
        for name, hook in hooks.items():
            named[f"callbacks_{name}" if name.startswith(HOOK) else name] = hook
        return self._with(named)

    @classmethod
    def overrides(cls, **settings: Any) -> Self:
        """Settings that one policy or the evaluation has of its own."""
        return cls()._with(settings)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """A configuration of a dict of RLlib's settings."""
        return cls()._with(settings)

    def update_from_dict(self, settings: Mapping[str, Any]) -> Self:
        """Sets the settings of a dict, in place, and returns the configuration."""
        return self._with(settings)

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """A copy, whose changes leave this one as it is."""
        return _copied(self)

    def to_dict(self) -> dict[str, Any]:
        """The settings that were given, in a plain dict."""
        return _copied(dict(self))

    def build_algo(self, env: Any = None, **run_settings: Any) -> Trainer:
        """The trainer of it: `jaxrl.from_rllib(config).trainer(**run_settings)`.

        Args:
            env: an environment that wins over the configuration's.
            **run_settings: of `Trainer`, such as `run_dir` and `quiet`.

        Raises:
            UsageError: a setting that changes the result and has no counterpart here.
        """
        return PPO(self, env, **run_settings)

    build = build_algo

    def __missing__(self, name: str) -> Any:
        """The default of a setting that was not given."""
        if name in DEFAULTS:
            return DEFAULTS[name]
        if name in known_keys():
            raise NoAttribute(f"{NAME}: {name} was not given, and has no default here")
        words = [name for name in dir(self) if not name.startswith("_")]
        raise no_attribute(name, [NAME], [*words, *self, *DEFAULTS])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._with({name: value})


def _copied(value: Any) -> Any:
    """A copy of containers in one another; environments, functions and classes stay the same."""
    if isinstance(value, dict):
        found = copy.copy(value)
        for name, part in value.items():
            found[name] = _copied(part)
        return found
    if isinstance(value, PolicySpec):
        return PolicySpec(*map(_copied, value))
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value


def PPO(config: Any = None, env: Any = None, **run_settings: Any) -> Trainer:
    """The trainer of a configuration of RLlib's: `jaxrl.from_rllib(config).trainer()`.

    Args:
        config: what `jaxrl.from_rllib` reads.
        env: an environment that wins over the configuration's.
        **run_settings: of `Trainer`, such as `run_dir` and `quiet`.

    Raises:
        UsageError: a setting that changes the result and has no counterpart here.
    """
    beside = {} if env is None else {"env": env}
    return from_rllib({} if config is None else config, **beside).trainer(**run_settings)


class PolicySpec(NamedTuple):
    """A policy in `policies`; its spaces are the environment's."""

    policy_class: Any = None
    observation_space: Any = None
    action_space: Any = None
    config: Mapping[str, Any] | None = None  # settings of its own


Algorithm = Trainer
AlgorithmConfig = PPOConfig
PPOTrainer = PPO
DEFAULT_CONFIG = PPOConfig()
DefaultCallbacks = RLlibCallback = Callbacks
