"""What tests with other libraries' environments share."""

import jax
import pytest


@pytest.fixture
def rank_promotion():
    """Allows what our own code does without, and that of other libraries needs."""
    with jax.numpy_rank_promotion("allow"):
        yield
