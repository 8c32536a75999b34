"""Trials at work: each group of them one program, its members in batches that fit into memory."""

import math
import threading
import time
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from jaxrl.core.errors import UsageError
from jaxrl.core.fields import least_count
from jaxrl.core.machine import in_units
from jaxrl.core.plan import Line
from jaxrl.run.devices.mesh import stacked
from jaxrl.run.divergence import with_source
from jaxrl.run.every import Every
from jaxrl.run.logging.console import Progress, device_name, duration
from jaxrl.run.loop import train
from jaxrl.run.stopping import SECONDS
from jaxrl.sweeps.lineage import Lineage
from jaxrl.sweeps.metric_readers import readers_of
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.outcomes import DIVERGED, DROPPED, merit, shown
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
from jaxrl.sweeps.sweep_run import SweepRun
from jaxrl.sweeps.trial_state import TrialState, numbers_for, unstacked
from jaxrl.sweeps.trial_table import RUNNING, WAITING, TrialRow, rows_of, trial_table
from jaxrl.sweeps.trial_view import check_callbacks, refuse_numbers_of_the_host
from jaxrl.sweeps.trials import Trial, TrialGroup, groups_of, programs_of_equal_environments
from jaxrl.sweeps.vmapped import Numbers, State, VmappedTrials, done_members, known, program_of

# Diverged trials whose source is looked for: each has its rollout played again, which compiles.
TRACED_BACK = 3


