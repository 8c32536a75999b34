"""Advice on playing or resuming a run: the command to type, or the call in Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.run.command_line import command
from jaxrl.run.storage.config_file import (
    NAMED_BY_RUNS,
    asks_for_trust,
    function_of_env,
    saved_object,
)


def to_evaluate(folder: str | Path, facts: Mapping[str, Any]) -> str:
    """The command or call that evaluates the run of these facts."""
    if saved_object(facts, to_play=True) or function_of_env(facts):
        return f"jaxrl.evaluate({str(folder)!r}, config=...)"
    return command("evaluate", folder, *_trust_flag(folder, facts, to_play=True))


def to_resume(folder: str | Path, facts: Mapping[str, Any], *more: object) -> str:
    """The command or call that resumes the run of these facts.

    Args:
        more: flags that the command needs besides.
    """
    if lacks := saved_object(facts, to_play=False):
        again = f"{lacks}=[...]" if lacks in NAMED_BY_RUNS else "config=..."
        return f"jaxrl.Trainer.from_checkpoint({str(folder)!r}, {again})"
    if function := function_of_env(facts):  # a file may not name a function that is called
        more = "--env", function, *more
    return command("train", "--resume", folder, *more, *_trust_flag(folder, facts, to_play=False))


def _trust_flag(folder: str | Path, facts: Mapping[str, Any], *, to_play: bool) -> tuple[str, ...]:
    """("--trust",) if the run of these facts is not loaded without."""
    return ("--trust",) if asks_for_trust(facts, to_play=to_play, folder=folder) else ()
