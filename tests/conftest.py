"""Every test runs with rank promotion an error: two shapes that meet by accident are a bug, not a broadcast."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
