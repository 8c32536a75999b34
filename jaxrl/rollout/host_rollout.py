"""Host rollout: T steps of environments outside JAX, stepped by the host between compiled calls.

The same rollout as `jaxrl.rollout.rollout.play`, made of the same parts. For each step and each
part of the copies there is one compiled call, `_step`: it records what the last actions led to and
chooses the next ones, for all policies together. What has been played stays on the device, in
buffers that the calls hand on, until `_finish` makes the rollout of them.
"""

import functools
import threading
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.env import RawStep, Solo
from jaxrl.core.outside_env import OutsideState
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.ops.packing import Packed
from jaxrl.rollout.env_step import (
    EnvBatch,
    PolicyOutput,
    RolloutSpec,
    choose_actions,
    draw_randomness,
    follow,
    reset_envs,
)
from jaxrl.rollout.policy_map import Grouping
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
from jaxrl.rollout.turns import nothing_open


class Reached(NamedTuple):
    """What a step of a part's copies led to, as a compiled call takes it."""

    obs: tuple[PyTree, ...]  # by group, [N, E, M, ...], to continue from
    final_obs: tuple[PyTree, ...]  # by group, before any reset
    state: OutsideState  # [E]  of `obs`
    reward: np.ndarray  # f32[E, M_all]
    terminated: np.ndarray  # bool[E, M_all]
    truncated: np.ndarray  # bool[E, M_all]
    active: np.ndarray  # bool[E, M_all]
    episode_done: np.ndarray  # bool[E]
    lost: np.ndarray  # bool[E]  a fault took the episode: none of its rows counts
    metrics: dict[str, np.ndarray]  # {name: f32[E]}


class _Row(NamedTuple):
    """What is kept of a step, or with a leading axis [T] of all."""

    turns: tuple[Packed, ...]  # by group, [N, E, M, ...]
    ends: Packed  # (reached, episode_done, hist_data) [E]
    lost: jax.Array  # bool[E]


class _Playing(struct.PyTreeNode):
    """A part's copies between two calls."""

    envs: EnvBatch
    outputs: list[PolicyOutput]  # of the step under way
    carries: Carries
    noise: tuple[jax.Array, ...]  # by group, f32[T, N, E, M, D]
    env_steps: jax.Array | tuple  # f32[T]  of training so far; () where policies do not explore
    rows: _Row  # [T, ...]  of the steps so far
    step: jax.Array  # i32[]  the number of the step under way


# The axis of the copies in each field of an `EnvBatch`.
ENV_AXES = (
    *(("state", 0), ("obs", 1), ("episodes", 0), ("callback_data", 0)),
    *(("policy_states", 1), ("returns", 1), ("unfinished", 1), ("present", 0)),
)


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
        self.stopping = threading.Event()  # set: the rollout under way is given up
        self._envs: EnvBatch | None = None  # between two rollouts

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
        statics = self.spec, self.num_steps
        passed = np.arange(self.num_steps, dtype=np.float32) * len(env_keys)
        env_steps = np.float32(env_steps) + passed if self.spec.explores else ()
        parts, playing, last = self.vector.parts, [], []
        for i, part in enumerate(parts):
            envs = _part_of(self._envs, (part.start, part.stop))
            randomness = env_keys[part], env_steps
            state, actions = _begin(statics, weights, envs, randomness, self.env_params)
            self._send(i, actions)
            playing.append(state)
        for step in range(1, self.num_steps + 1):
            for i, part in enumerate(parts):
                if self.stopping.is_set():
                    raise Stopped
                asked = time.perf_counter()
                steps = self.vector.receive(i)
                waited += time.perf_counter() - asked
                reached = reached_of(self.spec, steps, np.arange(part.start, part.stop))
                if step == self.num_steps:
                    last.append(reached)
                    continue
                playing[i], actions = _step(
                    self.spec, weights, playing[i], reached, self.env_params
                )
                self._send(i, actions)
        self._envs, rollout = _finish(self.spec, weights, playing, last, self.env_params)
        jax.block_until_ready(rollout.episode_done)
        return self._envs, rollout, Seconds(waited, time.perf_counter() - began - waited)

    def _send(self, part: int, actions: tuple[jax.Array, ...]) -> None:
        self.vector.send(part, scatter_on_host(self.spec.grouping, actions))


