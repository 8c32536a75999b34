"""Whole episodes with frozen policies, side by side: `walk` takes them from any source to any sink.

    sources  CompiledEpisodes, OutsideEpisodes (`play_episodes` chooses), RecordedActions
    sinks    summary_of_episodes: statistics; passed_to: objects, files; recordings_of: pictures

    evaluate        play_episodes(...) | summary_of_episodes
    sample, output  play_episodes(...) | passed_to(append, write) | summary_of_episodes
    render, replay  play_episodes(...) | recordings_of | write_episode, make_replay
    replay_episode  walk(RecordedActions(...)) | recordings_of | its differences

Episode i of a seed has keys of its own, whichever episodes are played beside it, and of every
environment just the first episode counts: so neither the batch nor an episode's length decides what
is counted.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.env import RawStep, restart, strongly_typed
from jaxrl.core.errors import UsageError
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.ops.packing import pack
from jaxrl.play.play_limit import PlayCount, PlayLimit, PlayWatch
from jaxrl.play.played_steps import played_steps
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
from jaxrl.rollout.feature import Played
from jaxrl.rollout.recorded_steps import RecordedSteps
from jaxrl.rollout.rollout import before_reset
from jaxrl.run.devices.mesh import on_first_device, on_host

EVALUATION = 0x6576616C  # folded into the seed's key: evaluation never shares numbers with training
AT_ONCE = 128  # episodes side by side, at most
MOST_TRIES = 5  # of a batch of which a fault breaks off an episode
STEPS_PER_CALL = 1000  # between two looks at the host: a Ctrl-C that breaks off is heard there
KEPT_STEPS = 256  # that a call keeps, at most
KEPT_BYTES = 2**24  # of them, at most; at least one step


class PlaySpec(NamedTuple):
    """Everything static about playing; hashable."""

    rollout: RolloutSpec
    explore: bool  # whether actions are sampled, or their distribution's mode
    keeps_steps: bool = False  # whether `PlayedBatch.steps` are kept
    # Whether these are kept as `played_steps` has them to be looked at. Then no statistics are kept
    # and no ended environment is reset: the program compiles faster without.
    to_look_at: bool = False


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

    first: int  # the number of the first one
    done: np.ndarray  # bool[E]  whether it ended; else it was cut, and `finished` is 0
    # [E, T, N, M, ...], of which those after an episode's end do not count. Observations and states
    # are [E, T + 1, ...], the reset's first. None: nobody asked for steps.
    steps: RecordedSteps | None
    num_steps: int  # T
    finished: EpisodeStats  # [E]
    # {step: u8[H, W, 3]} of the first one, outside JAX
    pictures: Mapping[int, np.ndarray] = MappingProxyType({})
    # Of the reset and of each step, {e: {agent: info}}, outside JAX; () elsewhere
    infos: tuple[Mapping[int, Mapping[AgentId, dict]], ...] = ()

    def begin(self, count: int) -> "PlayedBatch":
        """The first episodes alone, `count` of them."""
        of_each = self.done, self.steps, self.finished
        done, steps, finished = jax.tree.map(lambda leaf: leaf[:count], of_each)
        return self._replace(done=done, steps=steps, finished=finished)


class Source(Protocol):
    """A place that episodes are played in, so many side by side, and that gives their steps."""

    play: PlaySpec
    together: int
    pictures: Mapping[int, np.ndarray]
    infos: Iterable[Mapping[int, Mapping[AgentId, dict]]]

    def start(self, index: np.ndarray, attempt: int) -> EpisodesUnderWay:
        """The episodes `index`, i32[together], at their reset."""

    def go_on(
        self, playing: EpisodesUnderWay, last: np.ndarray
    ) -> tuple[EpisodesUnderWay, RecordedSteps | None]:
        """A number of steps, up to step `last`: (after them, the steps [E, S, ...] if kept).

        Raises:
            BrokenOff: a fault took an episode.
        """


class BrokenOff(Exception):
    """An episode that can be tried once more."""


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


def walk(source: Source, first: int, episodes: int, limit: PlayLimit) -> Iterator[PlayedBatch]:
    """Plays the episodes first, first + 1, ..., a batch at a time; cut where the limit says."""
    together, played = source.together, PlayCount(limit, source.play.rollout.env.name)
    for begin in range(0, episodes, together):
        count = min(together, episodes - begin)  # of the last batch what is beyond is dropped
        index = np.int32(first + begin + np.arange(together))
        batch = _play_batch(source, index, limit)
        yield batch.begin(count)
        played.add(count)


def with_steps(batches: Iterator[PlayedBatch], steps: int | None) -> Iterator[PlayedBatch]:
    """The batches up to the episode with which there are so many steps in all; None: all."""
    left = math.inf if steps is None else steps
    for batch in batches:
        lengths = np.where(batch.done, batch.finished.length, batch.num_steps)
        before = np.cumsum(lengths) - lengths
        yield batch.begin(int(np.sum(before < left)))
        left -= int(lengths.sum())
        if left <= 0:
            return


def _play_batch(source: Source, index: np.ndarray, limit: PlayLimit) -> PlayedBatch:
    for attempt in range(MOST_TRIES):
        with contextlib.suppress(BrokenOff):
            return _play_out(source, source.start(index, attempt), limit)
    name = source.play.rollout.env.name
    raise UsageError(f"{name} failed in {MOST_TRIES} tries to play {len(index)} whole episodes")


def _play_out(source: Source, begun: EpisodesUnderWay, limit: PlayLimit) -> PlayedBatch:
    """Plays until all episodes have ended, or are cut."""
    watch = PlayWatch(limit, source.play.rollout.env.name)
    playing, num_steps, parts = begun, 0, []
    done = np.zeros(begun.done.shape, bool)
    while not done.all() and num_steps < limit.max_steps:
        playing, kept_steps = source.go_on(playing, np.int32(limit.max_steps))
        count, num_steps = int(playing.num_steps) - num_steps, int(playing.num_steps)
        parts.append(jax.tree.map(lambda leaf, count=count: on_host(leaf)[:, :count], kept_steps))
        done = np.asarray(playing.done)
        watch.look(done, num_steps)
    watch.conclude(done)
    steps = _from_reset(begun.envs, parts) if source.play.keeps_steps else None
    finished = jax.tree.map(np.asarray, playing.finished)
    first = int(begun.index[0])
    infos = tuple(source.infos)
    return PlayedBatch(first, done, steps, num_steps, finished, source.pictures, infos)


def _from_reset(envs: EnvBatch, parts: list[RecordedSteps]) -> RecordedSteps:
    """The steps of all parts, with the observations and the states of the reset before them."""
    steps = jax.tree.map(_joined, *parts)
    by_env = lambda leaf: np.moveaxis(np.asarray(leaf), 1, 0)[:, None]
    groups = []
    for obs, group in zip(envs.obs, steps.groups, strict=True):
        obs = jax.tree.map(_joined, jax.tree.map(by_env, obs), group.reached)
        groups.append(group._replace(obs=obs, reached=None))
    if steps.state is None:
        return steps._replace(groups=tuple(groups))
    first = jax.tree.map(lambda leaf: on_host(leaf)[:, None], envs.state)
    return steps._replace(groups=tuple(groups), state=jax.tree.map(_joined, first, steps.state))


def _joined(*parts: np.ndarray) -> np.ndarray:
    """Arrays of more and more steps, [E, S, ...], or of random keys, which NumPy has not."""
    if len(parts) == 1:
        return parts[0]
    is_plain = isinstance(parts[0], np.ndarray)
    return (np if is_plain else jnp).concatenate(parts, axis=1)


def under_way(spec: RolloutSpec, envs: EnvBatch, index: jax.Array) -> EpisodesUnderWay:
    """The episodes `index`, i32[E], of environments that were reset."""
    metrics = (*spec.metrics, *spec.custom_metrics)
    num_agents, always_active = len(spec.grouping.agents), spec.always_active
    finished = no_episodes(num_agents, metrics, len(index), always_active=always_active)
    return EpisodesUnderWay(envs, index, jnp.int32(0), jnp.zeros(index.shape, bool), finished)


# Compiled environments


class CompiledEpisodes:
    """A `Source`: episodes of an environment of JAX, in one compiled program."""

    pictures, infos = MappingProxyType({}), ()  # pictures are made of states

    def __init__(self, play: PlaySpec, game: Game, episodes: int):
        self.play, self._game = play._replace(rollout=play.rollout.apart), game
        self.together = min(episodes, AT_ONCE)

    def start(self, index: np.ndarray, attempt: int) -> EpisodesUnderWay:
        return start(self.play.rollout, self._game, index)

    def go_on(
        self, playing: EpisodesUnderWay, last: np.ndarray
    ) -> tuple[EpisodesUnderWay, RecordedSteps | None]:
        return _go_on(self.play, self._game, playing, last)


@functools.partial(jax.jit, static_argnums=0)
def start(spec: RolloutSpec, game: Game, index: jax.Array) -> EpisodesUnderWay:
    """The episodes `index`, i32[E], at their reset."""
    envs = reset_envs(spec, game.reset_key, index, game.env_params, game.weights)
    return under_way(spec, envs, index)


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
        advance = _uncounted if play.to_look_at else _counted
        played = Played(game.weights, outputs, raw, randomness.reset)
        envs, finished = advance(spec, playing, played, game.env_params)
        after = EpisodesUnderWay(
            envs=envs,
            index=playing.index,
            num_steps=playing.num_steps + 1,
            done=playing.done | raw.episode_done,
            finished=finished,
        )
        # Written as few wide arrays: a loop on the CPU pays for each, however small.
        return after, pack(kept_of(play, outputs, raw), num_axes=1) if play.keeps_steps else None

    shapes, length = None, STEPS_PER_CALL
    if play.keeps_steps:
        shapes = jax.eval_shape(lambda state: step(state)[1], playing)
        length = _steps_to_keep(shapes)
    last = jnp.minimum(last, begin + length)

    def goes_on(carry):
        playing, _ = carry
        return ~jnp.all(playing.done) & (playing.num_steps < last)

    def step_and_keep(carry):
        playing, kept_steps = carry
        at = playing.num_steps - begin
        playing, new = step(playing)
        put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, at, axis=0)
        return playing, jax.tree.map(put, kept_steps, new)

    nothing = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
    playing, kept_steps = jax.lax.while_loop(goes_on, step_and_keep, (playing, nothing))
    kept_steps = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), kept_steps)
    return playing, kept_steps.unpack() if play.keeps_steps else None


def kept_of(play: PlaySpec, outputs: list[PolicyOutput], raw: RawStep) -> RecordedSteps | None:
    """The record of a step, [E, ...]; None where steps are not kept."""
    if not play.keeps_steps:
        return None
    return played_steps(play.rollout, outputs, raw, to_look_at=play.to_look_at)


def _counted(
    spec: RolloutSpec, playing: EpisodesUnderWay, played: Played, env_params: PyTree
) -> tuple[EnvBatch, EpisodeStats]:
    """The environments after a step, ended ones reset, and the finished episodes."""
    envs, step_facts = advance_envs(spec, playing.envs, played, env_params)
    first_end = played.raw.episode_done & ~playing.done
    return envs, jax.vmap(restart)(first_end, step_facts.reached, playing.finished)


def _uncounted(
    spec: RolloutSpec, playing: EpisodesUnderWay, played: Played, env_params: PyTree
) -> tuple[EnvBatch, EpisodeStats]:
    """The environments after a step, without any reset."""
    obs = spec.grouping.gather(played.raw.obs)
    reached = before_reset(spec, playing.envs, played.outputs, played.raw, obs)
    return reached, playing.finished


def _steps_to_keep(shapes: PyTree) -> int:
    """The number of steps in a call that keeps arrays of these shapes for each step."""
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return max(1, min(KEPT_STEPS, KEPT_BYTES // max(size, 1)))
