"""Host rollout: T steps of environments outside JAX, stepped by the host between compiled calls.

The same rollout as `jaxrl.rollout.rollout.play`, made of the same parts. For each step and each
part of the copies there is one small compiled call, `_choose`, since the environments wait for it:
the policies go on and choose the next actions. What was played waits in NumPy arrays until
`_record`, one call for many steps, does everything else, and `_finish` makes the rollout.
"""

import functools
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.ops.packing import Packed, pack
from jaxrl.rollout.env_step import (
    EnvBatch,
    RolloutSpec,
    advance_policies,
    draw_randomness,
    follow,
)
from jaxrl.rollout.host_steps import (
    Reached,
    act,
    first_envs,
    raw_step_of,
    reached_of,
    scatter_on_host,
    with_new_episodes,
)
from jaxrl.rollout.rollout import (
    Carries,
    Rollout,
    Turn,
    before_reset,
    packed,
    rollout_of,
    turns_of,
    values_at_the_clock,
)


class _Row(NamedTuple):
    """What is kept of a step, or with a leading axis [T] of all."""

    turns: tuple[Packed, ...]  # by group, [N, E, M, ...]
    ends: Packed  # (reached, episode_done, hist_data) [E]
    lost: jax.Array  # bool[E]


class _Chosen(NamedTuple):
    """What the policies of a part do next."""

    policies: EnvBatch  # what they go on from; nothing else of the copies is in it
    outputs: Packed  # of `PolicyOutput` by group
    actions: tuple[PyTree, ...]  # the environment's, by group


class _Playing(struct.PyTreeNode):
    """A part's copies, and what is recorded of them."""

    envs: EnvBatch  # after `step` steps
    carries: Carries
    rows: _Row  # [T, ...]
    step: jax.Array  # i32[]


# The axis of the copies in each field of an `EnvBatch`.
ENV_AXES = (
    *(("state", 0), ("obs", 1), ("episodes", 0), ("callback_data", 0)),
    *(("policy_states", 1), ("returns", 1), ("unfinished", 1), ("present", 0)),
)
STEPS_AT_ONCE = 128  # that wait to be recorded, at most
BYTES_AT_ONCE = 2**24  # of theirs, unless a single step has more
SMALL = 4096  # numbers; smaller arrays are packed into one, since a call pays for each


class _Game(NamedTuple):
    """Who plays a rollout."""

    spec: RolloutSpec
    weights: tuple[PolicyWeights, ...]
    packed: Packed  # the weights as `_choose` takes them
    env_params: PyTree


class Seconds(NamedTuple):
    """Where the time of a rollout went."""

    env: float  # waiting for environments
    inference: float  # choosing actions, and everything else


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
        began, waited = time.perf_counter(), 0.0
        game = _Game(self.spec, weights, _packed(weights), self.env_params)
        copies = self.num_envs or len(env_keys)
        passed = np.arange(self.num_steps, dtype=np.float32) * copies
        env_steps = np.float32(env_steps) + passed if self.spec.explores else ()
        parts = []
        for i, rows in enumerate(self.vector.parts):
            envs = _part_of(self._envs, (rows.start, rows.stop))
            parts.append(_Part(game, envs, (env_keys[rows], env_steps), self.num_steps))
            self._send(i, parts[i].actions)
        for step in range(1, self.num_steps + 1):
            for i, part in enumerate(parts):
                if self.stopping.is_set():
                    raise Stopped
                asked = time.perf_counter()
                steps = self.vector.receive(i)
                waited += time.perf_counter() - asked
                reached = reached_of(self.spec, steps, part.copies)
                played = part.outputs
                if step < self.num_steps:
                    part.choose(reached)
                    self._send(i, part.actions)
                part.keep(played, reached)  # while the copies step
        self._envs, rollout = _finish(
            self.spec, weights, [part.finished() for part in parts], self.env_params
        )
        jax.block_until_ready(rollout.episode_done)
        return self._envs, rollout, Seconds(waited, time.perf_counter() - began - waited)

    def _send(self, part: int, actions: tuple[jax.Array, ...]) -> None:
        self.vector.send(part, scatter_on_host(self.spec.grouping, actions))


