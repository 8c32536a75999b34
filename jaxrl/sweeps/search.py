"""Search of a sweep: settings are proposed in batches, from the scores of the trials before them.

Optuna proposes (Akiba et al. 2019), by its tree-structured Parzen estimator. A batch's proposals
are a function of the space, the seed, the batch's number and the trials before it, which the
sweep's folder has. So a sweep that was killed goes on with the proposals that it would have had.
"""

import contextlib
import dataclasses
import functools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, is_installed, unknown_name
from jaxrl.core.fields import count, one_of
from jaxrl.core.frozen import freeze
from jaxrl.sweeps import space as spaces
from jaxrl.sweeps.outcomes import DIVERGED, DROPPED, MAX, MIN, TrialResult
from jaxrl.sweeps.space import Draw, Grid

METHODS = ("tpe",)
BATCHES = 8  # of a search, unless its user gives the size of one
MOST_AT_RANDOM = 10  # settings before the first that is proposed, as Optuna has it
MOST_TRIES = 20  # for one proposal that is new and allowed
JOURNAL = "optuna.journal"  # in the sweep's folder, for Optuna's own tools

Settings = dict[str, Any]


class Tried(NamedTuple):
    """Settings that were tried, and what came of them."""

    settings: Settings
    score: float | None  # None: every seed diverged, or ended before an episode did
    iterations: int
    is_dropped: bool  # by halving, all seeds


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search of a sweep, as `jaxrl.sweep(search="tpe", trials=64)` asks for it.

    Attributes:
        method: "tpe".
        trials: how many settings are tried.
        batch: how many are proposed at a time, and train together.
        space: {setting: a `Grid` or a `Draw`}, or the one value that all trials have.
        seeds: with which each is trained.
        seed: of the proposals.
        mode: "max": the highest score is the best; "min": the lowest.
    """

    method: str
    trials: int
    batch: int
    space: Mapping[str, Any]
    seeds: tuple[int, ...]
    seed: int
    mode: str = MAX

    def __post_init__(self):
        if self.method not in METHODS:
            raise unknown_name("search", str(self.method), METHODS)
        count(2)("trials", self.trials)
        count()("batch", self.batch)
        count(0)("seed", self.seed)
        one_of(MAX, MIN)("mode", self.mode)
        if not self.seeds:
            raise UsageError("seeds is an empty list: give at least one")
        if not self.varied:
            raise UsageError(
                f'search={self.method!r} has nothing to search: give a space such as {{"lr": '
                "jaxrl.loguniform(1e-5, 1e-2)}"
            )

    @property
    def varied(self) -> dict[str, Grid | Draw]:
        """The settings that take several values; a grid is a choice."""
        kinds = self.space.items()
        return {name: kind for name, kind in kinds if isinstance(kind, Grid | Draw)}

    @property
    def num_batches(self) -> int:
        return -(-self.trials // self.batch)

    @property
    def num_random(self) -> int:
        """The number of settings that are drawn at random, whole batches of them."""
        least = min(MOST_AT_RANDOM, self.trials // 4)
        return min(self.trials, max(1, math.ceil(least / self.batch)) * self.batch)

    def next_number(self, num_tried: int) -> int:
        """The number of settings in the next batch, after so many."""
        return max(0, min(self.batch, self.trials - num_tried))

    def describe(self) -> str:
        """The search in a line, for the plan."""
        return (
            f"{self.method} over {', '.join(self.varied)}: {self.trials:,} settings in "
            f"{self.num_batches:,} batches; the first {self.num_random:,} are drawn at random"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON can hold them."""
        saved = {}
        for name, kind in self.space.items():
            is_kind = isinstance(kind, Grid | Draw)
            saved[name] = spaces.to_json(kind) if is_kind else {"value": kind}
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "space": saved, "seeds": list(self.seeds)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Search":
        space = {}
        for name, kind in saved["space"].items():
            space[name] = kind["value"] if "value" in kind else spaces.from_json(kind)
        return cls(**{**saved, "space": space, "seeds": tuple(saved["seeds"])})


def check_optuna() -> None:
    """Raises UsageError where Optuna is not installed."""
    if not is_installed("optuna"):
        raise UsageError(
            'search="tpe" needs Optuna, which is not installed: pip install "jaxrl[optuna]"'
        )


def tried_of(outcomes: Sequence[TrialResult]) -> list[Tried]:
    """The settings of finished trials, in the order in which they were proposed.

    The score is the median over the seeds that have one. One without a score has diverged.
    """
    groups: dict[str, list[TrialResult]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.trial.number):
        groups.setdefault(name_of(outcome.trial.settings), []).append(outcome)
    found = []
    for seeds in groups.values():
        scores = []
        for outcome in seeds:
            if outcome.score is not None and outcome.status != DIVERGED:
                scores.append(outcome.score)
        score = float(np.median(scores)) if scores else None
        iterations = max(outcome.iterations for outcome in seeds)
        is_dropped = all(outcome.status == DROPPED for outcome in seeds)
        found.append(Tried(seeds[0].trial.settings, score, iterations, is_dropped))
    return found


def name_of(settings: Settings) -> str:
    """A text that is the same for equal settings, before they are in a file and after."""
    return json.dumps(settings, default=repr)


