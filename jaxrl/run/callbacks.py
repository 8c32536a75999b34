"""User callbacks: traced hooks inside the compiled program, and host hooks between its chunks."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, brief, reason_of
from jaxrl.core.json_text import why_unreadable
from jaxrl.core.metrics_logger import MetricsLogger, merge
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.rollout.episode_callbacks import EpisodeCallbacks, has_hook
from jaxrl.rollout.hook_contract import (
    CREATED,
    CUSTOM_EVALUATION,
    EPISODE_HOOKS,
    call_hook,
    class_name,
    form_of,
)
from jaxrl.run.hooks import Chunk, Hook
from jaxrl.run.results import Lifetime, Result, ResultTree, flatten, lookup
from jaxrl.run.settings import RunSettings
from jaxrl.run.user_hooks import check_result

if TYPE_CHECKING:
    from jaxrl.run.inference.policy import Policy


class Callbacks(EpisodeCallbacks):
    """Base class of callbacks; every hook is optional. Several chain in the order of the setting.

    The traced hooks are `EpisodeCallbacks`'; those below are called on the host, with the trainer.
    A class, given by itself or by its name, is made anew for each trainer's host hooks; its traced
    hooks may be those of another instance: they are pure functions and share no state with the
    host's. An instance stays itself.

    In a sweep and in Ray Tune the host hooks are called for each trial; in place of the trainer
    they get a view of the trial, without what only a trainer has (`save`, `evaluate` ...), which is
    refused by name when it is used. Trials outside JAX are separate runs, and have trainers.
    """

    def on_algorithm_init(self, trainer: Any) -> None:
        """Called when a Trainer was made: it is complete, and nothing is compiled yet."""

    def on_environment_created(self, env: Any, env_context: Any) -> None:
        """Called with each copy of a Python environment when it was made, in its process.

        `env_context` are the environment's arguments, with `vector_index`, the copy's number, and
        `worker_index`, its process: 0 the training's, else from 1. A worker process has a copy of
        this object.
        """

    def on_episode_created(self, episode: Any) -> None:
        """Called with an episode that was sampled, as it was before its reset.

        `on_episode_start`, `on_episode_step` and `on_episode_end` follow where they are written as
        in RLlib, with `episode` as a keyword.
        """

    def on_train_result(self, trainer: Any, result: Result) -> None:
        """Called after each iteration: may add to `result`; `result["done"] = True` ends.

        By name it may take `algorithm`, the trainer too, and `metrics_logger`, whose values are
        put into the result.

        The log is written after it. Iterations are computed in chunks of about a second:
        `trainer.runner` is the chunk's last state.
        """

    def on_evaluate_start(self, trainer: Any) -> None:
        """Called before an evaluation, and once around that of `custom_evaluation_function`."""

    def on_evaluate_end(self, trainer: Any, evaluation: Result) -> None:
        """Called after an evaluation; may add to its tree, which is reported under "evaluation"."""

    def custom_evaluation_function(self, trainer: Any) -> Mapping[str, Any]:
        """Evaluates in place of `Trainer.evaluate`, at the moments that `evaluation_interval` sets.

        Returns:
            A tree of numbers, which is reported under "evaluation". RLlib's (tree, environment
            steps, agent steps) is taken, too, without the counts.
        """

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        """Called after a checkpoint was written, at the next end of a chunk."""

    def on_checkpoint_loaded(self, trainer: Any) -> None:
        """Called when a run was resumed, after `on_algorithm_init` and `set_state`."""

    def on_train_end(self, trainer: Any, result: Result | None) -> None:
        """Called when `fit` ends; the run's folder is complete except for the last pictures."""

    def get_state(self) -> Any:
        """The state of this object for a checkpoint: anything that JSON holds."""

    def set_state(self, state: Any) -> None:
        """Takes back what `get_state` gave, when a run is resumed."""


class Training(Protocol):
    """A training as callbacks see it: a `Trainer`, or a trial of a sweep, which has no more."""

    config: AlgorithmConfig
    algorithm: Algorithm
    settings: RunSettings
    hypers: PyTree
    env_params: PyTree
    run_dir: Path | None  # None: nothing is written
    lifetime: Lifetime
    iteration: int  # the number of the last one
    last_result: Result | None
    runner: RunnerState  # the state after the last computed iteration

    def get_policy(self, policy: PolicyId | None = None, *, seed: int = 0) -> "Policy":
        """A copy of a policy."""

    def compute_actions(self, observations: Mapping[AgentId, Any], **how: Any) -> dict:
        """The actions of the agents' policies, {agent: action}."""

    def get_weights(self, policies: Iterable[PolicyId] = ()) -> dict[PolicyId, PolicyWeights]:
        """The policies' weights as NumPy arrays."""


