"""The table of trials: the best first, as many as a terminal has lines."""

import io

import pytest
from rich.console import Console

from jaxrl import PPOConfig
from jaxrl.run.logging.console import Progress
from jaxrl.sweeps.outcomes import TERMINATED, TrialResult
from jaxrl.sweeps.trial_table import RUNNING, TrialRow, rows_of, trial_table
from jaxrl.sweeps.trials import Trial

METRIC = "env_runners/episode_return_mean"
TRIALS = [
    Trial(i, {"lr": rate}, PPOConfig(env="arena")) for i, rate in enumerate((1e-3, 1e-2, 0.1))
]


def progress_with(*, is_terminal):
    console = Console(
        file=io.StringIO(), force_terminal=is_terminal, width=80, height=20, color_system=None
    )
    return Progress(console=console)


def rows(mode="max"):
    finished = TrialResult(TRIALS[0], TERMINATED, {"training_iteration": 40}, 12.5)
    return rows_of(TRIALS, [finished], [TrialRow(TRIALS[2], RUNNING, 1000, 30.25)], mode)


def table(height=20):
    return trial_table(rows(), METRIC, height)


def test_the_best_trial_comes_first_and_those_that_wait_last():
    assert [(row.trial.number, row.status) for row in rows()] == [
        (2, "running"),
        (0, "terminated"),
        (1, "pending"),
    ]
    assert [row.trial.number for row in rows("min")] == [0, 2, 1]


def test_a_terminal_shows_the_table_above_the_line():
    progress = progress_with(is_terminal=True)
    with progress:
        progress.show_line("1 of 3 finished", table)
        shown = progress.console.file.getvalue()
    lines = [line.split() for line in shown.splitlines()]
    head = ["trial", "settings", "seed", "status", "iteration", "episode_return_mean"]
    first = next(i for i, words in enumerate(lines) if words == head)
    assert lines[first + 1 : first + 5] == [
        ["0002", "lr=0.1", "0", "running", "1,000", "30.25"],
        ["0000", "lr=0.001", "0", "terminated", "40", "12.5"],
        ["0001", "lr=0.01", "0", "pending", "0"],
        ["1", "of", "3", "finished"],
    ]


def test_elsewhere_there_are_plain_lines():
    progress = progress_with(is_terminal=False)
    with progress:
        progress.show_line("1 of 3 finished", table)
    assert progress.console.file.getvalue() == "1 of 3 finished\n"


@pytest.mark.parametrize(("height", "number"), [(20, 3), (9, 3), (0, 3)])
def test_the_table_has_as_many_rows_as_the_terminal_has_lines(height, number):
    assert table(height).row_count == number
    many = [TrialRow(Trial(i, {}, TRIALS[0].config)) for i in range(50)]
    assert trial_table(many, METRIC, height).row_count == max(3, height - 6)
