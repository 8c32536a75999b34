"""One part of the copies of an environment outside JAX, during a rollout.

For each step there is one small compiled call, `_choose`, since the environments wait for it: the
policies go on and choose the next actions. It takes and gives a step as one array of bytes. The
bytes wait until `_record`, one call for many steps, does everything else with them in a thread of
its own.
"""

import functools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.ops.byte_rows import ByteLayout
from jaxrl.ops.packing import Packed, pack
from jaxrl.outside.host_steps import (
    Reached,
    act,
    raw_step_of,
    scatter_on_host,
    told_of,
    with_new_episodes,
)
from jaxrl.rollout.env_step import (
    EnvBatch,
    RolloutSpec,
    advance_policies,
    draw_randomness,
    follow,
    read_by_networks,
)
from jaxrl.rollout.feature import Played
from jaxrl.rollout.rollout import (
    Carries,
    Ends,
    before_reset,
    packed,
    steps_of,
    values_at_the_clock,
)

STEPS_AT_ONCE = 512  # that wait to be recorded, at most: each call takes Python's lock for a while
BYTES_AT_ONCE = 2**24  # of theirs, unless a single step has more
SMALL = 4096  # numbers; smaller arrays are packed into one, since a call pays for each


class Row(NamedTuple):
    """The record of a step, or with a leading axis [T] of all."""

    steps: tuple[Packed, ...]  # by group, [N, E, M, ...]
    ends: Packed  # [E]
    lost: jax.Array  # bool[E]


class _Told(NamedTuple):
    """The inputs of `_choose` after a step."""

    reached: Reached
    now: tuple[tuple[jax.Array, ...], PyTree]  # (noise by group, env_steps) of the next action


class _Answer(NamedTuple):
    """The outputs of the policies of a part."""

    outputs: list[PolicyOutput]  # by group
    actions: tuple[PyTree, ...]  # the environment's, by group


class _Layouts(NamedTuple):
    """The places of the arrays of a `_Told` and of an `_Answer` in their rows of bytes."""

    told: ByteLayout
    answer: ByteLayout


class _Structures(NamedTuple):
    """The structures that `_choose` is compiled for: a call is quicker with lists of arrays."""

    layouts: _Layouts
    weights: jax.tree_util.PyTreeDef  # of a `Packed`
    policies: jax.tree_util.PyTreeDef  # of an `EnvBatch` that has nothing else of the copies


class _Begun(struct.PyTreeNode):
    """A part at the start of a rollout."""

    playing: "Playing"
    policies: EnvBatch
    answer: jax.Array  # u8[...]  the first one
    noise: tuple[jax.Array, ...]  # by group, f32[T, N, E, M, D]
    layouts: _Layouts = struct.field(pytree_node=False)


class Playing(struct.PyTreeNode):
    """A part's copies, and what is recorded of them."""

    envs: EnvBatch  # after `step` steps
    carries: Carries
    rows: Row  # [T, ...]
    step: jax.Array  # i32[]


class Game(NamedTuple):
    """The players of a rollout, with their weights."""

    spec: RolloutSpec
    weights: tuple[PolicyWeights, ...]
    packed: Packed  # the weights as `_choose` takes them
    env_params: PyTree

    @classmethod
    def of(
        cls, spec: RolloutSpec, weights: tuple[PolicyWeights, ...], env_params: PyTree
    ) -> "Game":
        return cls(spec, weights, _packed(weights), env_params)


class _Waiting:
    """Steps [K] of a part that wait to be recorded, as rows of bytes.

    Attributes:
        told, answers: u8[K, ...]
        reached: the arrays of `told` that steps are written to, [K, E, ...], in `told_of`'s order.
        actions: by agent, [K, E, ...].
        recorded: the call that records them; once it is done the rows may be used again.
    """

    recorded: Future

    def __init__(self, game: Game, layouts: _Layouts, most: int, copies: np.ndarray):
        self.told, self.answers = (np.zeros((most, layout.size), np.uint8) for layout in layouts)
        told = layouts.told.views(self.told)
        told.reached.state.copy[:] = copies
        split = functools.partial(scatter_on_host, game.spec.grouping, num_leading=1)
        by_agent = told.reached._replace(
            obs=split(told.reached.obs),
            final_obs=split(told.reached.final_obs),
            state=told.reached.state.replace(copy=None),
        )
        self.reached, self.now = jax.tree.leaves(by_agent), told.now
        self.actions = split(layouts.answer.views(self.answers).actions)


