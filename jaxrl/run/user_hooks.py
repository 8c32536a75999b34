"""Hooks of a user's own: made as the setting `hooks` names them, and checked at each call."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from jaxrl.core.errors import UsageError, brief, reason_of
from jaxrl.core.json_text import why_unreadable
from jaxrl.core.trust import maker
from jaxrl.run.every import Every
from jaxrl.run.hooks import HOOK, Chunk, Hook
from jaxrl.run.results import Result


def check_entries(entries: Iterable[Any]) -> None:
    """Raises UsageError for an entry of the setting `hooks` that no hook can be made of."""
    for entry in entries:
        _maker_of(entry)


def hooks_of(trainer: Any, names: Iterable[str]) -> list[Hook]:
    """The hooks that a trainer's settings name, each made or as it is, with the trainer.

    Args:
        names: of the hooks that the trainer has besides.

    Raises:
        UsageError: two hooks of one name, a state without a name, or `every` of another kind.
    """
    hooks, taken = [], dict.fromkeys(names, "a hook of the run itself")
    for entry in trainer.settings.hooks:
        hook, what = _maker_of(entry)(), _shown(entry)
        if not isinstance(hook.every, Every):
            raise UsageError(f"hook {what}: every={brief(hook.every)} must be a jaxrl.Every")
        if not isinstance(hook.name, str) or (not hook.name and _defines(hook, "state")):
            raise UsageError(
                f"hook {what}: name={brief(hook.name)} must be a text, by which checkpoints hold "
                "its state"
            )
        if hook.name in taken:
            raise UsageError(
                f"hook {what}: name={brief(hook.name)} is that of {taken[hook.name]}, and a "
                "checkpoint holds one state by a name"
            )
        if hook.name:
            taken[hook.name] = f"hook {what}"
        hook.trainer = trainer
        hooks.append(CheckedHook(hook, what))
    return hooks


class CheckedHook(Hook):
    """A user's hook, of which what it gives is checked.

    Args:
        what: its class, as errors call it.
    """

    def __init__(self, hook: Hook, what: str):
        self.hook, self.what = hook, what
        self.name, self.every, self.is_record = hook.name, hook.every, hook.is_record
        self.adds_to_each = _defines(hook, "look")

    def keep(self, results: list[Result]) -> int:
        return self._count("keep", results)

    def look(self, results: list[Result]) -> int:
        return self._count("look", results)

    def look_at_the_end(self, result: Result) -> None:
        self.hook.look_at_the_end(result)

    def after(self, chunk: Chunk) -> None:
        self.hook.after(chunk)

    def state(self) -> Any:
        """A copy as JSON holds it, which later changes do not reach."""
        try:
            state = json.loads(json.dumps(self.hook.state()))
            why = why_unreadable(state)
        except Exception as error:
            why = reason_of(error)
        if why:
            raise UsageError(f"state of hook {self.what} must be what JSON holds: {why}")
        return state

    def restore(self, state: Any) -> None:
        self.hook.restore(state)

    def _count(self, method: str, results: list[Result]) -> int:
        count = getattr(self.hook, method)(results)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= len(results):
            raise UsageError(
                f"{method} of hook {self.what} must return how many of the {len(results):,} "
                f"results count, 1 or more, not {brief(count)}; an error ends training before them"
            )
        return count


def _maker_of(entry: Any) -> Callable[[], Hook]:
    if not isinstance(entry, str) and not HOOK.fits(entry):
        raise UsageError(
            f"hooks={brief(entry)} must be a list of module:Class, or of classes or objects "
            "derived from jaxrl.Hook"
        )
    return maker(HOOK, entry)


def _defines(hook: Hook, method: str) -> bool:
    return getattr(type(hook), method) is not getattr(Hook, method)


def _shown(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    return (entry if isinstance(entry, type) else type(entry)).__qualname__
