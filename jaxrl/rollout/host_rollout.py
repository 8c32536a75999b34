"""Host rollout: T steps of environments outside JAX, stepped by the host between compiled calls.

The same rollout as `jaxrl.rollout.rollout.play`, made of the same parts. For each step and each
part of the copies there is one small compiled call, `_choose`, since the environments wait for it:
the policies go on and choose the next actions. What was played waits in NumPy arrays until
`_record`, one call for many steps, does everything else, and `_finish` makes the rollout.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.ops.byte_rows import ByteLayout
from jaxrl.ops.packing import Packed, pack
from jaxrl.rollout.env_step import (
    EnvBatch,
    PolicyOutput,
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
    scatter_on_host,
    told_of,
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


class _Told(NamedTuple):
    """What `_choose` is told after a step."""

    reached: Reached
    now: tuple[tuple[jax.Array, ...], PyTree]  # (noise by group, env_steps) of the next action


class _Answer(NamedTuple):
    """What the policies of a part do."""

    outputs: list[PolicyOutput]  # by group
    actions: tuple[PyTree, ...]  # the environment's, by group


class _Layouts(NamedTuple):
    """How both are rows of bytes."""

    told: ByteLayout
    answer: ByteLayout


class _Structures(NamedTuple):
    """What `_choose` is compiled for: a call is quicker where it is given lists of arrays."""

    layouts: _Layouts
    weights: jax.tree_util.PyTreeDef  # of a `Packed`
    policies: jax.tree_util.PyTreeDef  # of an `EnvBatch` that has nothing else of the copies


class _Begun(struct.PyTreeNode):
    """A part at the start of a rollout."""

    playing: "_Playing"
    policies: EnvBatch
    answer: jax.Array  # u8[...]  the first one
    noise: tuple[jax.Array, ...]  # by group, f32[T, N, E, M, D]
    layouts: _Layouts = struct.field(pytree_node=False)


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
            self.vector.send(i, parts[i].actions)
        for step in range(1, self.num_steps + 1):
            for i, part in enumerate(parts):
                if self.stopping.is_set():
                    raise Stopped
                asked = time.perf_counter()
                steps = self.vector.receive(i)
                waited += time.perf_counter() - asked
                part.take(steps)
                if step < self.num_steps:
                    part.choose()
                    self.vector.send(i, part.actions)
                part.record()  # while the copies step
        self._envs, rollout = _finish(
            self.spec, weights, [part.finished() for part in parts], self.env_params
        )
        jax.block_until_ready(rollout.episode_done)
        return self._envs, rollout, Seconds(waited, time.perf_counter() - began - waited)


class _Waiting:
    """Steps [K] of a part that wait to be recorded, as rows of bytes.

    Attributes:
        told, answers: u8[K, ...]
        reached: the arrays of `told` that steps are written to, [K, E, ...], in `told_of`'s order.
        actions: by agent, [K, E, ...].
    """

    def __init__(self, game: _Game, layouts: _Layouts, most: int, copies: np.ndarray):
        # Never used again: the call that records them may still read.
        self.told, self.answers = (np.zeros((most, layout.size), np.uint8) for layout in layouts)
        told = layouts.told.views(self.told)
        told.reached.state.copy[:] = copies
        split = functools.partial(scatter_on_host, game.spec.grouping, num_leading=1)
        by_agent = told.reached._replace(
            obs=split(told.reached.obs),
            final_obs=split(told.reached.final_obs),
            state=told.reached.state.replace(copy=()),
        )
        self.reached, self.now = jax.tree.leaves(by_agent), told.now
        self.actions = split(layouts.answer.views(self.answers).actions)

    def __len__(self):
        return len(self.told)


class _Part:
    """A part's copies during a rollout."""

    def __init__(self, game: _Game, envs: EnvBatch, randomness: tuple[Key, PyTree], num_steps: int):
        begun = _begin((game.spec, num_steps), game.weights, envs, randomness, game.env_params)
        self._game, self._layouts, self._num_steps = game, begun.layouts, num_steps
        self._copies = np.asarray(envs.state.copy)
        self._playing, self._answer = begun.playing, begun.answer
        self._now = jax.tree.map(np.asarray, begun.noise), randomness[1]  # [T, ...]
        self._weights, weights = jax.tree.flatten(game.packed)
        self._policies, policies = jax.tree.flatten(begun.policies)
        structures = _Structures(begun.layouts, weights, policies)
        self._choose = _compiled_choose(game.spec, structures)
        self._steps: Any = None  # the last ones, and their arrays
        self._reached: list[np.ndarray] = []
        self._full: _Waiting | None = None  # to be recorded
        self._begin_rows(0)
        self._waiting.answers[0] = self._answer

    @property
    def actions(self) -> dict[AgentId, np.ndarray]:
        """The environment's, [E, ...]."""
        return {agent: rows[self._row] for agent, rows in self._waiting.actions.items()}

    def take(self, steps: Any) -> None:
        """Keeps a step, a `VectorSteps`."""
        if steps is not self._steps:  # the same as before where its arrays are the copies' own
            self._steps = steps
            self._reached = jax.tree.leaves(told_of(self._game.spec, steps, ()))
        row = self._row
        for rows, leaf in zip(self._waiting.reached, self._reached, strict=True):
            rows[row] = leaf

    def choose(self) -> None:
        """The next actions, after the step that was taken."""
        told, game = self._waiting.told[self._row], self._game
        self._policies, self._answer = self._choose(
            self._weights, self._policies, self._answer, told, game.env_params
        )
        self._row += 1
        if self._row == len(self._waiting):
            self._full = self._waiting
            self._begin_rows(self._first + self._row)
        self._waiting.answers[self._row] = self._answer

    def record(self) -> None:
        """Records the steps that wait, if they are many."""
        if self._full is not None:
            self._record(self._full, len(self._full))
            self._full = None

    def finished(self) -> _Playing:
        """The copies, and what was recorded of them: all steps."""
        self._record(self._waiting, self._row + 1)
        return self._playing

    def _begin_rows(self, first: int) -> None:
        """Rows of the steps from `first` on."""
        sizes = sum(layout.size for layout in self._layouts)
        most = max(1, min(self._num_steps, STEPS_AT_ONCE, BYTES_AT_ONCE // sizes))
        self._waiting = _Waiting(self._game, self._layouts, most, self._copies)
        self._first, self._row = first, 0
        following = slice(first + 1, first + most + 1)
        for rows, leaf in zip(
            jax.tree.leaves(self._waiting.now), jax.tree.leaves(self._now), strict=True
        ):
            rest = leaf[following]
            rows[: len(rest)] = rest

    def _record(self, waiting: _Waiting, count: int) -> None:
        game, rows = self._game, (waiting.told, waiting.answers, np.int32(count))
        statics = game.spec, self._layouts
        self._playing = _record(statics, game.weights, self._playing, rows, game.env_params)


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
) -> _Begun:
    """A rollout's buffers, its first actions and its noise."""
    spec, num_steps = statics
    env_keys, env_steps = randomness
    noise = draw_randomness(spec, env_keys, num_steps).noise
    now = jax.tree.map(lambda leaf: leaf[0], (noise, env_steps))
    answer = _Answer(*act(spec, weights, envs, now, env_params))
    playing = _Playing(envs, Carries.zeros(spec, envs, num_steps), rows=(), step=jnp.int32(0))
    told = _Told(_nothing(spec, envs), now)
    row_of = functools.partial(_row_of, spec)
    stepped = answer.outputs, told.reached
    row = jax.eval_shape(row_of, weights, playing, stepped, env_params)[1]
    zeros = lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype)
    playing = playing.replace(rows=jax.tree.map(zeros, row))
    layouts = _Layouts(ByteLayout.of(told), ByteLayout.of(answer))
    return _Begun(playing, _policies_of(envs), layouts.answer.pack(answer), noise, layouts)


