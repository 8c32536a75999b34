"""Evaluation: whole episodes with frozen policies, exactly as many as asked, summarised."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import pairs
from jaxrl.core.frozen import freeze
from jaxrl.core.plain_values import check_plain
from jaxrl.core.registry import is_maker
from jaxrl.core.types import PyTree
from jaxrl.episodes.by_agent import Episode
from jaxrl.play.host_episodes import EpisodeRange, EvaluationCopies, Players, play_episodes
from jaxrl.play.play_limit import PlayLimit, say_on_stderr
from jaxrl.play.sampling import env_of, passed_to
from jaxrl.play.whole_episodes import PlayedBatch
from jaxrl.rollout.episode_stats import summarise
from jaxrl.run.results import (
    Result,
    ResultTree,
    episode_results,
    episode_returns,
    one_by_one,
)

SETTINGS = {  # of a run, by the argument of a call that may differ
    "episodes": "evaluation_duration",
    "explore": "evaluation_explore",
    "seed": "evaluation_seed",
    "max_steps": "evaluation_max_steps",
    "env_args": "evaluation_env_args",
}
_summarise = jax.jit(summarise, static_argnums=2)  # one program, not one for each operation


def summary_of_episodes(algorithm: Algorithm, batches: Iterable[PlayedBatch]) -> Result:
    """The results of batches of episodes, in RLlib's tree as under `env_runners`.

    `episode_return_std` and `episode_len_std` are those of the episodes (ddof 0), and `hist_stats`
    has these one by one, in the order of their numbers. Episodes that were cut count in
    `num_episodes_cut` and in the environment's number of steps alone.
    """
    batches = list(batches)
    played = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[b.finished for b in batches])
    done = np.concatenate([batch.done for batch in batches])
    num_cut_steps = sum(int((~batch.done).sum()) * batch.num_steps for batch in batches)
    returns, lengths = episode_returns(played)[done], played.length[done].astype(np.int64)
    summary = jax.tree.map(np.asarray, _summarise(played, done, algorithm.grouping.places))
    counts: Result = {}
    if done.any():
        counts["episode_return_std"] = float(returns.std())
        counts["episode_len_std"] = float(lengths.std())
        counts |= one_by_one(jax.tree.map(lambda leaf: leaf[done], played))
    counts["num_episodes"] = len(lengths)
    if not done.all():
        counts["num_episodes_cut"] = int((~done).sum())
    counts["num_env_steps_sampled"] = int(lengths.sum()) + num_cut_steps
    result = episode_results(algorithm, summary, counts)
    if done.any():
        means = result["agent_steps"]
        steps = {agent: round(mean * len(lengths)) for agent, mean in means.items()}
        result["num_agent_steps_sampled"] = steps
    return result


def evaluate_and_record(
    players: Players, episode_range: EpisodeRange, *sinks: Callable[[Episode], Any]
) -> Result:
    """{"env_runners": ...}; the sinks are called with each episode as an object."""
    batches = play_episodes(players, episode_range, keeps_steps=bool(sinks))
    if sinks:
        batches = passed_to(sinks, players, episode_range.seed, batches)
    return ResultTree(env_runners=ResultTree(summary_of_episodes(players.algorithm, batches)))


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
        check_plain("evaluation_env_args", self.settings.evaluation_env_args)
        self._over(self.settings.evaluation_env_args)

    def __call__(
        self,
        runner: RunnerState,
        env_params: PyTree,
        *sinks: Callable[[Episode], Any],
        first: int = 0,
        steps: int | None = None,
        opponent: str | None = None,
        **changes: Any,
    ) -> Result:
        """{"env_runners": ...} of the policies in `runner`, and whom they met of a pool.

        Args:
            env_params: the environment's numbers, used unless it is made with other arguments than
                training's, or a curriculum sets them: then the configuration's own.
            sinks: as of `evaluate_and_record`.
            first: the number of the first episode.
            steps: the number of steps with which no further episode begins.
            opponent: as of `Algorithm.acting_weights`.
            **changes: episodes, explore, seed, max_steps or env_args in place of the settings',
                where they are not None.
        """
        is_as_set = steps is None and changes.get("episodes") is None
        if is_as_set and self.settings.evaluation_duration_unit == "timesteps":
            steps = self.settings.evaluation_duration  # each episode has a step at least
        episode_range, env_args = self._range_and_args(first, changes)
        episode_range = dataclasses.replace(episode_range, steps=steps)
        algorithm, is_target = self._over(env_args), self.config.env_task_fn is not None
        params = algorithm.env_params if is_target or env_args else env_params
        env, weights = env_of(self.config, env_args), algorithm.acting_weights
        players = Players(algorithm, weights(runner, opponent), params, env, self.copies)
        result = evaluate_and_record(players, episode_range, *sinks)
        pool = self.trained.opponents
        if pool is None:
            return result
        met = {pool.policy: pool.label(runner.opponents, opponent)}
        return ResultTree(result, opponents=met)

    def close(self) -> None:
        """Ends what steps copies of an environment outside JAX."""
        self.copies.close()

    def _range_and_args(
        self, first: int, changes: Mapping[str, Any]
    ) -> tuple[EpisodeRange, dict[str, Any]]:
        """(the episodes, the environment's other arguments) of the settings and the changes."""
        choices = {name: getattr(self.settings, setting) for name, setting in SETTINGS.items()}
        choices |= {name: value for name, value in changes.items() if value is not None}
        limit = PlayLimit(choices["max_steps"], self.say, SETTINGS["max_steps"])
        chosen = choices["seed"], first, choices["episodes"], choices["explore"], limit
        pairs("{name: value}")("env_args", freeze(choices["env_args"]))
        return EpisodeRange(*chosen), dict(choices["env_args"])

    def _over(self, env_args: Any) -> Algorithm:
        """Training's algorithm, or one over an environment with other arguments, compiled once."""
        if not env_args:
            return self.trained
        key = freeze(env_args)
        if key not in self._algorithms:
            self._algorithms[key] = with_arguments(self.config, dict(env_args), self.trained)
        return self._algorithms[key]


def with_arguments(config: Any, env_args: dict[str, Any], trained: Algorithm) -> Algorithm:
    """The algorithm over the configuration's environment made with some other arguments."""
    if not isinstance(config.env, str) and not is_maker(config.env):
        raise UsageError(
            f"env_args={env_args} need an environment by name, or its class; {config.env_name} is "
            "made already"
        )
    others = config.replace(env_args={**dict(config.env_args), **env_args}).build()
    if others.grouping != trained.grouping:
        raise UsageError(
            f"env_args={env_args} change the agents or their spaces: the policies were trained for "
            "others"
        )
    return others
