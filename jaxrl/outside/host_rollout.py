"""Host rollout: T steps of environments outside JAX, stepped by the host between compiled calls.

The same rollout as `jaxrl.rollout.rollout.play`, made of the same parts. The copies are one part,
or two that take turns (`jaxrl.outside.host_part`); what all have played becomes the rollout.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.outside.device_part import DevicePart
from jaxrl.outside.host_part import Game, Part, Playing
from jaxrl.outside.host_steps import first_envs
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, env_axes
from jaxrl.rollout.rollout import Rollout, rollout_of
from jaxrl.rollout.steps import Steps


class Seconds(NamedTuple):
    """The seconds of a rollout, by what they were spent on."""

    env: float = 0.0  # stepping the environments, or waiting for them
    inference: float = 0.0  # choosing actions
    recording: float = 0.0  # keeping the steps, and everything else


class Stopped(Exception):
    """The rollout was given up, since nobody wants it any more."""


class HostRollouts:
    """Rollouts of E copies of an environment outside JAX, one after the other.

    It holds the copies, and the episodes that are under way in them.

    Args:
        spec: who plays where; its environment is one of `jaxrl.core.outside_env`.
        vector: the copies, a `VectorEnv`.
        num_steps: of each copy in a rollout.
        env_params: of the environment's declaration.
    """

    def __init__(self, spec: RolloutSpec, vector: Any, num_steps: int, env_params: PyTree):
        self.spec, self.vector, self.num_steps = spec, vector, num_steps
        self.env_params = env_params
        self.num_envs: int | None = None  # of the training, where these are a part of them
        self.stopping = threading.Event()  # set: the rollout under way is given up
        self._envs: EnvBatch | None = None  # between two rollouts
        self._recorder = ThreadPoolExecutor(max_workers=1)

    @property
    def num_faults(self) -> int:
        """Dropped episodes so far."""
        return self.vector.num_faults

    @property
    def num_restarts(self) -> int:
        """Worker processes that were started again."""
        return self.vector.num_restarts

    def close(self) -> None:
        """Ends what steps the copies."""
        self.vector.close()
        self._recorder.shutdown(cancel_futures=True)  # of a rollout that is given up

    def foreach_env(self, function: EnvFunction, seeds: np.ndarray | None) -> list[Any]:
        """Calls a function with each environment, as the copies do."""
        return self.vector.foreach_env(function, seeds)

    def reset(self, weights: tuple[PolicyWeights, ...], seeds: np.ndarray) -> None:
        """Begins new episodes in all copies; `seeds` is u32[E]."""
        first = self.vector.reset(seeds)
        self._envs = first_envs(self.spec, weights, first, self.env_params)

    def collect(
        self, weights: tuple[PolicyWeights, ...], env_keys: Key, env_steps: float = 0.0
    ) -> tuple[EnvBatch, Rollout, Seconds]:
        """Plays on for a rollout.

        Args:
            env_keys: as of `play`.
            env_steps: of training before this rollout, for explorations.

        Returns:
            (envs, rollout, seconds): the copies after it, [E].
        """
        began, env, inference = time.perf_counter(), 0.0, 0.0
        game = Game.of(self.spec, weights, self.env_params)
        copies = self.num_envs or len(env_keys)
        passed = np.arange(self.num_steps, dtype=np.float32) * copies
        env_steps = np.float32(env_steps) + passed if self.spec.explores else None
        kind = DevicePart if getattr(self.vector, "gives_jax_arrays", False) else Part
        parts = []
        for i, rows in enumerate(self.vector.parts):
            envs = _part_of(self.spec, self._envs, (rows.start, rows.stop))
            randomness = env_keys[rows], env_steps
            parts.append(kind(game, envs, randomness, self.num_steps, self._recorder))
            self.vector.send(i, parts[i].actions)
        for step in range(1, self.num_steps + 1):
            for i, part in enumerate(parts):
                if self.stopping.is_set():
                    raise Stopped
                asked = time.perf_counter()
                steps = self.vector.receive(i)
                env += time.perf_counter() - asked
                part.take(steps)
                if step < self.num_steps:
                    taken = time.perf_counter()
                    part.choose()
                    inference += time.perf_counter() - taken
                    self.vector.send(i, part.actions)
        self._envs, rollout = _finish(
            self.spec, weights, [part.finished() for part in parts], self.env_params
        )
        jax.block_until_ready(rollout.episode_done)
        rest = time.perf_counter() - began - env - inference
        return self._envs, rollout, Seconds(env, inference, rest)


@functools.partial(jax.jit, static_argnums=0)
def _finish(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    played: list[Playing],
    env_params: PyTree,
) -> tuple[EnvBatch, Rollout]:
    """The rollout of what all parts played."""
    by_part = [part.rows for part in played]
    steps = _joined([[group.unpack() for group in steps] for steps, _ in by_part], axis=2)
    ends = _joined([ends.unpack() for _, ends in by_part], axis=1)
    carries = played[0].carries.replace(
        parts=_joined([part.carries.parts for part in played], axis=2),
        last_action=_joined([part.carries.last_action for part in played], axis=1),
    )
    gone = rows_of_lost_episodes(ends.lost, ends.episode_done)
    steps = [_without(group, gone[:, None, :, None]) for group in steps]
    envs = joined_envs(spec, [part.envs for part in played], _joined)
    features = dict(envs.features)
    for feature in spec.features:
        features[feature.name] = feature.without(features[feature.name], gone[0])
    envs = envs.replace(features=features)
    envs, rollout = rollout_of(spec, weights, envs, (steps, ends, carries), env_params)
    return envs, rollout.replace(num_env_steps=jnp.sum(~gone))


def rows_of_lost_episodes(lost: jax.Array, episode_done: jax.Array) -> jax.Array:
    """A mask of the steps of episodes that a fault took; all three are bool[T, E]."""

    def backward(is_lost, step):
        lost, episode_done = step
        is_lost = lost | (is_lost & ~episode_done)
        return is_lost, is_lost

    steps = lost, episode_done
    return jax.lax.scan(backward, jnp.zeros_like(lost[0]), steps, reverse=True)[1]


def _without(steps: Steps, gone: jax.Array) -> Steps:
    """Steps [T, N, E, M] in which nobody acted where they are `gone`."""
    keep = lambda flags: flags & ~gone
    return steps.replace(
        reward=jnp.where(gone, 0.0, steps.reward),
        terminated=keep(steps.terminated),
        truncated=keep(steps.truncated),
        active=keep(steps.active),
    )


def _joined(parts: list[PyTree], axis: int) -> PyTree:
    """The arrays of all parts, in their order, as one along the axis of the copies."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *parts)


def joined_envs(
    spec: RolloutSpec, parts: Sequence[EnvBatch], join: Callable[[list, int], PyTree]
) -> EnvBatch:
    """The copies of all parts, in their order; `join` takes parts and the axis of the copies."""
    return jax.tree.map(lambda axis, *parts: join(list(parts), axis), env_axes(spec), *parts)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _part_of(spec: RolloutSpec, envs: EnvBatch, bounds: tuple[int, int]) -> EnvBatch:
    """The copies of a part."""

    def cut(axis, part):
        return jax.tree.map(lambda leaf: jax.lax.slice_in_dim(leaf, *bounds, axis=axis), part)

    return jax.tree.map(cut, env_axes(spec), envs)
