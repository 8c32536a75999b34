"""Settings that choose how a policy acts while it trains, and a policy paired with its behaviour.

`jaxrl.ops.exploration` has the behaviours by name. A training that samples from its policies loads
none of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.spaces import Space
from jaxrl.core.trust import Kind, maker, parse_name
from jaxrl.ops.distributions import Distribution
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


class Greedy(struct.PyTreeNode):
    """The likeliest action, with probability 1."""

    policy: Distribution

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.policy.mode()

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.zeros_like(self.policy.log_prob(action))


def act_greedily(distribution: Distribution, env_steps: jax.Array) -> Greedy:
    """The behaviour of `explore=False`."""
    return Greedy(distribution)


def read_exploration(name: str, value: Any) -> Any:
    """RLlib's `{"type": "EpsilonGreedy", ...}`, frozen to pairs, as an object; None if plain.

    Raises:
        UsageError: an unknown type or argument.
    """
    if value is None:
        return None
    from jaxrl.ops import exploration

    return exploration.read(name, value)


def exploration_of(
    value: Any, explore: bool, action_space: Space, action_distribution: str
) -> Behaviour | None:
    """The behaviour that `exploration_config` and `explore` mean; None: sampling from the policy.

    Raises:
        UsageError: there is none of this name, or it cannot explore these actions.
    """
    if not explore:
        if value is not None:
            raise UsageError(f"explore=False and exploration_config={brief(value)}: give one")
        return act_greedily
    if value is None:
        return None
    made = maker(EXPLORATION, value)()
    from jaxrl.ops import exploration

    exploration.check(made, action_space, action_distribution)
    return made


def _of_words(name: str, texts: Sequence[str]) -> Any:
    """`type=EpsilonGreedy epsilon=0.1`, or JSON, as a mapping; else a name."""
    has_pairs = texts[0].startswith("{") or "=" in texts[0].partition("(")[0]
    return words.pairs(name, texts) if has_pairs else words.value_of(" ".join(texts))


@words.written(_of_words, "type=TYPE NAME=VALUE|MODULE:NAME")
def check_exploration(name: str, value: Any) -> None:
    """None, a function or an object that is one, or "module:Name"."""
    if not (value is None or callable(value) or parse_name(value) is not None):
        from jaxrl.ops import exploration

        raise exploration.refusal(name, value)
