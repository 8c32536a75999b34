"""Settings of a run: what they ask for after an iteration."""

import pytest

from jaxrl.run.settings import RunSettings


@pytest.mark.parametrize(
    ("interval", "iteration", "at_the_end", "due"),
    [(None, 4, True, False), (4, 4, False, True), (4, 6, False, False), (4, 6, True, True)],
)
def test_an_evaluation_is_due_at_its_interval_and_at_the_end(interval, iteration, at_the_end, due):
    settings = RunSettings(evaluation_interval=interval)
    assert settings.evaluates_after(iteration, at_the_end=at_the_end) == due
