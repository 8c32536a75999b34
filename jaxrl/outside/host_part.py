"""One part of the copies of an environment outside JAX, during a rollout.

For each step there is one small compiled call, `_choose`, since the environments wait for it: the
policies advance and choose the next actions. It takes and gives a step as one array of bytes. The
bytes wait until `_record`, one call for many steps, does everything else with them in a thread of
its own.
"""

import functools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.ops.byte_rows import ByteLayout
from jaxrl.ops.packing import Packed, pack
from jaxrl.outside.host_steps import (
    act,
    raw_step_of,
    reached,
    scatter_on_host,
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
from jaxrl.rollout.rollout import Carries, Ends, before_reset, packed, steps_of, values_at_the_clock

STEPS_AT_ONCE = 512  # that wait to be recorded, at most: each call takes Python's lock for a while
BYTES_AT_ONCE = 2**24  # of theirs, unless a single step has more
SMALL = 4096  # numbers; smaller arrays are packed into one, since a call pays for each


class _Stepped(NamedTuple):
    """The inputs of `_choose` after a step."""

    steps: OutsideSteps
    draws: tuple[tuple[jax.Array, ...], PyTree]  # (noise by group, env_steps) of the next action


class _Answer(NamedTuple):
    """The outputs of the policies of a part."""

    outputs: list[PolicyOutput]  # by group
    actions: tuple[PyTree, ...]  # the environment's, by group


class _Layouts(NamedTuple):
    """The places of the arrays of a `_Stepped` and of an `_Answer` in their rows of bytes."""

    stepped: ByteLayout
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
    rows: tuple[tuple[Packed, ...], Packed] | None  # [T, ...]  as of `packed`
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
        stepped, answers: u8[K, ...]
        steps: the arrays that steps are written to, [K, E, ...], in the order of an `OutsideSteps`.
        actions: by agent, [K, E, ...].
        recorded: the call that records them; once it is done the rows may be used again.
    """

    recorded: Future

    def __init__(self, game: Game, layouts: _Layouts, most: int):
        self.stepped, self.answers = (np.zeros((most, layout.size), np.uint8) for layout in layouts)
        steps, self.draws = layouts.stepped.views(self.stepped)
        split = functools.partial(scatter_on_host, game.spec.grouping, num_leading=1)
        by_agent = steps._replace(obs=split(steps.obs), final_obs=split(steps.final_obs))
        self.steps = jax.tree.leaves(by_agent)
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
        self._playing, self._answer = begun.playing, begun.answer
        self._draws = jax.tree.map(np.asarray, begun.noise), randomness[1]  # [T, ...]
        self._weights, weights = jax.tree.flatten(game.packed)
        self._policies, policies = jax.tree.flatten(begun.policies)
        structures = _Structures(begun.layouts, weights, policies)
        self._choose = _compiled_choose(game.spec, structures)
        self._steps: OutsideSteps | None = None  # the last ones, and their arrays
        self._arrays: list[np.ndarray] = []
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

    def take(self, steps: OutsideSteps) -> None:
        """Keeps a step."""
        if steps is not self._steps:  # the same as before where its arrays are the copies' own
            self._steps, self._arrays = steps, jax.tree.leaves(steps)
        row = self._row
        for rows, leaf in zip(self._waiting.steps, self._arrays, strict=True):
            rows[row] = leaf

    def choose(self) -> None:
        """The next actions, after the step that was taken."""
        stepped, params = (self._answer, self._waiting.stepped[self._row]), self._game.env_params
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
        return _Waiting(self._game, self._layouts, self._most)

    def _begin_rows(self, first: int) -> None:
        """Begins to use the rows, for the steps from `first` on."""
        self._first, self._row = first, 0
        following = slice(first + 1, first + self._most + 1)
        for rows, leaf in zip(
            jax.tree.leaves(self._waiting.draws), jax.tree.leaves(self._draws), strict=True
        ):
            rest = leaf[following]
            rows[: len(rest)] = rest

    def _submit(self, count: int) -> None:
        """Begins to record the first `count` rows, and waits until those before are recorded."""
        self._waiting.recorded = self._recorder.submit(self._record, self._waiting, count)
        if self._recording is not None:
            self._recording.recorded.result()

    def _record(self, waiting: _Waiting, count: int) -> None:
        game, rows = self._game, (waiting.stepped, waiting.answers, np.int32(count))
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
    draws = jax.tree.map(lambda leaf: leaf[0], (noise, env_steps))
    answer = _Answer(*act(spec, weights, envs, draws, env_params))
    playing = playing_of(statics, weights, envs, answer.outputs, env_params)
    stepped = _Stepped(_no_steps(spec, envs), draws)
    layouts = _Layouts(ByteLayout.of(stepped), ByteLayout.of(answer))
    return _Begun(playing, _policies_of(spec, envs), layouts.answer.pack(answer), noise, layouts)


def playing_of(
    statics: tuple[RolloutSpec, int],
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    outputs: list[PolicyOutput],
    env_params: PyTree,
) -> Playing:
    """Copies before the first of so many steps, and empty rows for these."""
    spec, num_steps = statics
    playing = Playing(envs, Carries.zeros(spec, envs, num_steps), rows=None, step=jnp.int32(0))
    row_of = functools.partial(_row_of, spec)
    led_to = outputs, _no_steps(spec, envs)
    row = jax.eval_shape(row_of, weights, playing, led_to, env_params)[1]
    zeros = lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype)
    return playing.replace(rows=jax.tree.map(zeros, row))


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
        policies: their states before the step.
        stepped: their outputs in the step, and its results, u8[...] each.

    Returns:
        (policies, answer)
    """
    layouts, (answer, stepped) = structures.layouts, stepped
    steps, draws = layouts.stepped.unpack(stepped)
    copies = jnp.arange(len(steps.lost), dtype=jnp.int32)  # which nobody asks for here
    raw = with_new_episodes(raw_step_of(spec, steps, copies), steps.lost)
    envs = jax.tree.unflatten(structures.policies, policies)
    weights = jax.tree.unflatten(structures.weights, weights).unpack()
    played = Played(weights, layouts.answer.unpack(answer).outputs, raw)
    envs = advance_policies(spec, envs, played)
    envs = envs.replace(obs=steps.obs, state=raw.state)
    chosen = act(spec, weights, envs, draws, env_params)
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
    (spec, layouts), (stepped, answers, count) = statics, waiting

    def record(i, playing):
        steps = layouts.stepped.unpack(stepped[i]).steps
        led_to = layouts.answer.unpack(answers[i]).outputs, steps
        return record_step(spec, weights, playing, led_to, env_params)

    return jax.lax.fori_loop(0, count, record, playing)


def record_step(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    playing: Playing,
    led_to: tuple[list[PolicyOutput], OutsideSteps],
    env_params: PyTree,
) -> Playing:
    """The copies after a step, with one more row.

    Args:
        led_to: (the outputs of the policies, what came of them), by group.
    """
    envs, row, carries = _row_of(spec, weights, playing, led_to, env_params)
    put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, playing.step, axis=0)
    rows = jax.tree.map(put, playing.rows, row)
    return Playing(envs, carries, rows, playing.step + 1)


