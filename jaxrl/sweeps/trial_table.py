"""The table of a sweep's trials that a terminal shows while they train."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.table import Table

from jaxrl.sweeps.outcomes import MAX, TrialResult, merit, short, shown
from jaxrl.sweeps.trials import Trial

# Beside the statuses of finished trials; one that waits is at its rung, others not yet.
RUNNING, PENDING, WAITING = "running", "pending", "waiting"
OTHER_LINES = 6  # of a terminal: the table's head, its frame and the line below it
FEWEST = 3  # trials that are shown, however low the terminal is


class TrialRow(NamedTuple):
    """A trial and how far it has come."""

    trial: Trial
    status: str = PENDING
    iteration: int = 0
    score: float | None = None


def rows_of(
    trials: Iterable[Trial],
    outcomes: Iterable[TrialResult],
    running: Iterable[TrialRow],
    mode: str = MAX,
) -> list[TrialRow]:
    """A row for each trial, the best first; those without a score last."""
    rows = {trial.number: TrialRow(trial) for trial in trials}
    rows |= {row.trial.number: row for row in running}
    for outcome in outcomes:
        found = outcome.trial, outcome.status, outcome.iterations, outcome.score
        rows[outcome.trial.number] = TrialRow(*found)
    rank = lambda row: (merit(row.score, mode), row.status != PENDING)
    return sorted(rows.values(), key=rank, reverse=True)


def trial_table(rows: Sequence[TrialRow], metric: str, height: int) -> Table:
    """The first rows as a table for a terminal of so many lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("trial", "settings", "seed", "status"):
        table.add_column(title, no_wrap=True)
    for title in ("iteration", metric.rpartition("/")[2]):
        table.add_column(title, justify="right", no_wrap=True)
    most = max(FEWEST, height - OTHER_LINES)
    most = most if len(rows) <= most else most - 1
    for row in rows[:most]:
        score = "" if row.score is None else short(float(row.score))
        settings, seed = shown(row.trial.settings), str(row.trial.config.seed)
        named = row.trial.name, settings, seed, row.status
        table.add_row(*named, f"{row.iteration:,}", score)
    if len(rows) > most:
        table.add_row("...", f"{len(rows) - most:,} more")
    return table
