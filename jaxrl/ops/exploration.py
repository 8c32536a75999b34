"""Exploration: how a policy acts while it trains, where that is not by sampling from itself.

An exploration is a traced function `(distribution, env_steps) -> behaviour`: from the policy's
distributions [..., A] and the environment steps of training so far, f32[], to the distributions
that actions are drawn from. The rollout records the probability under the behaviour. What learns is
the policy (`jaxrl.algorithms.ppo.behaviour`). Where the behaviour has a method `around(policy)`,
which gives the same noise around another policy's choice, it is the policy with that noise.

The names and arguments are RLlib's, `exploration_config={"type": "EpsilonGreedy", ...}`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.errors import UsageError, brief, nearest, reason_of, unknown_name
from jaxrl.core.fields import check_all, count, field_names, number, setting
from jaxrl.core.program_spaces import action_space_inside
from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.ops.continuous import DiagGaussian
from jaxrl.ops.distributions import (
    Categorical,
    Distribution,
    MultiCategorical,
    from_logits,
    has_bounds,
    num_logits,
)
from jaxrl.ops.joint import Joint


class NoisyMode(DiagGaussian):
    """The likeliest numbers of a policy with normal noise of a width of its own."""

    policy_log_std: jax.Array  # f32[..., d]

    def around(self, policy: DiagGaussian) -> "NoisyMode":
        """The noise around another policy's likeliest numbers.

            std = std of the noise * std of the other policy / std of the policy that acted

        So the policy's own standard deviation learns as well: it falls where less noise would be
        better.
        """
        log_std = self.log_std + (policy.log_std - self.policy_log_std)
        return NoisyMode(policy.mean, log_std, self.shape, policy.log_std)


class UniformOr(struct.PyTreeNode):
    """Numbers uniform in [-1, 1] where `is_random`, else those of a Gaussian."""

    is_random: jax.Array  # bool[...]
    other: DiagGaussian

    def sample(self, noise: jax.Array) -> jax.Array:
        uniform = jax.scipy.special.erf(noise / math.sqrt(2)).reshape(self._shape)
        is_random = self.is_random.reshape(*self.is_random.shape, *[1] * len(self.other.shape))
        return jnp.where(is_random, uniform, self.other.sample(noise))

    def log_prob(self, action: jax.Array) -> jax.Array:
        uniform = -self.other.mean.shape[-1] * math.log(2)
        return jnp.where(self.is_random, uniform, self.other.log_prob(action))

    @property
    def around(self) -> Callable[[DiagGaussian], DiagGaussian]:
        """The `around` of the noise; AttributeError where `other` has none."""
        return self.other.around

    @property
    def _shape(self) -> tuple[int, ...]:
        return *self.other.mean.shape[:-1], *self.other.shape


def _random_where(is_random: jax.Array, distribution: Distribution) -> Distribution:
    """Uniform over the possible actions where `is_random`, bool[], else as it is."""
    if isinstance(distribution, Joint):
        return distribution.by_part(functools.partial(_random_where, is_random))
    if isinstance(distribution, DiagGaussian):
        rows = jnp.broadcast_to(is_random, distribution.mean.shape[:-1])
        return UniformOr(rows, distribution)
    uniform = jnp.where(distribution.possible(), 0.0, distribution.logits)
    return distribution.replace(logits=jnp.where(is_random, uniform, distribution.logits))


def _at_temperature(temperature: float, distribution: Distribution) -> Distribution:
    """Integers by their logits divided by a temperature; impossible ones stay impossible."""
    if isinstance(distribution, Joint):
        return distribution.by_part(functools.partial(_at_temperature, temperature))
    logits = distribution.logits
    divided = jnp.where(distribution.possible(), logits / temperature, logits)
    return distribution.replace(logits=divided)


def _check_random(name: str, action_space: Space, kind: str) -> None:
    """Refuses random actions of a Box that [-1, 1] does not stand for."""
    boxes = _boxes(action_space)
    if boxes and not (kind == "gaussian" and all(map(has_bounds, boxes))):
        raise UsageError(
            f"exploration_config: {name} draws random actions of integers, or of a Box with finite "
            f"bounds and action_distribution='gaussian', not {action_space} with {kind!r}"
        )


def _check_integers(name: str, action_space: Space) -> None:
    if _boxes(action_space):
        raise UsageError(
            f"exploration_config: {name} is for integer actions, not {action_space}; "
            "GaussianNoise is for those of a Box"
        )


def _linear(env_steps: jax.Array, begin: float, steps: float, first: float, last: float):
    """The value on a line from `first` at step `begin` to `last`, `steps` later."""
    share = jnp.clip((env_steps - begin) / max(steps, 1), 0.0, 1.0)
    return first + share * (last - first)


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Base of the explorations by name; any traced function does as well."""

    def __post_init__(self):
        check_all(self)

    def check(self, action_space: Space, action_distribution: str) -> None:
        """Refuses actions that it cannot explore."""

    def __call__(self, distribution: Distribution, env_steps: jax.Array) -> Distribution:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class StochasticSampling(Exploration):
    """Samples from the policy, after `random_timesteps` environment steps of random actions."""

    random_timesteps: int = setting(0, "environment steps with random actions", count(0))

    def check(self, action_space: Space, action_distribution: str) -> None:
        _check_random("StochasticSampling", action_space, action_distribution)

    def __call__(self, distribution: Distribution, env_steps: jax.Array) -> Distribution:
        return _random_where(env_steps < self.random_timesteps, distribution)


