"""Every setting of a PPO run: RLlib's names and defaults, their meaning, and the checks that need no environment."""

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from jaxrl.algorithms import sharding
from jaxrl.algorithms.base import Algorithm
from jaxrl.algorithms.model_config import NETWORK, NetworkSettings, check_network, make_policy_spec
from jaxrl.algorithms.ppo.fast import fast_settings
from jaxrl.algorithms.ppo.hypers import Hypers, as_hypers, knots_of
from jaxrl.algorithms.ppo.keywords import PPOKeywords, TunedKeywords
from jaxrl.algorithms.ppo.refinements import Refinements
from jaxrl.algorithms.ppo.training import TrainingSettings
from jaxrl.algorithms.rllib_values import merged_by_policy, read_settings
from jaxrl.algorithms.validators import DEFAULT_SIZES, optimizer_of, resolve_sizes
from jaxrl.core.env import MultiAgentEnvironment, lift
from jaxrl.core.env_contract import require_environment, require_trainable
from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import INT32, check_all, checked, freeze, frozen_fields, unknown_setting
from jaxrl.core.registry import make, registered
from jaxrl.core.spaces import Space
from jaxrl.core.types import PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.rollout.episode_callbacks import traced, traced_callbacks
from jaxrl.rollout.policy_map import PolicyMap, is_names, policies_that_learn, resolve_policies


def _forms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in RLlib's nested forms spread out."""
    return read_settings(settings, NETWORK)


class Setup(NamedTuple):
    """The environment and the policies of a configuration, once its environment is made."""

    env: MultiAgentEnvironment
    env_params: PyTree
    policies: PolicyMap
    trained: tuple[PolicyId, ...]  # those that learn


