"""A batch of vectorised trials that an external scheduler such as Ray Tune trains and saves."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.fields import flag
from jaxrl.core.json_text import read_json
from jaxrl.run.devices.compiled import CAPACITY
from jaxrl.run.devices.mesh import stacked
from jaxrl.run.loop import advance
from jaxrl.run.results import Result, result_names
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage import checkpoint, migrate, own_files, run_state
from jaxrl.run.storage.json_lines import dumped
from jaxrl.sweeps.metric_readers import check_metric, readers_of
from jaxrl.sweeps.placement import most_that_fit
from jaxrl.sweeps.reporting import Reporter, TrialLoop
from jaxrl.sweeps.saved_sweep import called_damaged
from jaxrl.sweeps.sweep_folder import create_trial, keep_trial
from jaxrl.sweeps.trial_state import numbers_for, unstacked
from jaxrl.sweeps.trial_view import check_callbacks, refuse_numbers_of_the_host
from jaxrl.sweeps.trials import Trial, TrialGroup, groups_of
from jaxrl.sweeps.vmapped import Numbers, State, done_members, program_of

NOT_CALLED = ("on_evaluate_start", "on_evaluate_end")  # hooks: members are not evaluated
BLOCK = "block.json"  # of a saved block's folder, beside a run's folder for each member


class TrialBatch:
    """Trials of equal shape, trained side by side in one program, which the first `train` compiles.

    Args:
        trials: the members.
        metric: a path in the result tree, which must be there.
        devices: that the members are split over.
        settings: of evaluations; default: none.

    Raises:
        UsageError: members of several shapes, or more than fit; nothing is compiled yet.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        *,
        metric: str,
        devices: int = 1,
        settings: RunSettings | None = None,
    ):
        self.settings = settings or RunSettings(loggers=(), devices=1)
        evaluated = self.settings.evaluation_interval is not None
        self.group, self.devices, self.metric = only_group(trials), devices, metric
        self.trials, self.algorithm = self.group.trials, self.group.algorithm
        shapes = self.group.shapes.metrics
        readers = readers_of(self.algorithm, shapes)
        refuse_numbers_of_the_host(self.trials[0].config, {metric: "metric"}, readers)
        check_metric(metric, readers, evaluated=evaluated)
        if (fit := most_that_fit(self.group, devices)) < len(trials):
            raise UsageError(
                f"{len(trials):,} members do not fit into memory, {fit:,} do: "
                "make more trials of them"
            )
        update_shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), shapes
        )
        self.result_names = result_names(self.algorithm, update_shapes, evaluated=evaluated)
        check_callbacks(self.trials[0].config, never=() if evaluated else NOT_CALLED)
        lasts = [trial.config.num_updates for trial in self.trials]
        self.reporters = []
        for trial, last in zip(self.trials, lasts, strict=True):
            self.reporters.append(Reporter(trial, self.algorithm, last, self.settings))
            self.reporters[-1].begin()
        self._unended = list(self.reporters)
        self._evaluations: dict[int, Result] = {}  # the newest of each member
        self.seconds = self.compile_seconds = 0.0  # of the last `train`; of the program
        self._numbers, self._state = self._prepared(lasts), None

    @property
    def results(self) -> list[Result | None]:
        """The result of each member's last finite update, with its newest evaluation."""
        results = [reporter.last_result for reporter in self.reporters]
        for i, evaluation in self._evaluations.items():
            results[i] = {**results[i], "evaluation": evaluation}
        return results

    @property
    def is_over(self) -> bool:
        """True if every member has had all of its updates, or has diverged."""
        return self._state is not None and all(done_members(self._state, self._numbers))

    @property
    def diverged(self) -> list[bool]:
        size = len(self.trials)
        if self._state is None:
            return [False] * size
        return np.asarray(self._state.diverged)[:size].tolist()

    def train(self, count: int = 1) -> list[Result | None]:
        """At most `count` updates of each member; each one's last result tree."""
        members = program_of(self.group, self._numbers, self.metric, (), self.devices)
        if self._state is None:
            self._state = members.start(self._numbers)
        self.compile_seconds = members.compile_seconds
        self.seconds = 0.0
        loop = TrialLoop(members, self._state, self._numbers, self.reporters)
        while count > 0 and loop.iterations_left:
            until_evaluated = self.settings.evaluations.until_due(loop.iteration)
            part = int(min(count, CAPACITY, until_evaluated))
            advance(loop, part)
            self._note_evaluations()
            self._state, self._numbers = loop.state, loop.numbers
            self.seconds += loop.seconds
            count -= part
        return self.results

    def _note_evaluations(self) -> None:
        for i, result in enumerate(reporter.last_result for reporter in self.reporters):
            if result is not None and "evaluation" in result:
                self._evaluations[i] = result["evaluation"]

    def end(self) -> None:
        """Tells the members' hooks that nothing more is trained, once."""
        reporters, self._unended = self._unended, []
        for reporter in reporters:
            reporter.close()

    def save(self, path: Path) -> None:
        """Writes a run's folder for each member, for `load_policy`, `--resume` and `load`."""
        if self._state is None:
            self.train(0)
        states = unstacked(self._state, len(self.trials))
        members = zip(self.trials, self.reporters, states, strict=True)
        for trial, reporter, state in members:
            snapshot = reporter.snapshot(state.runner)
            create_trial(path / trial.name, trial, self.algorithm, self.settings)
            written = keep_trial(path / trial.name, trial, self.algorithm, self.settings, snapshot)
            with reporter.showing(state.runner):
                reporter.callbacks.call("on_checkpoint", written)
        facts = {
            "lifetimes": [asdict(reporter.lifetime) for reporter in self.reporters],
            "diverged": self.diverged,
            "ended": [reporter.ended for reporter in self.reporters],
        }
        own_files.write_text(path / BLOCK, dumped({**facts, "results": self.results}) + "\n")

    def load(self, path: Path) -> None:
        """Resumes from a saved block, each member with the numbers that it has here.

        Raises:
            UsageError: no saved block, another number of members, or one of other shapes.
        """
        with called_damaged(path, BLOCK, "block"):
            facts = self._facts(path)
            saved = [self._load_member(path, facts, i) for i in range(len(self.trials))]
            states, lasts = zip(*saved, strict=True)
            self._numbers = self._prepared(lasts)
            fill = self._numbers.last.shape[0] - len(states)
            self._state = stacked([*states, *[states[0]] * fill])
            self._evaluations = {}
            self._note_evaluations()

    def _load_member(self, path: Path, facts: dict[str, Any], i: int) -> tuple[State, int]:
        """(the state of a member, the iteration that it trains to), and what is reported of it."""
        trial, reporter = self.trials[i], self.reporters[i]
        saved = checkpoint.read(checkpoint.find(path / trial.name))
        key = jax.random.key(trial.config.seed, impl="threefry2x32")
        runner = run_state.restore_exactly(saved, self.algorithm, (key, *trial.numbers))
        reached = {
            "lifetime": facts["lifetimes"][i],
            "result": facts["results"][i],
            "callbacks": saved.facts["hooks"]["callbacks"],
            "ended": facts["ended"][i],
            "bad": "",
        }
        reporter.take_back(trial, reached)
        last = reporter.lifetime.training_iteration if reporter.ended else reporter.last
        diverged = facts["diverged"][i]
        flag("diverged", diverged)
        return State(runner, met=np.bool_(False), diverged=np.bool_(diverged)), last

    def _facts(self, path: Path) -> dict[str, Any]:
        try:
            facts = migrate.present_block(read_json(own_files.read_text(path / BLOCK)))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} holds no saved members: {BLOCK}: {error}") from None
        if len(facts["lifetimes"]) != len(self.trials):
            raise UsageError(
                f"{path} holds {len(facts['lifetimes'])} members, here are {len(self.trials)}"
            )
        return facts

    def _prepared(self, lasts: Sequence[int]) -> Numbers:
        """The members' numbers, filled up by idle copies of the first to share all devices."""
        extra = -len(self.trials) % self.devices
        trials = [*self.trials, *[self.trials[0]] * extra]
        return numbers_for(trials, [*lasts, *[0] * extra], [])


def only_group(trials: Sequence[Trial]) -> TrialGroup:
    """The one that all of the trials belong to."""
    groups = groups_of(trials)
    if len(groups) > 1:
        first, second = groups[0].trials[0].settings, groups[1].trials[0].settings
        names = {**first, **second}
        differ = [f"{name}={first.get(name)} and {second.get(name)}" for name in names]
        raise UsageError(
            f"members of one trial must differ in numbers alone, not in {', '.join(differ)}"
        )
    return groups[0]
