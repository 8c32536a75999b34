"""Whole episodes, wherever their environment runs; those outside JAX are stepped by the host."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.env import restart
from jaxrl.core.errors import TooManyFaults, UsageError
from jaxrl.core.outside_env import is_outside, refuse_evaluation
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicyOutput
from jaxrl.rollout.env_step import EnvBatch, follow
from jaxrl.rollout.episode_stats import EpisodeStats, no_episodes
from jaxrl.rollout.host_steps import (
    Reached,
    act,
    first_envs,
    raw_step_of,
    reached_of,
    scatter_on_host,
)
from jaxrl.run.inference.play_limit import DEFAULT_LIMIT, PlayLimit, PlayWatch
from jaxrl.run.inference.whole_episodes import (
    Game,
    PlayedBatch,
    PlaySpec,
    cut,
    play_batches,
    step_chance,
)
from jaxrl.run.settings import RunSettings

AT_ONCE = 16  # copies that play side by side, at most
MOST_TRIES = 5  # of a batch of which a fault breaks off an episode


class EvaluationCopies:
    """Copies of an environment outside JAX in which nobody trains, kept until `close`.

    Args:
        settings: of the run, which say who steps them; in place of Ray's actors as by default.
    """

    def __init__(self, settings: RunSettings):
        is_ray = bool(settings.num_ray_actors)
        self._settings = dataclasses.replace(settings, workers=None) if is_ray else settings
        self._is_kept, self._made = True, None

    @contextlib.contextmanager
    def borrowed(self, env: Any, number: int) -> Iterator[Any]:
        """A set of `number` copies; made again for another number, or after play was broken off.

        Raises:
            UsageError: the environment fails again and again.
        """
        if self._made is None or self._made[:2] != (env, number):
            self._end()
            self._made = env, number, env.vector(number, **self._settings.of_copies)
        is_whole = False
        try:
            yield self._made[2]
            is_whole = True
        except TooManyFaults as error:
            raise UsageError(str(error)) from error
        finally:
            if not (is_whole and self._is_kept):
                self._end()

    def close(self) -> None:
        """Ends them; those that are made later end with what they were made for."""
        self._is_kept = False
        self._end()

    def _end(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made[2].close()


def play_episodes(
    play: PlaySpec,
    game: Game,
    first: int,
    episodes: int,
    copies: EvaluationCopies | None = None,
    limit: PlayLimit = DEFAULT_LIMIT,
) -> Iterator[PlayedBatch]:
    """Plays the episodes first, first + 1, ..., a batch at a time; cut where the limit says.

    Args:
        copies: of an environment outside JAX; None: made for these episodes.

    Raises:
        UsageError: an environment that fails again and again.
    """
    if not is_outside(play.rollout.env):
        yield from play_batches(play, game, first, episodes, limit)
        return
    env = play.rollout.env
    refuse_evaluation(env)
    together = env.num_copies or min(episodes, AT_ONCE)
    if copies is None:
        copies = EvaluationCopies(RunSettings())
        copies.close()
    with copies.borrowed(env, together) as vector:
        for begin in range(0, episodes, together):
            count = min(together, episodes - begin)  # of the last batch what is beyond is dropped
            index = np.int32(first + begin + np.arange(together))
            yield cut(_play_batch(play, game, vector, index, limit), count)


class PicturedEpisode(NamedTuple):
    """An episode alone."""

    played: PlayedBatch  # of one
    pictures: dict[int, np.ndarray]  # {step: u8[H, W, 3]} of some states; empty without a renderer


def play_pictured(play: PlaySpec, game: Game, number: int, max_steps: int) -> PicturedEpisode:
    """Plays one episode, or its first steps, in a copy that is rendered if it can be.

    Raises:
        UsageError: a fault.
    """
    env = play.rollout.env
    refuse_evaluation(env)
    copies = env.num_copies or 1
    vector = (
        env.pictured() if env.pictured else env.vector(copies, **RunSettings(workers=0).of_copies)
    )
    index = np.int32(number + np.arange(copies))
    with contextlib.closing(vector):
        limit = PlayLimit(max_steps, say=lambda text: None)  # the recording says that it was cut
        played = _play_batch(play, game, vector, index, limit)
    return PicturedEpisode(cut(played, 1), getattr(vector, "pictures", {}))


def _play_batch(
    play: PlaySpec, game: Game, vector: Any, index: np.ndarray, limit: PlayLimit
) -> PlayedBatch:
    for attempt in range(MOST_TRIES):
        first = vector.reset(_seeds(game, index, attempt))
        envs = first_envs(play.rollout, game.weights, first, game.env_params)
        played = _play_out(play, game, vector, (envs, index), limit)
        if played is not None:
            return played
    raise UsageError(
        f"{play.rollout.env.name} failed in {MOST_TRIES} tries to play {len(index)} whole episodes"
    )


def _seeds(game: Game, index: np.ndarray, attempt: int) -> np.ndarray:
    """An episode's own seed, whichever episodes are played beside it; u32[E]."""
    words = np.asarray(jax.random.key_data(game.reset_key)).tolist()
    sequences = [np.random.SeedSequence([*words, attempt, int(number)]) for number in index]
    return np.array([each.generate_state(1)[0] for each in sequences], np.uint32)


