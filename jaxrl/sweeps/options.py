"""Options of a sweep: everything that it was asked for, beside its trials."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import count, one_of
from jaxrl.run.logging.loggers import Logger
from jaxrl.run.settings import HOST_SETTINGS, RunSettings
from jaxrl.sweeps.outcomes import MAX, MIN
from jaxrl.sweeps.population_based_training import PopulationBasedTraining
from jaxrl.sweeps.search import Search

# The settings of a run that each trial of a sweep follows, and what else `sweep` takes.
TRIAL_SETTINGS = (
    *(name for name in RunSettings.__dataclass_fields__ if name.startswith("evaluation_")),
    *("loggers", "checkpoint_frequency", "keep", *HOST_SETTINGS),
)
ARGUMENTS = (
    *("seeds", "num_samples", "search", "trials", "stop", "metric", "mode", "halving"),
    *("scheduler", "devices", "batch_size", "run_dir", "quiet"),
)


@dataclass(frozen=True)
class SweepOptions:
    """The options of a sweep, besides its trials."""

    metric: str
    stop: dict[str, float]
    halving: int | None = None
    scheduler: PopulationBasedTraining | None = None
    search: Search | None = None
    devices: int = 1
    batch_size: int | str = "auto"
    run_settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of `TRIAL_SETTINGS`
    mode: str = MAX  # whether the highest metric is the best, or the lowest

    def __post_init__(self):
        one_of(MAX, MIN)("mode", self.mode)
        count(2, optional=True)("halving", self.halving)
        if not (isinstance(self.batch_size, str) and self.batch_size == "auto"):
            count()("batch_size", self.batch_size)
        if not isinstance(self.scheduler, PopulationBasedTraining | None):
            raise UsageError(
                f"scheduler={brief(self.scheduler)} must be a jaxrl.PopulationBasedTraining or None"
            )
        if self.scheduler is not None and self.halving is not None:
            raise UsageError(
                f"halving={self.halving} drops members that scheduler=PopulationBasedTraining "
                "replaces: give one of the two"
            )
        if self.scheduler is not None and self.search is not None:
            raise UsageError(
                f"search={self.search.method!r} proposes settings that "
                "scheduler=PopulationBasedTraining changes: give one of the two"
            )
        for name in self.run_settings:
            if name not in TRIAL_SETTINGS:
                raise unknown_name("argument", name, [*ARGUMENTS, *TRIAL_SETTINGS], "of sweep")
        for entry in self.trial_settings.loggers:
            if isinstance(entry, Logger):
                raise UsageError(
                    f"loggers={brief(entry)} is an object, but each trial of a sweep has loggers "
                    "of its own: give its class, or module:Class"
                )

    @property
    def trial_settings(self) -> RunSettings:
        """The settings by which each trial is evaluated and logged."""
        return RunSettings(**{"loggers": ("jsonl",), "devices": 1, **self.run_settings})

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, as JSON can hold them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        settings = self.trial_settings.to_dict()
        scheduler = None if self.scheduler is None else self.scheduler.to_dict()
        run_settings = {name: settings[name] for name in self.run_settings}
        search = None if self.search is None else self.search.to_dict()
        found = {"scheduler": scheduler, "search": search, "run_settings": run_settings}
        return {**values, **found}
