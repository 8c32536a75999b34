"""A saved run's configuration on the command lines: --resume RUN, --config RUN/config.json."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.cli.flags import Flag, find_modules_here, flag_name, given_flags, read_flags
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import flag, only
from jaxrl.run import resume
from jaxrl.run.storage import checkpoint, run_folder, runs
from jaxrl.run.storage.config_file import (
    NAMED_BY_RUNS,
    import_named,
    names_module,
    read_class,
    read_config,
)
from jaxrl.run.storage.run_folder import METADATA
from jaxrl.run.storage.runs import CONFIG

# Settings that may name code.
NAMING = {
    "per_policy",
    *(field.name for field in dataclasses.fields(AlgorithmConfig) if field.metadata["kind"]),
    "optimizer",
}


class Source(NamedTuple):
    """The saved run that a command line begins with, if any."""

    resume: str | None  # it is resumed
    copied: Path | None  # its configuration alone is given back, to a new run
    trust: bool

    @property
    def path(self) -> str | Path | None:
        return self.resume or self.copied

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the saved run, without reading its state.

        Raises:
            UsageError: it cannot be read.
        """
        if self.copied is not None:
            return run_folder.read(self.copied)
        try:
            return checkpoint.open_found(self.resume, reader=checkpoint.read_facts)
        except UsageError:  # no checkpoint yet, or a damaged one: what else there is, it says
            return resume.read_run(self.resume).facts

    def class_name(self) -> str | None:
        """The configuration's class, "module:Class", once it may be imported; None: a new run's."""
        try:
            name = None if self.path is None else self.facts.get("config_class")
        except UsageError:  # another flag may be wrong as well; whoever loads the run says it
            name = None
        if name is not None:
            read_class(name, "jaxrl.Trainer.from_checkpoint", trust=self.trust)
        return name


def source_in(argv: Sequence[str], flags: Mapping[str, Flag]) -> Source:
    """The saved run that a command line names, before other flags are read.

    From then on modules of the current folder are found, unless a stranger's run may name them.

    Args:
        flags: with `resume`, `rllib_config` and `trust`.
    """
    flags = {name: flags[name] for name in ("resume", "rllib_config", "trust")}
    read = read_flags(given_flags(argv, flags, others=True), flags)
    copied = _run_of(read.get("rllib_config"))
    source = Source(read.get("resume"), copied, read.get("trust", False))
    flag("trust", source.trust)
    if source.path is None or source.trust:
        find_modules_here()
    return source


def _run_of(path: str | None) -> Path | None:
    """The folder of the run whose configuration a file is; None: it is another file."""
    if path is None or Path(path).name != CONFIG:
        return None
    folder = runs.resolve(Path(path).expanduser().parent)
    return folder if (folder / METADATA).is_file() else None


def check_flags_beside(saved: Source, flags: Mapping[str, Any]) -> None:
    """Refuses flags of the command that do not go with a saved run.

    Args:
        flags: those given, by name.
    """
    if saved.copied is None:
        if "algorithm" in flags:
            raise UsageError("--algorithm: a run that is resumed keeps its own")
        return
    for name in ("resume", "tuned", "algorithm", "ignore"):
        if name in flags:
            raise UsageError(
                f"--config {flags['rllib_config']} begins a new run with another's configuration: "
                f"leave out {flag_name(name)}"
            )


def config_from(
    facts: dict[str, Any], options: Mapping[str, Any], settings: Mapping[str, Any], *, trust: bool
) -> AlgorithmConfig:
    """The configuration of a saved run, with the settings that flags change.

    What the run names is imported before the current folder is looked into, for a flag that names
    a module of that folder.

    Args:
        options: the configuration's settings that flags give.
        settings: those of the run.
    """
    changes = only(options, NAMING)
    base = read_config(facts, "jaxrl.Trainer.from_checkpoint", changes=changes, trust=trust)
    named = [*changes.values(), *(settings.get(name, ()) for name in NAMED_BY_RUNS)]
    if not trust and any(map(names_module, named)):
        import_named(base, changes)
        find_modules_here(last=True)
    return base
