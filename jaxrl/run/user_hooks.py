"""Hooks of a user's own: made as the setting `hooks` names them, and checked at each call."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jaxrl.core.errors import UsageError, brief, explained, one_line, reason_of
from jaxrl.core.json_text import why_unreadable
from jaxrl.core.number_types import flag_in
from jaxrl.core.trust import maker, parse_name
from jaxrl.run.every import Every
from jaxrl.run.hooks import HOOK, Chunk, Hook, states_of
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
        UsageError: a hook that cannot be made, two hooks of one name, a state without a name, or
            `every` of another kind.
    """
    hooks, taken = [], dict.fromkeys(names, "a hook of the run itself")
    for entry in trainer.settings.hooks:
        make, what = _maker_of(entry), _shown(entry)
        with explained(f"hook {what} cannot be made"):
            hook = make()
        if not isinstance(hook.every, Every):
            raise UsageError(f"hook {what}: every={brief(hook.every)} must be a jaxrl.Every")
        if not isinstance(hook.name, str):
            raise UsageError(f"hook {what}: name={brief(hook.name)} must be a text")
        if not hook.name and type(hook).state is not Hook.state:
            raise UsageError(f"hook {what} has a state, so it needs a `name`")
        if hook.name in taken:
            raise UsageError(
                f"hook {what}: name={brief(hook.name)} is that of {taken[hook.name]}, and a "
                "checkpoint holds one state by a name"
            )
        if hook.name:
            taken[hook.name] = f"hook {what}"
        hook.trainer = trainer
        hooks.append(CheckedHook(hook, what, trainer.processes))
    return hooks


class CheckedHook(Hook):
    """A user's hook, of which what it gives is checked.

    Where several processes train, process 0 alone calls it, and sends the others what it gives:
    hooks that look at a clock would part them. Only `after` and `restore` are called in all.

    Args:
        what: its class, as errors call it.
        processes: that train together, as of `jaxrl.run.processes`.
    """

    adds_to_each = True

    def __init__(self, hook: Hook, what: str, processes: Any):
        self.hook, self.what, self.processes = hook, what, processes
        self.name, self.every, self.is_record = hook.name, hook.every, hook.is_record

    def keep(self, results: list[Result]) -> int:
        return self.processes.broadcast(lambda: self._count("keep", results))

    def look(self, results: list[Result]) -> int:
        """The number of results that count, which end with the first that is done."""
        before, self.ending = [result["done"] for result in results], ""
        count = self._count("look", results)
        for i, result in enumerate(results[:count], start=1):
            if result["done"]:
                self.ending = "" if before[i - 1] else f"hook {self.what} has ended training"
                return i
        if count < len(results):
            raise UsageError(
                f"look of hook {self.what} lets {count:,} of {len(results):,} results count, so "
                'the last of them needs result["done"] = True; `keep` drops results without an end'
            )
        return count

    def look_at_the_end(self, result: Result) -> None:
        with self._checking("look_at_the_end", [result]):
            self.hook.look_at_the_end(result)

    def after(self, chunk: Chunk) -> None:
        try:
            self.hook.after(chunk)
        except UsageError as error:
            error.is_shared = False  # perhaps only this process raises it
            raise

    def state(self) -> Any:
        return self.processes.broadcast(self._state)

    def _state(self) -> Any:
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
        with self._checking(method, results):
            count = getattr(self.hook, method)(results)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= len(results):
            hint = "; did you forget `return len(results)`?" if count is None else ""
            raise UsageError(
                f"{method} of hook {self.what} must return how many of the {len(results):,} "
                f"results count, 1 or more, not {brief(count)}{hint}"
            )
        return count

    @contextlib.contextmanager
    def _checking(self, method: str, results: list[Result]) -> Iterator[None]:
        """Checks each of the results afterwards, also where the hook fails: they are logged."""
        what, checks = f"{method} of hook {self.what}", contextlib.ExitStack()
        with checks:
            for result in results:  # the last check comes first, so the first error is raised last
                checks.callback(check_result, what, result)
            yield
        for result in results:
            result["done"] = flag_in(result["done"])


def last_states(
    hooks: Iterable[Hook], earlier: Mapping[str, Any], say: Callable[..., None]
) -> dict[str, Any]:
    """The states of hooks when training ends: of one whose `state` fails, the earlier one, if any.

    Args:
        earlier: the states as they were last read.
    """
    states = {}
    for hook in hooks:
        try:
            states |= states_of([hook])
        except Exception as error:
            instead = "no state of it"
            if hook.name in earlier:
                states[hook.name], instead = earlier[hook.name], "its state of an earlier chunk"
            say(f"warning: {one_line(error)}; the checkpoint has {instead}", even_if_quiet=True)
    return states


def _maker_of(entry: Any) -> Callable[[], Hook]:
    if isinstance(entry, type) and not HOOK.fits(entry):
        raise UsageError(f"{entry.__qualname__} is not derived from jaxrl.Hook")
    if isinstance(entry, str) and "," in entry and parse_name(entry) is None:
        raise UsageError(f"hooks={brief(entry)}: separate several names by spaces")
    if not isinstance(entry, str) and not HOOK.fits(entry):
        raise UsageError(
            f"hooks={brief(entry)} must be a list of module:Class, or of classes or objects "
            "derived from jaxrl.Hook"
        )
    return maker(HOOK, entry)


def _shown(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    return (entry if isinstance(entry, type) else type(entry)).__qualname__


def check_result(what: str, result: Result) -> None:
    """Refuses, and removes, what `what` added to a result where no log and no loop can read it."""
    if flag_in(result.get("done")) is None:
        done, result["done"] = result.get("done"), False
        raise UsageError(f'{what}: result["done"] must be True or False, not {brief(done)}')
    for name, value in list(result.items()):
        if why := why_unreadable([name, value]):
            del result[name]
            raise UsageError(f"{what}: result[{brief(name)}] {why}")
