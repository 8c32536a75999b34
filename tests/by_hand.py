"""Values of a parameter that `.ci/run` leaves out for their time."""

import pytest


def by_hand(*values):
    """Values that `-m slow` alone tries: others of the same parameter stand for them."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