@dataclass(frozen=True, kw_only=True)
class SoftQ(StochasticSampling):
    """Samples from softmax(logits / temperature): the colder, the more often the likeliest action.

    The first `random_timesteps` environment steps have random actions.
    """

    temperature: float = setting(1.0, "that logits are divided by", number(0, open_low=True))

    def check(self, action_space: Space, action_distribution: str) -> None:
        _check_integers("SoftQ", action_space)

    def __call__(self, distribution: Distribution, env_steps: jax.Array) -> Distribution:
        return super().__call__(_at_temperature(self.temperature, distribution), env_steps)


@dataclass(frozen=True, kw_only=True)
class Random(Exploration):
    """Random actions, all alike."""

    def check(self, action_space: Space, action_distribution: str) -> None:
        _check_random("Random", action_space, action_distribution)

    def __call__(self, distribution: Distribution, env_steps: jax.Array) -> Distribution:
        return _random_where(jnp.bool_(True), distribution)


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy(Exploration):
    """The likeliest action, or with probability epsilon a random one; of several, each by itself.

    Epsilon falls from its first value, which it has for `warmup_timesteps`, to its last within
    `epsilon_timesteps`.
    """

    initial_epsilon: float = setting(1.0, "epsilon at first", number(0, 1))
    final_epsilon: float = setting(0.05, "epsilon in the end", number(0, 1))
    warmup_timesteps: int = setting(0, "environment steps before epsilon falls", count(0))
    epsilon_timesteps: int = setting(10_000, "environment steps in which it falls", count())

    def check(self, action_space: Space, action_distribution: str) -> None:
        _check_integers("EpsilonGreedy", action_space)

    def __call__(self, distribution: Distribution, env_steps: jax.Array) -> Distribution:
        steps = self.warmup_timesteps, self.epsilon_timesteps
        epsilon = _linear(env_steps, *steps, self.initial_epsilon, self.final_epsilon)
        return _epsilon_greedy(distribution, epsilon)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Exploration):
    """The likeliest action with normal noise of the standard deviation `stddev` times a scale.

    The scale falls from its first value to its last within `scale_timesteps`; the first
    `random_timesteps` environment steps have random actions.
    """

    random_timesteps: int = setting(1000, "environment steps with random actions", count(0))
    stddev: float = setting(0.1, "of the noise at scale 1", number(0, open_low=True))
    initial_scale: float = setting(1.0, "the scale at first", number(0, open_low=True))
    final_scale: float = setting(0.02, "the scale in the end", number(0, open_low=True))
    scale_timesteps: int = setting(10_000, "environment steps in which it falls", count())

    def check(self, action_space: Space, action_distribution: str) -> None:
        parts = jax.tree.leaves(tree_of(action_space))
        if len(_boxes(action_space)) < len(parts) or action_distribution != "gaussian":
            raise UsageError(
                "exploration_config: GaussianNoise is for Box actions with "
                f"action_distribution='gaussian', not {action_space} with {action_distribution!r}"
            )
        if self.random_timesteps:
            _check_random("GaussianNoise", action_space, action_distribution)

    def __call__(self, distribution: DiagGaussian, env_steps: jax.Array) -> Distribution:
        scales = self.initial_scale, self.final_scale
        scale = _linear(env_steps, self.random_timesteps, self.scale_timesteps, *scales)

        def noisy(gaussian: DiagGaussian) -> NoisyMode:
            log_std = jnp.broadcast_to(jnp.log(scale * self.stddev), gaussian.log_std.shape)
            return NoisyMode(gaussian.mean, log_std, gaussian.shape, gaussian.log_std)

        is_joint = isinstance(distribution, Joint)
        behaviour = distribution.by_part(noisy) if is_joint else noisy(distribution)
        return _random_where(env_steps < self.random_timesteps, behaviour)


def _boxes(action_space: Space) -> list[Box]:
    """The parts that are numbers of a policy's distribution."""
    parts = jax.tree.leaves(tree_of(action_space_inside(action_space)))
    return [part for part in parts if isinstance(part, Box)]