def check_settings(search: Search, settings: Sequence[Settings]) -> None:
    """Raises ValueError or KeyError for settings of a file that are not of the space."""
    with _quiet_optuna():
        for values in settings:
            if list(values) != list(search.space):
                raise ValueError(f"settings of {list(values)}, and a space of {list(search.space)}")
        _study(search, [Tried(values, 0.0, 1, False) for values in settings], None)


def propose(
    search: Search,
    tried: Sequence[Tried],
    refusal_of: Callable[[Settings], str],
    folder: Path | None = None,
) -> list[Settings]:
    """The settings of the next batch: new ones that are allowed; fewer where no more are found.

    Args:
        tried: all settings before, the first ones first, which have come to their end.
        refusal_of: gives the reason why settings cannot be trained, or an empty text.
        folder: of the sweep, which gets Optuna's journal of it.

    Raises:
        UsageError: no settings are allowed, with the reason of the last ones.
    """
    number = search.next_number(len(tried))
    reason, proposals = "", []
    with _quiet_optuna() as optuna:
        study, forms = _study(search, tried, folder), _forms(search)
        there = {name_of(before.settings) for before in tried}
        for attempt in range(number * MOST_TRIES):
            if len(proposals) == number:
                break
            if 2 * attempt == number * MOST_TRIES:  # it repeats itself, where few are left
                study.sampler = optuna.samplers.RandomSampler(_seed(search, tried))
            asked = study.ask({name: form.distribution for name, form in forms.items()})
            settings = {}
            for name, kind in search.space.items():
                settings[name] = forms[name].value(asked.params[name]) if name in forms else kind
            repeats = name_of(settings) in there
            there.add(name_of(settings))
            if not repeats:
                reason = refusal_of(settings)
            if repeats or reason:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                proposals.append(settings)
    if not proposals and not tried:
        raise UsageError(reason)
    return proposals


def write_journal(search: Search, tried: Sequence[Tried], folder: Path | None) -> None:
    """Writes Optuna's journal of all trials, for its own tools; nothing here reads it."""
    if folder is not None:
        with _quiet_optuna():
            _study(search, tried, folder)


class _Form(NamedTuple):
    """A setting as Optuna has it."""

    distribution: Any
    value: Callable[[Any], Any]  # of Optuna's
    internal: Callable[[Any], Any]  # of the setting's


def _forms(search: Search) -> dict[str, _Form]:
    return {name: _form(kind) for name, kind in search.varied.items()}


def _form(kind: Grid | Draw) -> _Form:
    """Listed values are numbered, for Optuna's own may be no lists."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    same = lambda value: value
    listed = spaces.values_of(kind)
    if listed is not None:
        places = [freeze(entry) for entry in listed]
        number = lambda value: places.index(freeze(value))
        return _Form(CategoricalDistribution(tuple(range(len(listed)))), listed.__getitem__, number)
    low, high, *steps = kind.arguments  # of quniform the third is its step
    is_log = kind.kind.startswith("log")
    if kind.kind in spaces.INTEGERS:
        return _Form(IntDistribution(low, high - 1, log=is_log), int, same)
    step = steps[0] if steps else None
    return _Form(FloatDistribution(low, high, log=is_log, step=step), float, same)


def _study(search: Search, tried: Sequence[Tried], folder: Path | None) -> Any:
    """A study with all trials so far, whose sampler is seeded by their number."""
    import optuna

    sampler = optuna.samplers.TPESampler(
        n_startup_trials=search.num_random,
        constant_liar=True,  # the proposals of one batch keep away from each other
        seed=_seed(search, tried),
    )
    direction = "maximize" if search.mode == MAX else "minimize"
    storage = None if folder is None else _journal(folder)
    study = optuna.create_study(
        storage=storage, sampler=sampler, direction=direction, study_name="jaxrl"
    )
    forms = _forms(search)
    make = functools.partial(
        optuna.trial.create_trial,
        distributions={name: form.distribution for name, form in forms.items()},
    )
    states = optuna.trial.TrialState
    for before in tried:
        params = {name: form.internal(before.settings[name]) for name, form in forms.items()}
        if before.score is None:  # the worst of all, which TPE keeps away from
            study.add_trial(make(state=states.PRUNED, params=params))
        elif before.is_dropped:
            reached = {before.iterations: before.score}
            study.add_trial(make(state=states.PRUNED, params=params, intermediate_values=reached))
        else:
            study.add_trial(make(state=states.COMPLETE, params=params, value=before.score))
    return study


def _seed(search: Search, tried: Sequence[Tried]) -> int:
    """The seed of the next batch's proposals."""
    words = np.random.SeedSequence([search.seed, len(tried)]).generate_state(1)
    return int(words[0])


def _journal(folder: Path) -> Any:
    """A new journal in place of the one that is there."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    for path in folder.glob(f"{JOURNAL}*"):  # with what a killed process locked
        path.unlink()
    path = str(folder / JOURNAL)
    return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[ModuleType]:
    """Gives Optuna, without its line for each trial and its warnings of what is experimental."""
    check_optuna()
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def batch_of(trials: int, seeds: int, batch_size: int | str) -> int:
    """The number of settings that are proposed at a time."""
    if batch_size == "auto":
        return max(2, math.ceil(trials / BATCHES))
    return max(1, batch_size // seeds)
