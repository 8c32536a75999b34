"""What every policy has of exploring: the behaviour beside it, and the setting.

The explorations themselves, `jaxrl.ops.exploration`, are imported where one is asked for.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief, nearest, reason_of, unknown_name
from jaxrl.core.fields import field_names
from jaxrl.core.spaces import Space
from jaxrl.core.trust import Kind, maker, parse_name
from jaxrl.ops.distributions import Distribution, from_logits, num_logits
from jaxrl.ops.joint import Joint

EXPLORATION = Kind(
    "exploration_config",
    "jaxrl.explorations",
    "a function from (distribution, env_steps) to the distribution to act by, or a class of such",
    callable,
)
Behaviour = Callable[[Distribution, jax.Array], Distribution]


class Explored(struct.PyTreeNode):
    """A policy and its behaviour while it explored, which drew the action."""

    policy: Distribution
    behaviour: Distribution

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.behaviour.sample(noise)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The probability with which the behaviour drew the action."""
        return self.behaviour.log_prob(action)

    def mode(self) -> jax.Array:
        return self.policy.mode()

    def entropy(self) -> jax.Array:
        return self.policy.entropy()

    def kl(self, other: Distribution) -> jax.Array:
        return self.policy.kl(policy_of(other))


def policy_of(distribution: Distribution) -> Distribution:
    """The policy's distribution, whatever acted."""
    return distribution.policy if isinstance(distribution, Explored) else distribution


def is_noise(behaviour: Distribution) -> bool:
    """Returns whether a part is a policy's choice with noise, a distribution with `around`."""
    if isinstance(behaviour, Joint):
        return any(map(is_noise, behaviour.parts))
    return hasattr(behaviour, "around")


def learned_of(policy: Distribution, behaviour: Distribution | None) -> Distribution:
    """The distribution that learns where `behaviour` acted: the policy, or its choice with noise.

    By parts of an action; without a behaviour, None, the policy.
    """
    if isinstance(behaviour, Joint):
        parts = map(learned_of, policy.parts, behaviour.parts)
        return policy.replace(parts=tuple(parts))
    return behaviour.around(policy) if is_noise(behaviour) else policy


def read_exploration(name: str, value: Any) -> Any:
    """RLlib's `{"type": "EpsilonGreedy", ...}`, frozen to pairs, as an object; None if plain.

    Raises:
        UsageError: an unknown type or argument.
    """
    if value is None:
        return None
    from jaxrl.ops.exploration import SoftQ, StochasticSampling

    if isinstance(value, tuple):
        value = _from_pairs(name, value)
    return None if value in (StochasticSampling(), SoftQ()) else value


def _from_pairs(name: str, pairs: tuple) -> Any:
    from jaxrl.ops.exploration import BY_NAME

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


def exploration_of(
    value: Any, explore: bool, action_space: Space, action_distribution: str
) -> Behaviour | None:
    """The behaviour that `exploration_config` and `explore` mean; None: sampling from the policy.

    Raises:
        UsageError: there is none of this name, or it cannot explore these actions.
    """
    if value is None and explore:
        return None
    from jaxrl.ops.exploration import Exploration, act_greedily

    if not explore:
        if value is not None:
            raise UsageError(f"explore=False and exploration_config={brief(value)}: give one")
        return act_greedily
    made = maker(EXPLORATION, value)()
    if isinstance(made, Exploration):
        made.check(action_space, action_distribution)
    else:
        _check_function(made, action_space, action_distribution)
    return made


def _check_function(function: Behaviour, action_space: Space, action_distribution: str) -> None:
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


def _of_words(name: str, texts: Sequence[str]) -> Any:
    """`type=EpsilonGreedy epsilon=0.1`, or JSON, as a mapping; else a name."""
    has_pairs = texts[0].startswith("{") or "=" in texts[0].partition("(")[0]
    return words.pairs(name, texts) if has_pairs else words.value_of(" ".join(texts))


@words.written(_of_words, "type=TYPE NAME=VALUE|MODULE:NAME")
def check_exploration(name: str, value: Any) -> None:
    """None, a function or an object that is one, or "module:Name"."""
    if not (value is None or callable(value) or parse_name(value) is not None):
        from jaxrl.ops.exploration import BY_NAME

        near = nearest(value, BY_NAME, most=1) if isinstance(value, str) else []
        if near:
            raise UsageError(
                f'{name}={brief(value)}: did you mean {{"type": "{near[0]}"}}, on the command line '
                f"type={near[0]}?"
            )
        raise UsageError(
            f"{name}={brief(value)} must be a mapping with a type of {', '.join(BY_NAME)}, a "
            "function (distribution, env_steps) -> distribution, or module:Name"
        )
