"""Whole episodes with frozen policies, side by side: one program evaluates, records and samples.

Episode i of a seed has keys of its own, whichever episodes are played beside it, and of every
environment just the first episode counts: so neither the batch nor an episode's length decides what
is counted.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.env import restart, strongly_typed
from jaxrl.core.outside_env import refuse_outside
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.ops.packing import pack
from jaxrl.rollout.env_step import (
    EnvBatch,
    RolloutSpec,
    StepRandomness,
    advance_envs,
    draw_randomness,
    reset_envs,
    step_envs,
)
from jaxrl.rollout.episode_stats import EpisodeStats, no_episodes
from jaxrl.rollout.rollout import before_reset
from jaxrl.run.devices.mesh import on_first_device
from jaxrl.run.inference.play_limit import DEFAULT_LIMIT, PlayLimit, PlayWatch

EVALUATION = 0x6576616C  # folded into the seed's key: evaluation never shares numbers with training
AT_ONCE = 128  # episodes side by side, at most
STEPS_PER_CALL = 1000  # between two looks at the host: a Ctrl-C that breaks off is heard there
KEPT_STEPS = 256  # that a call keeps, at most
KEPT_BYTES = 2**24  # of them, at most; at least one step


class PlaySpec(NamedTuple):
    """Everything static about playing; hashable."""

    rollout: RolloutSpec
    explore: bool  # whether actions are sampled, or their distribution's mode
    # keep(rollout_spec, outputs, raw) of `step_envs`: what is kept of a step, [E, ...]
    keep: Callable[..., PyTree] | None = None
    # Whether statistics are kept and ended environments reset; an episode alone compiles faster
    # without.
    counts: bool = True


class Game(NamedTuple):
    """The part of a game that stays the same in all steps."""

    weights: tuple[PolicyWeights, ...]  # by group, [N, ...]
    env_params: PyTree
    reset_key: Key
    play_key: Key


class EpisodesUnderWay(struct.PyTreeNode):
    """E episodes under way."""

    envs: EnvBatch  # [E]
    index: jax.Array  # i32[E]  the episodes' numbers
    num_steps: jax.Array  # i32[]
    done: jax.Array  # bool[E]
    finished: EpisodeStats  # [E]  as they ended


class PlayedBatch(NamedTuple):
    """E episodes that were played side by side; on the host."""

    done: np.ndarray  # bool[E]  whether it ended; else it was cut, and `finished` is 0

    obs: tuple[PyTree, ...]  # the first ones, by group, [N, E, M, ...]
    kept: list[PyTree]  # of each call, [E, T, ...]; zeros in steps that were not played
    num_steps: list[int]  # that each call played
    finished: EpisodeStats  # [E]


def make_game(weights: tuple[PolicyWeights, ...], env_params: PyTree, seed: int) -> Game:
    """The game of a seed's episodes."""
    return Game(on_first_device(weights), strongly_typed(env_params), *episode_keys(seed))


def episode_keys(seed: int) -> tuple[Key, Key]:
    """(reset_key, play_key) of a seed's episodes.

    Episode i is reset with fold_in(reset_key, i); its step t has the random numbers of
    `step_chance`.
    """
    return _episode_keys(np.uint32(seed))


@jax.jit
def _episode_keys(seed: jax.Array) -> tuple[Key, Key]:
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), EVALUATION)
    return tuple(jax.random.split(key))


