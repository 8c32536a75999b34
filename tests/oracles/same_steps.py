"""A library's environment and its adapter, stepped by the same keys and actions."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree


class Player(NamedTuple):
    """One of the two, with results by agent, or for one agent."""

    reset: Callable[[Any], tuple[PyTree, PyTree]]  # key -> (obs, state)
    step: Callable[
        ..., tuple
    ]  # (key, state, action) -> (obs, state, reward, terminated, truncated)


def legal_action(mask: jax.Array, number: jax.Array) -> jax.Array:
    """The legal action that a number of any size picks: the one of that rank, modulo their count.

    Args:
        mask: bool[A], with a legal action.
        number: i32[], at least 0.
    """
    rank = jnp.cumsum(mask) - 1
    return jnp.argmax(mask & (rank == number % jnp.sum(mask))).astype(jnp.int32)


def adapter_player(env: Any, params: PyTree = None, legal: bool = False) -> Player:
    """An adapter, called as the rollout calls it.

    Args:
        legal: the actions are numbers, which pick among the actions of its masks.
    """
    params = env.default_params if params is None else params

    def step(key, state, action):
        if legal:
            action = jax.tree.map(legal_action, env.action_mask(state, params), action)
        obs, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return obs, state, reward, terminated, env.is_truncated(state, params)

    return Player(lambda key: env.reset_env(key, params), step)


@functools.partial(jax.jit, static_argnums=0)
def _play(player: Player, keys: jax.Array, actions: PyTree) -> tuple:
    def advance(carry, inputs):
        (obs, state), (key, action) = carry, inputs
        step_key, reset_key = jax.random.split(key)
        obs, state, reward, terminated, truncated = player.step(step_key, state, action)
        over = terminated["__all__"] if isinstance(terminated, dict) else terminated
        over = over | truncated
        fresh = player.reset(reset_key)
        after = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, (obs, state))
        return after, (obs, reward, terminated, truncated)

    first = player.reset(keys[0])
    return first[0], jax.lax.scan(advance, first, (keys[1:], actions))[1]


def _assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal, but for the last digits of floats: XLA fuses two programs as each machine has it."""
    if np.issubdtype(found.dtype, np.floating):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    else:
        np.testing.assert_array_equal(found, expected)


def assert_same_steps(library: Player, adapter: Player, actions: PyTree, seed: int = 0) -> int:
    """Both give the same observations, rewards and ends; returns how many episodes ended.

    Args:
        actions: [T, ...] for all steps; illegal ones as the library takes them.
    """
    steps = len(jax.tree.leaves(actions)[0])
    keys = jax.random.split(jax.random.key(seed), steps + 1)
    expected, found = (
        jax.tree.map(np.asarray, _play(each, keys, actions)) for each in (library, adapter)
    )
    jax.tree.map(_assert_same, found, expected)
    _, (_, _, terminated, truncated) = found
    over = terminated["__all__"] if isinstance(terminated, dict) else terminated
    return int(np.sum(over | truncated))
