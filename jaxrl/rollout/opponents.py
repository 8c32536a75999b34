"""Opponents drawn for each episode: members of a pool act for one policy, each in its environments.

`Opponents` stands among the weights of those who act, by group, in the place of a policy's own. The
members are weights of its network, and functions written by hand. Every step computes the actions
of all members in all environments and picks those of the member that an environment has drawn: one
wide product is faster than a product of other weights for each environment.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.fast_prng import to_fast_key, to_standard_key
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicySpec, PolicyWeights
from jaxrl.rollout.feature import After, Begin, Feature, Played
from jaxrl.rollout.grouping import each_policy

DRAW = 0x6F70706F  # folded into a reset's key, of which the environment's own draws come
ACT = 0x61637473  # folded into a step's key, for functions that draw their actions


class Opponents(struct.PyTreeNode):
    """A pool of K weights and S functions that acts for a policy."""

    weights: PolicyWeights  # [K, ...]
    chances: jax.Array  # f32[K + S]  how often each is drawn, in any unit
    # act(obs, key, action_mask) -> the environment's action, each of one agent
    scripted: tuple[Callable[..., Any], ...] = struct.field(pytree_node=False, default=())

    def draw(self, reset_keys: Key) -> jax.Array:
        """The members of the episodes that these keys begin, i32[E]."""
        cumulated = jnp.cumsum(self.chances)

        def draw(key):
            number = jax.random.uniform(jax.random.fold_in(to_fast_key(key), DRAW))
            return jnp.searchsorted(cumulated, number * cumulated[-1], side="right")

        return jax.vmap(draw)(reset_keys).astype(jnp.int32)


def _keys_of_agents(step_keys: Key, num_agents: int) -> Key:
    """[E] -> [E, M]."""

    def keys(key):
        key = jax.random.fold_in(to_fast_key(key), ACT)
        return to_standard_key(jax.random.split(key, num_agents))

    return jax.vmap(keys)(step_keys)


@dataclasses.dataclass(frozen=True)
class SelfPlay(Feature):
    """Members of a pool act for a policy wherever `Opponents` are its weights.

    Its slice is i32[E], the member that plays in each episode, and is shown of every step; None
    where no pool plays.
    """

    name = "opponents"

    @classmethod
    def of(cls, spec: Any, config: Any, env_params: PyTree) -> Self | None:
        return None if config.opponents is None else cls()

    def plays(self, weights: PyTree) -> bool:
        return isinstance(weights, Opponents)

    def start(self, spec: Any, envs: Any, begin: Begin) -> jax.Array | None:
        pool = self._pool(begin.weights)
        return None if pool is None else pool.draw(begin.keys)

    def apply(
        self, policy_spec: PolicySpec, weights: Opponents, envs: Any, arguments: tuple
    ) -> tuple[PyTree, jax.Array, PyTree]:
        rows = jax.tree.map(lambda leaf: leaf[0], arguments)
        apply = each_policy(policy_spec.apply, in_axes=(0, None, None, None))
        outputs = apply(weights.weights, *rows)
        number = jax.tree.leaves(outputs)[0].shape[0]
        if number == 1:  # the very program of a policy without a pool
            return outputs
        members = envs.features[self.name]
        members, index = jnp.minimum(members, number - 1), jnp.arange(len(members))
        return jax.tree.map(lambda leaf: leaf[members, index][None], outputs)

    def actions(
        self, spec: Any, weights: Opponents, envs: Any, chosen: tuple[int, PolicyOutput], keys: Key
    ) -> PolicyOutput:
        """The output with the actions of functions where the member that plays is one."""
        g, output = chosen
        policy_spec, action = spec.policy_specs[g], output.action
        mask = policy_spec.action_mask(envs.obs[g], output.inputs)
        obs, mask = jax.tree.map(lambda leaf: leaf[0], (envs.obs[g], mask))
        first = len(weights.chances) - len(weights.scripted)
        for number, act in enumerate(weights.scripted, start=first):

            def decide(*arguments, act=act):
                chosen = jax.tree.map(jnp.asarray, act(*arguments))
                return policy_spec.action_form.from_env(chosen, jnp)

            keys_of_agents = _keys_of_agents(keys, action.shape[2])
            by_function = jax.vmap(jax.vmap(decide))(obs, keys_of_agents, mask)[None]
            plays = envs.features[self.name] == number
            plays = plays.reshape(1, -1, *[1] * (by_function.ndim - 2))
            action = jnp.where(plays, by_function.astype(action.dtype), action)
        return output._replace(action=action)

    def after_step(
        self, spec: Any, members: jax.Array | None, played: Played, after: After
    ) -> tuple[jax.Array | None, After]:
        """Another draw where an episode ended."""
        pool = self._pool(played.weights)
        if pool is None:
            return members, after
        keys, step = played.reset
        fold = lambda key: jax.random.fold_in(to_fast_key(key), step)
        drawn = pool.draw(jax.vmap(fold)(keys))
        after = after._replace(shown={**after.shown, self.name: members})
        return jnp.where(played.raw.episode_done, drawn, members), after

    def _pool(self, weights: tuple[PyTree, ...]) -> Opponents | None:
        return next(filter(self.plays, weights), None)
