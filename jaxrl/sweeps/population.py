"""Population: the trials of a sweep that copy each other, on the device, and their saved state.

A copy takes over the whole state of its source, by one gather along the axis of members: weights,
optimiser, filters, environments, recent episodes. The random key alone stays its own, so that the
two play apart from the next step on.
"""

import contextlib
import itertools
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.run.devices.mesh import on_first_device, on_host, stacked
from jaxrl.run.every import Every
from jaxrl.run.storage import checkpoint
from jaxrl.run.storage.forms import CALLBACKS, NUMBER, Form, lifetime, problem_of
from jaxrl.run.storage.json_lines import dumped
from jaxrl.sweeps.lineage import Lineage, Takeover
from jaxrl.sweeps.metric_readers import EVALUATION
from jaxrl.sweeps.outcomes import MAX, merit
from jaxrl.sweeps.population_based_training import PopulationBasedTraining, exploit, explore
from jaxrl.sweeps.saved_sweep import called_damaged
from jaxrl.sweeps.space import values_of
from jaxrl.sweeps.trial_state import TrialState, unstacked
from jaxrl.sweeps.trials import Trial, TrialGroup, groups_of
from jaxrl.sweeps.vmapped import Numbers, State, done_members

MEMBER: Form = {  # a part of the checkpoint's "members"
    "settings": dict,
    "scores": [NUMBER | None],
    "lifetime": lifetime,
    "result": dict | None,
    "callbacks": CALLBACKS,
    "ended": bool,
    "bad": str,
}
FOLDER = "population"  # in a sweep's folder: checkpoints of the whole population
FEWEST = 3  # members: of two the better one would always be all that is left
SAVE_SECONDS = 30.0  # between two checkpoints, at least


class Population:
    """The members of a population-based training, all in one program.

    Args:
        members: by the number of their trial.
        path: the sweep's folder, or None.
        mode: of the sweep.
    """

    def __init__(
        self,
        settings: PopulationBasedTraining,
        members: Sequence[TrialState],
        path: Path | None,
        mode: str = MAX,
    ):
        self.settings, self.members, self.path = settings, list(members), path
        self.mode = mode
        self.lineage = Lineage([member.trial.settings for member in members])
        self.seed = members[0].trial.config.seed
        self.arrays: Mapping[str, np.ndarray] = {}  # of the checkpoint that was read
        self._savings = Every(seconds=SAVE_SECONDS)
        if path is not None:
            self._read(path / FOLDER)
            self.lineage.write(path)

    @property
    def is_resumed(self) -> bool:
        return bool(self.arrays)

    def is_due(self, state: State, numbers: Numbers) -> bool:
        """Returns whether a round of copying comes now: not after the last iteration."""
        done = done_members(state, numbers)
        return self.settings.rounds.is_due(_iteration(state)) and not all(done)

    def perturb(self, state: State, numbers: Numbers) -> tuple[State, Numbers]:
        """A round of exploit and explore among the members that still train."""
        iteration, diverged = _iteration(state), np.asarray(state.diverged)
        idle = done_members(state, numbers) & ~diverged
        training = [i for i, member in enumerate(self.members) if not idle[i] and not member.ended]
        generator = np.random.default_rng([self.seed, iteration])
        found = exploit(
            [self._merit(self.members[i].score) for i in training],
            diverged[training].tolist(),
            self.settings.quantile_fraction,
            generator,
        )
        sources = np.arange(len(diverged), dtype=np.int32)
        for place, source_place in sorted(found.items()):
            target, source = training[place], training[source_place]
            sources[target] = source
            copied = self.members[source]
            trial = self._explored(self.members[target].trial, copied.trial, generator)
            self.members[target].take_over(copied, trial)
            self.lineage.takeovers.append(Takeover(iteration, source, target, trial.settings))
        if not found:
            return state, numbers
        if self.path is not None:
            self.lineage.write(self.path)
        return copied_members(state, sources), self.with_numbers(numbers)

    def _merit(self, score: float | None) -> float | None:
        return None if score is None else merit(score, self.mode)

    def _explored(self, target: Trial, source: Trial, generator: np.random.Generator) -> Trial:
        """The target's trial with the source's settings, changed as far as they are allowed."""
        changes = explore(source.settings, self.settings, generator)
        try:
            return target.changed({**source.settings, **changes})
        except UsageError:  # one of them is out of bounds, such as a discount above 1
            trial = target.changed(source.settings)
            for name, value in changes.items():
                with contextlib.suppress(UsageError):
                    trial = trial.changed({name: value})
            return trial

    def with_numbers(self, numbers: Numbers) -> Numbers:
        """`numbers` with those that the members have now."""
        held = [member.trial.numbers for member in self.members]
        fill = len(numbers.last) - len(held)
        hypers, env_params = stacked([*held, *[held[0]] * fill])
        return numbers.replace(hypers=hypers, env_params=env_params)

    def save(self, state: State, *, now: bool = False) -> None:
        """Writes a checkpoint, if the last one is old enough or `now`; the one before it goes."""
        if self.path is None or not (now or self._savings.is_due(_iteration(state))):
            return
        number, folder = len(self.members), self.path / FOLDER
        for member in self.members:
            member.reporter.logs.flush()
        held = jax.tree.map(lambda leaf: on_host(leaf)[:number], on_first_device(state))
        facts = {
            "lifetime": {"training_iteration": _iteration(state)},
            "members": json.loads(dumped([_facts(member) for member in self.members])),
            "takeovers": [takeover.to_dict() for takeover in self.lineage.takeovers],
        }
        written = checkpoint.write(folder, {"state": held}, facts)
        for path in checkpoint.iterations(folder).values():
            if path != written:
                checkpoint.remove(path)
        self._savings.restart()

    def _read(self, folder: Path) -> None:
        """Takes over what the newest checkpoint says of the members."""
        checkpoint.clean(folder)
        found = checkpoint.iterations(folder)
        if not found:
            return
        path = found[max(found)]
        with called_damaged(path, checkpoint.FACTS, "population"):
            saved = checkpoint.read(path)
            if problem := problem_of(saved.facts, {"members": [MEMBER]}, "it"):
                raise ValueError(problem)
            for member, facts in zip(self.members, saved.facts["members"], strict=True):
                _take_back(member, facts)
            self.lineage.take_back(saved.facts["takeovers"])
            self.arrays = saved.arrays

    def resumed(self, shapes: State, numbers: Numbers) -> tuple[State, Numbers]:
        """The state that `save` wrote, for the program's number of members.

        Args:
            shapes: of the program's state.
        """
        number, last = len(self.members), np.array(numbers.last)
        template = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), shapes
        )
        where = f"checkpoint {self.path / FOLDER}"
        states = unstacked(checkpoint.filled(template, self.arrays, "state", where), number)
        for i, member in enumerate(self.members):
            if member.ended:
                last[i] = member.reporter.lifetime.training_iteration
        self.arrays = {}
        state = stacked([*states, *[states[0]] * (len(last) - number)])
        return state, self.with_numbers(numbers.replace(last=last))

    def remove_checkpoints(self) -> None:
        """Removes the population's checkpoints, once the trials' own folders hold everything."""
        if self.path is not None:
            shutil.rmtree(self.path / FOLDER, ignore_errors=True)


