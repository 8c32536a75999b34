"""Whole episodes, wherever their environment runs; those outside JAX are stepped by the host."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.env import restart
from jaxrl.core.errors import TooManyFaults, UsageError
from jaxrl.core.fields import UINT32, count, flag
from jaxrl.core.outside_env import OutsideSteps, is_outside, refuse_evaluation
from jaxrl.core.types import AgentId, PyTree
from jaxrl.models.policy_spec import PolicyOutput, PolicyWeights
from jaxrl.outside.host_steps import (
    act,
    by_group,
    first_envs,
    raw_step_of,
    reached,
    scatter_on_host,
    with_new_episodes,
)
from jaxrl.play.play_limit import DEFAULT_LIMIT, PlayLimit
from jaxrl.play.whole_episodes import (
    BrokenOff,
    CompiledEpisodes,
    EpisodesUnderWay,
    Game,
    PlayedBatch,
    PlaySpec,
    kept_of,
    make_game,
    step_chance,
    under_way,
    walk,
    with_steps,
)
from jaxrl.rollout.env_step import follow
from jaxrl.rollout.feature import Played
from jaxrl.rollout.recorded_steps import RecordedSteps
from jaxrl.run.settings import RunSettings

AT_ONCE = 16  # copies that play side by side, at most


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


class Players(NamedTuple):
    """Policies and the environment that they play in."""

    algorithm: Algorithm
    weights: tuple[PolicyWeights, ...]  # by group, [N, ...]
    env_params: PyTree
    env: Mapping[str, Any] = MappingProxyType({})  # what makes it again, from `sampling.env_of`
    # Of one outside JAX; None: made for what is played.
    copies: EvaluationCopies | None = None
    name: str = ""  # for people: when in training they played like this
    seed: int = 0  # of their run's evaluations


@dataclass(frozen=True)
class EpisodeRange:
    """The episodes of a seed, and the way in which they are played.

    Raises:
        UsageError: a value that is not of its kind.
    """

    seed: int = 0
    first: int = 0
    number: int = 10
    explore: bool = False
    limit: PlayLimit = DEFAULT_LIMIT
    steps: int | None = None  # after which no further episode is counted

    def __post_init__(self):
        count()("episodes", self.number)
        count(optional=True)("steps", self.steps)
        count(0)("first", self.first)
        flag("explore", self.explore)
        count(0, UINT32)("seed", self.seed)
        count()("max_steps", self.limit.max_steps)


def play_episodes(
    players: Players,
    episode_range: EpisodeRange,
    *,
    keeps_steps: bool = False,
    to_look_at: bool = False,
) -> Iterator[PlayedBatch]:
    """Plays whole episodes, a batch at a time; cut where the limit says.

    Args:
        keeps_steps: whether the batches have steps, of which episodes are made.
        to_look_at: whether these have states as well, of which pictures are made.

    Raises:
        UsageError: an environment that fails again and again.
    """
    game = make_game(players.weights, players.env_params, episode_range.seed)
    keeps_steps = keeps_steps or to_look_at
    play = PlaySpec(players.algorithm.rollout_spec, episode_range.explore, keeps_steps, to_look_at)
    which = episode_range.first, episode_range.number, episode_range.limit
    if not is_outside(play.rollout.env):
        source = CompiledEpisodes(play, game, episode_range.number)
        yield from with_steps(walk(source, *which), episode_range.steps)
        return
    with _lent(play, episode_range.number, players.copies) as vector:
        source = OutsideEpisodes(play, game, vector)
        yield from with_steps(walk(source, *which), episode_range.steps)


@contextlib.contextmanager
def _lent(play: PlaySpec, episodes: int, copies: EvaluationCopies | None) -> Iterator[Any]:
    """The copies to play in; one that is rendered, if it can be, of episodes to look at."""
    env = play.rollout.env
    refuse_evaluation(env)
    if play.to_look_at and env.pictured:
        with contextlib.closing(env.pictured()) as vector:
            yield vector
        return
    if copies is None:
        copies = EvaluationCopies(RunSettings(workers=0 if play.to_look_at else None))
        copies.close()
    with copies.borrowed(env, env.num_copies or min(episodes, AT_ONCE)) as vector:
        yield vector


class OutsideEpisodes:
    """A `Source`: episodes of an environment outside JAX, in the copies of a `VectorEnv`."""

    def __init__(self, play: PlaySpec, game: Game, vector: Any):
        self.play, self._game, self._vector = play, game, vector
        self.together = vector.num_envs
        self.infos: list[dict[int, dict[AgentId, dict]]] = []

    @property
    def pictures(self) -> Mapping[int, np.ndarray]:
        return getattr(self._vector, "pictures", {})

    def start(self, index: np.ndarray, attempt: int) -> EpisodesUnderWay:
        first = self._vector.reset(_seeds(self._game, index, attempt))
        self.infos.clear()
        self._keep_infos()
        spec, game = self.play.rollout, self._game
        return under_way(spec, first_envs(spec, game.weights, first, game.env_params), index)

    def go_on(
        self, playing: EpisodesUnderWay, last: np.ndarray
    ) -> tuple[EpisodesUnderWay, RecordedSteps | None]:
        """One step."""
        spec = self.play.rollout
        outputs, actions = _choose(self.play, self._game, playing)
        steps = _step_all(self._vector, scatter_on_host(spec.grouping, jax.device_get(actions)))
        if np.any(steps.lost & ~np.asarray(playing.done)):
            raise BrokenOff
        self._keep_infos()
        return _go_on(self.play, self._game, playing, outputs, by_group(spec, steps))

    def _keep_infos(self) -> None:
        """Keeps the infos of the reset or step before, for episodes that are kept as objects."""
        if self.play.keeps_steps and not self.play.to_look_at and hasattr(self._vector, "infos"):
            self.infos.append(self._vector.infos())


def _seeds(game: Game, index: np.ndarray, attempt: int) -> np.ndarray:
    """An episode's own seed, whichever episodes are played beside it; u32[E]."""
    words = np.asarray(jax.random.key_data(game.reset_key)).tolist()
    sequences = [np.random.SeedSequence([*words, attempt, int(number)]) for number in index]
    return np.array([sequence.generate_state(1)[0] for sequence in sequences], np.uint32)


