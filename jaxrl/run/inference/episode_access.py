"""The episodes that a trainer plays outside of training: evaluated, and as objects."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxrl.core.fields import count, flag
from jaxrl.run.processes import together
from jaxrl.run.results import Result

if TYPE_CHECKING:
    from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
    from jaxrl.play.evaluate import Evaluation
    from jaxrl.play.payoff_matrix import PayoffMatrix


class EpisodeAccess:
    """The methods of a trainer that play episodes with the policies of its `runner`."""

    @cached_property
    def evaluation(self) -> "Evaluation":
        """The player of evaluations and samples, imported when a setting or a call asks for it."""
        from jaxrl.play.evaluate import Evaluation

        return Evaluation(self.config, self.algorithm, self.settings, self.progress.say)

    def close_evaluation(self) -> None:
        if "evaluation" in vars(self):
            self.evaluation.close()

    @together
    def evaluate(
        self,
        *,
        episodes: int | None = None,
        env_args: Mapping[str, Any] | None = None,
        explore: bool | None = None,
        seed: int | None = None,
        opponent: str | None = None,
        max_steps: int | None = None,
        return_episodes: bool = False,
    ) -> Result:
        """Plays whole episodes with the policies as they are; {"env_runners": ...} as RLlib has it.

        Args:
            episodes: how many; None: the setting `evaluation_duration`.
            env_args: arguments of the environment that differ from training's, {} for none; None:
                the setting `evaluation_env_args`.
            explore: whether actions are sampled, or else each is its distribution's mode; None: the
                setting `evaluation_explore`.
            seed: of the episodes, which are the same for the same seed; None: the setting
                `evaluation_seed`.
            opponent: a member of the configuration's pool of opponents by its name, or "pool": all
                of them, drawn as in training; None: the newest copy. The result has who it was
                under "opponents".
            max_steps: where an episode is cut: it does not count, but in `num_episodes_cut`; None:
                the setting `evaluation_max_steps`.
            return_episodes: with the episodes as objects, as `sample` has them, in a list under
                "episodes".

        Raises:
            UsageError: an argument that is not of its kind, or `env_args` that change the agents or
                their spaces.
        """
        flag("return_episodes", return_episodes)
        changes = {"episodes": episodes, "env_args": env_args, "explore": explore, "seed": seed}
        changes |= {"opponent": opponent, "max_steps": max_steps}
        runner, recorded = self.runner, []

        def evaluation() -> Result:
            sinks = [recorded.append] if return_episodes else []
            self.callbacks.call("on_evaluate_start")
            result = self.evaluation(runner, self.env_params, *sinks, **changes)
            self.callbacks.call("on_evaluate_end", result)
            self._show_evaluation(result["env_runners"], explore)
            return result

        result = self.processes.broadcast(evaluation)
        return {**result, "episodes": recorded} if return_episodes else result

    @together
    def payoff_matrix(
        self,
        *,
        episodes: int = 100,
        explore: bool = True,
        seed: int | None = None,
        max_steps: int | None = None,
    ) -> "PayoffMatrix":
        """Plays the policy that learns, and its copies, against every opponent of the pool.

        Args:
            episodes: of each pair.
            explore: whether actions are sampled, or else each is its distribution's mode.
            seed: of the episodes; None: the setting `evaluation_seed`.
            max_steps: where an episode is cut, which does not count; None: the setting
                `evaluation_max_steps`.

        Raises:
            UsageError: the configuration has no pool, or an argument is not of its kind.
        """
        from jaxrl.play.host_episodes import EpisodeRange
        from jaxrl.play.payoff_matrix import matrix_of
        from jaxrl.play.play_limit import PlayLimit

        seed = self.settings.evaluation_seed if seed is None else seed
        max_steps = self.settings.evaluation_max_steps if max_steps is None else max_steps
        limit = PlayLimit(max_steps, self.progress.say)
        return matrix_of(self, EpisodeRange(seed, 0, episodes, explore, limit))

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """Calls a function with each copy of a Python environment; the results in their order.

        It is called where the copy is, if need be in a worker process, to which it is copied. A
        rollout that is under way is finished before.

        Raises:
            UsageError: the environment is compiled, or a call failed.
        """
        from jaxrl.outside.env_calls import foreach_env

        return foreach_env(self, function)

    @together
    def sample(
        self,
        num_episodes: int | None = None,
        *,
        num_timesteps: int | None = None,
        explore: bool = True,
        seed: int | None = None,
        first: int = 0,
        env_args: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> "list[SingleAgentEpisode | MultiAgentEpisode]":
        """Plays whole episodes with the policies as they are; returns them as objects.

        They are the episodes that `evaluate` plays with the same arguments: the same for the same
        seed. Of several processes, the first alone gets them, and the others an empty list.

        Args:
            num_episodes: how many; None: 1, or with `num_timesteps` as many as it takes.
            num_timesteps: the number of steps with which no further episode begins; the last one
                is whole.
            explore: whether actions are sampled, or else each is its distribution's mode.
            seed: of the episodes; None: the setting `evaluation_seed`.
            first: the number of the first one: `sample(10, first=10)` plays the next ten.
            env_args: arguments of the environment that differ from training's, {} for none; None:
                the setting `evaluation_env_args`.
            max_steps: where an episode is cut, which is left out; None: the setting
                `evaluation_max_steps`.

        Returns:
            A `jaxrl.episodes.SingleAgentEpisode` for each episode, or a `MultiAgentEpisode` where
            the environment has several agents.

        Raises:
            UsageError: as `evaluate`.
        """
        count(optional=True)("num_timesteps", num_timesteps)
        if num_episodes is None:
            num_episodes = num_timesteps or 1  # each has a step at least
        count()("num_episodes", num_episodes)
        count(0)("first", first)
        changes = {"episodes": num_episodes, "env_args": env_args, "explore": explore, "seed": seed}
        changes |= {"max_steps": max_steps, "steps": num_timesteps}
        runner, episodes = self.runner, []

        def play() -> None:
            self.evaluation(runner, self.env_params, episodes.append, first=first, **changes)

        self.processes.broadcast(play)
        return episodes

    def _show_evaluation(self, episodes: Result, explore: bool | None) -> None:
        explore = self.settings.evaluation_explore if explore is None else explore
        iteration, width = self.lifetime.training_iteration, self.progress.width
        from jaxrl.run.logging.evaluation_lines import evaluation_line, greedy_hint

        self.progress.say(evaluation_line(iteration, episodes, explore=explore, width=width))
        if not explore and self.last_result is not None:
            hint = greedy_hint(self.last_result, episodes)
            if hint is not None:
                self.progress.say_once(hint)
