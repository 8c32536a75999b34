"""Trials at work: each group of them one program, its members in batches that fit into memory."""

import math
import threading
import time
from collections.abc import Sequence

import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.fields import least_count
from jaxrl.core.machine import in_units
from jaxrl.core.plan import laid_out
from jaxrl.run.devices.mesh import stacked
from jaxrl.run.divergence import with_source
from jaxrl.run.logging.console import Progress, device_name, duration
from jaxrl.run.loop import train
from jaxrl.run.signals import StopSignal
from jaxrl.run.stopping import LIMITS, check_stop, last_iteration
from jaxrl.sweeps.lineage import Lineage
from jaxrl.sweeps.metric_readers import check_metric, check_path, readers_of
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.outcomes import DIVERGED, DROPPED, shown
from jaxrl.sweeps.placement import (
    SPLIT,
    batch_size,
    lanes_of,
    memory_of,
    most_that_fit,
    num_lanes,
    side_by_side,
)
from jaxrl.sweeps.population import Population, check_population
from jaxrl.sweeps.reporting import Reporter, TrialLoop
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.sweep_folder import SweepFolder
from jaxrl.sweeps.trial_state import TrialState, numbers_for, unstacked
from jaxrl.sweeps.trial_view import check_callbacks
from jaxrl.sweeps.trials import Trial, TrialGroup, groups_of, programs_of_equal_environments
from jaxrl.sweeps.vmapped import Numbers, State, VmappedTrials, done_members, known, program_of

# Diverged trials whose source is looked for: each has its rollout played again, which compiles.
TRACED_BACK = 3


