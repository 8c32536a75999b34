"""Evaluation: whole episodes with frozen policies, exactly as many as asked, summarised."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import UINT32, count, flag, freeze, pairs
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.rollout.episode_stats import summarise
from jaxrl.run.inference.host_episodes import EvaluationCopies, play_episodes
from jaxrl.run.inference.play_limit import DEFAULT_LIMIT, PlayLimit, say_on_stderr
from jaxrl.run.inference.sampling import Episode, EpisodeRange, Players, env_of, sample_batches
from jaxrl.run.inference.whole_episodes import PlayedBatch, PlaySpec, make_game
from jaxrl.run.results import Result, episode_results, episode_returns
from jaxrl.run.settings import MAX_STEPS

_summarise = jax.jit(summarise)  # one program, not one for each operation


def evaluate(
    algorithm: Algorithm,
    weights: tuple[PolicyWeights, ...],
    env_params: PyTree = None,
    *,
    episodes: int = 10,
    explore: bool = False,
    seed: int = 0,
    copies: EvaluationCopies | None = None,
    limit: PlayLimit = DEFAULT_LIMIT,
) -> Result:
    """Plays `episodes` whole episodes.

    Args:
        weights: of every policy, by group, [N, ...].
        env_params: default: the algorithm's.
        explore: whether actions are sampled; else each is its distribution's mode.
        copies: of an environment outside JAX; None: made for these episodes.

    Returns:
        As `summary_of_episodes`.
    """
    game = make_game(weights, algorithm.env_params if env_params is None else env_params, seed)
    play = PlaySpec(algorithm.rollout_spec, explore)
    batches = play_episodes(play, game, 0, episodes, copies, limit)
    return summary_of_episodes(algorithm, list(batches))


def summary_of_episodes(algorithm: Algorithm, batches: Sequence[PlayedBatch]) -> Result:
    """Batches of episodes, in RLlib's tree as under `env_runners`.

    With `episode_return_std` and `episode_len_std` (of the episodes, ddof 0). Of episodes that were
    cut only their number is there, `num_episodes_cut`, and their steps.
    """
    played = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[b.finished for b in batches])
    done = np.concatenate([batch.done for batch in batches])
    num_cut_steps = sum(int((~batch.done).sum()) * sum(batch.num_steps) for batch in batches)
    returns, lengths = episode_returns(played)[done], played.length[done].astype(np.int64)
    summary = jax.tree.map(np.asarray, _summarise(played, done))
    spreads = {"episode_return_std": returns, "episode_len_std": lengths}
    return {
        **episode_results(algorithm, summary),
        **({name: float(values.std()) for name, values in spreads.items()} if done.any() else {}),
        "num_episodes": len(lengths),
        **({} if done.all() else {"num_episodes_cut": int((~done).sum())}),
        "num_env_steps_sampled": int(lengths.sum()) + num_cut_steps,
    }


def evaluate_and_record(
    players: Players, wanted: EpisodeRange, keep: Callable[[Episode], Any]
) -> Result:
    """{"env_runners": ...}; `keep` is called with each episode as an object."""
    batches = []
    for batch in sample_batches(players, wanted):
        batches.append(batch.played._replace(kept=[]))
        for episode in batch.episodes:
            keep(episode)
    return {"env_runners": summary_of_episodes(players.algorithm, batches)}


class Evaluation:
    """A run's evaluation by its settings, over its environment or one with other arguments."""

    def __init__(
        self,
        config: Any,
        algorithm: Algorithm,
        settings: Any,
        say: Callable[[str], Any] = say_on_stderr,
    ):
        self.say = say
        self.config, self.settings, self.trained = config, settings, algorithm
        self._algorithms: dict[Any, Algorithm] = {}  # by the arguments that differ
        self.copies = EvaluationCopies(settings)

    def check(self) -> None:
        """Refuses settings that cannot work, before anything is compiled.

        Raises:
            UsageError: other arguments for an environment that is no name, or such as change agents
                or spaces.
        """
        self._over(self.settings.evaluation_env_args)

    def __call__(self, runner: RunnerState, env_params: PyTree, **changes: Any) -> Result:
        """{"env_runners": ...} of the policies in `runner`.

        Args:
            env_params: the environment's numbers, used unless it is made with other arguments than
                training's, or a curriculum sets them: then the configuration's own.
            **changes: episodes, explore, seed, max_steps or env_args in place of the settings',
                where they are not None; `opponent` as of `Algorithm.acting_weights`.
        """
        opponent = changes.get("opponent")
        players, wanted = self._read(runner, env_params, changes)
        chosen = {"episodes": wanted.number, "explore": wanted.explore, "seed": wanted.seed}
        chosen["limit"] = wanted.limit
        result = evaluate(*players[:3], **chosen, copies=self.copies)
        return {"env_runners": result, **self._against(runner, opponent)}

    def recorded(
        self, runner: RunnerState, env_params: PyTree, **changes: Any
    ) -> tuple[Result, list[Episode]]:
        """The same with the episodes; of `changes`, `first` is the number of the first of them."""
        first, episodes = changes.pop("first", 0), []
        opponent = changes.get("opponent")
        players, wanted = self._read(runner, env_params, changes)
        wanted = dataclasses.replace(wanted, first=first)
        result = evaluate_and_record(players, wanted, episodes.append)
        return {**result, **self._against(runner, opponent)}, episodes

    def close(self) -> None:
        """Ends what steps copies of an environment outside JAX."""
        self.copies.close()

    def _against(self, runner: RunnerState, opponent: str | None) -> Result:
        """Whom the policies met, {"opponents": {policy: who}}; {} without a pool."""
        pool = self.trained.opponents
        if pool is None:
            return {}
        return {"opponents": {pool.policy: pool.label(runner.opponents, opponent)}}

    def _read(
        self, runner: RunnerState, env_params: PyTree, changes: Mapping[str, Any]
    ) -> tuple[Players, EpisodeRange]:
        opponent = changes.get("opponent")
        changes = {name: value for name, value in changes.items() if name != "opponent"}
        wanted = {
            "episodes": self.settings.evaluation_duration,
            "explore": self.settings.evaluation_explore,
            "seed": self.settings.evaluation_seed,
            "env_args": self.settings.evaluation_env_args,
            "max_steps": self.settings.evaluation_max_steps,
            **{name: value for name, value in changes.items() if value is not None},
        }
        check_wanted(wanted)
        env_args = dict(wanted["env_args"])
        algorithm = self._over(env_args)
        weights = algorithm.acting_weights(runner, opponent)
        is_target = env_args or self.config.env_task_fn is not None
        params = algorithm.env_params if is_target else env_params
        played_in = env_of(self.config, env_args), self.copies
        players = Players(algorithm, weights, params, *played_in)
        limit = PlayLimit(wanted["max_steps"], self.say, "evaluation_max_steps")
        which = {"number": wanted["episodes"], "explore": wanted["explore"], "limit": limit}
        return players, EpisodeRange(wanted["seed"], **which)

    def _over(self, env_args: Any) -> Algorithm:
        """Training's algorithm, or one over an environment with other arguments, compiled once."""
        if not env_args:
            return self.trained
        known = freeze(env_args)
        if known not in self._algorithms:
            self._algorithms[known] = with_arguments(self.config, dict(env_args), self.trained)
        return self._algorithms[known]


def check_wanted(wanted: Mapping[str, Any]) -> None:
    """Refuses episodes, a seed, `explore`, `max_steps` or `env_args` not of their kind."""
    count()("episodes", wanted["episodes"])
    count()("max_steps", wanted.get("max_steps", MAX_STEPS))
    flag("explore", wanted["explore"])
    count(0, UINT32)("seed", wanted["seed"])
    pairs("{name: value}")("env_args", freeze(wanted.get("env_args", {})))


def with_arguments(config: Any, env_args: dict[str, Any], trained: Algorithm) -> Algorithm:
    """The algorithm over the configuration's environment made with some other arguments."""
    if not isinstance(config.env, str):
        raise UsageError(
            f"env_args={env_args} need an environment by name; {config.env_name} is made already"
        )
    others = config.replace(env_args={**dict(config.env_args), **env_args}).build()
    if others.grouping != trained.grouping:
        raise UsageError(
            f"env_args={env_args} change the agents or their spaces: the policies were trained for "
            "others"
        )
    return others