def _step_all(vector: Any, actions: PyTree) -> Any:
    """A step of all copies, which may be in parts."""
    for i, part in enumerate(vector.parts):
        vector.send(i, jax.tree.map(lambda leaf, part=part: leaf[part], actions))
    steps = [vector.receive(i) for i in range(len(vector.parts))]
    if len(steps) == 1:
        return steps[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *steps)


@functools.partial(jax.jit, static_argnums=0)
def _choose(
    play: PlaySpec, game: Game, playing: EpisodesUnderWay
) -> tuple[list[PolicyOutput], tuple[PyTree, ...]]:
    noise = None
    if play.explore:
        when = playing.index, playing.num_steps
        noise = step_chance(play.rollout, game.play_key, *when).noise
    return act(play.rollout, game.weights, playing.envs, (noise, None), game.env_params)


@functools.partial(jax.jit, static_argnums=0)
def _go_on(
    play: PlaySpec,
    game: Game,
    playing: EpisodesUnderWay,
    outputs: list[PolicyOutput],
    steps: OutsideSteps,
) -> tuple[EpisodesUnderWay, RecordedSteps | None]:
    """(after a step, the step if it is kept)."""
    spec = play.rollout
    raw = raw_step_of(spec, steps, playing.envs.state.copy)
    going_on = steps.obs, raw.state
    played = Played(game.weights, outputs, with_new_episodes(raw, steps.lost))
    envs, step_facts = follow(spec, playing.envs, played, going_on, game.env_params)
    first_end = raw.episode_done & ~playing.done
    finished = jax.vmap(restart)(first_end, step_facts.reached, playing.finished)
    after = playing.replace(
        envs=envs,
        num_steps=playing.num_steps + 1,
        done=playing.done | steps.episode_done,
        finished=finished,
    )
    # Its states are not known here.
    final_obs, _ = reached(playing.envs, steps)
    raw = raw._replace(obs=spec.grouping.scatter(final_obs), state=None)
    return after, jax.tree.map(lambda leaf: leaf[:, None], kept_of(play, outputs, raw))
