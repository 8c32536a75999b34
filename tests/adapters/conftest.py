"""What tests with other libraries' environments share."""

import jax
import pytest


@pytest.fixture
def rank_promotion():
    """Allows what our own code does without, and that of other libraries needs."""
    before = jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_rank_promotion", "allow")  # for the threads of callbacks, too
    yield
    jax.config.update("jax_numpy_rank_promotion", before)