def first_envs(
    spec: RolloutSpec, weights: tuple[PolicyWeights, ...], first: Any, env_params: PyTree
) -> EnvBatch:
    """Copies at the start of their episodes, of a `FirstObs`."""
    obs = gather_on_host(spec.grouping, first.obs)
    copies = np.arange(len(jax.tree.leaves(first.obs)[0]))
    return _fresh_envs(spec, weights, obs, told_state(spec, first, copies), env_params)


def reached_of(spec: RolloutSpec, steps: Any, copies: np.ndarray) -> Reached:
    """A part's `VectorSteps`, of the copies with these numbers."""
    return Reached(
        obs=gather_on_host(spec.grouping, steps.obs),
        final_obs=gather_on_host(spec.grouping, steps.final_obs),
        state=told_state(spec, steps, copies),
        reward=steps.reward,
        terminated=steps.terminated,
        truncated=steps.truncated,
        active=steps.active,
        episode_done=steps.episode_done,
        lost=steps.lost,
        metrics={name: steps.metrics[name] for name in spec.metrics},
    )


def gather_on_host(grouping: Grouping, values: dict[str, PyTree]) -> tuple[PyTree, ...]:
    """NumPy arrays [E, ...] by agent, as [N, E, M, ...] by group: a view of an agent alone."""
    by_group = []
    for group in grouping.groups:
        rows = [[values[agent] for agent in agents] for agents in group.agents]
        if len(rows) == len(rows[0]) == 1:
            by_group.append(jax.tree.map(lambda leaf: leaf[None, :, None], rows[0][0]))
            continue
        stacked = [jax.tree.map(lambda *leaves: np.stack(leaves, 1), *row) for row in rows]
        by_group.append(jax.tree.map(lambda *leaves: np.stack(leaves), *stacked))
    return tuple(by_group)


def scatter_on_host(grouping: Grouping, actions: tuple[jax.Array, ...]) -> dict[str, np.ndarray]:
    """The inverse of `gather_on_host`; waits for the actions."""
    by_agent = {}
    for group, rows in zip(grouping.groups, map(np.asarray, actions), strict=True):
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                by_agent[agent] = rows[i, :, j]
    return by_agent


def told_state(spec: RolloutSpec, told: Any, copies: np.ndarray) -> OutsideState:
    """What a program is told of copies' states, in the form that the environment declares."""
    acting, masks = (), ()
    if spec.waits:
        agents = enumerate(spec.grouping.agents)
        acting = {agent: told.acting[:, i] for i, agent in agents}
    if spec.masked:
        masks = told.action_mask
        masks = next(iter(masks.values())) if isinstance(spec.env, Solo) else dict(masks)
    return OutsideState(np.asarray(copies, np.int32), acting, masks)


@functools.partial(jax.jit, static_argnums=0)
def _fresh_envs(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    obs: tuple[PyTree, ...],
    state: OutsideState,
    env_params: PyTree,
) -> EnvBatch:
    """Copies at the start of their episodes."""
    envs = reset_envs(spec, jax.random.key(0), state.copy, env_params)
    envs = envs.replace(obs=obs, state=state)
    return envs.replace(unfinished=nothing_open(spec, weights, envs, env_params))


@functools.partial(jax.jit, static_argnums=0)
def _begin(
    statics: tuple[RolloutSpec, int],
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    randomness: tuple[Key, jax.Array | tuple],
    env_params: PyTree,
) -> tuple[_Playing, tuple[PyTree, ...]]:
    """A rollout's first actions, and its buffers."""
    spec, num_steps = statics
    env_keys, env_steps = randomness
    noise = draw_randomness(spec, env_keys, num_steps).noise
    first = jax.tree.map(lambda leaf: leaf[0], (noise, env_steps))
    outputs, actions = act(spec, weights, envs, first, env_params)
    playing = _Playing(
        envs=envs,
        outputs=outputs,
        carries=Carries.zeros(spec, envs, num_steps),
        noise=noise,
        env_steps=env_steps,
        rows=(),
        step=jnp.int32(0),
    )
    row_of = functools.partial(_row_of, spec)
    row = jax.eval_shape(row_of, weights, playing, _nothing(spec, envs), env_params)[1]
    zeros = lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype)
    return playing.replace(rows=jax.tree.map(zeros, row)), actions


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    playing: _Playing,
    reached: Reached,
    env_params: PyTree,
) -> tuple[_Playing, tuple[PyTree, ...]]:
    """Records what the last actions led to, and chooses the next ones."""
    playing = _recorded(spec, weights, playing, reached, env_params)
    now = jax.tree.map(lambda leaf: leaf[playing.step], (playing.noise, playing.env_steps))
    outputs, actions = act(spec, weights, playing.envs, now, env_params)
    return playing.replace(outputs=outputs), actions