def _epsilon_greedy(policy: Distribution, epsilon: jax.Array) -> Distribution:
    """The epsilon-greedy distribution of integers, each explored by itself."""
    if isinstance(policy, Joint):
        return policy.by_part(lambda part: _epsilon_greedy(part, epsilon))
    if isinstance(policy, Categorical):
        return _epsilon_greedy_one(policy, epsilon)
    parts = [_epsilon_greedy_one(part, epsilon).logits for part in policy.parts()]
    return MultiCategorical(jnp.concatenate(parts, axis=-1), policy.nvec)


def _epsilon_greedy_one(policy: Categorical, epsilon: jax.Array) -> Categorical:
    possible = policy.possible()
    random = possible.astype(jnp.float32)
    random = random / jnp.sum(random, axis=-1, keepdims=True)
    likeliest = jax.nn.one_hot(policy.mode(), policy.logits.shape[-1])
    probabilities = (1 - epsilon) * likeliest + epsilon * random
    is_taken = probabilities > 0
    logits = jnp.log(jnp.where(is_taken, probabilities, 1.0))
    return Categorical(logits).masked(is_taken)


EXPLORATIONS = (StochasticSampling, Random, EpsilonGreedy, GaussianNoise, SoftQ)
BY_NAME = {cls.__name__: cls for cls in EXPLORATIONS}


def read(name: str, value: Any) -> Any:
    """RLlib's `{"type": "EpsilonGreedy", ...}`, frozen to pairs, as an object; None if plain."""
    if isinstance(value, tuple):
        value = _from_pairs(name, value)
    return None if value in (StochasticSampling(), SoftQ()) else value


def check(exploration: Any, action_space: Space, action_distribution: str) -> None:
    """Refuses actions that it cannot explore, and a function that is no exploration."""
    if isinstance(exploration, Exploration):
        exploration.check(action_space, action_distribution)
    else:
        _check_function(exploration, action_space, action_distribution)


def refusal(name: str, value: Any) -> UsageError:
    """The error for a setting that is no exploration."""
    near = nearest(value, BY_NAME, most=1) if isinstance(value, str) else []
    if near:
        return UsageError(
            f'{name}={brief(value)}: did you mean {{"type": "{near[0]}"}}, on the command line '
            f"type={near[0]}?"
        )
    return UsageError(
        f"{name}={brief(value)} must be a mapping with a type of {', '.join(BY_NAME)}, a "
        "function (distribution, env_steps) -> distribution, or module:Name"
    )


def _from_pairs(name: str, pairs: tuple) -> Any:
    try:
        arguments = dict(pairs)
    except (TypeError, ValueError):
        arguments = {None: None}
    if not arguments:
        return None
    by_name = dict(arguments)
    chosen = arguments.pop("type", None)
    if not isinstance(chosen, str | type):
        what = brief(pairs if None in by_name else by_name)
        raise UsageError(
            f'{name}={what} must be a mapping such as {{"type": "EpsilonGreedy", '
            f'"epsilon_timesteps": 100_000}} with a type of {", ".join(BY_NAME)}, a function, or '
            "module:Name"
        )
    if isinstance(chosen, str) and ":" not in chosen:
        if chosen not in BY_NAME:
            raise unknown_name("exploration type", chosen, BY_NAME)
        chosen = BY_NAME[chosen]
    if isinstance(chosen, str):
        if arguments:
            raise UsageError(f"{name}: give {chosen} its arguments as {chosen}(NAME=VALUE)")
        return chosen
    if dataclasses.is_dataclass(chosen):
        allowed = field_names(chosen)
        for argument in arguments:
            if argument not in allowed:
                raise unknown_name("argument", argument, allowed, f"of {chosen.__name__}")
    return chosen(**arguments)


def _check_function(function: Callable, action_space: Space, action_distribution: str) -> None:
    """Traces a user's function once; refuses one that fails, or that returns something else."""
    returned = []

    def call(env_steps):
        logits = jnp.zeros((1, 1, 1, num_logits(action_space, action_distribution)))
        policy = from_logits(action_space, logits, action_distribution)
        returned.append(function(policy, env_steps))

    try:
        jax.eval_shape(call, jax.ShapeDtypeStruct((), jnp.float32))
    except Exception as error:
        reason = reason_of(error)
        raise UsageError(f"exploration_config: it fails as it is traced: {reason}") from error
    if not all(callable(getattr(returned[0], name, None)) for name in ("sample", "log_prob")):
        raise UsageError(
            "exploration_config: it must return the distribution to act by, with sample and "
            f"log_prob, not {_described(returned[0])}"
        )


def _described(value: Any) -> str:
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return brief(value)