class Part:
    """A part's copies during a rollout.

    Args:
        recorder: an executor of one thread; it records steps, in their order.
    """

    def __init__(
        self,
        game: Game,
        envs: EnvBatch,
        randomness: tuple[Key, PyTree],
        num_steps: int,
        recorder: Executor,
    ):
        begun = _begin((game.spec, num_steps), game.weights, envs, randomness, game.env_params)
        self._recorder = recorder
        self._game, self._layouts = game, begun.layouts
        self._copies = np.asarray(envs.state.copy)
        self._playing, self._answer = begun.playing, begun.answer
        self._now = jax.tree.map(np.asarray, begun.noise), randomness[1]  # [T, ...]
        self._weights, weights = jax.tree.flatten(game.packed)
        self._policies, policies = jax.tree.flatten(begun.policies)
        structures = _Structures(begun.layouts, weights, policies)
        self._choose = _compiled_choose(game.spec, structures)
        self._steps: Any = None  # the last ones, and their arrays
        self._reached: list[np.ndarray] = []
        sizes = sum(layout.size for layout in self._layouts)
        self._most = max(1, min(num_steps, STEPS_AT_ONCE, BYTES_AT_ONCE // sizes))
        # Steps are written to the first while the second, once full, is recorded.
        self._waiting, self._recording = self._new_rows(), None
        by_agent = self._waiting.actions.values()
        self._is_plain = all(isinstance(rows, np.ndarray) for rows in by_agent)
        self._begin_rows(0)
        self._waiting.answers[0] = self._answer

    @property
    def actions(self) -> dict[AgentId, PyTree]:
        """The environment's, [E, ...]."""
        row, waiting = self._row, self._waiting.actions
        if self._is_plain:  # by itself, for it is asked for in every step
            return {agent: rows[row] for agent, rows in waiting.items()}
        return jax.tree.map(lambda rows: rows[row], waiting)

    def take(self, steps: Any) -> None:
        """Keeps a step, a `VectorSteps`."""
        if steps is not self._steps:  # the same as before where its arrays are the copies' own
            self._steps = steps
            self._reached = jax.tree.leaves(told_of(self._game.spec, steps, None))
        row = self._row
        for rows, leaf in zip(self._waiting.reached, self._reached, strict=True):
            rows[row] = leaf

    def choose(self) -> None:
        """The next actions, after the step that was taken."""
        stepped, params = (self._answer, self._waiting.told[self._row]), self._game.env_params
        chosen = self._choose(self._weights, self._policies, stepped, params)
        self._policies, self._answer = chosen
        self._row += 1
        if self._row == self._most:
            self._submit(self._row)
            self._waiting, self._recording = self._recording or self._new_rows(), self._waiting
            self._begin_rows(self._first + self._row)
        self._waiting.answers[self._row] = self._answer

    def finished(self) -> Playing:
        """The copies, and what was recorded of them: all steps."""
        self._submit(self._row + 1)
        self._waiting.recorded.result()
        return self._playing

    def _new_rows(self) -> _Waiting:
        return _Waiting(self._game, self._layouts, self._most, self._copies)

    def _begin_rows(self, first: int) -> None:
        """Begins to use the rows, for the steps from `first` on."""
        self._first, self._row = first, 0
        following = slice(first + 1, first + self._most + 1)
        for rows, leaf in zip(
            jax.tree.leaves(self._waiting.now), jax.tree.leaves(self._now), strict=True
        ):
            rest = leaf[following]
            rows[: len(rest)] = rest

    def _submit(self, count: int) -> None:
        """Begins to record the first `count` rows, and waits until those before are recorded."""
        self._waiting.recorded = self._recorder.submit(self._record, self._waiting, count)
        if self._recording is not None:
            self._recording.recorded.result()

    def _record(self, waiting: _Waiting, count: int) -> None:
        game, rows = self._game, (waiting.told, waiting.answers, np.int32(count))
        statics = game.spec, self._layouts
        playing = _record(statics, game.weights, self._playing, rows, game.env_params)
        self._playing = jax.block_until_ready(playing)


@jax.jit
def _packed(weights: tuple[PolicyWeights, ...]) -> Packed:
    return pack(weights, num_axes=0, widest=SMALL)


@functools.partial(jax.jit, static_argnums=0)
def _begin(
    statics: tuple[RolloutSpec, int],
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    randomness: tuple[Key, jax.Array | None],
    env_params: PyTree,
) -> _Begun:
    """A rollout's buffers, its first actions and its noise."""
    spec, num_steps = statics
    env_keys, env_steps = randomness
    noise = draw_randomness(spec, env_keys, num_steps).noise
    now = jax.tree.map(lambda leaf: leaf[0], (noise, env_steps))
    answer = _Answer(*act(spec, weights, envs, now, env_params))
    playing = Playing(envs, Carries.zeros(spec, envs, num_steps), rows=None, step=jnp.int32(0))
    told = _Told(_nothing(spec, envs), now)
    row_of = functools.partial(_row_of, spec)
    stepped = answer.outputs, told.reached
    row = jax.eval_shape(row_of, weights, playing, stepped, env_params)[1]
    zeros = lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype)
    playing = playing.replace(rows=jax.tree.map(zeros, row))
    layouts = _Layouts(ByteLayout.of(told), ByteLayout.of(answer))
    return _Begun(playing, _policies_of(spec, envs), layouts.answer.pack(answer), noise, layouts)


@functools.lru_cache(maxsize=64)
def _compiled_choose(spec: RolloutSpec, structures: _Structures) -> Callable:
    """`_choose` of a specification; as arguments these would be compared in every call."""
    return jax.jit(functools.partial(_choose, spec, structures))


def _choose(
    spec: RolloutSpec,
    structures: _Structures,
    weights: list[jax.Array],
    policies: list[jax.Array],
    stepped: tuple[jax.Array, jax.Array],
    env_params: PyTree,
) -> tuple[list[jax.Array], jax.Array]:
    """The policies' actions after a step.

    Args:
        policies: what they go on from.
        stepped: (answer, told): what they did in the step, and what that led to, u8[...].

    Returns:
        (policies, answer)
    """
    layouts, (answer, told) = structures.layouts, stepped
    reached, now = layouts.told.unpack(told)
    raw = with_new_episodes(raw_step_of(spec, reached), reached)
    envs = jax.tree.unflatten(structures.policies, policies)
    weights = jax.tree.unflatten(structures.weights, weights).unpack()
    played = Played(weights, layouts.answer.unpack(answer).outputs, raw)
    envs = advance_policies(spec, envs, played)
    envs = envs.replace(obs=reached.obs, state=reached.state)
    chosen = act(spec, weights, envs, now, env_params)
    return jax.tree.leaves(_policies_of(spec, envs)), layouts.answer.pack(_Answer(*chosen))


def _policies_of(spec: RolloutSpec, envs: EnvBatch) -> EnvBatch:
    return read_by_networks(spec, envs).replace(state=None, obs=())


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _record(
    statics: tuple[RolloutSpec, _Layouts],
    weights: tuple[PolicyWeights, ...],
    playing: Playing,
    waiting: tuple[jax.Array, jax.Array, jax.Array],
    env_params: PyTree,
) -> Playing:
    """Records the first `count` of the steps that wait, u8[K, ...]."""
    (spec, layouts), (told, answers, count) = statics, waiting

    def record(i, playing):
        stepped = layouts.answer.unpack(answers[i]).outputs, layouts.told.unpack(told[i]).reached
        envs, row, carries = _row_of(spec, weights, playing, stepped, env_params)
        put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, playing.step, axis=0)
        rows = jax.tree.map(put, playing.rows, row)
        return Playing(envs, carries, rows, playing.step + 1)

    return jax.lax.fori_loop(0, count, record, playing)


