"""A search at work: batches of proposed trials, each trained as a sweep of its own."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.plan import Line
from jaxrl.run.logging.console import Progress
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.outcomes import merit, shown
from jaxrl.sweeps.search import Search, Settings, propose, tried_of, write_journal
from jaxrl.sweeps.sweep_run import SweepRun
from jaxrl.sweeps.trials import Trial, trials_of

MakeRun = Callable[[Sequence[Trial], SweepOptions, Progress], SweepRun]


class SearchRun(SweepRun):
    """The trials of a search, from the first batch to the last.

    Args:
        trials: those of the first batch, or of a resumed search all that were proposed.
        config: that they are made of.
        make_run: makes the sweep of one batch.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        order: SweepOptions,
        progress: Progress,
        config: Any,
        make_run: MakeRun,
    ):
        super().__init__(trials, order, progress)
        self.config, self.make_run = config, make_run
        self.search: Search = order.search
        batches = self._batches()
        # Checked before anything is written; its programs are compiled as it trains.
        self.next_run = make_run(batches[0], order, progress)

    def plan_lines(self) -> list[Line]:
        lines: list[Line] = [("search", self.search.describe())]
        for label, text in self.next_run.plan_lines():
            lines.append(("batch" if label == "sweep" else label, text))
        return lines

    def take_over(self) -> None:
        """Takes over a resumed search's outcomes."""
        is_finished = True
        for batch in self._batches():
            run = self._run_of(batch)
            run.take_over()
            self.sweep.outcomes += run.sweep.outcomes
            if is_finished:
                self.next_run = run
            is_finished = is_finished and len(run.sweep.outcomes) == len(batch)

    def train(self) -> None:
        number = 0
        while not self.interrupt.heard:
            batches = self._batches()
            if number == len(batches):
                if not self._propose():
                    break
                batches = self._batches()
            self._train(number, batches[number])
            number += 1
        write_journal(self.search, tried_of(self.sweep.outcomes), self.store.path)

    def _train(self, number: int, batch: list[Trial]) -> None:
        """Trains a batch, if it is not finished."""
        finished = {outcome.trial.number for outcome in self.sweep.outcomes}
        if all(trial.number in finished for trial in batch):
            return
        run = self._run_of(batch)
        run.take_over()
        before = len(run.sweep.outcomes)
        if number:
            self.progress.say(self._beginning(number, batch))
        try:
            run.train()
        finally:
            run.close()
            self.sweep.outcomes += run.sweep.outcomes[before:]
            self.sweep.seconds += run.sweep.seconds
            self.sweep.compile_seconds += run.sweep.compile_seconds
            self.sweep.programs += run.sweep.programs

    def _run_of(self, batch: Sequence[Trial]) -> SweepRun:
        """The sweep of a batch, in this one's folder; Ctrl-C stops both."""
        run = self.make_run(batch, self.order, self.progress)
        run.store, run.interrupt = self.store, self.interrupt
        run.sweep.folder = self.sweep.folder
        return run

    def _beginning(self, number: int, batch: Sequence[Trial]) -> str:
        scored = [tried for tried in tried_of(self.sweep.outcomes) if tried.score is not None]
        line = f"batch {number + 1:,} of {self.search.num_batches:,}: {len(batch):,} trials"
        if scored:
            best = max(scored, key=lambda tried: merit(tried.score, self.order.mode))
            line += f"; the best so far {best.score:.2f}, {shown(best.settings)}"
        return line

    def _batches(self) -> list[list[Trial]]:
        """The trials in the batches in which they were proposed."""
        begins = range(0, len(self.trials), self._size)
        return [self.trials[begin : begin + self._size] for begin in begins]

    @property
    def _size(self) -> int:
        """The trials of a whole batch."""
        return self.search.batch * len(self.search.seeds)

    def _propose(self) -> bool:
        """Proposes the next batch, and writes it down before it trains; False if there is none."""
        tried = tried_of(self.sweep.outcomes)
        if not self.search.next_number(len(tried)):
            return False
        proposed: list[Settings] = []
        if self.trials[-1].number + 1 == self._size * len(self._batches()):  # else none were left
            reasons: list[str] = []
            allowed = lambda settings: reason_against(self.config, settings, reasons)
            proposed = propose(self.search, tried, allowed, self.store.path)
            if reasons:
                self.progress.say_once(f"warning: proposals are left out: {reasons[0]}")
        if not proposed:
            self.progress.say(
                f"warning: the search ends after {len(tried):,} of {self.search.trials:,} "
                "settings: no others were found that are allowed"
            )
        for trial in trials_of(self.config, proposed, self.search.seeds):
            self.trials.append(Trial(len(self.trials), trial.settings, trial.config))
        self.store.restate_trials(self.trials)
        return bool(proposed)


def first_trials(config: Any, search: Search) -> list[Trial]:
    """The trials of the first batch.

    Raises:
        UsageError: none is allowed.
    """
    proposed = propose(search, (), lambda settings: reason_against(config, settings, []))
    return trials_of(config, proposed, search.seeds)


def reason_against(config: Any, settings: Settings, reasons: list[str]) -> str:
    """The reason why settings cannot be trained, which is added to `reasons`; mostly empty."""
    try:
        trials_of(config, [settings], [config.seed])
    except UsageError as error:
        reasons.append(one_line(error))
        return str(error)
    return ""