LOGGED = "metrics_logger"  # the entry of what was logged in the state of callbacks
AROUND_EVALUATION = ("on_evaluate_start", "on_evaluate_end")
# The results that a hook's numbers go to.
LOGS = {
    **dict.fromkeys(("on_algorithm_init", "on_train_result"), "each"),
    **dict.fromkeys(AROUND_EVALUATION, "end"),
    **dict.fromkeys(EPISODE_HOOKS, "sampled"),
}
AT_THE_END = ("on_evaluate_end", "on_episode_end")  # called once for a chunk, of its last state


class HostCallbacks(Hook):
    """The host hooks of several callbacks, called in order."""

    name = "callbacks"

    def __init__(
        self,
        trainer: Training,
        callbacks: Iterable[Any],
        is_last: Callable[[Result], bool] = lambda result: False,
    ):
        self.trainer, self.callbacks, self.is_last = trainer, tuple(callbacks), is_last
        self.have_ended = False  # whether one of them ended training
        self.loggers = {which: MetricsLogger() for which in LOGS.values()}
        self.silent: tuple[str, ...] = ()  # hooks that are not called at present
        self.logged: set[str] = set()  # the paths of what they logged in the last result

    def call(self, hook: str, value: Any = None) -> None:
        """Calls a hook of all callbacks that have it, with what it is about beside the trainer."""
        if hook in self.silent:
            return
        for callback in self.callbacks:
            if has_hook(callback, hook, Callbacks):
                self._call(callback, hook, value)
                if hook == "on_train_result":
                    check_result(f"on_train_result of callbacks {class_name(callback)}", value)

    def _call(self, callback: Any, hook: str, value: Any) -> Any:
        function = getattr(callback, hook)
        form, logger = form_of(hook, function), self.loggers.get(LOGS.get(hook))
        arguments = {"trainer": self.trainer, "algorithm": self.trainer, "metrics_logger": logger}
        arguments["prev_episode_chunks"] = []  # a sampled episode is whole
        names = (*form.usual, *form.also)
        return call_hook(function, form, {name: arguments.get(name, value) for name in names})

    def watch_copies(self) -> None:
        """Has each new copy of a Python environment passed to `on_environment_created`."""
        callbacks = tuple(part for part in self.callbacks if has_hook(part, CREATED, Callbacks))
        if callbacks:
            from jaxrl.outside.env_calls import tell_of_created

            tell_of_created(self.trainer, callbacks)

    def look(self, results: list[Result]) -> int:
        """Passes each result on; training ends with the first that is done."""
        for i, result in enumerate(results, start=1):
            for logger in self.loggers.values():
                logger.set_time(result.get("time_total_s", 0.0), result.get("time_this_iter_s", 0))
            self.call("on_train_result", result)
            self.have_ended = bool(result["done"])
            self.logged = set()
            self._add_logged(result, "on_train_result")
            if i == len(results):
                self.look_at_the_end(result)
            result["done"] = self.have_ended or self.is_last(result)
            if result["done"]:
                if i < len(results):  # then what was logged is of a state that does not count
                    for hook in AT_THE_END:
                        self.loggers[LOGS[hook]].next_result()
                return i
        return len(results)

    @property
    def ending(self) -> str:
        return "a callback has ended training" if self.have_ended else ""

    def look_at_the_end(self, result: Result) -> None:
        """Adds what was logged of the last state: in an evaluation, and in sampled episodes."""
        for hook in AT_THE_END:
            self._add_logged(result, hook)

    def _add_logged(self, result: Result, hook: str) -> None:
        """Adds what was logged in a hook; refuses a name that the result has from elsewhere."""
        values = self.loggers[LOGS[hook]].next_result()
        if hook in EPISODE_HOOKS and values:
            values = {"env_runners": values}
        merge(result, values, hook, self.logged)
        self.logged |= {path for path, _ in flatten(values)}

    @property
    def evaluate(self) -> Callable[[], Result] | None:
        """The evaluation of one of them; None: they leave it to the trainer.

        Raises:
            UsageError: several of them have one.
        """
        evaluating = [
            callback
            for callback in self.callbacks
            if has_hook(callback, CUSTOM_EVALUATION, Callbacks)
        ]
        if len(evaluating) > 1:
            names = " and ".join(map(class_name, evaluating))
            raise UsageError(f"{names} have a {CUSTOM_EVALUATION} each, and one can evaluate")
        return functools.partial(self._evaluate, *evaluating) if evaluating else None

    def _evaluate(self, callback: Any) -> Result:
        """The tree that the evaluation of one of them returned, with what hooks after it added."""
        self.call("on_evaluate_start")
        self.silent = AROUND_EVALUATION  # it may call `trainer.evaluate` several times
        try:
            result = self._call(callback, CUSTOM_EVALUATION, None)
        finally:
            self.silent = ()
        result = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(result, Mapping) or not result:
            what = f"{CUSTOM_EVALUATION} of callbacks {class_name(callback)}"
            raise UsageError(f"{what} must return a tree of numbers, not {brief(result)}")
        evaluation = ResultTree(result)
        self.call("on_evaluate_end", evaluation)
        return evaluation

    def after(self, chunk: Chunk) -> None:
        """Warns once of an evaluation of theirs that nothing calls, or that lacks the score of the
        best checkpoint.
        """
        if self.evaluate is None:
            return
        if self.trainer.settings.evaluation_interval is None:
            what = f"warning: {CUSTOM_EVALUATION} is not called: evaluation_interval is not set"
            self.trainer.progress.say_once(what)
        score = self.trainer.settings.score_attribute
        evaluation = chunk.results[-1].get("evaluation")
        is_missing = evaluation is not None and lookup(chunk.results[-1], score) is None
        if is_missing and score.startswith("evaluation/"):
            names = [name for name, _ in flatten({"evaluation": evaluation})]
            names = names if len(names) < 4 else [*names[:3], "..."]
            self.trainer.progress.say_once(
                f"warning: no checkpoint is the best by an evaluation without {score}; "
                f"checkpoint_score_attribute may be {', '.join(names)}"
            )

    @property
    def adds_to_each(self) -> bool:
        return self.has("on_train_result")

    @property
    def take_episodes(self) -> bool:
        """True if a hook takes sampled episodes as objects."""
        return any(map(self.has, EPISODE_HOOKS))

    def take(self, episode: Any) -> None:
        """Calls the hooks of an episode that was sampled, in the order of what happened in it."""
        along = EPISODE_HOOKS[:-1]
        if any(map(self.has, along)):
            from jaxrl.episodes.growth import growth_of

            for i, part in enumerate(growth_of(episode)):  # created, started, then each step
                self.call(along[min(i, 2)], part)
        self.call("on_episode_end", episode)

    @property
    def add_to_results(self) -> bool:
        """True if they may add any number to some result."""
        return any(map(self.has, (*LOGS, CUSTOM_EVALUATION)))

    def has(self, hook: str) -> bool:
        """Returns whether any of them defines a hook, other than that of `Callbacks`."""
        return any(has_hook(callback, hook, Callbacks) for callback in self.callbacks)

    def state(self) -> list[dict[str, Any]]:
        """[{"class", "state"}]: copies as JSON holds them, which later changes do not reach.

        Raises:
            UsageError: JSON cannot hold one.
        """
        states = [
            {"class": class_name(callback), "state": _state(callback)}
            for callback in self.callbacks
        ]
        logged = {which: logger.state() for which, logger in self.loggers.items()}
        return [*states, {"class": LOGGED, "state": logged}] if any(logged.values()) else states

    def restore(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Gives each callback the state of its class, in order; those without one start again."""
        left: dict[str, list[Any]] = {}
        for saved in states:
            if saved["class"] == LOGGED:
                for which, logged in saved["state"].items():
                    self.loggers[which].restore(logged)
            left.setdefault(saved["class"], []).append(saved["state"])
        for callback in self.callbacks:
            states_left = left.get(class_name(callback))
            state = states_left.pop(0) if states_left else None
            if state is not None and hasattr(callback, "set_state"):
                callback.set_state(state)


def _state(callback: Any) -> Any:
    if not hasattr(callback, "get_state"):
        return None
    what = f"get_state of callbacks {class_name(callback)}"
    try:
        state = json.loads(json.dumps(callback.get_state()))
    except Exception as error:
        raise UsageError(f"{what} must return what JSON holds: {reason_of(error)}") from error
    if why := why_unreadable(state):
        raise UsageError(f"{what} must return what JSON holds, and it {why}")
    return state
