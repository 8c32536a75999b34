"""Hooks of a user's own: traced ones inside the compiled program, and host ones between its chunks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxrl.loop.callbacks import EpisodeCallbacks
from jaxrl.run.results import Result


class Callbacks(EpisodeCallbacks):
    """To be subclassed; every hook may be left out. Several chain, in the order of the setting `callbacks`.

    The traced hooks are `EpisodeCallbacks`'; those below are called on the host, with the trainer.
    """

    def on_train_result(self, trainer: Any, result: Result) -> None:
        """After each iteration, before it is logged: may add to `result`; `result["done"] = True` ends training there.

        Iterations are computed in chunks of about a second: `trainer.runner` is the chunk's last state.
        """

    def on_evaluate_end(self, trainer: Any, evaluation: Result) -> None:
        """After an evaluation; may add to its tree, which is reported under "evaluation"."""

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        """After a checkpoint was written, at the next end of a chunk."""

    def on_train_end(self, trainer: Any, result: Result | None) -> None:
        """When `fit` ends, whatever ended it; the run's folder is complete but for the last pictures."""

    def get_state(self) -> Any:
        """What a checkpoint keeps of this object: anything that JSON holds."""

    def set_state(self, state: Any) -> None:
        """Takes back what `get_state` gave, when a run is resumed."""


class Hooks:
    """The host hooks of several callbacks, called in order."""

    def __init__(self, trainer: Any, callbacks: Iterable[Any]):
        self.trainer, self.callbacks = trainer, tuple(callbacks)

    def call(self, hook: str, value: Any) -> None:
        for callback in self.callbacks:
            if hasattr(callback, hook):
                getattr(callback, hook)(self.trainer, value)

    def has(self, hook: str) -> bool:
        """Whether any of them defines it, and not just as `Callbacks` does."""
        idle = getattr(Callbacks, hook)
        return any(getattr(type(callback), hook, idle) is not idle for callback in self.callbacks)

    def get_state(self) -> list[Any]:
        return [callback.get_state() if hasattr(callback, "get_state") else None for callback in self.callbacks]

    def set_state(self, states: list[Any]) -> None:
        """Those of a run that had as many callbacks; another number of them begins anew."""
        if len(states) == len(self.callbacks):
            for callback, state in zip(self.callbacks, states, strict=True):
                if hasattr(callback, "set_state") and state is not None:
                    callback.set_state(state)
