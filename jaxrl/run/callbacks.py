"""User callbacks: traced hooks inside the compiled program, and host hooks between its chunks."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, reason_of
from jaxrl.core.json_text import why_unreadable
from jaxrl.core.metrics_logger import MetricsLogger, merge
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.rollout.episode_callbacks import EpisodeCallbacks, has_hook
from jaxrl.rollout.hook_contract import EPISODE_HOOK, call_hook, class_name, form_of
from jaxrl.run.hooks import Hook
from jaxrl.run.results import Lifetime, Result, flatten
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

    def on_train_result(self, trainer: Any, result: Result) -> None:
        """Called after each iteration: may add to `result`; `result["done"] = True` ends.

        By name it may take `algorithm`, the trainer too, and `metrics_logger`, whose numbers are
        put into the result.

        The log is written after it. Iterations are computed in chunks of about a second:
        `trainer.runner` is the chunk's last state.
        """

    def on_evaluate_end(self, trainer: Any, evaluation: Result) -> None:
        """Called after an evaluation; may add to its tree, which is reported under "evaluation"."""

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        """Called after a checkpoint was written, at the next end of a chunk."""

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

    def get_weights(self) -> dict[PolicyId, PolicyWeights]:
        """Every policy's weights as NumPy arrays."""


LOGGED = "metrics_logger"  # the entry of what was logged in the state of callbacks
# The results that a hook's numbers go to.
LOGS = {"on_train_result": "each", "on_evaluate_end": "end", EPISODE_HOOK: "sampled"}
AT_THE_END = ("on_evaluate_end", EPISODE_HOOK)  # called once for a chunk, of its last state


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
        self.logged: set[str] = set()  # the paths of what they logged in the last result

    def call(self, hook: str, value: Any) -> None:
        """Calls a hook of all callbacks that have it with what it is about."""
        for callback in self.callbacks:
            if has_hook(callback, hook, Callbacks):
                self._call(callback, hook, value)
                if hook == "on_train_result":
                    check_result(f"on_train_result of callbacks {class_name(callback)}", value)

    def _call(self, callback: Any, hook: str, value: Any) -> None:
        function = getattr(callback, hook)
        form, logger = form_of(hook, function), self.loggers.get(LOGS.get(hook))
        arguments = {"trainer": self.trainer, "algorithm": self.trainer, "metrics_logger": logger}
        arguments["prev_episode_chunks"] = []  # a sampled episode is whole
        names = (*form.usual, *form.also)
        call_hook(function, form, {name: arguments.get(name, value) for name in names})

    def look(self, results: list[Result]) -> int:
        """Passes each result on; training ends with the first that is done."""
        for i, result in enumerate(results, start=1):
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

    def look_at_the_end(self, result: Result) -> None:
        """Adds what was logged of the last state: in an evaluation, and in sampled episodes."""
        for hook in AT_THE_END:
            self._add_logged(result, hook)

    def _add_logged(self, result: Result, hook: str) -> None:
        """Adds what was logged in a hook; refuses a name that the result has from elsewhere."""
        values = self.loggers[LOGS[hook]].next_result()
        if hook == EPISODE_HOOK and values:
            values = {"env_runners": values}
        merge(result, values, hook, self.logged)
        self.logged |= {path for path, _ in flatten(values)}

    @property
    def adds_to_each(self) -> bool:
        return self.has("on_train_result")

    @property
    def take_episodes(self) -> bool:
        """True if a hook takes sampled episodes as objects."""
        return self.has(EPISODE_HOOK)

    @property
    def add_to_results(self) -> bool:
        """True if they may add any number to some result."""
        return any(map(self.has, LOGS))

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
