"""Population-based training (Jaderberg et al. 2017): its settings, and its two steps as functions.

Every `perturbation_interval` iterations the worst members of a population become copies of the best
(exploit), and each copy goes on with changed numbers (explore). Both are decided on the host from a
few scores; the states that are copied stay on the device (`jaxrl.sweeps.population`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import check_all, count, number, setting
from jaxrl.core.frozen import freeze
from jaxrl.run.every import Every
from jaxrl.sweeps import space as spaces
from jaxrl.sweeps.space import MUTATIONS, Draw, Grid, mutations_of


@words.written(mutations_of, MUTATIONS)
def _mutations(name: str, value: Any) -> None:
    """None, or a mapping to what values are drawn from."""
    if value is not None and (not isinstance(value, Mapping) or not value):
        raise UsageError(f"{name}={brief(value)} must be a mapping such as {EXAMPLE}, or None")
    for setting_name, kind in (value or {}).items():
        if not isinstance(kind, Grid | Draw):
            raise UsageError(
                f"{name} {setting_name}={brief(kind)} must be a list of values, or a distribution "
                "such as jaxrl.loguniform(1e-5, 1e-2)"
            )


@words.written(words.several, "NUMBER")
def _factors(name: str, value: Any) -> None:
    if not isinstance(value, tuple | list) or not value:
        raise UsageError(f"{name}={brief(value)} must be a list such as [1.25, 0.8]")
    for factor in value:
        number(0, open_low=True)(name, factor)


EXAMPLE = '{"lr": jaxrl.loguniform(1e-5, 1e-2)}'


@dataclass(frozen=True, kw_only=True)
class PopulationBasedTraining:
    """Population-based training of a sweep's trials, by Ray Tune's names: `sweep(scheduler=...)`.

    Attributes:
        perturbation_interval: iterations between two rounds of copying.
        hyperparam_mutations: {setting: values}: what a copy may change, a list of values or a
            distribution. None: every setting of the sweep's space that takes several values.
        quantile_fraction: share of the members that are replaced in a round, and of those that are
            copied.
        resample_probability: of each number of a copy, to be drawn again; else it is multiplied by
            one of the factors, or becomes the next or the previous value of its list.
        perturbation_factors: as likely each.
        burn_in_period: iterations before the first round.
    """

    perturbation_interval: int = setting(10, "iterations between two rounds of copying", count())
    hyperparam_mutations: Any = setting(
        None,
        "what a copy may change, such as lr=1e-4,1e-3 or lr=loguniform:1e-5:1e-2; "
        "None: all of --grid and --random",
        _mutations,
    )
    quantile_fraction: float = setting(
        0.25,
        "share of the members that are replaced in a round, and of those that are copied",
        number(0, 0.5),
    )
    resample_probability: float = setting(
        0.25, "probability that a copy's number is drawn again, not multiplied", number(0, 1)
    )
    perturbation_factors: Any = setting(
        (1.25, 0.8), "what a copy's number is multiplied by, one of these", _factors
    )
    burn_in_period: int = setting(0, "iterations before the first round of copying", count(0))

    def __post_init__(self):
        if isinstance(self.hyperparam_mutations, Mapping):
            kinds = spaces.kinds_of(self.hyperparam_mutations)
            object.__setattr__(self, "hyperparam_mutations", kinds)
        check_all(self)

    def with_space(
        self, space: Mapping[str, Any]
    ) -> tuple["PopulationBasedTraining", dict[str, Any]]:
        """(this with its mutations filled in, the space with first values for all of them).

        Raises:
            UsageError: there is nothing to change.
        """
        space = spaces.as_space(space)
        if self.hyperparam_mutations is None:
            kinds = spaces.kinds_of(space)
            varied = {name: kind for name, kind in kinds.items() if isinstance(kind, Grid | Draw)}
            if not varied:
                raise UsageError(
                    "population-based training has no number to change: give "
                    f"hyperparam_mutations={EXAMPLE}, or a space of several values"
                )
            return dataclasses.replace(self, hyperparam_mutations=varied), space
        firsts = dict(self.hyperparam_mutations)
        for name, kind in firsts.items():
            if isinstance(kind, Grid):
                firsts[name] = spaces.choice(kind.values)
        return self, {**firsts, **space}

    def describe(self, num_members: int, num_iterations: int) -> str:
        """The schedule of copying in a line, for the plan."""
        number = int(self.quantile_fraction * num_members + 1e-9)
        first = self.rounds.until_due(0)
        if first >= num_iterations:
            return (
                f"warning: nobody copies: the first round would follow iteration {first:,}, and "
                f"there are {num_iterations:,}; a smaller perturbation_interval or more "
                "total_env_steps help"
            )
        return (
            f"every {self.perturbation_interval:,} iterations the worst {number} of {num_members} "
            f"copy the best {number}, with other {', '.join(self.hyperparam_mutations)}"
        )

    @property
    def rounds(self) -> Every:
        """The moments at which members copy each other."""
        return Every(self.perturbation_interval, first=self.burn_in_period)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON can hold them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        kinds = self.hyperparam_mutations or {}
        saved = {name: spaces.to_json(kind) for name, kind in kinds.items()}
        return {**values, "hyperparam_mutations": saved or None}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "PopulationBasedTraining":
        kinds = saved["hyperparam_mutations"] or {}
        kinds = {name: spaces.from_json(kind) for name, kind in kinds.items()}
        return cls(**{**saved, "hyperparam_mutations": kinds or None})


def exploit(
    scores: Sequence[float | None],
    diverged: Sequence[bool],
    quantile_fraction: float,
    generator: np.random.Generator,
) -> dict[int, int]:
    """Truncation selection (Jaderberg et al. 2017, section 4.1.1): {member: whom it copies}.

    The worst share of the members copy one of the best share, drawn at random among those with a
    strictly better score: where nobody has one, a member stays. Diverged members are always the
    worst, all of them, and never copied.

    Args:
        scores: of each member, the higher the better; None of one that nothing is known of yet,
            which is left alone.
        diverged: whether a member's numbers are no longer finite.
    """
    quantile = int(quantile_fraction * len(scores) + 1e-9)
    is_lost = np.array(diverged, bool)
    lost, sound = np.flatnonzero(is_lost).tolist(), np.flatnonzero(~is_lost).tolist()
    scored = [member for member in sound if scores[member] is not None]
    ranked = sorted(scored, key=lambda member: scores[member])
    num_worst = min(max(0, quantile - len(lost)), len(ranked) // 2)
    best = ranked[num_worst:][-max(1, quantile) :] or sound
    if not best:
        return {}
    sources = {}
    for member in (*lost, *ranked[:num_worst]):
        better = best
        if not diverged[member]:
            better = [source for source in best if scores[source] > scores[member]]
        if better:
            sources[member] = better[int(generator.integers(len(better)))]
    return sources


def explore(
    values: Mapping[str, Any], settings: PopulationBasedTraining, generator: np.random.Generator
) -> dict[str, Any]:
    """The changed numbers of a copy whose source trains with `values`, {setting: value}."""
    changed = {}
    for name, kind in settings.hyperparam_mutations.items():
        changed[name] = _explored(values[name], kind, settings, generator)
    return changed


def _explored(
    value: Any,
    kind: Grid | Draw,
    settings: PopulationBasedTraining,
    generator: np.random.Generator,
) -> Any:
    redrawn = generator.random() < settings.resample_probability
    listed = spaces.values_of(kind)
    if listed is not None:
        places = [freeze(entry) for entry in listed]
        if redrawn or freeze(value) not in places:
            return listed[int(generator.integers(len(listed)))]
        place = places.index(freeze(value)) + int(generator.choice([-1, 1]))
        return listed[min(max(place, 0), len(listed) - 1)]
    if redrawn or not isinstance(value, int | float):
        return kind.sample(generator)
    changed = value * float(generator.choice(settings.perturbation_factors))
    return round(changed) if isinstance(value, int) else changed