def step_chance(
    spec: RolloutSpec, play_key: Key, index: jax.Array, step: jax.Array
) -> StepRandomness:
    """The random numbers of a step of the episodes `index`, i32[E], whatever else is played."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(play_key, i), step))(index)
    return jax.tree.map(lambda leaf: leaf[0], draw_randomness(spec, keys, 1))


def play_batches(
    play: PlaySpec, game: Game, first: int, episodes: int, limit: PlayLimit = DEFAULT_LIMIT
) -> Iterator[PlayedBatch]:
    """Plays the episodes first, first + 1, ..., a batch at a time; cut where the limit says."""
    play = play._replace(rollout=play.rollout.apart)
    together = min(episodes, AT_ONCE)
    for begin in range(0, episodes, together):
        count = min(together, episodes - begin)  # of the last batch what is beyond is dropped
        index = np.int32(first + begin + np.arange(together))
        yield cut(_play_batch(play, game, index, limit), count)


def _play_batch(play: PlaySpec, game: Game, index: np.ndarray, limit: PlayLimit) -> PlayedBatch:
    begun, watch = start(play.rollout, game, index), PlayWatch(limit, play.rollout.env.name)
    kept, num_steps = [], []
    for playing, count, chunk in play_out(play, game, begun, limit.max_steps):
        kept.append(jax.tree.map(np.asarray, chunk))
        num_steps.append(count)
        done, finished = np.asarray(playing.done), playing.finished
        watch.look(done, int(playing.num_steps))
    watch.conclude(done)
    obs, finished = jax.tree.map(np.asarray, (begun.envs.obs, finished))
    return PlayedBatch(done, obs, kept, num_steps, finished)


def cut(batch: PlayedBatch, count: int) -> PlayedBatch:
    """The first episodes of a batch."""
    first = lambda tree: jax.tree.map(lambda leaf: leaf[:count], tree)
    obs = jax.tree.map(lambda leaf: leaf[:, :count], batch.obs)
    return batch._replace(
        done=first(batch.done), obs=obs, kept=first(batch.kept), finished=first(batch.finished)
    )


def play_out(
    play: PlaySpec, game: Game, playing: EpisodesUnderWay, max_steps: int
) -> Iterator[tuple[EpisodesUnderWay, int, PyTree]]:
    """Plays until all episodes have ended, or `max_steps` steps.

    Yields:
        (playing, count, kept): after each call, the number of its steps, and what it kept of them,
        [E, T, ...] with zeros after the first `count`.
    """
    num_steps = 0
    while not np.asarray(playing.done).all() and num_steps < max_steps:
        playing, kept = _go_on(play, game, playing, np.int32(max_steps))
        before, num_steps = num_steps, int(playing.num_steps)
        yield playing, num_steps - before, kept


@functools.partial(jax.jit, static_argnums=0)
def start(spec: RolloutSpec, game: Game, index: jax.Array) -> EpisodesUnderWay:
    """The episodes `index`, i32[E], at their reset."""
    refuse_outside(spec.env, "this")
    envs = reset_envs(spec, game.reset_key, index, game.env_params, game.weights)
    metrics = (*spec.metrics, *spec.custom_metrics)
    num_agents, always_active = len(spec.grouping.agents), spec.always_active
    finished = no_episodes(num_agents, metrics, len(index), always_active=always_active)
    return EpisodesUnderWay(envs, index, jnp.int32(0), jnp.zeros(index.shape, bool), finished)


@functools.partial(jax.jit, static_argnums=0)
def _go_on(
    play: PlaySpec, game: Game, playing: EpisodesUnderWay, last: jax.Array
) -> tuple[EpisodesUnderWay, PyTree]:
    """Plays on until all episodes have ended, up to step `last`, and as many as a call plays.

    Returns:
        (playing, kept): what is kept of the steps, [E, T, ...], zeros where none was played.
    """
    spec, begin = play.rollout, playing.num_steps

    def step(playing):
        randomness = step_chance(spec, game.play_key, playing.index, playing.num_steps)
        outputs, raw = step_envs(
            spec, game.weights, playing.envs, randomness, game.env_params, explore=play.explore
        )
        advance = _counted if play.counts else _uncounted
        envs, finished = advance(spec, playing, (outputs, raw, randomness), game.env_params)
        after = EpisodesUnderWay(
            envs=envs,
            index=playing.index,
            num_steps=playing.num_steps + 1,
            done=playing.done | raw.episode_done,
            finished=finished,
        )
        # Written as few wide arrays: a loop on the CPU pays for each, however small.
        kept = None if play.keep is None else pack(play.keep(spec, outputs, raw), num_axes=1)
        return after, kept

    shapes, length = None, STEPS_PER_CALL
    if play.keep is not None:
        shapes = jax.eval_shape(lambda state: step(state)[1], playing)
        length = _steps_to_keep(shapes)
    last = jnp.minimum(last, begin + length)

    def goes_on(carry):
        playing, _ = carry
        return ~jnp.all(playing.done) & (playing.num_steps < last)

    def step_and_keep(carry):
        playing, kept = carry
        at = playing.num_steps - begin
        playing, new = step(playing)
        put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, at, axis=0)
        return playing, jax.tree.map(put, kept, new)

    nothing = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
    playing, kept = jax.lax.while_loop(goes_on, step_and_keep, (playing, nothing))
    kept = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), kept)
    return playing, None if play.keep is None else kept.unpack()


def _counted(
    spec: RolloutSpec, playing: EpisodesUnderWay, stepped: tuple, env_params: PyTree
) -> tuple[EnvBatch, EpisodeStats]:
    """The environments after a step, ended ones reset, and the finished episodes."""
    _, raw, _ = stepped
    envs, reached, _ = advance_envs(spec, playing.envs, *stepped, env_params)
    first_end = raw.episode_done & ~playing.done
    return envs, jax.vmap(restart)(first_end, reached, playing.finished)


def _uncounted(
    spec: RolloutSpec, playing: EpisodesUnderWay, stepped: tuple, env_params: PyTree
) -> tuple[EnvBatch, EpisodeStats]:
    """The environments after a step, without any reset."""
    outputs, raw, _ = stepped
    obs = spec.grouping.gather(raw.obs)
    return before_reset(spec, playing.envs, outputs, raw, obs), playing.finished


def _steps_to_keep(shapes: PyTree) -> int:
    """The number of steps in a call that keeps arrays of these shapes for each step."""
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return max(1, min(KEPT_STEPS, KEPT_BYTES // max(size, 1)))
