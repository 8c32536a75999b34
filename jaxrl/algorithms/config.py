"""`AlgorithmConfig`: the settings that every algorithm shares, and what is made of a configuration.

An algorithm's own configuration adds its settings to these:

    @algorithm_config
    class ReinforceConfig(AlgorithmConfig):
        algorithm = "my_package.reinforce:make_reinforce"
        lr: float = setting(1e-2, "learning rate", number(0), traced=True)
"""

import dataclasses
import functools
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from jaxrl.algorithms import rllib_values, validators
from jaxrl.algorithms.base import Algorithm
from jaxrl.algorithms.hypers import as_hypers, with_all_numbers
from jaxrl.algorithms.model_config import (
    NETWORK,
    ActingSettings,
    NetworkSettings,
    check_network,
    make_policy_spec,
)
from jaxrl.algorithms.rllib_values import merged_by_policy, read_settings
from jaxrl.algorithms.task_settings import HOST_TASKS, TaskSettings
from jaxrl.algorithms.validators import DEFAULT_SIZES, resolve_sizes
from jaxrl.core import words
from jaxrl.core.curriculum import with_curriculum
from jaxrl.core.displayed_settings import DisplayedSettings
from jaxrl.core.env import MultiAgentEnvironment, lift
from jaxrl.core.env_contract import require_trainable
from jaxrl.core.errors import AnswersOtherWords, UsageError, brief, unknown_name
from jaxrl.core.fields import (
    INT32,
    INT64,
    UINT32,
    check_all,
    checked,
    count,
    field_names,
    field_values,
    frozen_fields,
    pairs,
    setting,
    unknown_setting,
    without,
)
from jaxrl.core.frozen import freeze_arguments, thawed
from jaxrl.core.ignored_parts import ignoring
from jaxrl.core.plan import laid_out
from jaxrl.core.registry import ENVIRONMENT, environment_of, make_with, registered
from jaxrl.core.spaces import Dict, Space
from jaxrl.core.trust import Kind, load, parse_name
from jaxrl.core.types import PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.rollout.callbacks_kind import CALLBACKS
from jaxrl.rollout.callbacks_setting import traced
from jaxrl.rollout.policy_map import (
    PolicyMap,
    idle_policies,
    is_names,
    policies_that_learn,
    resolve_policies,
)

C = TypeVar("C", bound=type)
ALGORITHM = Kind(
    "algorithm",
    "jaxrl.algorithms",
    "a function from a configuration to an Algorithm",
    lambda found: callable(found) and not isinstance(found, type),
)


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """The settings of `AlgorithmConfig` on what is played: environment, policies and sizes."""

    env: Any = setting(
        None,
        "environment: a name, LIBRARY:NAME (brax:ant), module:Class, or an environment object",
        validators.environment,
        read=validators.held_environment,
        kind=ENVIRONMENT,
    )
    env_args: Any = setting(
        (),
        "arguments of the environment by name, structure and numbers alike",
        pairs("{name: value}", freeze_arguments),
    )
    policies: Any = setting(
        None,
        "shared, per-agent, {policy: [agents]}, a function from agent to policy, or the names "
        "alone; None: those of the environment",
        validators.policies,
    )
    policies_to_train: Any = setting(
        None,
        "the policies that learn: names, or a function of the name; the others stay as they are; "
        "None: all",
        validators.to_train,
        read=rllib_values.names_of_policies,
    )
    per_policy: Any = setting(
        (), "settings that differ by policy: {policy: {setting: value}}", validators.per_policy
    )
    seed: int = setting(
        0, "the run's random seed; None draws one", count(0, UINT32), read=rllib_values.drawn_seed
    )
    total_env_steps: int = setting(
        1_000_000,
        "environment steps to train for, rounded up to whole iterations",
        count(most=INT64),
    )
    num_envs: int | None = setting(
        None, "environments stepped side by side; 40 where nothing sets them", count(optional=True)
    )
    rollout_length: int | None = setting(
        None,
        "steps of each environment in one iteration; 100 where nothing sets them",
        count(optional=True),
    )
    train_batch_size: int | None = setting(
        None, "environment steps in one iteration: num_envs * rollout_length", count(optional=True)
    )
    metrics_num_episodes_for_smoothing: int = setting(
        100, "finished episodes that statistics are over", count()
    )
    callbacks: Any = setting(
        (),
        "hooks of episodes and of the run: module:Class, a class, an instance, or several",
        words.any_value(words.or_none(words.several, tuple), "MODULE:CLASS"),
        read=validators.several,
        kind=CALLBACKS,
    )


def _names(settings: type) -> frozenset[str]:
    return frozenset(field_names(settings))