@functools.partial(jax.jit, static_argnums=0)
def _finish(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    playing: list[_Playing],
    last: list[Reached],
    env_params: PyTree,
) -> tuple[EnvBatch, Rollout]:
    """Records the last step of all parts, and makes the rollout of what they played."""
    played = [
        _recorded(spec, weights, part, reached, env_params)
        for part, reached in zip(playing, last, strict=True)
    ]
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


def act(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    now: tuple,
    env_params: PyTree,
) -> tuple[list[PolicyOutput], tuple[PyTree, ...]]:
    """What the policies do, and the environment's actions, by group.

    Args:
        now: (noise, env_steps) as of `choose_actions`.
    """
    noise, env_steps = now
    outputs = choose_actions(spec, weights, envs, noise, env_params, env_steps)
    actions = tuple(
        policy_spec.to_env_action(output.action)
        for policy_spec, output in zip(spec.policy_specs, outputs, strict=True)
    )
    return outputs, actions


def _recorded(
    spec: RolloutSpec, weights: tuple, playing: _Playing, reached: Reached, env_params: PyTree
) -> _Playing:
    """With the step under way in the buffers, and the copies after it."""
    envs, row, carries = _row_of(spec, weights, playing, reached, env_params)
    put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, playing.step, axis=0)
    rows = jax.tree.map(put, playing.rows, row)
    return playing.replace(envs=envs, rows=rows, carries=carries, step=playing.step + 1)


def _row_of(
    spec: RolloutSpec, weights: tuple, playing: _Playing, reached: Reached, env_params: PyTree
) -> tuple[EnvBatch, _Row, Carries]:
    """The copies after the step under way, what is kept of it, and the carries with its own."""
    raw, envs, outputs = raw_step_of(spec, reached), playing.envs, playing.outputs
    last = before_reset(spec, envs, outputs, raw, reached.final_obs)
    final_values = values_at_the_clock(spec, weights, raw.truncated, last, env_params)
    turns = turns_of(spec, envs, outputs, raw, final_values)
    # A lost episode makes place for a new one as if it had ended, and is not counted.
    ended = raw._replace(episode_done=raw.episode_done | reached.lost)
    going_on = reached.obs, reached.state
    after, stats, hist_data = follow(spec, envs, outputs, ended, going_on, env_params)
    carries = playing.carries.record(envs.policy_states, turns, playing.step)
    return after, _Row(*packed(turns, (stats, raw.episode_done, hist_data)), reached.lost), carries


def raw_step_of(spec: RolloutSpec, reached: Reached) -> RawStep:
    """The step as one of JAX would have it; its observations are not read."""
    told = reached.active, reached.terminated, reached.truncated
    active, terminated, truncated = (flags & ~reached.lost[:, None] for flags in told)
    reward = jnp.where(reached.lost[:, None], 0.0, reached.reward)
    if not spec.waits:  # who is away is neither paid nor ended
        terminated, truncated = terminated & active, truncated & active
        reward = jnp.where(active, reward, 0.0)
    truncated = truncated & ~terminated
    episode_done = reached.episode_done & ~reached.lost
    return RawStep(
        obs=(),
        state=reached.state,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        active=active,
        all_terminated=episode_done & ~jnp.any(truncated, axis=1),
        episode_done=episode_done,
        info={"metrics": reached.metrics} if spec.metrics else {},
    )


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