def _play_out(
    play: PlaySpec, game: Game, vector: Any, begun: tuple[EnvBatch, np.ndarray], limit: PlayLimit
) -> PlayedBatch | None:
    """A batch of episodes from their start; None if a fault broke off one of them.

    Args:
        begun: the copies, and the numbers of their episodes.
    """
    spec, (envs, index), kept = play.rollout, begun, []
    obs = jax.device_get(envs.obs)
    finished, done = _none_finished(spec, index), np.zeros(len(index), bool)
    watch = PlayWatch(limit, spec.env.name)
    for step in range(limit.max_steps):
        outputs, actions = _choose(play, game, envs, index, np.int32(step))
        steps = _step_all(vector, scatter_on_host(spec.grouping, jax.device_get(actions)))
        reached = reached_of(spec, steps, np.arange(len(index), dtype=np.int32))
        if np.any(reached.lost & ~done):
            return None
        envs, finished, row = _go_on(play, game, (envs, outputs), reached, (done, finished))
        if play.keep is not None:
            kept.append(jax.device_get(row))
        done = done | reached.episode_done
        watch.look(done, step + 1)
        if done.all():
            break
    watch.conclude(done)
    rows = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *kept) if kept else None
    return PlayedBatch(done, obs, [rows], [step + 1], jax.device_get(finished))


def _step_all(vector: Any, actions: PyTree) -> Any:
    """A step of all copies, which may be in parts."""
    for i, part in enumerate(vector.parts):
        vector.send(i, jax.tree.map(lambda leaf, part=part: leaf[part], actions))
    steps = [vector.receive(i) for i in range(len(vector.parts))]
    if len(steps) == 1:
        return steps[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *steps)


def _none_finished(spec: Any, index: np.ndarray) -> EpisodeStats:
    names = (*spec.metrics, *spec.custom_metrics)
    num_agents, always_active = len(spec.grouping.agents), spec.always_active
    return no_episodes(num_agents, names, len(index), always_active=always_active)


@functools.partial(jax.jit, static_argnums=0)
def _choose(
    play: PlaySpec, game: Game, envs: EnvBatch, index: jax.Array, step: jax.Array
) -> tuple[list[PolicyOutput], tuple[PyTree, ...]]:
    noise = step_chance(play.rollout, game.play_key, index, step).noise if play.explore else None
    return act(play.rollout, game.weights, envs, (noise, None), game.env_params)


@functools.partial(jax.jit, static_argnums=0)
def _go_on(
    play: PlaySpec,
    game: Game,
    stepped: tuple[EnvBatch, list[PolicyOutput]],
    reached: Reached,
    so_far: tuple[jax.Array, EpisodeStats],
) -> tuple[EnvBatch, EpisodeStats, PyTree]:
    """(the copies after a step, the finished episodes, what is kept of the step)."""
    spec, (envs, outputs), (done, finished) = play.rollout, stepped, so_far
    raw = raw_step_of(spec, reached)
    ended = raw._replace(episode_done=raw.episode_done | reached.lost)
    going_on = reached.obs, reached.state
    after, stats, _ = follow(spec, envs, outputs, ended, going_on, game.env_params)
    finished = jax.vmap(restart)(raw.episode_done & ~done, stats, finished)
    if play.keep is None:
        return after, finished, None
    raw = raw._replace(obs=spec.grouping.scatter(reached.final_obs))
    return after, finished, play.keep(spec, outputs, raw)