@jax.jit
def copied_members(state: State, sources: jax.Array) -> State:
    """The members' states [S, ...], each that of its source i32[S], with its own random key."""
    runner = jax.tree.map(lambda leaf: leaf[sources], state.runner)
    is_copy = sources != jnp.arange(len(sources))
    return state.replace(
        runner=runner.replace(key=state.runner.key), diverged=state.diverged & ~is_copy
    )


def _iteration(state: State) -> int:
    return int(np.max(state.runner.num_updates))


def _facts(member: TrialState) -> dict[str, Any]:
    settings, scores = member.trial.settings, member.scores
    return {"settings": settings, "scores": scores, **member.reporter.facts()}


def _take_back(member: TrialState, facts: Mapping[str, Any]) -> None:
    if facts["settings"] != member.trial.settings:
        member.trial = member.trial.changed(facts["settings"])
    member.scores = [math.nan if score is None else score for score in facts["scores"]]
    member.reporter.take_back(member.trial, facts)


def check_population(
    settings: PopulationBasedTraining,
    groups: Sequence[TrialGroup],
    metric: str,
    evaluation_interval: int | None,
) -> None:
    """Refuses what cannot work, before anything is compiled.

    Raises:
        UsageError: too few members, members of several programs, a number that is built into the
            program, or evaluations that come too rarely to rank by.
    """
    trials = list(itertools.chain.from_iterable(group.trials for group in groups))
    if len(trials) < FEWEST:
        raise UsageError(
            f"a population of {len(trials)} is too small: population-based training needs at least "
            f"{FEWEST} members, by num_samples, seeds or a grid"
        )
    if int(settings.quantile_fraction * len(trials) + 1e-9) < 1:
        raise UsageError(
            f"quantile_fraction={settings.quantile_fraction:g} of {len(trials)} members is nobody: "
            f"give at least {math.ceil(100 / len(trials)) / 100:g}"
        )
    for name, kind in settings.hyperparam_mutations.items():
        _check_traced(trials[0], name, kind)
    if len(groups) > 1:
        first, second = (group.trials[0].settings for group in groups[:2])
        differ = [name for name in first if first[name] != second[name]]
        raise _built_in(trials[0], differ[0])
    interval = settings.perturbation_interval
    if metric.startswith(EVALUATION) and interval % (evaluation_interval or 1):
        raise UsageError(
            f"perturbation_interval={interval} must be a multiple of "
            f"evaluation_interval={evaluation_interval}, since metric={metric} ranks the members"
        )


def _check_traced(trial: Trial, name: str, kind: Any) -> None:
    """Refuses a setting whose values are not numbers of one program."""
    first_value = name.rpartition(".")[2]
    if first_value in type(trial.config).initial_numbers:
        raise UsageError(
            f"{name} is where training begins, and adapts from then on: population-based training "
            "cannot change it"
        )
    generator = np.random.default_rng(0)
    listed = values_of(kind)
    values = [kind.sample(generator), kind.sample(generator)] if listed is None else listed
    changed = [trial.changed({name: value}) for value in values]
    if len(groups_of([trial, *changed])) > 1:
        raise _built_in(trial, name)


def _built_in(trial: Trial, name: str) -> UsageError:
    numbers = ", ".join(sorted(set(trial.config.numbers()) - trial.config.initial_numbers))
    return UsageError(
        f"{name} is built into the program, and population-based training copies members of one "
        f"program: only traced numbers can differ, which are {numbers} and numbers of the "
        "environment"
    )
