"""Batched environments: one call steps all environments of a rollout.

Most environments are written for one copy, and `jax.vmap` steps E of them. A pool of simulators
outside of JAX cannot be vmapped: it takes the actions of all its copies in one call. This interface
is for those. `reset_all`, `step_all` and `restart_all` of `jaxrl.core.env` are what the rollout
calls for either kind.
"""

import functools
from typing import Self

import jax

from jaxrl.core.env import Environment, batch_of_one, restart
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
        return _only(self.step_batch(key[None], *batch_of_one((state, action)), params))

    def step(self, key: Key, state: PyTree, action: PyTree, params: PyTree = None) -> tuple:
        params = self.default_params if params is None else params
        step_key, reset_key = jax.random.split(key)
        stepped = with_fast_keys(self.step_env, step_key, state, action, params)
        obs, state, reward, terminated, info = stepped
        truncated = self.is_truncated(state, params) & ~terminated
        info = {**info, "final_observation": obs}
        ended, reached = batch_of_one((terminated | truncated, (obs, state)))
        obs, state = _only(
            with_fast_keys(self.restart_batch, reset_key[None], ended, reached, params)
        )
        return obs, state, reward, terminated, truncated, info


def _only(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