def _row_of(
    spec: RolloutSpec,
    weights: tuple,
    playing: Playing,
    stepped: tuple[list[PolicyOutput], Reached],
    env_params: PyTree,
) -> tuple[EnvBatch, Row, Carries]:
    """The copies after a step, what is recorded of it, and the carries with its own."""
    (outputs, reached), envs = stepped, playing.envs
    raw = raw_step_of(spec, reached)
    last = before_reset(spec, envs, outputs, raw, reached.final_obs)
    final_values = values_at_the_clock(spec, weights, raw.truncated, last, env_params)
    steps = steps_of(spec, envs, outputs, raw, final_values, last.obs)
    going_on, ended = (reached.obs, reached.state), with_new_episodes(raw, reached)
    played = Played(weights, outputs, ended)
    after, known = follow(spec, envs, played, going_on, env_params)
    carries = playing.carries.record(envs.policy_states, steps, playing.step)
    return after, Row(*packed(steps, Ends.of(raw, known)), reached.lost), carries


def _nothing(spec: RolloutSpec, envs: EnvBatch) -> Reached:
    """A step of the right shapes."""
    num_envs = envs.state.copy.shape[0]
    numbers = jnp.zeros((num_envs, len(spec.grouping.agents)))
    flags, done = numbers.astype(bool), jnp.zeros(num_envs, bool)
    metrics = {name: numbers[:, 0] for name in spec.metrics}
    flags_of_agents = flags, flags, flags
    return Reached(envs.obs, envs.obs, envs.state, numbers, *flags_of_agents, done, done, metrics)
