"""Values of a parameter that `.ci/run` leaves out to save time."""

import pytest


def by_hand(*values):
    """Values that only `-m slow` tries: the others of the parameter stand for them in CI."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