class _Part:
    """A part's copies during a rollout.

    Attributes:
        copies: their numbers, i32[E].
        outputs: what the policies did last.
        actions: the environment's, by group.
    """

    def __init__(self, game: _Game, envs: EnvBatch, randomness: tuple[Key, PyTree], num_steps: int):
        self.copies, self._num_steps = np.asarray(envs.state.copy), num_steps
        self._game, self._choose = game, _compiled_choose(game.spec)
        statics = game.spec, num_steps
        begun = _begin(statics, game.weights, envs, randomness, game.env_params)
        self._playing, chosen, noise = begun
        self._policies, self.outputs, self.actions = chosen
        # An array of the host for each step: cheaper than to index those of the device.
        noise, (_, env_steps) = zip(*jax.tree.map(np.asarray, noise), strict=True), randomness
        env_steps = env_steps if game.spec.explores else itertools.repeat(())
        self._now = zip(noise, env_steps, strict=False)
        next(self._now)
        self._kept: list[np.ndarray] = []  # [K, ...]  the leaves of the steps that wait
        self._num_kept = 0

    def choose(self, reached: Reached) -> None:
        """The next outputs and actions, after a step."""
        stepped, game = (self.outputs, reached), self._game
        chosen = self._choose(
            game.packed, self._policies, stepped, next(self._now), game.env_params
        )
        self._policies, self.outputs, self.actions = chosen

    def keep(self, outputs: Packed, reached: Reached) -> None:
        """Keeps a step until it is recorded."""
        leaves, self._structure = jax.tree.flatten((outputs, reached))
        leaves = [np.asarray(leaf) for leaf in leaves]
        if self._num_kept == 0:
            size = sum(leaf.nbytes for leaf in leaves)
            most = max(1, min(self._num_steps, STEPS_AT_ONCE, BYTES_AT_ONCE // size))
            # New ones each time: the last call may still read those that it was given.
            self._kept = [np.zeros((most, *leaf.shape), leaf.dtype) for leaf in leaves]
        for rows, leaf in zip(self._kept, leaves, strict=True):
            rows[self._num_kept] = leaf
        self._num_kept += 1
        if self._num_kept == len(self._kept[0]):
            self._record()

    def finished(self) -> _Playing:
        """The copies, and what was recorded of them: all steps."""
        if self._num_kept:
            self._record()
        return self._playing

    def _record(self) -> None:
        steps, count = jax.tree.unflatten(self._structure, self._kept), np.int32(self._num_kept)
        game, self._num_kept = self._game, 0
        self._playing = _record(
            game.spec, game.weights, self._playing, (steps, count), game.env_params
        )


@jax.jit
def _packed(weights: tuple[PolicyWeights, ...]) -> Packed:
    return pack(weights, num_axes=0, widest=SMALL)


@functools.partial(jax.jit, static_argnums=0)
def _begin(
    statics: tuple[RolloutSpec, int],
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    randomness: tuple[Key, jax.Array | tuple],
    env_params: PyTree,
) -> tuple[_Playing, _Chosen, tuple[jax.Array, ...]]:
    """A rollout's buffers, its first actions, and its noise by group, f32[T, N, E, M, D]."""
    spec, num_steps = statics
    env_keys, env_steps = randomness
    noise = draw_randomness(spec, env_keys, num_steps).noise
    first = jax.tree.map(lambda leaf: leaf[0], (noise, env_steps))
    chosen = _chosen(spec, weights, envs, first, env_params)
    playing = _Playing(envs, Carries.zeros(spec, envs, num_steps), rows=(), step=jnp.int32(0))
    stepped = chosen.outputs, _nothing(spec, envs)
    row_of = functools.partial(_row_of, spec)
    row = jax.eval_shape(row_of, weights, playing, stepped, env_params)[1]
    zeros = lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype)
    return playing.replace(rows=jax.tree.map(zeros, row)), chosen, noise


@functools.lru_cache(maxsize=64)
def _compiled_choose(spec: RolloutSpec) -> Callable:
    """`_choose` of a specification; as an argument this would be hashed in every call."""
    return jax.jit(functools.partial(_choose, spec))


def _choose(
    spec: RolloutSpec,
    weights: Packed,
    policies: EnvBatch,
    stepped: tuple[Packed, Reached],
    now: tuple,
    env_params: PyTree,
) -> _Chosen:
    """What the policies do after a step: `stepped` has their outputs, and what those led to."""
    outputs, reached = stepped
    raw = with_new_episodes(raw_step_of(spec, reached), reached)
    envs = advance_policies(spec, policies, outputs.unpack(), raw)
    envs = envs.replace(obs=reached.obs, state=reached.state)
    return _chosen(spec, weights.unpack(), envs, now, env_params)


def _chosen(
    spec: RolloutSpec, weights: tuple, envs: EnvBatch, now: tuple, env_params: PyTree
) -> _Chosen:
    outputs, actions = act(spec, weights, envs, now, env_params)
    policies = EnvBatch((), (), (), policy_states=envs.policy_states, present=envs.present)
    return _Chosen(policies, pack(outputs, num_axes=0, widest=SMALL), actions)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _record(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    playing: _Playing,
    kept: tuple[tuple[Packed, Reached], jax.Array],
    env_params: PyTree,
) -> _Playing:
    """With the first so many of the steps [K, ...] that were kept."""
    steps, count = kept

    def record(i, playing):
        stepped = jax.tree.map(lambda rows: rows[i], steps)
        envs, row, carries = _row_of(spec, weights, playing, stepped, env_params)
        put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, playing.step, axis=0)
        rows = jax.tree.map(put, playing.rows, row)
        return _Playing(envs, carries, rows, playing.step + 1)

    return jax.lax.fori_loop(0, count, record, playing)


