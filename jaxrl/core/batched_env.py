"""Batched environments: one call steps all environments of a rollout.

Most environments are written for one copy, and `jax.vmap` steps E of them. A pool of simulators
outside of JAX cannot be vmapped: it takes the actions of all its copies in one call. This interface
is for those. `reset_all`, `step_all` and `restart_all` are what the rollout calls for either kind.
For an environment that is not batched they are the same vmapped functions as ever, so that its
programs and its numbers do not depend on this interface.
"""

import functools
from typing import Self

import jax
import jax.numpy as jnp

from jaxrl.core.env import (
    Environment,
    MultiAgentEnvironment,
    RawStep,
    raw_reset,
    raw_step,
    resolve_step,
    restart,
    strongly_typed,
)
from jaxrl.core.fast_prng import with_fast_keys
from jaxrl.core.types import Key, PyTree

TWIN = 0x7477696E  # no seed of training: what is evaluated is not what was trained on


class BatchedEnvironment(Environment):
    """An environment of one agent that steps E copies of itself in one call.

    An author writes `reset_batch` and `step_batch`, whose states are arrays [E, ...], the spaces,
    `default_params`, and `is_truncated` of one copy's state. `reset_env` and `step_env` are
    derived, as batches of one copy.

    Attributes:
        state_outside: whether the copies' states are held outside the compiled program, and the
            state here is a ticket to them. Then checkpoints do not hold the episodes, and training
            cannot be vmapped, split over devices, or run twice from one state.
    """

    state_outside = False

    def reset_batch(self, keys: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns (obs, state) [E, ...] of new episodes of all copies; `keys` is [E]."""
        raise NotImplementedError(f"{type(self).__name__} must define reset_batch(keys, params)")

    def step_batch(self, keys: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        """One step of all copies, without a reset; `terminated` excludes the time limit.

        Returns:
            (obs, state, reward f32[E], terminated bool[E], info), all [E, ...].
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define step_batch(keys, state, action, params)"
        )

    def restart_batch(
        self, keys: Key, ended: jax.Array, reached: tuple[PyTree, PyTree], params: PyTree
    ) -> tuple[PyTree, PyTree]:
        """(obs, state) to continue from: of new episodes where `ended`, bool[E], else `reached`."""
        return jax.vmap(restart)(ended, self.reset_batch(keys, params), reached)

    def separate(self, number: int) -> Self:
        """An environment like this one with other copies, whose episodes `number` decides too."""
        return self

    @functools.cached_property
    def twin(self) -> Self:
        """The environment that evaluation plays in, while training stays where it is."""
        return self.separate(TWIN)

    def reset_env(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        return _only(self.reset_batch(key[None], params))

    def step_env(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        return _only(self.step_batch(key[None], *_batch_of_one((state, action)), params))

    def step(self, key: Key, state: PyTree, action: PyTree, params: PyTree = None) -> tuple:
        params = self.default_params if params is None else params
        step_key, reset_key = jax.random.split(key)
        stepped = with_fast_keys(self.step_env, step_key, state, action, params)
        obs, state, reward, terminated, info = stepped
        truncated = self.is_truncated(state, params) & ~terminated
        info = {**info, "final_observation": obs}
        ended, reached = _batch_of_one((terminated | truncated, (obs, state)))
        obs, state = _only(
            with_fast_keys(self.restart_batch, reset_key[None], ended, reached, params)
        )
        return obs, state, reward, terminated, truncated, info


def is_batched(env) -> bool:
    return hasattr(env, "step_batch")


def has_outside_state(env) -> bool:
    """Returns whether the environment's episodes are held outside the compiled program."""
    return getattr(env, "state_outside", False)


def reset_all(env: MultiAgentEnvironment, keys: Key, params: PyTree) -> tuple[PyTree, PyTree]:
    """(obs, state) [E, ...] of new episodes, obs as `raw_reset` has it."""
    if not is_batched(env):
        return jax.vmap(lambda key: raw_reset(env, key, params))(keys)
    obs, state = with_fast_keys(env.reset_batch, keys, params)
    return _with_agent_axis(obs), strongly_typed(state)


def step_all(
    env: MultiAgentEnvironment, keys: Key, state: PyTree, action: PyTree, params: PyTree
) -> RawStep:
    """One step of E environments without a reset, [E, ...]."""
    if not is_batched(env):
        return jax.vmap(lambda key, state, action: raw_step(env, key, state, action, params))(
            keys, state, action
        )
    action = _without_agent_axis(action)
    stepped = with_fast_keys(env.step_batch, keys, state, action, params)
    obs, state, reward, terminated, info = stepped
    stepped = (*_with_agent_axis((obs, reward, terminated)), state, info)

    def resolve(obs, reward, terminated, state, info):
        return resolve_step(env, (obs, state, reward, terminated, info), None, params)

    return jax.vmap(resolve)(*stepped)


def restart_all(
    env: MultiAgentEnvironment, keys: Key, raw: RawStep, params: PyTree
) -> tuple[PyTree, PyTree]:
    """(obs, state) [E, ...] that a batched environment goes on from after a step."""
    reached = _without_agent_axis(raw.obs), raw.state
    obs, state = with_fast_keys(env.restart_batch, keys, raw.episode_done, reached, params)
    return _with_agent_axis(obs), strongly_typed(state)


def _with_agent_axis(tree: PyTree) -> PyTree:
    """[E, ...] as [E, 1, ...]."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], tree)


def _without_agent_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:, 0], tree)


def _batch_of_one(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)


def _only(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