class Scheduler:
    """A sweep's trials, from the plan to their outcomes.

    Raises:
        UsageError: a metric or a criterion that no result has; nothing is compiled yet.
    """

    def __init__(self, trials: Sequence[Trial], order: SweepOptions, progress: Progress):
        self.order, self.progress, self.trials = order, progress, list(trials)
        self.interrupt = StopSignal(progress.say)
        self.sweep = Sweep([], order.metric, None)
        self.groups = groups_of(trials)
        self.trial_states: dict[int, TrialState] = {}
        self.lanes: dict[int, int] = {}  # {group: the device that it has for itself, or SPLIT}
        self.sizes: dict[int, int] = {}  # {group: how many of its trials train at once}
        self.done: dict[int, int] = {}  # {group: how many are finished of the batch that trains}
        self.num_diverged = 0
        # Shared by all lanes.
        self.figures, self.keeping = threading.Lock(), threading.Lock()
        self.broken_off = False
        self.settings = order.trial_settings
        self.population: Population | None = None
        self.moments = [self.settings.evaluations]
        check_stop(order.stop, None)
        if order.scheduler is not None:
            interval = self.settings.evaluation_interval
            check_population(order.scheduler, self.groups, order.metric, interval)
            self.moments.append(order.scheduler.rounds)
        self.criteria = tuple(path for path in order.stop if path not in LIMITS)
        self.settings.refuse_for_jax(trials[0].config.env_name)
        for group in self.groups:
            check_callbacks(group.trials[0].config)
            algorithm = group.algorithm
            readers = readers_of(algorithm, group.shapes.metrics)
            evaluated = self.settings.evaluation_interval is not None
            check_metric(order.metric, readers, evaluated=evaluated)
            for path in self.criteria:
                check_path(path, readers, "stop criterion")
            if order.batch_size == "auto":
                # At least one, or it is refused before a folder is made.
                fit = most_that_fit(group, order.devices)
            if order.scheduler is not None and order.batch_size == "auto":
                _check_fits(len(trials), fit, "memory holds", "fewer environments each")
            elif order.scheduler is not None:
                _check_fits(len(trials), order.batch_size, "batch_size is", "a larger batch_size")
            limit = last_iteration(order.stop, algorithm.num_env_steps)
            for trial in group.trials:
                last = int(min(limit, trial.config.num_updates))
                reporter = Reporter(trial, algorithm, last, self.settings, progress.say)
                self.trial_states[trial.number] = TrialState(trial, algorithm, last, reporter)

    def run(self, store: SweepFolder) -> Sweep:
        self.sweep.folder = store.path
        self._take_over(store)
        self._populate(store)
        self._place()
        self.progress.say(self.plan())
        begin = time.perf_counter()
        try:
            with self.interrupt.listening(), self.progress:
                for rung in self.rungs():
                    self._train_to_rung(rung, store)
                    if self.interrupt.heard:
                        break
        finally:
            for trial_state in self.trial_states.values():
                trial_state.reporter.logs.close()
            store.close()
            self.sweep.whole_seconds = time.perf_counter() - begin
        if self.population is not None and not self.trial_states:
            self.population.remove_checkpoints()
        return self.sweep

    def plan(self) -> str:
        """The plan of the sweep, in a few lines."""
        steps = sum(
            trial_state.last * trial_state.algorithm.num_env_steps
            for trial_state in self.trial_states.values()
        )
        programs = "one program" if len(self.groups) == 1 else f"{len(self.groups):,} programs"
        lines = [
            ("sweep", f"{_trials(len(self.trials))} in {programs}, {steps:,} environment steps")
        ]
        if (fewer := programs_of_equal_environments(self.groups)) < len(self.groups):
            what = (
                f"{fewer} would do if equal environments were equal objects: make the class of "
                f"{self.trials[0].config.env_name} a frozen dataclass"
            )
            lines.append(("programs", what))
        for i, group in enumerate(self.groups):
            size = self.sizes.get(i, 0)
            what = (
                f"{_trials(len(group.trials))}, {size:,} at once in about "
                f"{in_units(size * memory_of(group))}; "
                f"{group.trials[0].config.num_updates:,} iterations"
            )
            lines.append((f"program {i}", what))
        if self.order.scheduler is not None:
            iterations = self.groups[0].trials[0].config.num_updates  # the same in one program
            what = self.order.scheduler.describe(len(self.trials), iterations)
            lines.append(("population", what))
        split = f", the trials split over {self.order.devices}" if self.order.devices > 1 else ""
        if num_lanes(self.lanes) > 1:
            beside = f", {num_lanes(self.lanes)} programs side by side, a device each"
            split = beside + (f"; of others{split[1:]}" if SPLIT in self.lanes.values() else "")
        lines += [("device", f"{device_name()}{split}"), ("folder", self.sweep.folder)]
        return laid_out(lines)

    def rungs(self) -> list[float]:
        """The shares of the updates after which trials are compared; the last is 1."""
        if self.order.halving is None:
            return [1.0]
        number = int(math.log(len(self.trials), self.order.halving) + 1e-9)
        return [self.order.halving**-power for power in range(number, -1, -1)]

    @property
    def stopping(self) -> bool:
        return self.interrupt.heard or self.broken_off

    def _place(self) -> None:
        """Chooses the groups that train side by side and their batch sizes, when nothing trains."""
        left = {
            number: len(unfinished)
            for number, group in enumerate(self.groups)
            if (unfinished := self._unfinished(group))
        }
        self.lanes, self.sizes, self.done = lanes_of(left, self.order.devices), {}, {}
        beside, requested_size = max(1, num_lanes(self.lanes)), self.order.batch_size
        if requested_size == "auto" and any(
            most_that_fit(self.groups[number], 1, beside) < 1 for number in left
        ):
            self.lanes = dict.fromkeys(left, SPLIT)
        for number, trials in left.items():
            places = (1, beside) if self.lanes[number] != SPLIT else (self.order.devices, 1)
            self.sizes[number] = (
                trials
                if self.population is not None
                else batch_size(self.groups[number], trials, *places, requested_size)
            )

    def _take_over(self, store: SweepFolder) -> None:
        """Takes over a resumed sweep's results; all or none where the trials depend on another."""
        dependent = self.order.halving is not None or self.order.scheduler is not None
        if dependent and len(store.over) < len(self.trials):
            store.forget()
        self.sweep.outcomes = store.outcomes(self.trials)
        for outcome in self.sweep.outcomes:
            del self.trial_states[outcome.trial.number]

    def _populate(self, store: SweepFolder) -> None:
        """Makes the population, if the trials are one; a resumed one is where its folder says."""
        if self.order.scheduler is None:
            return
        if not self.trial_states:
            self.sweep.lineage = Lineage([trial.settings for trial in self.trials])
            self.sweep.lineage.read(store.path)
            return
        members = [self.trial_states[trial.number] for trial in self.trials]
        self.population = Population(self.order.scheduler, members, store.path)
        self.sweep.lineage = self.population.lineage

    def _unfinished(self, group: TrialGroup) -> list[TrialState]:
        return [
            self.trial_states[trial.number]
            for trial in group.trials
            if trial.number in self.trial_states
        ]

    def _train_to_rung(self, rung: float, store: SweepFolder) -> None:
        """Trains all that are left up to this share of their updates; finished ones leave."""
        self._place()
        side_by_side(
            lambda number: self._climb_group(number, rung, store), self.lanes, self._break_off
        )
        for number, lane in self.lanes.items():
            if lane == SPLIT:
                self._climb_group(number, rung, store)
        if self.order.halving is None or self.broken_off:
            return
        over = [
            trial_state
            for trial_state in self.trial_states.values()
            if trial_state.status != DROPPED
        ]
        self._conclude(over, store)
        left = sorted(
            self.trial_states.values(),
            key=lambda trial: -math.inf if trial.score is None else trial.score,
        )
        keep = -(-len(left) // self.order.halving)
        self._conclude(left[: len(left) - keep], store)

    def _climb_group(self, number: int, rung: float, store: SweepFolder) -> None:
        """One group; notes it where it was broken off."""
        resumed = self.population is not None and self.population.is_resumed
        trial_states, size = self._unfinished(self.groups[number]), self.sizes[number]
        for begin in range(0, len(trial_states), size):
            batch = trial_states[begin : begin + size]
            for trial_state in batch:
                if trial_state.state is None and not self.stopping:
                    arguments = trial_state.trial, trial_state.algorithm, self.settings
                    trial_state.reporter.open(store.open_trial(*arguments, resumed=resumed))
            if self.stopping or not self._train(number, batch, size, rung):
                self._break_off()
                return
            if self.order.halving is None:
                with self.keeping:
                    self._conclude(batch, store)
                    self.done[number] = 0

    def _break_off(self) -> None:
        self.broken_off = True

    def _train(self, number: int, batch: list[TrialState], size: int, rung: float) -> bool:
        """Trains a batch up to a rung; whether it was not broken off."""
        is_split = self.lanes[number] == SPLIT and size >= self.order.devices
        devices = self.order.devices if is_split else 1
        padding = -(-size // devices) * devices - len(batch)
        members, state, numbers = self._begin(number, batch, padding, rung, devices)
        population, reporters = self.population, [trial_state.reporter for trial_state in batch]
        loop = TrialLoop(members, state, numbers, reporters, lambda: self.stopping)
        begin = time.perf_counter()
        for _ in train(loop, self.moments):
            scores = np.asarray(loop.last_rows.score)
            for i, trial_state in enumerate(batch):
                trial_state.add_scores(scores[: loop.moved[i], i].tolist(), self.order.metric)
            with self.figures:
                self._show(number, batch, loop)
            if population is not None and population.is_due(loop.state, loop.numbers):
                loop.state, loop.numbers = population.perturb(loop.state, loop.numbers)
                population.save(loop.state)
        if loop.iterations_left:
            if population is not None:
                population.save(loop.state, now=True)
            return False
        with self.figures:
            self.sweep.seconds += time.perf_counter() - begin
        for trial_state, part in zip(batch, unstacked(loop.state, len(batch)), strict=True):
            trial_state.state = part
        return True

    def _begin(
        self, number: int, batch: list[TrialState], padding: int, rung: float, devices: int
    ) -> tuple[VmappedTrials, State, Numbers]:
        """(the program of a batch, the state that it continues from, its numbers).

        Args:
            padding: members that fill the program up: the first trial's, without updates to make.
        """
        filled = [*batch, *[batch[0]] * padding]
        lasts = [least_count(rung, trial_state.last) for trial_state in batch] + [0] * padding
        least = [self.order.stop[path] for path in self.criteria]
        numbers = numbers_for([trial_state.trial for trial_state in filled], lasts, least)
        resumed = self.population is not None and self.population.is_resumed
        starts = batch[0].state is None and not resumed
        members = self._program(number, numbers, devices, starts=starts)
        if starts:
            return members, members.start(numbers), numbers
        if resumed:
            return members, *self.population.resumed(members.state_shapes, numbers)
        return members, stacked([trial_state.state for trial_state in filled]), numbers

    def _program(
        self, number: int, numbers: Numbers, devices: int, *, starts: bool
    ) -> VmappedTrials:
        """The program of a group for the number of members."""
        arguments = (self.groups[number], numbers, self.order.metric, self.criteria, devices)
        members = known(*arguments)
        if members is None:
            self.progress.say(
                f"compiling program {number} for {_trials(numbers.last.shape[0])} at once ..."
            )
            members = program_of(*arguments)
            if starts:
                members.compile_start()
            with self.figures:
                self.sweep.programs += 1
                self.sweep.compile_seconds += members.compile_seconds
            memory = (
                "" if members.peak is None else f"; {in_units(members.peak * devices)} at its peak"
            )
            self.progress.say(
                f"compiled program {number} in {members.compile_seconds:.1f} s{memory}"
            )
        return members

    def _show(self, number: int, batch: Sequence[TrialState], loop: TrialLoop) -> None:
        """A line on where a batch of the group stands."""
        state, numbers, seconds, moved = loop.state, loop.numbers, loop.seconds, loop.moved
        updates, last = np.array(state.runner.num_updates), np.asarray(numbers.last)
        steps = batch[0].algorithm.num_env_steps
        scores = [trial_state.score for trial_state in batch if trial_state.score is not None]
        self.done[number] = int(np.sum(done_members(state, numbers)[: len(batch)]))
        over = len(self.sweep.outcomes) + sum(self.done.values())
        name = [f"program {number}"] if len(self.groups) > 1 else []
        parts = [
            f"{over:,} of {len(self.trials):,} finished",
            *name,
            f"iteration {updates.max():,} of {last.max():,}",
        ]
        if scores:
            parts.append(f"best {max(scores):.2f}, median {np.median(scores):.2f}")
        parts.append(f"{moved[: len(batch)].sum() * steps / seconds:,.0f} steps/s")
        left = (last.max() - updates.max()) * seconds / max(1, moved.max())
        self.progress.show_line("  ".join([*parts, f"{duration(left)} left of this batch"]))

    def _conclude(self, trial_states: Sequence[TrialState], store: SweepFolder) -> None:
        """Writes and reports the outcomes of finished trials."""
        for trial_state in trial_states:
            outcome, snapshot = trial_state.conclude()
            if outcome.status == DIVERGED:
                outcome.reason = self._why_diverged(trial_state)
            if self.population is not None:
                store.restate(outcome.trial, trial_state.algorithm, self.settings)
            written = store.record(outcome, trial_state.algorithm, self.settings, snapshot)
            with trial_state.reporter.showing(snapshot.runner):
                if written is not None:
                    trial_state.reporter.callbacks.call("on_checkpoint", written)
                trial_state.reporter.close()
            self.sweep.outcomes.append(outcome)
            del self.trial_states[trial_state.trial.number]

    def _why_diverged(self, trial_state: TrialState) -> str:
        """The bad number; for the first few diverged trials also its source, printed at once."""
        trial, state = trial_state.trial, trial_state.state
        reason = f"iteration {trial_state.updates + 1}: {trial_state.reporter.bad}"
        self.num_diverged += 1
        if self.num_diverged <= TRACED_BACK:
            reason = with_source(reason, trial.config, state.runner, trial.numbers[1])
            settings = shown(trial.settings)
            self.progress.say(f"trial {trial.name} ({settings}) has diverged: {reason}")
        return reason


def _check_fits(members: int, fit: float, limit: str, instead: str) -> None:
    """Refuses a population of which not all members can train at once."""
    if fit < members:
        raise UsageError(
            f"a population of {members:,} members trains at once, and {limit} {fit:,}: give fewer "
            f"members, or {instead}"
        )


def _trials(number: int) -> str:
    return f"{number:,} trial{'' if number == 1 else 's'}"