def _row_of(
    spec: RolloutSpec,
    weights: tuple,
    playing: Playing,
    led_to: tuple[list[PolicyOutput], OutsideSteps],
    env_params: PyTree,
) -> tuple[EnvBatch, tuple, Carries]:
    """The copies after a step, what is recorded of it, and the carries with its own."""
    (outputs, stepped), envs = led_to, playing.envs
    raw = raw_step_of(spec, stepped, envs.state.copy)
    final_obs, final_critic = reached(envs, stepped)
    at_the_end = raw._replace(state=raw.state.replace(critic=final_critic))
    last = before_reset(spec, envs, outputs, at_the_end, final_obs)
    final_values = values_at_the_clock(spec, weights, raw.truncated, last, env_params)
    steps = steps_of(spec, envs, outputs, raw, final_values, last.obs)
    going_on, ended = (stepped.obs, raw.state), with_new_episodes(raw, stepped.lost)
    played = Played(weights, outputs, ended)
    after, step_facts = follow(spec, envs, played, going_on, env_params)
    carries = playing.carries.record(envs.policy_states, steps, playing.step)
    ends = Ends.of(raw, step_facts)._replace(lost=stepped.lost)
    return after, packed(steps, ends), carries


def _no_steps(spec: RolloutSpec, envs: EnvBatch) -> OutsideSteps:
    """A step of the right shapes."""
    num_envs = envs.state.copy.shape[0]
    numbers, done = jnp.zeros((num_envs, len(spec.grouping.agents))), jnp.zeros(num_envs, bool)
    flags = numbers.astype(bool)
    return OutsideSteps(
        obs=envs.obs,
        final_obs=envs.obs,
        reward=numbers,
        terminated=flags,
        truncated=flags,
        active=flags,
        episode_done=done,
        lost=done,
        metrics={name: numbers[:, 0] for name in spec.metrics},
        action_mask=envs.state.action_mask,
        acting=envs.state.acting,
        critic=envs.state.critic,
        final_critic=envs.state.critic,
    )