@checked("PPOConfig", example="config.replace(NAME=...)", forms=_forms)
@dataclasses.dataclass(frozen=True)
class PPOConfig(NetworkSettings, Refinements, TrainingSettings):
    """Everything about a training: one object, or one dict of the same names.

    `train_batch_size = num_envs * rollout_length`: any two give the third, one alone rescales
    another (`num_envs` alone the rollout's length, either of the others the number of
    environments).
    """

    def __post_init__(self):
        frozen_fields(self)
        given = {
            name: getattr(self, name) for name in DEFAULT_SIZES if getattr(self, name) is not None
        }
        for name, size in resolve_sizes(given, DEFAULT_SIZES).items():
            object.__setattr__(self, name, size)
        check_all(self)
        check_network(self)
        self._check_together()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PPOConfig":
        """The configuration of a mapping from names to values."""
        if not isinstance(values, Mapping):
            raise UsageError(
                f"from_dict takes a mapping of settings such as {{'env': 'arena'}}, not {brief(values)}"
            )
        return cls(**{str(name): value for name, value in values.items()})

    @classmethod
    def tuned(cls, env: Any, env_args: Any = (), **changes: Unpack[TunedKeywords]) -> "PPOConfig":
        """The environment's own tuned settings (`env.tuned`), or `fast` without any; with `changes` on top."""
        tuned = getattr(_make(env, freeze(env_args))[0], "tuned", None)
        if not tuned:
            return cls.fast(env, env_args, **changes)
        return cls(env=env, env_args=env_args).replace(**tuned).replace(**changes)

    @classmethod
    def fast(cls, env: Any, env_args: Any = (), **changes: Unpack[TunedKeywords]) -> "PPOConfig":
        """Settings that suit any compiled environment, with `changes` on top; see `jaxrl.algorithms.ppo.fast`.

        The learning rate falls over `total_env_steps`, and the sizes follow `num_envs`. It turns on
        `normalize_returns`, which may harm tasks whose episodes all end by a short clock: compare a
        run with `normalize_returns=False` there.
        """
        changes = _forms(changes)
        plain = cls(env=env, env_args=env_args, policies=changes.get("policies"))
        return plain.replace(**{**changes, **fast_settings(plain.setup(), changes)})

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; `from_dict` gives the same configuration."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["env_args"] = dict(self.env_args)
        values["per_policy"] = {policy: dict(overrides) for policy, overrides in self.per_policy}
        if not is_names(self.policies) and isinstance(self.policies, tuple):
            values["policies"] = dict(self.policies)
        return values

    def replace(self, **changes: Unpack[PPOKeywords]) -> "PPOConfig":
        """A copy with `changes`; of the three sizes, those not named follow from those that are."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        by_policy_given = "per_policy" in changes
        changes = _forms(changes)
        if "per_policy" in changes and not by_policy_given:  # of PolicySpecs
            changes["per_policy"] = merged_by_policy(self.per_policy, changes["per_policy"])
        given = {name: changes.pop(name) for name in DEFAULT_SIZES if name in changes}
        given = {name: size for name, size in given.items() if size is not None}
        sizes = resolve_sizes(given, {name: values[name] for name in DEFAULT_SIZES})
        return PPOConfig(**{**values, **changes, **sizes})

    def for_policy(self, policy: PolicyId) -> "PPOConfig":
        """This configuration as `policy` sees it: its own settings in place of the common ones."""
        overrides = dict(dict(self.per_policy).get(policy, ()))
        return self.replace(per_policy=(), **overrides)

    def hypers(self, **overrides) -> dict[PolicyId, Hypers]:
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
        common = {name: value for name, value in overrides.items() if name not in policies}
        by_policy = {policy: overrides.get(policy, {}) for policy in policies}
        self._check_overrides(common, by_policy)
        configs = {}
        for policy in policies:
            settings_of_policy = dict(dict(self.per_policy).get(policy, ()))
            changes = {
                name: value for name, value in common.items() if name not in settings_of_policy
            }
            changes |= by_policy[policy]
            for name in changes:
                if name in self.__dataclass_fields__ and name not in Hypers.__dataclass_fields__:
                    raise UsageError(
                        f"hypers: {name} is part of the compiled program: config.replace({name}=...)"
                    )
                if name not in Hypers.__dataclass_fields__:
                    numbers_alone = Hypers.__dataclass_fields__
                    raise unknown_setting(name, numbers_alone, "of hypers", owner="PPOConfig")
            configs[policy] = self.for_policy(policy).replace(**changes)
        knots = max(
            len(knots_of(value))
            for each in configs.values()
            for value in (each.lr, each.entropy_coeff)
        )
        return {policy: as_hypers(each, knots) for policy, each in configs.items()}

    def _check_overrides(
        self, common: Mapping[str, Any], by_policy: Mapping[PolicyId, Any]
    ) -> None:
        """Refuses overrides that are no numbers by name or reach no policy; warns of those that some policies miss."""
        for policy, numbers in by_policy.items():
            if not isinstance(numbers, Mapping):
                raise UsageError(
                    f"hypers: {policy}={brief(numbers)} must be a mapping of numbers by setting, such as "
                    f'{policy}={{"lr": 1e-3}}'
                )
        for name in common:
            named = [policy for policy in by_policy if name in by_policy[policy]]
            refusal, warning = self.overridden(name, named, '{policy}={{"{name}": ...}}')
            if refusal:
                raise UsageError(refusal)
            if warning:
                warnings.warn(warning, stacklevel=3)

    def overridden(
        self, name: str, named: Sequence[PolicyId] = (), form: str = "{policy}.{name}"
    ) -> tuple[str | None, str | None]:
        """(refusal, warning) of giving a value of `name` for all policies, where `per_policy` has it too and wins.

        Args:
            named: policies that are given a value by their name as well, of which no warning is
            needed.
            form: how a value is given to one policy.

        Returns:
            The refusal if all policies that are trained have their own value; the warning if some
            have; or None.
        """
        trained = self.setup().trained
        owners = [
            policy for policy in trained if name in dict(dict(self.per_policy).get(policy, ()))
        ]
        unnamed = [policy for policy in owners if policy not in named]
        forms = ", ".join(form.format(policy=policy, name=name) for policy in unnamed)
        if not unnamed:
            return None, None
        if len(owners) == len(trained):
            return (
                f"{name} changes nothing: per_policy gives {' and '.join(owners)} their own {name}, which wins; "
                f"name the policy instead: {forms}"
            ), None
        return (
            None,
            f"{name} leaves {' and '.join(unnamed)} as per_policy has it; {forms} would change that",
        )

    def static(self) -> "PPOConfig":
        """The configuration without its numbers: what a compiled program depends on."""
        defaults = {
            field.name: field.default
            for field in dataclasses.fields(self)
            if field.metadata["traced"]
        }
        per_policy = {
            policy: {name: value for name, value in overrides if name not in defaults}
            for policy, overrides in self.per_policy
            if any(name not in defaults for name, _ in overrides)
        }
        run = {
            "seed": 0,
            "total_env_steps": self.train_batch_size,
            "callbacks": traced(self.callbacks),
        }
        return self.replace(**defaults, per_policy=per_policy, **run)

    def setup(self) -> Setup:
        """The environment, its params and the policies; checks everything that needs them."""
        return _setup(self, registered(self.env))

    def build(self, *, axis_name: str | None = None):
        """The algorithm: (init, collect, learn); `axis_name` as in `make_ppo`."""
        from jaxrl.algorithms.ppo.ppo import make_ppo

        return make_ppo(self, axis_name=axis_name)

    def policy_spec(
        self, policy: PolicyId, observation_space: Space, action_space: Space, num_agents: int = 1
    ) -> PolicySpec:
        """How `policy` plays its `num_agents` agents, with no environment at hand."""
        return make_policy_spec(
            self.for_policy(policy), observation_space, action_space, num_agents
        )

    def concerns(self, result: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(kind, text) of what deserves a warning, should it last."""
        from jaxrl.algorithms.ppo.diagnostics import concerns

        return concerns(self, result)

    def describe(self) -> str:
        """What will run, in a few lines."""
        from jaxrl.algorithms.ppo.summary import describe

        return describe(self)

    def networks(self) -> str:
        """Every policy's network as a table: layers, shapes, parameters."""
        from jaxrl.algorithms.ppo.summary import networks

        return networks(self)

    def devices_worth_using(self, cores: int) -> int:
        """How many of a CPU's cores training had better use."""
        return sharding.devices_worth_using(self, cores)

    def check_devices(self, number: int) -> None:
        """Refuses a number of devices that training cannot be split over."""
        sharding.check_devices(self, number)

    def check_sizes(self, algorithm: Algorithm) -> None:
        """Refuses to train what needs more memory than there is; `algorithm` is of `build`.

        Only training asks: a policy that was trained on a large machine plays on a small one.
        """
        from jaxrl.algorithms.memory_estimate import check_sizes

        check_sizes(self, algorithm)

    @property
    def num_updates(self) -> int:
        """Iterations of `total_env_steps`: whole ones, so that at least as many steps are trained."""
        return -(-self.total_env_steps // self.train_batch_size)

    @property
    def env_name(self) -> str:
        return (
            self.env
            if isinstance(self.env, str)
            else getattr(self.env, "name", type(self.env).__name__)
        )

    def _check_together(self) -> None:
        """Values that are fine alone and clash."""
        if self.env is None:
            raise UsageError("env is missing: a name such as 'arena', or an environment object")
        if self.num_updates > INT32:
            raise UsageError(
                f"total_env_steps={self.total_env_steps} are {self.num_updates:,} iterations of train_batch_size="
                f"{self.train_batch_size}; at most {INT32:,} can be counted"
            )
        blocks = sharding.blocks_of(self)
        if self.num_envs % blocks or self.minibatch_size % blocks:
            raise UsageError(
                f"shuffle_blocks={self.shuffle_blocks} must divide num_envs={self.num_envs} and "
                f"minibatch_size={self.minibatch_size}"
            )
        known = {field.name for field in dataclasses.fields(self)} & _BY_POLICY
        for policy, overrides in self.per_policy:
            for name in dict(overrides):
                if name not in known:
                    raise _not_by_policy(name, policy, known)
            self.for_policy(policy)


# Settings that `per_policy` may change; the others belong to the run as a whole.
_BY_POLICY = frozenset(
    {
        *Hypers.__dataclass_fields__,
        "minibatch_size",
        "num_epochs",
        "use_kl_loss",
        "normalize_advantages",
        "value_clip",
    }
    | {*NETWORK, "observation_filter", "normalize_actions", "clip_actions", "optimizer"}
    | {"action_distribution", "normalize_returns"}
)


def _not_by_policy(name: str, policy: PolicyId, known: set[str]) -> UsageError:
    """Of a name in `per_policy` that is none, or holds for the whole run."""
    if name in PPOConfig.__dataclass_fields__:
        return UsageError(
            f"per_policy: {name} of policy {policy!r} is one for all: give it outside per_policy"
        )
    return unknown_setting(name, known, f"of policy {policy!r}", owner="PPOConfig")


def _make(env: Any, env_args: tuple) -> tuple[Any, PyTree]:
    if not isinstance(env, str):
        if env_args:
            raise UsageError(
                f"env_args={dict(env_args)} need an environment by name; {type(env).__name__} is made already"
            )
        require_environment(env, "env")
        require_trainable(env)
        return env, env.default_params
    env, params = make(env, **dict(env_args))
    require_trainable(env, params)
    return env, params


@functools.lru_cache(maxsize=64)
def _setup(config: PPOConfig, constructor: Any) -> Setup:
    """Kept by the constructor as well, so that a name registered anew means the new environment."""
    env, env_params = _make(config.env, config.env_args)
    env = lift(env)
    policies = config.policies
    policies = (
        dict(policies) if isinstance(policies, tuple) and not is_names(policies) else policies
    )
    policies = resolve_policies(env, policies, env_params)
    traced_callbacks(config.callbacks)
    trained = policies_that_learn(config.policies_to_train, policies)
    for policy in (*trained, *(policy for policy, _ in config.per_policy)):
        if policy not in policies:
            raise unknown_name("policy", policy, policies)
    for policy, agents in policies.items():
        optimizer_of(config.for_policy(policy).optimizer)
        rows, minibatch = (
            config.train_batch_size * len(agents),
            config.for_policy(policy).minibatch_size,
        )
        if minibatch > rows:
            raise UsageError(
                f"minibatch_size={minibatch} is more than the batch of policy {policy!r}, {rows} rows "
                f"(train_batch_size={config.train_batch_size})"
            )
    return Setup(env, env_params, policies, trained)