class Scheduler(SweepRun):
    """Trials that are trained together, in a compiled program for each group of them."""

    def __init__(self, trials: Sequence[Trial], order: SweepOptions, progress: Progress):
        super().__init__(trials, order, progress)
        # The clock is the host's: no program reads it.
        most_seconds = self.criteria.pop(SECONDS, math.inf)
        self.groups = groups_of(trials)
        self.trial_states: dict[int, TrialState] = {}
        self.lanes: dict[int, int] = {}  # {group: the device that it has for itself, or SPLIT}
        self.sizes: dict[int, int] = {}  # {group: how many of its trials train at once}
        self.done: dict[int, int] = {}  # {group: how many are finished of the batch that trains}
        self.rows: dict[int, TrialRow] = {}  # of the trials that train or have trained, by number
        self.num_diverged = 0
        # Shared by all lanes.
        self.figures, self.keeping = threading.Lock(), threading.Lock()
        self.broken_off = False
        self.population: Population | None = None
        self.moments = [self.settings.evaluations, Every(self.settings.checkpoint_frequency)]
        if order.scheduler is not None:
            interval = self.settings.evaluation_interval
            check_population(order.scheduler, self.groups, order.metric, interval)
            self.moments.append(order.scheduler.rounds)
        self.settings.refuse_for_jax(trials[0].config.env_name)
        for group in self.groups:
            check_callbacks(group.trials[0].config)
            readers = readers_of(group.algorithm, group.shapes.metrics)
            paths = {order.metric: "metric", **dict.fromkeys(self.criteria, "stop criterion")}
            refuse_numbers_of_the_host(group.trials[0].config, paths, readers)
            self.check_names(readers)
            self._check_size(group)
            for trial in group.trials:
                last = self.last_of(trial, group.algorithm)
                reporter = Reporter(trial, group.algorithm, last, self.settings, progress.say)
                reporter.most_seconds = most_seconds
                self.trial_states[trial.number] = TrialState(trial, group.algorithm, last, reporter)

    def _check_size(self, group: TrialGroup) -> None:
        """Refuses trials that are too large, before a folder is made."""
        order, number = self.order, len(self.trials)
        if order.batch_size == "auto":
            fit = most_that_fit(group, order.devices)  # at least one
            if order.scheduler is not None:
                _check_fits(number, fit, "memory holds", "fewer environments each")
        elif order.scheduler is not None:
            _check_fits(number, order.batch_size, "batch_size is", "a larger batch_size")

    def take_over(self) -> None:
        """Takes over a resumed sweep's results; all or none where the trials depend on another."""
        dependent = self.order.halving is not None or self.order.scheduler is not None
        if dependent and any(trial.number not in self.store.over for trial in self.trials):
            self.store.forget(self.trials)
        super().take_over()
        for outcome in self.sweep.outcomes:
            del self.trial_states[outcome.trial.number]
        if self.store.path is not None:
            for trial_state in self.trial_states.values():
                trial_state.reporter.view.run_dir = self.store.folder_of(trial_state.trial)
        self._populate()
        self._place()

    def train(self) -> None:
        for rung in self.rungs():
            self._train_to_rung(rung)
            if self.interrupt.heard:
                return

    def close(self) -> None:
        for trial_state in list(self.trial_states.values()):  # a lane may still be at work
            trial_state.reporter.logs.close()
        if self.population is not None and not self.trial_states:
            self.population.remove_checkpoints()

    def plan_lines(self) -> list[Line]:
        steps = 0
        for trial_state in self.trial_states.values():
            steps += trial_state.last * trial_state.algorithm.num_env_steps
        programs = "one program" if len(self.groups) == 1 else f"{len(self.groups):,} programs"
        number = f"{_trials(len(self.trials))} in {programs}"
        lines = [("sweep", f"{number}, {steps:,} environment steps")]
        first = self.groups[0]
        iterations = self.last_of(first.trials[0], first.algorithm)
        if (fewer := programs_of_equal_environments(self.groups)) < len(self.groups):
            advice = f"make the class of {self.trials[0].config.env_name} a frozen dataclass"
            equal = f"{fewer} would do if equal environments were equal objects: {advice}"
            lines.append(("programs", equal))
        for i, group in enumerate(self.groups):
            size = self.sizes.get(i, 0)
            memory = in_units(size * memory_of(group))
            number = f"{_trials(len(group.trials))}, {size:,} at once in about {memory}"
            last = self.last_of(group.trials[0], group.algorithm)
            lines.append((f"program {i}", f"{number}; {last:,} iterations"))
        if self.order.scheduler is not None:  # whose members are in one program
            rounds = self.order.scheduler.describe(len(self.trials), iterations)
            lines.append(("population", rounds))
        split = f", the trials split over {self.order.devices}" if self.order.devices > 1 else ""
        if num_lanes(self.lanes) > 1:
            beside = f", {num_lanes(self.lanes)} programs side by side, a device each"
            split = beside + (f"; of others{split[1:]}" if SPLIT in self.lanes.values() else "")
        return [*lines, ("device", f"{device_name()}{split}")]

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
        numbers = [len(self._unfinished(group)) for group in self.groups]
        left = {i: number for i, number in enumerate(numbers) if number}
        self.lanes, self.sizes, self.done = lanes_of(left, self.order.devices), {}, {}
        beside, requested_size = max(1, num_lanes(self.lanes)), self.order.batch_size
        if requested_size == "auto":
            room = [most_that_fit(self.groups[number], 1, beside) for number in left]
            if min(room, default=1) < 1:
                self.lanes = dict.fromkeys(left, SPLIT)
        for number, trials in left.items():
            places = (1, beside) if self.lanes[number] != SPLIT else (self.order.devices, 1)
            self.sizes[number] = trials
            if self.population is None:
                size = batch_size(self.groups[number], trials, *places, requested_size)
                self.sizes[number] = size

    def _populate(self) -> None:
        """Makes the population, if the trials are one; a resumed one is where its folder says."""
        if self.order.scheduler is None:
            return
        if not self.trial_states:
            self.sweep.lineage = Lineage([trial.settings for trial in self.trials])
            self.sweep.lineage.read(self.store.path)
            return
        members = [self.trial_states[trial.number] for trial in self.trials]
        self.population = Population(
            self.order.scheduler, members, self.store.path, self.order.mode
        )
        self.sweep.lineage = self.population.lineage

    def _unfinished(self, group: TrialGroup) -> list[TrialState]:
        states = (self.trial_states.get(trial.number) for trial in group.trials)
        return [trial_state for trial_state in states if trial_state is not None]

    def _train_to_rung(self, rung: float) -> None:
        """Trains all that are left up to this share of their updates; finished ones leave."""
        self._place()
        climb = lambda number: self._climb_group(number, rung)
        side_by_side(climb, self.lanes, self._break_off)
        for number, lane in self.lanes.items():
            if lane == SPLIT:
                climb(number)
        if self.order.halving is None or self.broken_off:
            return
        states = list(self.trial_states.values())
        self._conclude([trial_state for trial_state in states if trial_state.status != DROPPED])
        rank = lambda trial_state: merit(trial_state.score, self.order.mode)
        left = sorted(self.trial_states.values(), key=rank)
        num_left = -(-len(left) // self.order.halving)
        self._conclude(left[: len(left) - num_left])

    def _climb_group(self, number: int, rung: float) -> None:
        """One group; notes it where it was broken off."""
        resumed = self.population is not None and self.population.is_resumed
        trial_states, size = self._unfinished(self.groups[number]), self.sizes[number]
        for begin in range(0, len(trial_states), size):
            batch = trial_states[begin : begin + size]
            for trial_state in batch:
                if trial_state.state is None and not self.stopping:
                    arguments = trial_state.trial, trial_state.algorithm, self.settings
                    folder = self.store.open_trial(*arguments, resumed=resumed)
                    trial_state.reporter.view.run_dir = folder
                    trial_state.reporter.begin()
            if self.stopping or not self._train(number, batch, size, rung):
                self._break_off()
                return
            if self.order.halving is None:
                with self.keeping:
                    self._conclude(batch)
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
        goals = list(self.criteria.values())
        numbers = numbers_for([trial_state.trial for trial_state in filled], lasts, goals)
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
        arguments = self.groups[number], numbers, self.order.metric, tuple(self.criteria), devices
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
        done = done_members(state, numbers)
        self.done[number] = int(np.sum(done[: len(batch)]))
        parts = [self.finished_text(sum(self.done.values()))]
        if len(self.groups) > 1:
            parts.append(f"program {number}")
        parts.append(f"iteration {updates.max():,} of {last.max():,}")
        if scores:
            best = max(scores, key=lambda score: merit(score, self.order.mode))
            parts.append(f"best {best:.2f}, median {np.median(scores):.2f}")
        parts.append(f"{moved[: len(batch)].sum() * steps / seconds:,.0f} steps/s")
        left = (last.max() - updates.max()) * seconds / max(1, moved.max())
        members = zip(np.asarray(state.diverged), np.asarray(state.met), updates, strict=True)
        for trial_state, member, is_done in zip(batch, members, done, strict=False):
            status = trial_state.status_at(*member) if is_done else RUNNING
            status = WAITING if status == DROPPED else status
            row = trial_state.trial, status, int(member[-1]), trial_state.score
            self.rows[trial_state.trial.number] = TrialRow(*row)
        line = "  ".join([*parts, f"{duration(left)} left of this batch"])
        self.progress.show_line(line, self._table)

    def _table(self, height: int) -> Table:
        """The trials, for a terminal of so many lines."""
        rows = rows_of(self.trials, self.sweep.outcomes, self.rows.values(), self.order.mode)
        return trial_table(rows, self.order.metric, height)

    def _conclude(self, trial_states: Sequence[TrialState]) -> None:
        """Writes and reports the outcomes of finished trials."""
        for trial_state in trial_states:
            outcome, snapshot = trial_state.conclude()
            if outcome.status == DIVERGED:
                outcome.reason = self._why_diverged(trial_state)
            arguments = trial_state.trial, trial_state.algorithm, self.settings
            if self.population is not None:
                self.store.restate(*arguments)
            written = self.store.keep(*arguments, snapshot)
            self.add_outcome(outcome)
            with trial_state.reporter.showing(snapshot.runner):
                if written is not None:
                    trial_state.reporter.callbacks.call("on_checkpoint", written)
                trial_state.reporter.close()
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
