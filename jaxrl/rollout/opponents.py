"""Opponents drawn for each episode: members of a pool act for one policy, each in its environments.

`Opponents` stands among the weights of those who act, by group, in the place of a policy's own. The
members are weights of its network, and functions written by hand. Every step computes the actions
of all members in all environments and picks those of the member that an environment has drawn: one
wide product is faster than a product of other weights for each environment.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.fast_prng import to_fast_key, to_standard_key
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyInputs, PolicySpec, PolicyState, PolicyWeights
from jaxrl.rollout.policy_map import each_policy

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

    def apply(
        self,
        policy_spec: PolicySpec,
        members: jax.Array,
        obs: PyTree,
        policy_state: PolicyState,
        inputs: PolicyInputs,
    ) -> tuple[PyTree, jax.Array, PyTree]:
        """`PolicySpec.apply` of each environment's member, i32[E], on rows [1, E, M, ...]."""
        rows = jax.tree.map(lambda leaf: leaf[0], (obs, policy_state, inputs))
        apply = each_policy(policy_spec.apply, in_axes=(0, None, None, None))
        outputs = apply(self.weights, *rows)
        number = jax.tree.leaves(outputs)[0].shape[0]
        if number == 1:  # the very program of a policy without a pool
            return outputs
        members, envs = jnp.minimum(members, number - 1), jnp.arange(len(members))
        return jax.tree.map(lambda leaf: leaf[members, envs][None], outputs)

    def with_scripted(
        self,
        policy_spec: PolicySpec,
        members: jax.Array,
        action: PyTree,
        seen: tuple[PyTree, PyTree, Key],
    ) -> PyTree:
        """The actions [1, E, M, ...], by functions where a member is one.

        Args:
            seen: (obs, action_mask, step_key): [1, E, M, ...] twice, the second None without
                masks; and [E].
        """
        obs, mask, step_keys = jax.tree.map(lambda leaf: leaf[0], seen[:2]) + seen[2:]
        first = len(self.chances) - len(self.scripted)
        for number, act in enumerate(self.scripted, start=first):

            def decide(*seen, act=act):
                return policy_spec.from_env_action(jax.tree.map(jnp.asarray, act(*seen)), jnp)

            keys = _keys_of_agents(step_keys, action.shape[2])
            chosen = jax.vmap(jax.vmap(decide))(obs, keys, mask)[None]
            plays = (members == number).reshape(1, -1, *[1] * (chosen.ndim - 2))
            action = jnp.where(plays, chosen.astype(action.dtype), action)
        return action


def _keys_of_agents(step_keys: Key, num_agents: int) -> Key:
    """[E] -> [E, M]."""

    def keys(key):
        key = jax.random.fold_in(to_fast_key(key), ACT)
        return to_standard_key(jax.random.split(key, num_agents))

    return jax.vmap(keys)(step_keys)


def pool_of(weights: tuple[PyTree, ...]) -> Opponents | None:
    """The pool among the weights of those who act, by group, if there is one."""
    return next((part for part in weights if isinstance(part, Opponents)), None)


def redrawn(
    weights: tuple[PyTree, ...],
    members: jax.Array | None,
    episode_done: jax.Array,
    reset_keys: Key,
    step: jax.Array,
) -> jax.Array | None:
    """Every environment's member after a step: another draw where its episode ended.

    Args:
        members: i32[E], None where there is no pool.
        episode_done: bool[E].
        reset_keys, step: as of `auto_reset`.
    """
    pool = pool_of(weights)
    if pool is None:
        return members
    fold = lambda key: jax.random.fold_in(to_fast_key(key), step)
    return jnp.where(episode_done, pool.draw(jax.vmap(fold)(reset_keys)), members)