class Setup(NamedTuple):
    """The environment and the policies of a configuration, once its environment is made."""

    env: MultiAgentEnvironment
    env_params: PyTree
    policies: PolicyMap
    trained: tuple[PolicyId, ...]  # those that learn
    idle: tuple[PolicyId, ...] = ()  # named by the configuration, and playing nobody


@dataclasses.dataclass(frozen=True, repr=False)
class AlgorithmConfig(
    DisplayedSettings,
    NetworkSettings,
    ActingSettings,
    TaskSettings,
    RolloutSettings,
    AnswersOtherWords,
):
    """The settings of any algorithm: one object, or one dict of the same names.

    `train_batch_size = num_envs * rollout_length`: any two give the third, one alone rescales
    another (`num_envs` alone the rollout's length, either of the others the number of
    environments).

    A subclass is decorated by `algorithm_config`. It names the function that makes the algorithm,
    and declares its settings; those marked `traced` are the numbers that `hypers` collects.
    """

    # make(config, *, axis_name=None) -> Algorithm, or "module:name" of it
    algorithm: ClassVar[str | Callable[..., Algorithm]]
    # Holds a policy's numbers, {setting: array}; any pytree made from keywords.
    hypers_class: ClassVar[Callable[..., PyTree]] = dict
    # Settings that `per_policy` cannot change.
    one_for_all: ClassVar[frozenset[str]] = _names(RolloutSettings) | _names(TaskSettings)
    # Numbers that training begins with; its state has them from then on.
    initial_numbers: ClassVar[frozenset[str]] = frozenset()
    # Whether it learns from recorded episodes and plays none itself, but to be evaluated.
    is_offline: ClassVar[bool] = False
    # `RunSettings` of its own, where the user gives none.
    run_defaults: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self):
        frozen_fields(self)
        chosen = {
            name: getattr(self, name) for name in DEFAULT_SIZES if getattr(self, name) is not None
        }
        for name, size in self.sizes(chosen, DEFAULT_SIZES).items():
            object.__setattr__(self, name, size)
        check_all(self)
        check_network(self)
        if self.num_updates > INT32:
            raise UsageError(
                f"total_env_steps={self.total_env_steps} are {self.num_updates:,} iterations of "
                f"train_batch_size={self.train_batch_size}; at most {INT32:,} can be counted"
            )
        self.check_tasks(plays=not self.is_offline)
        self.check_together()
        self._check_per_policy()

    def __getitem__(self, name: str) -> Any:
        """The setting of a name, as of RLlib's configurations."""
        if name in field_names(self):
            return getattr(self, name)
        raise unknown_setting(name, field_names(self), owner=type(self).__name__)

    __iter__ = None  # the settings are those of `to_dict`

    def __setitem__(self, name: str, value: Any) -> None:
        raise UsageError(
            f"a configuration never changes: config.replace({name}={brief(value)}) is a changed "
            "copy"
        )

    @staticmethod
    def sizes(chosen: Mapping[str, int], tuned: Mapping[str, int]) -> dict[str, int]:
        """`num_envs`, `rollout_length` and `train_batch_size` from those given, else `tuned`."""
        return resolve_sizes(dict(chosen), dict(tuned))

    def check_together(self) -> None:
        """Refuses values that are fine alone and clash; for algorithms to extend."""

    def check_policy(self, policy: PolicyId, num_agents: int) -> None:
        """Refuses what cannot work for the agents of a policy; for algorithms to extend.

        Called on the configuration as the policy sees it, `config.for_policy(policy)`.
        """

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration of a mapping from names to values."""
        if not isinstance(values, Mapping):
            raise UsageError(
                "from_dict takes a mapping of settings such as {'env': 'arena'}, "
                f"not {brief(values)}"
            )
        return cls(**{str(name): value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; `from_dict` gives the same configuration."""
        values = field_values(self)
        values["env_args"] = thawed(self.env_args)
        if self.opponents is not None:
            values["opponents"] = self.opponents.to_dict()
        values["per_policy"] = {policy: dict(overrides) for policy, overrides in self.per_policy}
        if not is_names(self.policies) and isinstance(self.policies, tuple):
            values["policies"] = dict(self.policies)
        return values

    def replace(self, **changes: Any) -> Self:
        """A copy with `changes`; of the three sizes, those not named follow from those that are."""
        values = field_values(self)
        by_policy_given = "per_policy" in changes
        changes = read_settings(changes, NETWORK, type(self).__name__)
        if "per_policy" in changes and not by_policy_given:  # of PolicySpecs
            changes["per_policy"] = merged_by_policy(self.per_policy, changes["per_policy"])
        chosen = {name: changes.pop(name) for name in DEFAULT_SIZES if name in changes}
        chosen = {name: size for name, size in chosen.items() if size is not None}
        sizes = self.sizes(chosen, {name: values[name] for name in DEFAULT_SIZES})
        return type(self)(**{**values, **changes, **sizes})

    def for_policy(self, policy: PolicyId) -> Self:
        """This configuration as `policy` sees it: its own settings in place of the common ones."""
        return self.replace(per_policy=(), **self._settings_of(policy))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every setting's default by name."""
        fields = dataclasses.fields(cls)
        return {field.name: field.default for field in fields} | cls.sizes({}, DEFAULT_SIZES)

    @classmethod
    def numbers(cls) -> dict[str, Any]:
        """The settings that are traced, with their defaults: changing one never compiles again."""
        fields = dataclasses.fields(cls)
        return {field.name: field.default for field in fields if field.metadata["traced"]}

    def hypers(self, **overrides) -> dict[PolicyId, PyTree]:
        """The numbers of every policy as arrays.

        A policy's own value wins over the value for all policies, here and everywhere: `lr=1e-3`
        changes those that have no `lr` in `per_policy`, and `pol1={"lr": 1e-3}` changes `pol1` in
        any case.

        Args:
            **overrides: numbers by setting (`lr=1e-3`), or by policy (`pol1={"lr": 1e-3}`).

        Raises:
            UsageError: there is no such number, or every policy that is trained has its own value
                of it.
        """
        policies = self.setup().policies
        common = without(overrides, policies)
        by_policy = {policy: overrides.get(policy, {}) for policy in policies}
        self._check_overrides(common, by_policy)
        configs = {}
        for policy in policies:
            held = self._settings_of(policy)
            changes = without(common, held)
            changes |= by_policy[policy]
            self._check_are_numbers(changes)
            configs[policy] = self.for_policy(policy).replace(**changes)
        return as_hypers(configs)

    def overridden(
        self, name: str, named: Sequence[PolicyId] = (), form: str = "{policy}.{name}"
    ) -> tuple[str | None, str | None]:
        """(refusal, warning) of a value of `name` for all, where `per_policy` has it and wins.

        Args:
            named: policies that are given a value by their name as well, of which no warning is
                needed.
            form: how a value is given to one policy.

        Returns:
            The refusal if all policies that are trained have their own value; the warning if some
            have; or None.
        """
        trained = self.setup().trained
        owners = [policy for policy in trained if name in self._settings_of(policy)]
        unnamed = [policy for policy in owners if policy not in named]
        forms = ", ".join(form.format(policy=policy, name=name) for policy in unnamed)
        if not unnamed:
            return None, None
        if len(owners) == len(trained):
            return (
                f"{name} changes nothing: per_policy gives {' and '.join(owners)} their own "
                f"{name}, which wins; name the policy instead: {forms}"
            ), None
        return None, (
            f"{name} leaves {' and '.join(unnamed)} as per_policy has it; {forms} would change that"
        )

    def static(self) -> Self:
        """The configuration without its numbers: what a compiled program depends on."""
        numbers = self.numbers()
        per_policy = {
            policy: {name: value for name, value in overrides if name not in numbers}
            for policy, overrides in self.per_policy
            if any(name not in numbers for name, _ in overrides)
        }
        run = {
            "seed": 0,
            "total_env_steps": self.train_batch_size,
            "callbacks": traced(self.callbacks),
            **HOST_TASKS,
        }
        return self.replace(**numbers, per_policy=per_policy, **run)

    def setup(self) -> Setup:
        """The environment, its params and the policies; checks everything that needs them."""
        if self.env is None:
            raise UsageError("env is missing: a name such as 'arena', or an environment object")
        return _setup(self, registered(self.env))

    def build(self, *, axis_name: str | None = None) -> Algorithm:
        """The algorithm: (init, collect, learn).

        Args:
            axis_name: a mapped axis over which the environments are split, or None.
        """
        found = type(self).algorithm
        make_algorithm = load(ALGORITHM, parse_name(found)) if isinstance(found, str) else found
        return make_algorithm(self, axis_name=axis_name)

    def describe(self) -> str:
        """The plan of the run in a few lines, as the algorithm describes it."""
        return laid_out(self.build().describe(self))

    def networks(self) -> str:
        """Every policy's network as a table: layers, shapes, parameters."""
        return self.build().networks()

    def policy_spec(
        self,
        policy: PolicyId,
        observation_space: Space,
        action_space: Space,
        num_agents: int = 1,
        critic_space: Dict | None = None,
    ) -> PolicySpec:
        """The specification of `policy` for `num_agents` agents, without an environment."""
        spaces = observation_space, action_space
        return make_policy_spec(self.for_policy(policy), *spaces, num_agents, critic_space)

    @property
    def num_updates(self) -> int:
        """Iterations of `total_env_steps`: whole ones, rounded up."""
        return -(-self.total_env_steps // self.train_batch_size)

    @property
    def env_name(self) -> str:
        if self.env is None or isinstance(self.env, str):
            return self.env or ""
        return getattr(self.env, "name", getattr(self.env, "__name__", type(self.env).__name__))

    def _settings_of(self, policy: PolicyId) -> dict[str, Any]:
        """The settings of one policy in `per_policy`."""
        return dict(dict(self.per_policy).get(policy, ()))

    def _check_per_policy(self) -> None:
        allowed = _names(type(self)) - self.one_for_all
        for policy, overrides in self.per_policy:
            for name in dict(overrides):
                if name in self.one_for_all:
                    raise UsageError(
                        f"per_policy: {name} of policy {policy!r} is one for all: give it outside "
                        "per_policy"
                    )
                if name not in allowed:
                    where = f"of policy {policy!r}"
                    raise unknown_setting(name, allowed, where, owner=type(self).__name__)
            self.for_policy(policy)

    def _check_overrides(
        self, common: Mapping[str, Any], by_policy: Mapping[PolicyId, Any]
    ) -> None:
        """Refuses overrides that reach no policy; warns of those that some policies miss."""
        for policy, numbers in by_policy.items():
            if not isinstance(numbers, Mapping):
                raise UsageError(
                    f"hypers: {policy}={brief(numbers)} must be a mapping of numbers by setting, "
                    f'such as {policy}={{"lr": 1e-3}}'
                )
        for name in common:
            named = [policy for policy in by_policy if name in by_policy[policy]]
            refusal, warning = self.overridden(name, named, '{policy}={{"{name}": ...}}')
            if refusal:
                raise UsageError(refusal)
            if warning:
                warnings.warn(warning, stacklevel=3)

    def _check_are_numbers(self, names: Mapping[str, Any]) -> None:
        numbers = self.numbers()
        for name in names:
            if name in _names(type(self)) and name not in numbers:
                raise UsageError(
                    f"hypers: {name} is part of the compiled program: config.replace({name}=...)"
                )
            if name not in numbers:
                raise unknown_setting(name, numbers, "of hypers", owner=type(self).__name__)


@typing.dataclass_transform(frozen_default=True)
def algorithm_config(cls: C) -> C:
    """A class decorator for a configuration: frozen, its settings checked and explained."""
    name = cls.__name__
    forms = lambda settings: read_settings(settings, NETWORK, name)
    decorate = checked(name, example="config.replace(NAME=...)", forms=forms)
    cls = decorate(dataclasses.dataclass(frozen=True, repr=False)(cls))
    if dataclasses.is_dataclass(cls.hypers_class):
        cls.hypers_class = with_all_numbers(cls)
    return cls


def make_env(env: Any, env_args: tuple) -> tuple[Any, PyTree]:
    """(environment, its numbers) of the settings `env` and `env_args`."""
    if not isinstance(env, str):
        made = environment_of(env, dict(env_args))
        require_trainable(made)
        return made, made.default_params
    made, params = make_with(env, dict(env_args))
    require_trainable(made, params)
    return made, params


@functools.lru_cache(maxsize=64)
def _setup(config: AlgorithmConfig, constructor: Any) -> Setup:
    """Kept by the constructor as well, so that a name registered anew means the new environment."""
    env, env_params = make_env(config.env, config.env_args)
    env = ignoring(lift(env), env_params, config.ignore_observations)
    policies = config.policies
    if isinstance(policies, tuple) and not is_names(policies):
        policies = dict(policies)
    named, policies = policies, resolve_policies(env, policies, env_params)
    idle = idle_policies(named, policies)
    traced(config.callbacks)
    trained = policies_that_learn(config.policies_to_train, policies)
    for policy in (*trained, *(policy for policy, _ in config.per_policy)):
        if policy not in (*policies, *idle):
            raise unknown_name("policy", policy, (*policies, *idle))
    if trained and set(trained) <= set(idle):
        raise UsageError(
            f"policies_to_train={list(trained)}: these play nobody; the policies that play are "
            f"{', '.join(policies)}"
        )
    trained = tuple(policy for policy in trained if policy not in idle)
    for policy, agents in policies.items():
        config.for_policy(policy).check_policy(policy, len(agents))
    if config.curriculum is not None:
        env = with_curriculum(env, env_params, config.curriculum)
    return Setup(env, env_params, policies, trained, idle)
