"""A policy by itself: NumPy in, NumPy out, with no trainer and no environment."""

import functools
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.spaces import Box, MultiDiscrete, from_json
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.player import Player, Weights
from jaxrl.ops.distributions import Distribution
from jaxrl.run import checkpoint, folder

ACTING = 0x61637469  # folded into the seed's key: acting never shares numbers with training


class Policy:
    """A trained policy.

    Observations are one, `[*observation_space.shape]`, or a batch with any leading axes; actions come back with the
    same leading axes.

    Args:
        player: what is static about it.
        weights: its numbers.
        seed: of the actions that `act(..., explore=True)` draws when it is given no key; policies of different names
            draw different ones.
    """

    def __init__(self, player: Player, weights: Weights, *, name: PolicyId = "", seed: int = 0):
        self.player, self.weights, self.name = player, weights, name
        self.observation_space, self.action_space = player.observation_space, player.action_space
        self._key, self._draws = acting_key(seed, name), 0

    @property
    def params(self) -> PyTree:
        """The model's parameters, as NumPy arrays."""
        return jax.tree.map(np.asarray, self.weights.params)

    def act(self, observation: Any, *, explore: bool = False, key: Key | None = None) -> np.ndarray:
        """The action to take, in the environment's own units: the likeliest, or with `explore` a drawn one."""
        obs = self._read(observation)
        if not explore:
            return np.asarray(_act(self.player, self.weights, obs, None))
        if key is None:
            key = jax.random.fold_in(self._key, self._draws)
            self._draws += 1
        return np.asarray(_act(self.player, self.weights, obs, key))

    def distribution(self, observation: Any) -> Distribution:
        """What actions are drawn from, its parameters as NumPy arrays with the observation's leading axes."""
        return jax.tree.map(np.asarray, _apply(self.player, self.weights, self._read(observation))[0])

    def value(self, observation: Any) -> np.ndarray:
        """The return that is expected from here on, discounted, f32[...]."""
        return np.asarray(_apply(self.player, self.weights, self._read(observation))[1])

    def _read(self, observation: Any) -> jax.Array:
        space, obs = self.observation_space, np.asarray(observation)
        if obs.shape[obs.ndim - len(space.shape) :] != space.shape or obs.ndim < len(space.shape):
            raise UsageError(
                f"policy {self.name!r} takes observations of shape {list(space.shape)}, or batches of them, "
                f"not {list(obs.shape)}"
            )
        if not np.can_cast(obs.dtype, space.dtype, "same_kind") and not np.can_cast(obs.dtype, space.dtype):
            raise UsageError(f"policy {self.name!r} takes observations of {np.dtype(space.dtype)}, not {obs.dtype}")
        if not isinstance(space, Box):
            counts = np.asarray(space.nvec if isinstance(space, MultiDiscrete) else space.n)
            if np.any((obs < 0) | (obs >= counts)):
                raise UsageError(
                    f"policy {self.name!r} takes observations from 0 to below {counts.tolist()}, not {obs}"
                )
        return jnp.asarray(obs, space.dtype)


def load_policy(
    path: str | Path,
    policy: PolicyId | None = None,
    *,
    checkpoint: str | int = "last",
    config: Any = None,
    seed: int = 0,
) -> Policy:
    """A trained policy from a run's folder or a checkpoint's.

    Args:
        policy: its name; may be left out if there is one alone.
        checkpoint: "last", "best" or an iteration, where `path` is a run's folder.
        config: the configuration, only where its file cannot hold it (an environment object, say).
        seed: of the actions that it draws.

    Raises:
        UsageError: no such checkpoint or policy, or a damaged one, in one line.
    """
    return policy_of(read_checkpoint(path, checkpoint), policy, config, seed=seed)


def read_checkpoint(path: str | Path, which: str | int = "last") -> checkpoint.Checkpoint:
    return checkpoint.read(checkpoint.find(Path(path), which))


def policy_of(
    saved: checkpoint.Checkpoint, policy: PolicyId | None = None, config: Any = None, *, seed: int = 0
) -> Policy:
    """One policy of a checkpoint that was read."""
    known = saved.facts["policies"]
    if policy is None and len(known) > 1:
        raise UsageError(f"{saved.path} holds {len(known)} policies; name one of them: {', '.join(known)}")
    policy = next(iter(known)) if policy is None else policy
    if policy not in known:
        raise unknown_name("policy", policy, known, f"in {saved.path}")
    config = folder.read_config(saved.facts, to_play=True) if config is None else config
    spaces = (from_json(known[policy][space]) for space in ("observation_space", "action_space"))
    player = config.player(policy, *spaces)
    weights = checkpoint.filled(
        weights_shape(player),
        saved.arrays,
        f"weights.{policy}",
        f"policy {policy!r} of checkpoint {saved.path}",
    )
    return Policy(player, weights, name=policy, seed=seed)


def acting_key(seed: int, name: str) -> Key:
    """What actions outside of training are drawn from, by the name of who acts."""
    root = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), ACTING)
    return jax.random.fold_in(root, np.uint32(zlib.crc32(name.encode())))


def weights_shape(player: Player) -> Weights:
    """The shapes of a policy's weights; nothing is computed."""
    return jax.eval_shape(lambda: Weights(player.model.init(jax.random.key(0)), player.initial_filter()))


@functools.partial(jax.jit, static_argnums=0)
def _apply(player: Player, weights: Weights, obs: jax.Array) -> tuple[Distribution, jax.Array]:
    return player.apply(weights, obs)


@functools.partial(jax.jit, static_argnums=0)
def _act(player: Player, weights: Weights, obs: jax.Array, key: Key | None) -> jax.Array:
    """The likeliest action, or one drawn with `key`, for each entry of a batch."""
    distribution, value = player.apply(weights, obs)
    action = distribution.mode() if key is None else distribution.sample(player.noise(key, value.shape))
    return player.in_environment(action)