@functools.lru_cache(maxsize=64)
def _compiled_choose(spec: RolloutSpec, structures: _Structures) -> Callable:
    """`_choose` of a specification; as arguments these would be compared in every call."""
    return jax.jit(functools.partial(_choose, spec, structures))


def _choose(
    spec: RolloutSpec,
    structures: _Structures,
    weights: list[jax.Array],
    policies: list[jax.Array],
    answer: jax.Array,
    told: jax.Array,
    env_params: PyTree,
) -> tuple[list[jax.Array], jax.Array]:
    """What the policies do after a step.

    Args:
        policies: what they go on from.
        answer: what they did in the step, u8[...].
        told: what it led to, u8[...].

    Returns:
        (policies, answer)
    """
    layouts = structures.layouts
    reached, now = layouts.told.unpack(told)
    raw = with_new_episodes(raw_step_of(spec, reached), reached)
    envs = jax.tree.unflatten(structures.policies, policies)
    envs = advance_policies(spec, envs, layouts.answer.unpack(answer).outputs, raw)
    envs = envs.replace(obs=reached.obs, state=reached.state)
    packed = jax.tree.unflatten(structures.weights, weights)
    chosen = act(spec, packed.unpack(), envs, now, env_params)
    return jax.tree.leaves(_policies_of(envs)), layouts.answer.pack(_Answer(*chosen))


def _policies_of(envs: EnvBatch) -> EnvBatch:
    return EnvBatch((), (), (), policy_states=envs.policy_states, present=envs.present)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _record(
    statics: tuple[RolloutSpec, _Layouts],
    weights: tuple[PolicyWeights, ...],
    playing: _Playing,
    waiting: tuple[jax.Array, jax.Array, jax.Array],
    env_params: PyTree,
) -> _Playing:
    """With the first so many of the steps that wait, u8[K, ...]."""
    (spec, layouts), (told, answers, count) = statics, waiting

    def record(i, playing):
        stepped = layouts.answer.unpack(answers[i]).outputs, layouts.told.unpack(told[i]).reached
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
    stepped: tuple[list[PolicyOutput], Reached],
    env_params: PyTree,
) -> tuple[EnvBatch, _Row, Carries]:
    """The copies after a step, what is recorded of it, and the carries with its own."""
    (outputs, reached), envs = stepped, playing.envs
    raw = raw_step_of(spec, reached)
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