@functools.partial(jax.jit, static_argnums=0)
def _finish(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    played: list[_Playing],
    env_params: PyTree,
) -> tuple[EnvBatch, Rollout]:
    """The rollout of what all parts played."""
    turns = _joined([[turn.unpack() for turn in part.rows.turns] for part in played], axis=2)
    ends = _joined([part.rows.ends.unpack() for part in played], axis=1)
    lost = _joined([part.rows.lost for part in played], axis=1)
    carries = played[0].carries.replace(
        parts=_joined([part.carries.parts for part in played], axis=2),
        last_action=_joined([part.carries.last_action for part in played], axis=1),
    )
    gone = rows_of_lost_episodes(lost, ends[1])
    turns = [_without(turn, gone[:, None, :, None]) for turn in turns]
    envs = _joined_envs([part.envs for part in played])
    unfinished = tuple(
        action.replace(there=action.there & ~gone[0][None, :, None]) for action in envs.unfinished
    )
    envs = envs.replace(unfinished=unfinished)
    return rollout_of(spec, weights, envs, (turns, ends, carries), env_params)


def _row_of(
    spec: RolloutSpec,
    weights: tuple,
    playing: _Playing,
    stepped: tuple[Packed, Reached],
    env_params: PyTree,
) -> tuple[EnvBatch, _Row, Carries]:
    """The copies after a step, what is recorded of it, and the carries with its own."""
    (outputs, reached), envs = stepped, playing.envs
    outputs, raw = outputs.unpack(), raw_step_of(spec, reached)
    last = before_reset(spec, envs, outputs, raw, reached.final_obs)
    final_values = values_at_the_clock(spec, weights, raw.truncated, last, env_params)
    turns = turns_of(spec, envs, outputs, raw, final_values, last.obs)
    going_on, ended = (reached.obs, reached.state), with_new_episodes(raw, reached)
    after, stats, hist_data = follow(spec, envs, outputs, ended, going_on, env_params)
    carries = playing.carries.record(envs.policy_states, turns, playing.step)
    return after, _Row(*packed(turns, (stats, raw.episode_done, hist_data)), reached.lost), carries


def _nothing(spec: RolloutSpec, envs: EnvBatch) -> Reached:
    """A step of the right shapes."""
    num_envs = envs.state.copy.shape[0]
    numbers = jnp.zeros((num_envs, len(spec.grouping.agents)))
    flags, done = numbers.astype(bool), jnp.zeros(num_envs, bool)
    metrics = {name: numbers[:, 0] for name in spec.metrics}
    flags_of_agents = flags, flags, flags
    return Reached(envs.obs, envs.obs, envs.state, numbers, *flags_of_agents, done, done, metrics)


def rows_of_lost_episodes(lost: jax.Array, episode_done: jax.Array) -> jax.Array:
    """Which steps belong to an episode that a fault took, bool[T, E]; both are bool[T, E]."""

    def backward(is_lost, step):
        lost, episode_done = step
        is_lost = lost | (is_lost & ~episode_done)
        return is_lost, is_lost

    steps = lost, episode_done
    return jax.lax.scan(backward, jnp.zeros_like(lost[0]), steps, reverse=True)[1]


def _without(turn: Turn, gone: jax.Array) -> Turn:
    """Turns [T, N, E, M] in which nobody acted where they are `gone`."""
    keep = lambda flags: flags & ~gone
    return turn._replace(
        reward=jnp.where(gone, 0.0, turn.reward),
        terminated=keep(turn.terminated),
        truncated=keep(turn.truncated),
        active=keep(turn.active),
    )


def _joined(parts: list[PyTree], axis: int) -> PyTree:
    """The arrays of all parts, in their order, as one along the axis of the copies."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *parts)


def _joined_envs(parts: list[EnvBatch]) -> EnvBatch:
    fields = {
        name: _joined([getattr(part, name) for part in parts], axis) for name, axis in ENV_AXES
    }
    return EnvBatch(**fields)


@functools.partial(jax.jit, static_argnums=1)
def _part_of(envs: EnvBatch, bounds: tuple[int, int]) -> EnvBatch:
    """The copies of a part."""
    cut = lambda tree, axis: jax.tree.map(
        lambda leaf: jax.lax.slice_in_dim(leaf, *bounds, axis=axis), tree
    )
    return EnvBatch(**{name: cut(getattr(envs, name), axis) for name, axis in ENV_AXES})
